//! Distributed jobs on one host: which rank waits for which.

use gputop_explain::ranks::{
    JobReport, JobWatch, RankExit, RankObservation, RankRow, RankState, Verdict,
};
use gputop_model::frame::Frame;
use gputop_model::host::Hello;
use gputop_model::process::ProcessKey;
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

impl<'a> Known<'a> {
    fn recent_exits(&self, now: Mono) -> impl Iterator<Item = (ProcessKey, RankExit)> + use<'a> {
        let Self { hello, exits, incidents } = *self;
        let is_recent = move |ended: &&ExitedProcess| now.since(ended.mono) < MAX_EXIT_AGE;
        exits.iter().filter(is_recent).map(move |ended| {
            let incident = incidents.of_process(&hello.boot_id, ended.key);
            let incident = incident.map(|known| known.incident.headline.as_str().into());
            (ended.key, RankExit { incident, ..RankExit::of(&ended.exit) })
        })
    }
}

impl Jobs {
    /// Looks at the ranks of a frame, at most once a second.
    pub(super) fn push(&mut self, frame: &Frame, known: &Known<'_>) {
        let has_ranks = !frame.ranks.is_empty() || !self.reports.is_empty();
        if !has_ranks || frame.mono.since(self.looked_at) < PERIOD {
            return;
        }
        self.looked_at = frame.mono;
        let exits = known.recent_exits(frame.mono);
        let ranks = RankObservation::of_frame(&known.hello.host, frame, exits);
        self.reports = self.watch.observe(frame.mono, &ranks);
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
