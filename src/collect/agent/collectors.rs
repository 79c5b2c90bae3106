//! Collectors that run on request or on an event, each on its own thread.
//!
//! To add a collector, implement [`Collector`] and add a row to [`COLLECTORS`]. A collector sends its data as a
//! [`Section::Update`] or a [`Section::Observation`]. It may also send its response to a request directly to the feed,
//! which leads to the agent's reader.
//!
//! The collectors that contribute to every frame (GPUs, host, allocators, exits) are set up in `start.rs`, because the
//! agent waits for their data in every tick.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use gputop_model::holders::summary::HolderSummary;
use gputop_model::protocol::stream::Feed;
use gputop_model::protocol::{Request, Update};
use gputop_model::stack::StackTrigger;
use gputop_model::{Bytes, Frame, Millis, Mono, Observation, Pool, ProbeRequest, ProcessKey};
use gputop_peek::clock::now_mono;
use gputop_peek::python::{PythonStacks, StackRequest};
use gputop_peek::torch::allocation_spike::AllocationSpike;

use crate::collect::agent::options::Options;
use crate::collect::agent::running::Agent;
use crate::collect::agent::section::Section;
use crate::collect::holders;
use crate::collect::logs::{self, Logs};
use crate::collect::phases::{Phases, Roots};
use crate::collect::probe;
use crate::collect::process::detail;
use crate::collect::ranks::{RankAnswer, Ranks};
use crate::collect::ras;

/// Collector that runs on its own thread. Its methods must not block.
pub(super) trait Collector: Send + Sync {
    /// Sets the processes that compute on a GPU.
    fn watch(&self, _processes: &[ProcessKey]) {}

    /// Sets the candidates: processes that have loaded CUDA, but do not use a GPU yet.
    fn follow(&self, _candidates: &[ProcessKey]) {}

    /// Sets the processes on GPUs that have had little to do for a while.
    fn underused(&self, _processes: &[ProcessKey]) {}

    /// Serves a request. Returns false if the request is for a different collector.
    fn serve(&self, _request: &Request, _agent: &Agent) -> bool {
        false
    }

    /// Handles a failed allocation, or a new peak in allocated memory. Called on the sampler thread.
    fn allocation_spike(&self, _spike: &AllocationSpike) {}

    /// Handles an allocator pool that has grown and now reserves nearly all of its GPU's memory. Called on every tick
    /// in which such a pool grows.
    fn nearly_full(&self, _pool: &Pool) {}

    fn exited(&self, _process: ProcessKey) {}
}

pub(super) struct CollectorContext<'a> {
    pub options: &'a Options,
    pub sections: &'a Sender<Section>,
    pub feed: &'a Arc<Feed>,
}

type Start = fn(&CollectorContext<'_>) -> io::Result<Box<dyn Collector>>;

const COLLECTORS: &[Start] = &[
    start_details,
    start_probes,
    start_python,
    start_holders,
    start_failure_holders,
    start_logs,
    start_ranks,
    start_ras,
    start_phases,
];

pub(super) type Collectors = Arc<[Box<dyn Collector>]>;

pub(super) fn start_collectors(context: &CollectorContext<'_>) -> io::Result<Collectors> {
    COLLECTORS.iter().map(|start| start(context)).collect()
}

/// Starts a thread that passes each job to `work` until the sender is dropped.
pub(super) fn job_thread<T: Send + 'static>(
    name: &str,
    mut work: impl FnMut(T) + Send + 'static,
) -> io::Result<Sender<T>> {
    let (jobs, inbox) = mpsc::channel();
    std::thread::Builder::new().name(name.into()).spawn(move || {
        while let Ok(job) = inbox.recv() {
            work(job);
        }
    })?;
    Ok(jobs)
}

/// Collector for the details of one process.
struct Details(Sender<ProcessKey>);

fn start_details(context: &CollectorContext<'_>) -> io::Result<Box<dyn Collector>> {
    let (feed, proc_root) = (Arc::clone(context.feed), context.options.proc_root.clone());
    let read = move |key| feed.push(Update::Detail(key, Box::new(detail(&proc_root, key))));
    Ok(Box::new(Details(job_thread("detail", read)?)))
}

impl Collector for Details {
    fn serve(&self, request: &Request, _: &Agent) -> bool {
        let Request::Detail(key) = request else { return false };
        let _ = self.0.send(*key);
        true
    }
}

