//! The table of the ranks of a job.

use gputop_explain::ranks::{JobReport, RankRow, RankState, StackPlace};
use gputop_model::frame::Frame;
use gputop_model::process_group::Work;
use gputop_model::units::{MilliWatts, Millis, Percent};
use jiff::tz::TimeZone;

use super::emphasis::Emphasis;
use super::table::{Cell, Column, First, Hidden, SortKey};
use super::times::span_text;

/// A rank, with figures of its GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct RankLine {
    pub rank: RankRow,
    pub host: String,
    /// Address of the job's store, empty if unknown.
    pub job: String,
    pub sm: Option<Percent>,
    pub power: Option<MilliWatts>,
}

impl RankLine {
    /// Returns the lines of a job. `frame` is that of `host`.
    pub(super) fn of<'a>(
        report: &'a JobReport,
        frame: &'a Frame,
        host: &'a str,
    ) -> impl Iterator<Item = Self> + 'a {
        report.ranks.iter().map(|rank| {
            let index = rank.gpu.filter(|_| *rank.host == *host);
            let gpu = index.and_then(|index| frame.gpus.iter().find(|gpu| gpu.index == index));
            Self {
                rank: rank.clone(),
                host: rank.host.to_string(),
                job: report.job.store.as_deref().unwrap_or_default().to_owned(),
                sm: gpu.and_then(|gpu| gpu.sm.get()),
                power: gpu.and_then(|gpu| gpu.power.get()),
            }
        })
    }

    /// Returns how long the rank has waited in its oldest pending collective.
    fn waited(&self) -> Option<Millis> {
        match &self.rank.state {
            RankState::Waits { waited, .. } => *waited,
            _ => None,
        }
    }

    fn work(&self) -> Option<&Work> {
        self.rank.last.as_ref().map(|last| &last.work)
    }
}

const JOB: &str = "JOB";
const HOST: &str = "HOST";

pub const RANK_COLUMNS: &[Column<RankLine>] = &[
    Column::right("RANK", 4, 0, |line: &RankLine, _| Cell::text(line.rank.rank.to_string()), "Rank in the job.")
        .sorted(First::Smallest, |line| SortKey::whole(Some(line.rank.rank.into()))),
    Column::left(JOB, 16, 9, |line: &RankLine, _| Cell::text(line.job.clone()), "Address of the job's store.")
        .sorted(First::Smallest, |line| SortKey::text(Some(&line.job))),
    Column::left(HOST, 10, 2, |line: &RankLine, _| Cell::text(line.host.clone()), "Host of the rank.")
        .sorted(First::Smallest, |line| SortKey::text(Some(&line.host))),
    Column::right(
        "GPU",
        3,
        2,
        |line: &RankLine, _| Cell::known(line.rank.gpu.map(|gpu| gpu.to_string())),
        "GPU of the rank on its host.",
    ),
    Column::right(
        "PID",
        7,
        3,
        |line: &RankLine, _| Cell::text(line.rank.process.pid.to_string()),
        "Process of the rank.",
    ),
    Column::left("STATE", 17, 1, state, "Whether the rank runs, waits for others, or holds them up."),
    Column::right("FOR", 5, 2, waited, "How long it has waited.")
        .sorted(First::Largest, |line| SortKey::whole(line.waited().map(|waited| waited.0))),
    Column::left(
        "COLLECTIVE",
        18,
        4,
        collective,
        "The oldest collective that is pending, or the last that was called, with its number in the group.",
    )
    .sorted(First::Smallest, |line| SortKey::whole(line.work().map(|work| work.seq))),
    Column::right("ELEMENTS", 10, 7, elements, "Number of elements of its input."),
    Column::left(
        "DTYPE",
        8,
        9,
        |line: &RankLine, _| Cell::known(line.work().and_then(|work| work.dtype.clone())),
        "Data type of its input. PyTorch's flight recorder has it, which is on from torch 2.11 on.",
    ),
    Column::left("GROUP", 10, 5, group, "Process group of the collective."),
    Column::right("SM%", 4, 6, sm, "SM utilization of the GPU. A rank that waits in NCCL shows 100.")
        .sorted(First::Largest, |line| SortKey::number(line.sm.map(|sm| sm.0))),
    Column::right(
        "W",
        4,
        8,
        |line: &RankLine, _| Cell::known(line.power.map(|power| (power.0 / 1_000).to_string())),
        "Power of the GPU. A rank that waits draws little.",
    )
    .sorted(First::Largest, |line| SortKey::whole(line.power.map(|power| power.0.into()))),
    Column::rest(
        "WHERE",
        10,
        1,
        place,
        "The innermost line of the user's code in the main thread. Read while a rank waits.",
    ),
];

