//! The ranks of distributed jobs as text and JSON.

use std::fmt::Write as _;

use gputop_explain::ranks::{
    ConstantOffset, JobReport, MIN_ARRIVALS, RankList, RankRow, SlowRank, StackGroup, Verdict,
    ras_sentences,
};
use gputop_model::process_group::{GroupArrivals, ProcessGroup, RankReading, Work};
use gputop_model::ras::RasReport;
use gputop_model::reading::Reading;
use gputop_model::units::{Millis, Mono};
use jiff::tz::TimeZone;
use serde::Serialize;

use super::glyphs::Glyphs;
use super::tables;
use crate::dashboard::host_state::HostState;
use crate::dashboard::jobs::{Jobs, Ras};
use crate::dashboard::rank_columns::{RANK_COLUMNS, useless_columns, work_text};
use crate::dashboard::table::{Cell, Column, ColumnChoice};
use crate::dashboard::times::span_text;

const SCHEMA: u32 = 1;

/// Returns the verdicts, the table of ranks, and what else is known of the jobs.
pub fn text(host: &HostState, width: u16, glyphs: &Glyphs, zone: &TimeZone) -> String {
    let jobs = &host.jobs;
    let mut out = String::new();
    for verdict in jobs.verdicts() {
        let _ = writeln!(out, " {verdict}");
    }
    if !out.is_empty() {
        out.push('\n');
    }
    let hidden = useless_columns(jobs.lines.iter());
    let choice = ColumnChoice { hidden, ..ColumnChoice::default() };
    out += &tables::plain(RANK_COLUMNS, &choice, &jobs.lines, width, glyphs, zone);
    let notes = notes(jobs);
    if !notes.is_empty() {
        out.push('\n');
    }
    for note in notes {
        let _ = writeln!(out, " {note}");
    }
    out
}

/// Returns lines about the jobs that are not in the table: warnings, and ranks with equal stacks.
pub fn notes(jobs: &Jobs) -> Vec<String> {
    let of_job = |report: &JobReport| {
        let offsets = report.offsets.iter().map(ToString::to_string);
        // A rank with a stack of its own has it in the table.
        let shared = report.stacks.iter().filter(|group| group.ranks.len() > 1);
        let stacks = shared.map(|group| format!("{group}: {}", RankList(&group.ranks)));
        offsets.chain(stacks).collect::<Vec<_>>()
    };
    jobs.reports().iter().flat_map(of_job).collect()
}

/// Returns NCCL's answer about the ranks of all hosts, and whether each line names a difference. Empty if it was not
/// asked.
pub fn ras_lines(jobs: &Jobs) -> Vec<(String, bool)> {
    match jobs.ras() {
        None => Vec::new(),
        Some(Ras::Asked) => vec![("asking NCCL about all ranks".to_owned(), false)],
        Some(Ras::Answered(report)) => match &**report {
            Ok(report) => {
                let sentences = ras_sentences(report).into_iter().enumerate();
                let differences = report.differences.len();
                sentences.map(|(at, sentence)| (sentence, at < differences)).collect()
            }
            Err(why) => vec![(why.to_string(), false)],
        },
    }
}

/// Which rank of a group is slow, if any. An entry of `gputop ranks --slow --json`.
#[derive(Serialize)]
struct GroupLateness<'a> {
    /// Address of the job's store.
    job: Option<&'a str>,
    group: &'a str,
    /// Number of collectives of which the arrivals are known, and the number that a judgement needs.
    collectives: u32,
    needed: u32,
    /// Number of ranks in the group, and those on this host.
    size: u32,
    ranks: &'a [u32],
    slow: Option<SlowEntry>,
}

#[derive(Serialize)]
struct SlowEntry {
    rank: u32,
    share_percent: u8,
    lateness_ms: Millis,
    text: String,
}

impl<'a> GroupLateness<'a> {
    fn of(group: &'a GroupArrivals) -> Self {
        let slow = SlowRank::of(group).map(|slow| SlowEntry {
            rank: slow.rank,
            share_percent: slow.share,
            lateness_ms: slow.lateness,
            text: slow.to_string(),
        });
        Self {
            job: group.store.as_deref(),
            group: &group.group,
            collectives: group.collectives,
            needed: MIN_ARRIVALS,
            size: group.size,
            ranks: &group.ranks,
            slow,
        }
    }
}