/// Collector that probes one GPU at a time, because each probe waits for a child process.
struct ProbeCollector(Sender<(ProbeRequest, Frame)>);

fn start_probes(context: &CollectorContext<'_>) -> io::Result<Box<dyn Collector>> {
    let (feed, proc_root) = (Arc::clone(context.feed), context.options.proc_root.clone());
    let run = move |(request, known)| {
        let probe = probe::probe(&request, &known, &proc_root);
        feed.push(Update::Probed(Arc::new(probe)));
    };
    Ok(Box::new(ProbeCollector(job_thread("probe", run)?)))
}

impl Collector for ProbeCollector {
    fn serve(&self, request: &Request, agent: &Agent) -> bool {
        let Request::Probe(request) = request else { return false };
        let known = Frame {
            gpus: agent.gpus.values().cloned().collect(),
            pools: Some(agent.pools.clone()),
            ..Frame::default()
        };
        let _ = self.0.send((request.clone(), known));
        true
    }
}

fn start_python(context: &CollectorContext<'_>) -> io::Result<Box<dyn Collector>> {
    let sections = context.sections.clone();
    let python = PythonStacks::start(move |key, stack| {
        let _ = sections.send(Section::Update(Update::Stacks(key, Arc::new(stack))));
    })?;
    Ok(Box::new(python))
}

impl Collector for PythonStacks {
    fn watch(&self, processes: &[ProcessKey]) {
        Self::watch(self, processes.to_vec());
    }

    fn serve(&self, request: &Request, _: &Agent) -> bool {
        let Request::Stacks(key) = request else { return false };
        self.take(StackRequest::by_user(*key));
        true
    }

    fn allocation_spike(&self, spike: &AllocationSpike) {
        self.take(StackRequest {
            process: spike.process,
            why: if spike.is_oom() { StackTrigger::Oom } else { StackTrigger::NewMaximum },
            since: spike.since,
            allocated: Some(spike.allocated),
        });
    }
}

/// Collector that finds what holds a process's GPU memory, for one process at a time. A read takes up to 2 s.
struct HolderReader {
    jobs: Sender<HolderJob>,
    /// Last process to be read, and the flag that cancels the read while it is running.
    last: Mutex<Option<(ProcessKey, Weak<AtomicBool>)>>,
}

/// A process whose memory holders are to be read, and the flag that cancels the read.
type HolderJob = (ProcessKey, Arc<AtomicBool>);

fn start_holders(context: &CollectorContext<'_>) -> io::Result<Box<dyn Collector>> {
    let (feed, proc_root) = (Arc::clone(context.feed), context.options.proc_root.clone());
    let read = move |(key, cancelled): HolderJob| {
        let is_cancelled = || cancelled.load(Ordering::Relaxed);
        if is_cancelled() {
            return;
        }
        let result = holders::read_for_screen(&proc_root, key, &cancelled);
        if !is_cancelled() {
            feed.push(Update::Holders(key, Arc::new(result)));
        }
    };
    Ok(Box::new(HolderReader::new(job_thread("holders", read)?)))
}

impl HolderReader {
    fn new(jobs: Sender<HolderJob>) -> Self {
        Self { jobs, last: Mutex::new(None) }
    }

    /// Starts a read unless one for the same process is already running. Cancels a read that is running for a different
    /// process.
    fn request(&self, wanted: Option<ProcessKey>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let under_way = last.as_ref().and_then(|(key, flag)| Some((*key, flag.upgrade()?)));
        if let Some((key, cancelled)) = under_way {
            if wanted == Some(key) {
                return;
            }
            cancelled.store(true, Ordering::Relaxed);
        }
        *last = wanted.map(|key| {
            let cancelled = Arc::new(AtomicBool::new(false));
            let flag = Arc::downgrade(&cancelled);
            let _ = self.jobs.send((key, cancelled));
            (key, flag)
        });
    }
}

impl Collector for HolderReader {
    fn serve(&self, request: &Request, _: &Agent) -> bool {
        let Request::Holders(wanted) = request else { return false };
        self.request(*wanted);
        true
    }
}

/// Minimum time between two reads of a process's memory holders for the same reason. The limit is needed because an
/// allocation may fail in every training step.
const MIN_HOLDER_INTERVAL: Millis = Millis(60_000);

/// Reads the memory holders of a process when an allocation fails or the process's GPU is nearly full.
struct FailureHolders {
    jobs: Sender<FailureJob>,
    read: Mutex<BTreeMap<ProcessKey, LastReadings>>,
}