/// Returns the columns that tell jobs and hosts apart, where there is only one of them.
pub fn useless_columns<'a>(lines: impl Iterator<Item = &'a RankLine> + Clone) -> Hidden {
    let index = |title: &str| RANK_COLUMNS.iter().position(|column| column.title == title);
    let mut hidden = Hidden::default();
    let mut jobs = lines.clone().map(|line| &line.job);
    let mut hosts = lines.map(|line| &line.host);
    let (job, host) = (jobs.next(), hosts.next());
    let has_one_job = jobs.all(|other| Some(other) == job);
    let has_one_host = hosts.all(|other| Some(other) == host);
    for (has_one, title) in [(has_one_job, JOB), (has_one_host, HOST)] {
        if let Some(column) = index(title).filter(|_| has_one) {
            hidden.hide(column);
        }
    }
    hidden
}

fn state(line: &RankLine, _: &TimeZone) -> Cell {
    let emphasis = match &line.rank.state {
        RankState::Runs | RankState::NotReadYet => Emphasis::Dim,
        RankState::Waits { .. } => Emphasis::Normal,
        RankState::HoldsUp | RankState::InsideNccl | RankState::Stopped => Emphasis::Warn,
        RankState::NoProcess(_) | RankState::NotReadable(_) => Emphasis::Bad,
    };
    Cell::new(line.rank.state.to_string(), emphasis)
}

fn waited(line: &RankLine, _: &TimeZone) -> Cell {
    Cell::known(line.waited().map(span_text))
}

fn collective(line: &RankLine, _: &TimeZone) -> Cell {
    Cell::known(line.work().map(work_text))
}

/// Formats a collective as `ALLREDUCE #30`, or `#30` if its operation is not known.
pub fn work_text(work: &Work) -> String {
    format!("{} #{}", work.operation_name(), work.seq).trim_start().to_owned()
}

fn elements(line: &RankLine, _: &TimeZone) -> Cell {
    let input = line.work().and_then(|work| work.elements).map(|(input, _)| input);
    Cell::known(input.map(|input| input.to_string()))
}

fn group(line: &RankLine, _: &TimeZone) -> Cell {
    Cell::known(line.rank.last.as_ref().map(|last| last.group.to_string()))
}

fn sm(line: &RankLine, _: &TimeZone) -> Cell {
    Cell::known(line.sm.map(|sm| format!("{:.0}", sm.0)))
}

fn place(line: &RankLine, _: &TimeZone) -> Cell {
    match (&line.rank.place, &line.rank.state) {
        (_, RankState::NoProcess(exit)) => {
            let incident = exit.incident.as_deref().map(|incident| format!(" ({incident})"));
            let end = exit.description.as_deref().unwrap_or_default();
            Cell::text(format!("{end}{}", incident.unwrap_or_default()))
        }
        (Some(place), _) => Cell::text(place_text(place)),
        (None, _) => Cell::missing(),
    }
}

/// Formats a place in a program as `train.py:88 next_batch`.
fn place_text(place: &StackPlace) -> String {
    format!("{place} {}", place.function)
}
