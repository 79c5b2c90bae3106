//! Distributed jobs with ranks on one host: which rank waits for which.

use std::sync::Arc;

use gputop_explain::ranks::{
    JobReport, JoinedJobs, RankExit, RankObservation, RankRow, RankState, Verdict,
};
use gputop_model::frame::Frame;
use gputop_model::host::Hello;
use gputop_model::process::ProcessKey;
use gputop_model::process_group::GroupArrivals;
use gputop_model::ras::RasReport;
use gputop_model::reading::Missing;
use gputop_model::units::{Millis, Mono};

use super::exited::{ExitedProcess, ExitedProcesses};
use super::incidents::Incidents;
use super::rank_columns::RankLine;

/// Age at which an exit no longer explains why a rank is missing.
const MAX_EXIT_AGE: Millis = Millis(30 * 60_000);

/// The jobs with at least one rank on this host, and what the newest look at them showed.
#[derive(Debug, Default)]
pub struct Jobs {
    /// The ranks of this host, and of the hosts that are shown with it.
    joined: JoinedJobs,
    /// Name of this host.
    host: String,
    /// The jobs of all hosts when they were last taken.
    all: Arc<[JobReport]>,
    reports: Vec<JobReport>,
    /// The ranks of all jobs, those of jobs that wait first.
    pub lines: Vec<RankLine>,
    /// Which ranks come last to collectives, while that is counted.
    arrivals: Option<Arc<Vec<GroupArrivals>>>,
    /// NCCL's own answer about the ranks of a job on all its hosts.
    ras: Option<Ras>,
    /// The job to report: a PID or the address of its store. `None` for all.
    pub only: Option<String>,
}

/// A question to NCCL.
#[derive(Debug, Clone)]
pub enum Ras {
    Asked,
    Answered(Arc<Result<RasReport, Missing>>),
}

/// Exits and incidents of a host's processes.
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
        let host = &known.hello.host;
        if !has_ranks || !self.joined.is_due(host, frame.mono) {
            return;
        }
        let exits = known.recent_exits(frame.mono);
        let ranks = RankObservation::of_frame(host, frame, exits);
        let reports = self.joined.push(host, frame.mono, ranks);
        self.host.clone_from(host);
        self.take(reports, frame);
    }

    /// Takes the jobs of all hosts, for a list of hosts.
    pub(super) fn take_all(&mut self) {
        let reports = self.joined.reports();
        if !Arc::ptr_eq(&reports, &self.all) {
            self.take(reports.to_vec(), &Frame::default());
            self.all = reports;
        }
    }

    /// `frame` is the newest frame of this host.
    fn take(&mut self, reports: Vec<JobReport>, frame: &Frame) {
        self.reports = reports;
        if let Some(only) = &self.only {
            self.reports.retain(|report| is_job(report, only));
        }
        self.reports.sort_by_key(|report| report.verdicts.is_empty());
        let of_job = |report| RankLine::of(report, frame, &self.host);
        let lines = self.reports.iter().flat_map(of_job);
        self.lines = lines.collect();
    }

    /// Returns the jobs, those in which ranks wait first.
    pub fn reports(&self) -> &[JobReport] {
        &self.reports
    }

    /// Says why there is no job to show.
    pub fn why_none(&self, frame: &Frame) -> String {
        let missing = frame.ranks.iter().find_map(|reading| reading.groups.why());
        let mut sizes = frame.ranks.iter().map(|reading| reading.world_size);
        let is_alone = sizes.len() > 0 && sizes.all(|size| size == Some(1));
        match missing {
            Some(why) => format!("no process group can be read: {why}"),
            None if is_alone => {
                "every job on this host has a single rank, which waits for no other".to_owned()
            }
            None if self.only.is_some() => "no job matches".to_owned(),
            None => "no process on this host has NCCL process groups".to_owned(),
        }
    }

    /// Returns the verdicts on all jobs, the most important of each job first.
    pub fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.reports.iter().flat_map(|report| &report.verdicts)
    }

    /// Notes that NCCL is being asked.
    pub fn ask_ras(&mut self) {
        self.ras = Some(Ras::Asked);
    }

    pub(super) fn take_ras(&mut self, report: Arc<Result<RasReport, Missing>>) {
        self.ras = Some(Ras::Answered(report));
    }

    /// Returns NCCL's answer, or `None` if it was not asked.
    pub fn ras(&self) -> Option<&Ras> {
        self.ras.as_ref()
    }

    pub(super) fn take_arrivals(&mut self, groups: Arc<Vec<GroupArrivals>>) {
        self.arrivals = Some(groups);
    }

    /// Returns the groups of these jobs in which arrivals at collectives were counted. `None` before the first count.
    pub fn arrivals(&self) -> Option<Vec<&GroupArrivals>> {
        let is_shown = |group: &&GroupArrivals| {
            let mut stores = self.reports.iter().map(|report| report.job.store.as_deref());
            stores.any(|store| store == group.store.as_deref())
        };
        Some(self.arrivals.as_deref()?.iter().filter(is_shown).collect())
    }

    /// Returns the states of the ranks on a GPU.
    pub(super) fn states_on(&self, gpu: u32) -> impl Iterator<Item = &RankState> {
        let host = &*self.host;
        let on_gpu = move |line: &&RankLine| line.rank.gpu == Some(gpu) && *line.rank.host == *host;
        self.lines.iter().filter(on_gpu).map(|line| &line.rank.state)
    }

    /// Returns the process of a rank that the most important verdict names.
    pub fn culprit(&self) -> Option<ProcessKey> {
        let report = self.reports.first()?;
        let culprits = &report.verdicts.first()?.culprits;
        let is_named = |rank: &&RankRow| culprits.contains(&rank.rank) && *rank.host == *self.host;
        report.ranks.iter().find(is_named).map(|rank| rank.process)
    }

    /// Sees the ranks of this host together with those of other hosts.
    pub fn join(&mut self, joined: JoinedJobs) {
        self.joined = joined;
    }

    pub(super) fn clear(&mut self) {
        self.joined.forget(&self.host);
        let (joined, only) = (self.joined.clone(), self.only.take());
        *self = Self { joined, only, ..Self::default() };
    }
}

/// Returns true if the text is the address of the job's store, or the PID of one of its ranks.
fn is_job(report: &JobReport, text: &str) -> bool {
    let has_pid = |rank: &RankRow| text.parse() == Ok(rank.process.pid.0);
    report.job.store.as_deref() == Some(text) || report.ranks.iter().any(has_pid)
}