/// A process whose memory holders are to be read, and the device to summarize.
struct FailureJob {
    process: ProcessKey,
    ordinal: u32,
    /// Bytes allocated at the time of the request. If the read finds far fewer, the process was exiting and the result
    /// is dropped.
    allocated: Bytes,
}

/// Times of the last reads of a process's memory holders, one for each reason to read them.
#[derive(Default)]
struct LastReadings {
    oom: Option<Mono>,
    nearly_full: Option<Mono>,
}

fn start_failure_holders(context: &CollectorContext<'_>) -> io::Result<Box<dyn Collector>> {
    let (sections, proc_root) = (context.sections.clone(), context.options.proc_root.clone());
    let read = move |job: FailureJob| {
        let holders = holders::read_for_screen(&proc_root, job.process, &AtomicBool::new(false));
        // If the process cannot be read, for example because it has exited, the incident has no section about memory
        // holders.
        let summary = holders.map(|holders| HolderSummary::of(&holders, job.ordinal));
        if let Ok(summary) = summary
            && summary.explains(job.allocated)
        {
            let _ = sections.send(Section::Update(Update::HolderSummary(Arc::new(summary))));
        }
    };
    let jobs = job_thread("failure holders", read)?;
    Ok(Box::new(FailureHolders { jobs, read: Mutex::default() }))
}

impl FailureHolders {
    fn request(
        &self,
        job: FailureJob,
        now: Mono,
        last: impl Fn(&mut LastReadings) -> &mut Option<Mono>,
    ) {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let last = last(read.entry(job.process).or_default());
        if last.is_none_or(|last| now.since(last) >= MIN_HOLDER_INTERVAL) {
            *last = Some(now);
            let _ = self.jobs.send(job);
        }
    }
}

impl Collector for FailureHolders {
    fn allocation_spike(&self, spike: &AllocationSpike) {
        if spike.is_oom() {
            let (process, ordinal, allocated) = (spike.process, spike.ordinal, spike.allocated);
            let job = FailureJob { process, ordinal, allocated };
            self.request(job, now_mono(), |last| &mut last.oom);
        }
    }

    fn nearly_full(&self, pool: &Pool) {
        let allocated = pool.stats.allocated.last();
        let job = FailureJob { process: pool.process, ordinal: pool.ordinal, allocated };
        self.request(job, now_mono(), |last| &mut last.nearly_full);
    }

    fn exited(&self, process: ProcessKey) {
        self.read.lock().unwrap_or_else(PoisonError::into_inner).remove(&process);
    }
}

fn start_ranks(context: &CollectorContext<'_>) -> io::Result<Box<dyn Collector>> {
    let (sections, feed) = (context.sections.clone(), Arc::clone(context.feed));
    let ranks = Ranks::start(&context.options.proc_root, move |answer| match answer {
        RankAnswer::Readings(ranks) => {
            let _ = sections.send(Section::Ranks(ranks));
        }
        RankAnswer::Arrivals(groups) => feed.push(Update::Arrivals(Arc::new(groups))),
    })?;
    Ok(Box::new(ranks))
}

impl Collector for Ranks {
    fn watch(&self, processes: &[ProcessKey]) {
        Self::watch(self, processes);
    }

    fn serve(&self, request: &Request, _: &Agent) -> bool {
        let Request::Arrivals(is_wanted) = request else { return false };
        self.count_arrivals(*is_wanted);
        true
    }
}

/// Collector that asks NCCL about one job at a time, because each question takes seconds.
struct RasCollector(Sender<ProcessKey>);

fn start_ras(context: &CollectorContext<'_>) -> io::Result<Box<dyn Collector>> {
    let (feed, proc_root) = (Arc::clone(context.feed), context.options.proc_root.clone());
    let ask = move |key| feed.push(Update::Ras(key, Arc::new(ras::ask(&proc_root, key))));
    Ok(Box::new(RasCollector(job_thread("ras", ask)?)))
}

impl Collector for RasCollector {
    fn serve(&self, request: &Request, _: &Agent) -> bool {
        let Request::Ras(key) = request else { return false };
        let _ = self.0.send(*key);
        true
    }
}

