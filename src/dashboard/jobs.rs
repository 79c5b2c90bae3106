//! Distributed jobs on one host: which rank waits for which.

use std::sync::Arc;

use gputop_explain::ranks::{
    JobReport, JobWatch, ProcessStatus, RankExit, RankObservation, RankRow, RankState, Verdict,
};
use gputop_model::frame::Frame;
use gputop_model::host::Hello;
use gputop_model::process::{Process, ProcessKey, RunState};
use gputop_model::process_group::RankReading;
use gputop_model::reading::{Missing, Reading, Reason};
use gputop_model::units::{Millis, Mono};

use super::exited::{ExitedProcess, ExitedProcesses};
use super::incidents::Incidents;
use super::rank_columns::RankLine;

/// Minimum time between two looks at the ranks.
const PERIOD: Millis = Millis(900);
/// Age at which an exit no longer explains why a rank is missing.
const MAX_EXIT_AGE: Millis = Millis(30 * 60_000);

/// The jobs with at least one rank on this host, and what the newest look at them showed.
#[derive(Debug, Default)]
pub struct Jobs {
    watch: JobWatch,
    reports: Vec<JobReport>,
    /// The ranks of all jobs, those of jobs that wait first.
    pub lines: Vec<RankLine>,
    /// The job to report: a PID or the address of its store. `None` for all.
    pub only: Option<String>,
    looked_at: Mono,
}

/// What else is known of the processes of a host.
pub(super) struct Known<'a> {
    pub hello: &'a Hello,
    pub exits: &'a ExitedProcesses,
    pub incidents: &'a Incidents,
}

impl Jobs {
    /// Looks at the ranks of a frame, at most once a second.
    pub(super) fn push(&mut self, frame: &Frame, known: &Known<'_>) {
        let has_ranks = !frame.ranks.is_empty() || !self.reports.is_empty();
        if !has_ranks || frame.mono.since(self.looked_at) < PERIOD {
            return;
        }
        self.looked_at = frame.mono;
        self.reports = self.watch.observe(frame.mono, &observations(frame, known));
        if let Some(only) = &self.only {
            self.reports.retain(|report| is_job(report, only));
        }
        self.reports.sort_by_key(|report| report.verdicts.is_empty());
        self.lines = self.reports.iter().flat_map(|report| RankLine::of(report, frame)).collect();
    }

    /// Returns the jobs, those in which ranks wait first.
    pub fn reports(&self) -> &[JobReport] {
        &self.reports
    }

    /// Returns the verdicts on all jobs, the most important of each job first.
    pub fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.reports.iter().flat_map(|report| &report.verdicts)
    }

    /// Returns the states of the ranks on a GPU.
    pub(super) fn states_on(&self, gpu: u32) -> impl Iterator<Item = &RankState> {
        let on_gpu = move |line: &&RankLine| line.rank.gpu == Some(gpu);
        self.lines.iter().filter(on_gpu).map(|line| &line.rank.state)
    }

    /// Returns the process of a rank that the most important verdict names.
    pub fn culprit(&self) -> Option<ProcessKey> {
        let report = self.reports.first()?;
        let culprits = &report.verdicts.first()?.culprits;
        let is_named = |rank: &&RankRow| culprits.contains(&rank.rank);
        report.ranks.iter().find(is_named).map(|rank| rank.process)
    }

    pub(super) fn clear(&mut self) {
        *self = Self { only: self.only.take(), ..Self::default() };
    }
}

/// Returns true if the text is the address of the job's store, or the PID of one of its ranks.
fn is_job(report: &JobReport, text: &str) -> bool {
    let has_pid = |rank: &RankRow| text.parse() == Ok(rank.process.pid.0);
    report.job.store.as_deref() == Some(text) || report.ranks.iter().any(has_pid)
}

fn observations(frame: &Frame, known: &Known<'_>) -> Vec<RankObservation> {
    let host: Arc<str> = known.hello.host.as_str().into();
    let observe = |reading: RankReading, status| RankObservation {
        host: Arc::clone(&host),
        gpu: gpu_of(frame, reading.process),
        reading,
        status,
    };
    let is_read = |key: ProcessKey| frame.ranks.iter().any(|reading| reading.process == key);
    let read = frame.ranks.iter().map(|reading| {
        let process = frame.process(reading.process);
        let rank = reading.rank.or_else(|| process?.rank.get());
        observe(RankReading { rank, ..reading.clone() }, status(process))
    });
    let processes = || frame.processes.iter().flat_map(|processes| &*processes.list);
    // A process with a rank of its own may belong to another job, or be the only one of its job.
    let is_sibling = |process: &Process| {
        let launcher = process.parent.as_ref().filter(|parent| parent.pid.0 > 1);
        let mut read = processes().filter(|other| is_read(other.key));
        launcher.is_some() && read.any(|read| read.parent.as_ref() == launcher)
    };
    let unread = processes().filter(|process| !is_read(process.key)).filter_map(|process| {
        let rank = process.rank.get().filter(|_| is_sibling(process))?;
        Some(observe(without_groups(process.key, Some(rank), frame.mono), ProcessStatus::Starting))
    });
    let is_recent = |ended: &&ExitedProcess| frame.mono.since(ended.mono) < MAX_EXIT_AGE;
    let exited = known.exits.iter().filter(is_recent).map(|ended| {
        let exit = RankExit {
            description: Some(exit_text(ended).into()),
            incident: known
                .incidents
                .of_process(&known.hello.boot_id, ended.key)
                .map(|incident| incident.incident.headline.as_str().into()),
        };
        observe(without_groups(ended.key, None, frame.mono), ProcessStatus::Exited(exit))
    });
    read.chain(unread).chain(exited).collect()
}

fn without_groups(process: ProcessKey, rank: Option<u32>, at: Mono) -> RankReading {
    let why = Missing::new(Reason::NotRead, "its process groups are not read yet");
    RankReading { process, at, rank, groups: Reading::Missing(why), ..RankReading::default() }
}

fn status(process: Option<&Process>) -> ProcessStatus {
    match process.map(|process| process.state) {
        Some(RunState::Stopped) => ProcessStatus::Stopped,
        _ => ProcessStatus::Running,
    }
}

/// Returns how the process ended, as the end of a sentence about it: `exited with 1`.
fn exit_text(ended: &ExitedProcess) -> String {
    match (ended.exit.signal.get(), ended.exit.status.get()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, Some(status)) => format!("exited with {status}"),
        (None, None) => "exited".to_owned(),
    }
}

fn gpu_of(frame: &Frame, process: ProcessKey) -> Option<u32> {
    let has_process = |gpu: &&gputop_model::Gpu| {
        gpu.processes.value().is_some_and(|list| list.iter().any(|p| p.key() == process))
    };
    frame.gpus.iter().find(has_process).map(|gpu| gpu.index)
}