/// Returns a line for each group that is used, and whether it names a slow rank. Empty before the first count.
pub fn slow_lines(jobs: &Jobs) -> Vec<(String, bool)> {
    let Some(mut groups) = jobs.arrivals() else { return Vec::new() };
    let has_groups = !groups.is_empty();
    groups.retain(|group| group.ranks.len() > 1);
    if has_groups && groups.is_empty() {
        let why = "no group has two ranks on this host, and ranks of other hosts are not compared";
        return vec![(why.to_owned(), false)];
    }
    groups.retain(|group| group.collectives > 0);
    if groups.is_empty() {
        return vec![("no collectives seen yet".to_owned(), false)];
    }
    // The groups of a mesh have the same description.
    let is_unique = |name: &str| groups.iter().filter(|group| group.group == name).count() == 1;
    let lines = groups.iter().map(|group| match is_unique(&group.group) {
        true => slow_line(group, &group.group),
        false => slow_line(group, &format!("{} of {}", group.group, RankList(&group.ranks))),
    });
    lines.collect()
}

fn slow_line(group: &GroupArrivals, name: &str) -> (String, bool) {
    let GroupArrivals { collectives, ranks, size, .. } = group;
    let slow = SlowRank::of(group);
    let text = match &slow {
        Some(slow) => format!("group {name}: {slow}"),
        None if *collectives < MIN_ARRIVALS => {
            format!("group {name}: {collectives} of {MIN_ARRIVALS} collectives seen")
        }
        None => {
            format!(
                "group {name}: no rank comes last to most of the last {collectives} collectives"
            )
        }
    };
    let is_part = u32::try_from(ranks.len()).is_ok_and(|here| here < *size);
    let part = format!(" (of its {} ranks on this host)", ranks.len());
    (text + if is_part { &part } else { "" }, slow.is_some())
}

/// A process group of one rank, as a table row.
struct GroupLine {
    group: ProcessGroup,
    /// Time of the reading.
    at: Mono,
}

const GROUP_COLUMNS: &[Column<GroupLine>] = &[
    Column::left(
        "GROUP",
        16,
        0,
        |line: &GroupLine, _| Cell::text(group_label(&line.group)),
        "Name of the group.",
    ),
    Column::right(
        "RANK",
        4,
        3,
        |line: &GroupLine, _| Cell::text(line.group.rank.to_string()),
        "Rank in the group.",
    ),
    Column::right(
        "SIZE",
        4,
        2,
        |line: &GroupLine, _| Cell::text(line.group.size.to_string()),
        "Number of ranks.",
    ),
    Column::right(
        "CALLED",
        9,
        1,
        |line: &GroupLine, _| Cell::reading(&line.group.called, u64::to_string),
        "Number of collectives called.",
    ),
    Column::right(
        "ENQUEUED",
        9,
        3,
        |line: &GroupLine, _| {
            Cell::known(line.group.enqueued.as_ref().map(|work| work.seq.to_string()))
        },
        "Number of the newest that NCCL accepted.",
    ),
    Column::right(
        "COMPLETED",
        9,
        2,
        |line: &GroupLine, _| {
            Cell::known(line.group.completed.as_ref().map(|work| work.seq.to_string()))
        },
        "Number of the newest that was seen completed.",
    ),
    Column::rest(
        "PENDING",
        12,
        1,
        |line: &GroupLine, _| Cell::known(pending(line)),
        "The oldest pending.",
    ),
];

/// Returns the description of a group, or its name if it has none.
fn group_label(group: &ProcessGroup) -> &str {
    if group.description.is_empty() { &group.name } else { &group.description }
}

/// Formats the oldest pending work as `ALLREDUCE #30 for 41s, 2 more`.
fn pending(GroupLine { group, at }: &GroupLine) -> Option<String> {
    let (oldest, more) = group.pending.value()?.split_first()?;
    let text =
        format!("{} for {}", work_text(&oldest.work), span_text(at.since(oldest.called_at())));
    Some(if more.is_empty() { text } else { format!("{text}, {} more", more.len()) })
}

/// Returns the table of a rank's process groups, or the reason why there is none.
pub fn groups_text(reading: &RankReading, width: u16, glyphs: &Glyphs) -> String {
    match &reading.groups {
        Reading::Value(groups) => {
            let lines: Vec<_> = groups
                .iter()
                .map(|group| GroupLine { group: group.clone(), at: reading.at })
                .collect();
            let choice = ColumnChoice::default();
            // The table contains no times of day.
            tables::plain(GROUP_COLUMNS, &choice, &lines, width, glyphs, &TimeZone::UTC)
        }
        Reading::Missing(why) => format!(" {why}\n"),
    }
}