fn start_phases(context: &CollectorContext<'_>) -> io::Result<Box<dyn Collector>> {
    let (feed, options) = (Arc::clone(context.feed), context.options);
    let roots = Roots { proc: options.proc_root.clone(), cgroup: options.cgroup_root.clone() };
    let phases = Phases::start(roots, move |key, window| {
        feed.push(Update::Phases(key, Arc::new(window)));
    })?;
    Ok(Box::new(phases))
}

impl Collector for Phases {
    fn underused(&self, processes: &[ProcessKey]) {
        Self::underused(self, processes);
    }

    fn serve(&self, request: &Request, _: &Agent) -> bool {
        let Request::Phases(wanted) = request else { return false };
        self.show(*wanted);
        true
    }
}

fn start_logs(context: &CollectorContext<'_>) -> io::Result<Box<dyn Collector>> {
    let options = context.options;
    let (tmux, tmux_folder) = (options.tmux.as_deref(), options.tmux_folder.as_deref());
    let settings = logs::LogSettings {
        is_remote: options.is_remote,
        ..logs::LogSettings::new(&options.proc_root, tmux, tmux_folder)
    };
    let sections = context.sections.clone();
    let logs = Logs::start(settings, move |log| {
        let observation = Observation::Log(Box::new(log.excerpt));
        let _ = sections.send(Section::Observation(log.process, observation));
    })?;
    Ok(Box::new(logs))
}

impl Collector for Logs {
    fn watch(&self, processes: &[ProcessKey]) {
        Self::watch(self, processes);
    }

    fn follow(&self, candidates: &[ProcessKey]) {
        Self::follow(self, candidates);
    }

    fn serve(&self, request: &Request, agent: &Agent) -> bool {
        let feed = Arc::clone(&agent.feed);
        match request {
            Request::Log(key) => {
                self.view(*key, move |view| feed.push(Update::Log(Arc::new(view))));
            }
            Request::Watch { process, path } => {
                let process = *process;
                self.name(process, path.into(), move |name| {
                    feed.push(Update::Watched(process, name));
                });
            }
            _ => return false,
        }
        true
    }

    fn allocation_spike(&self, spike: &AllocationSpike) {
        if spike.is_oom() {
            self.ooms_rose(spike.process);
        }
    }

    fn exited(&self, process: ProcessKey) {
        Self::exited(self, process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_model::units::{Pid, StartTicks};

    #[test]
    fn holders_are_read_once_a_minute_for_each_reason() {
        let key = |pid| ProcessKey { pid: Pid(pid), start: StartTicks(7) };
        let (jobs, inbox) = mpsc::channel();
        let holders = FailureHolders { jobs, read: Mutex::default() };
        let job = |pid, ordinal| FailureJob { process: key(pid), ordinal, allocated: Bytes(0) };
        let oom = |pid, at| holders.request(job(pid, 0), Mono(at), |last| &mut last.oom);
        let full = |pid, at| holders.request(job(pid, 1), Mono(at), |last| &mut last.nearly_full);
        full(1, 5_000);
        oom(1, 6_000);
        oom(1, 65_999);
        full(1, 64_999);
        oom(2, 66_000);
        oom(1, 66_000);
        holders.exited(key(2));
        oom(2, 66_001);
        let read: Vec<(u32, u32)> =
            inbox.try_iter().map(|job| (job.process.pid.0, job.ordinal)).collect();
        assert_eq!(read, [(1, 1), (1, 0), (2, 0), (1, 0), (2, 0)]);
    }

    #[test]
    fn a_reading_is_cancelled_by_a_request_for_another_process_or_none() {
        let key = |pid| ProcessKey { pid: Pid(pid), start: StartTicks(7) };
        let (jobs, inbox) = mpsc::channel();
        let reader = HolderReader::new(jobs);
        let next = || inbox.try_recv().ok();
        reader.request(Some(key(1)));
        let (process, first) = next().expect("a reading");
        assert_eq!(process, key(1));
        // A second request does not restart a read that is in progress.
        reader.request(Some(key(1)));
        assert!(next().is_none());
        assert!(!first.load(Ordering::Relaxed));
        reader.request(Some(key(2)));
        assert!(first.load(Ordering::Relaxed));
        let (_, second) = next().expect("a read of the other process");
        reader.request(None);
        assert!(second.load(Ordering::Relaxed));
        assert!(next().is_none());
        // Once a read has finished, the same process can be read again.
        reader.request(Some(key(3)));
        drop(next());
        reader.request(Some(key(3)));
        assert!(next().is_some());
    }
}