/// The output of `gputop ranks --json`.
#[derive(Serialize)]
pub struct RankDocument<'a> {
    schema: u32,
    host: &'a str,
    jobs: Vec<JobEntry<'a>>,
    /// The process groups of each rank on this host.
    ranks: &'a [RankReading],
    /// Which rank of each group is slow. `None` if that was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    slow: Option<Vec<GroupLateness<'a>>>,
    /// NCCL's answer about the ranks of all hosts. `None` if it was not asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    ras: Option<Reading<RasReport>>,
}

#[derive(Serialize)]
struct JobEntry<'a> {
    store: Option<&'a str>,
    world_size: Option<u32>,
    verdicts: Vec<VerdictEntry<'a>>,
    offsets: Vec<OffsetEntry<'a>>,
    ranks: Vec<RankEntry<'a>>,
    stacks: Vec<StackEntry<'a>>,
}

#[derive(Serialize)]
struct VerdictEntry<'a> {
    text: String,
    culprits: &'a [u32],
    waiting: &'a [u32],
    group: &'a str,
    work: &'a Work,
    waited_ms: Millis,
}

#[derive(Serialize)]
struct OffsetEntry<'a> {
    text: String,
    ranks: &'a [u32],
    group: &'a str,
    offset: i64,
}

#[derive(Serialize)]
struct RankEntry<'a> {
    rank: u32,
    host: &'a str,
    pid: u32,
    gpu: Option<u32>,
    state: String,
    group: Option<&'a str>,
    work: Option<&'a Work>,
    pending_ms: Option<Millis>,
    function: Option<&'a str>,
    place: Option<String>,
}

#[derive(Serialize)]
struct StackEntry<'a> {
    ranks: &'a [u32],
    calls: &'a [String],
}

impl<'a> RankDocument<'a> {
    pub fn of(host: &'a HostState) -> Self {
        let job = |report: &'a JobReport| JobEntry {
            store: report.job.store.as_deref(),
            world_size: report.world_size,
            verdicts: report.verdicts.iter().map(VerdictEntry::of).collect(),
            offsets: report.offsets.iter().map(OffsetEntry::of).collect(),
            ranks: report.ranks.iter().map(RankEntry::of).collect(),
            stacks: report.stacks.iter().map(StackEntry::of).collect(),
        };
        let slow = host.jobs.arrivals();
        Self {
            schema: SCHEMA,
            slow: slow.map(|groups| groups.into_iter().map(GroupLateness::of).collect()),
            ras: match host.jobs.ras() {
                Some(Ras::Answered(report)) => Some(match &**report {
                    Ok(report) => Reading::Value(report.clone()),
                    Err(why) => Reading::Missing(why.clone()),
                }),
                Some(Ras::Asked) | None => None,
            },
            host: &host.hello.host,
            jobs: host.jobs.reports().iter().map(job).collect(),
            ranks: &host.frame.ranks,
        }
    }
}

impl<'a> VerdictEntry<'a> {
    fn of(verdict: &'a Verdict) -> Self {
        Self {
            text: verdict.to_string(),
            culprits: &verdict.culprits,
            waiting: &verdict.waiting,
            group: &verdict.group,
            work: &verdict.work,
            waited_ms: verdict.waited,
        }
    }
}

impl<'a> OffsetEntry<'a> {
    fn of(offset: &'a ConstantOffset) -> Self {
        Self {
            text: offset.to_string(),
            ranks: &offset.ranks,
            group: &offset.group,
            offset: offset.offset,
        }
    }
}

impl<'a> RankEntry<'a> {
    fn of(row: &'a RankRow) -> Self {
        let (last, place) = (row.last.as_ref(), row.place.as_ref());
        Self {
            rank: row.rank,
            host: &row.host,
            pid: row.process.pid.0,
            gpu: row.gpu,
            state: row.state.to_string(),
            group: last.map(|last| &*last.group),
            work: last.map(|last| &last.work),
            pending_ms: last.and_then(|last| last.pending),
            function: place.map(|place| &*place.function),
            place: place.map(ToString::to_string),
        }
    }
}

impl<'a> StackEntry<'a> {
    fn of(group: &'a StackGroup) -> Self {
        Self { ranks: &group.ranks, calls: &group.calls }
    }
}
