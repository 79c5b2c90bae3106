//! Brings the sections of all collectors together into one frame a tick, and turns requests into orders.
//!
//! Threads: one per GPU (`nvml/worker.rs`), `nvml` (loads the driver, counts the GPUs, starts the workers), `host`
//! (the kernel's side), `ends` (of processes, and the kernel's log), `xid` (the driver's events), `torch`
//! (allocators), `python` (stacks), `logs` (what the processes write), `detail` (one process on request), `probe` (a card
//! on request), `replay` (allocation traces of failures, from the first on), `requests`, and this one. They only meet in the channel of [`Section`]s; answers to a request go straight to the reader. A frame is published when every GPU that answers has reported for the tick, or a quarter of the
//! interval later without the late ones: a late GPU keeps its last readings, grows old on the screen, and holds up
//! nothing.

mod devices;
mod events;
mod gpu_at_oom;
mod kernel;
mod last_seen;
mod reported_pools;
mod requests;
mod start;
mod unattributed;
mod xids;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use self::gpu_at_oom::AtOom;
use self::kernel::KernelOrder;
use self::last_seen::Remembered;
pub use self::start::start;
use self::unattributed::{GpuContext, explain, is_worth_a_look};
use self::xids::Xids;
use super::clock::{now_mono, now_wall};
use super::exits::{Ends, ExitReport};
use super::hook::{News, ToldPools, Traced};
use super::logs::{Excerpted, Logs};
use super::nvml::library::Library;
use super::nvml::worker::{self, WorkerCommand};
use super::nvml::xid;
use super::process::ProcessReadout;
use super::process::container::Files;
use super::process::leftovers::Leftover;
use super::python::{Python, Stack, StackRequest};
use super::torch::Failure;
use super::torch::allocation_spike::AllocationSpike;
use super::torch::sampler::Sampler;
use crate::model::event::Observation;
use crate::model::frame::{Frame, ProcessList};
use crate::model::gpu::{ContextKind, Gpu, Health, HealthState};
use crate::model::host::{Driver, Hello, Host, PidNamespace};
use crate::model::permissions::Permissions;
use crate::model::pool::{FailureMap, PoolMap, Pools};
use crate::model::probe::ProbeRequest;
use crate::model::process::{Process, ProcessKey};
use crate::model::reading::{Missing, Reading, Reason};
use crate::model::replay_result::Replayed;
use crate::model::stack::StackWhy;
use crate::model::units::{GpuUuid, Millis, Mono, StartTicks};
use crate::open_files::limit;
use crate::source::stream::Feed;
use crate::source::{Request, Update};

/// What the agent needs to know before it starts.
#[derive(Debug, Clone)]
pub struct Options {
    pub interval: Millis,
    /// The value of [`LIBRARY_VARIABLE`](super::nvml::library::LIBRARY_VARIABLE).
    pub library: Option<std::ffi::OsString>,
    pub proc_root: PathBuf,
    pub container_files: Files,
    /// The values of TMUX and TMUX_TMPDIR: where this user's tmux servers are.
    pub tmux: Option<std::ffi::OsString>,
    pub tmux_folder: Option<std::ffi::OsString>,
    /// `/sys/fs/cgroup`
    pub cgroup_root: PathBuf,
    /// `/dev/kmsg`, or the value of [`KERNEL_LOG_VARIABLE`](super::kernel_log::KERNEL_LOG_VARIABLE).
    pub kernel_log: PathBuf,
    /// What else is refused, whoever asks.
    pub leave: Permissions,
    /// True if requests come from a client on another host.
    pub is_remote: bool,
}

/// What a collector's thread hands in.
#[derive(Debug)]
pub enum Section {
    Gpu(Box<Gpu>),
    Driver(Driver),
    Kernel(Box<(Host, Option<ProcessReadout>)>),
    Pools(Pools),
    Map((ProcessKey, u32), Result<PoolMap, Missing>),
    FailureMap(Box<FailureMap>),
    Stack(ProcessKey, Box<Stack>),
    /// Allocations of a watched process failed.
    Ooms(Box<AllocationSpike>),
    Log(Box<Excerpted>),
    Hook(News),
    /// An allocation trace was played.
    Replayed(ProcessKey, Box<Replayed>),
    Exit(ExitReport),
    /// The driver reported an Xid of this number.
    Xid(Option<GpuUuid>, u64),
    Request(Request),
    /// The reader is gone.
    Closed,
}

/// How long the driver's start may hold back the first frame.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// More than any machine has: a driver that counts wildly must not start a thread for each.
const MAX_GPUS: u32 = 256;
struct Agent {
    feed: Arc<Feed>,
    ends: Ends,
    /// Whether the kernel's log is being read.
    log: Result<(), Missing>,
    xids: Xids,
    /// Ends the thread of the driver's Xid events when it is dropped.
    xid_thread: Option<Sender<()>>,
    sampler: Sampler,
    python: Python,
    logs: Logs,
    pools: Pools,
    /// What programs say of themselves that nobody may read.
    told: ToldPools,
    /// The processes whose allocators are sampled: those that the driver lists, and no others.
    watched: Vec<ProcessKey>,
    /// The pool whose map a screen shows.
    map_wanted: Option<(ProcessKey, u32)>,
    boot_id: String,
    agent_id: String,
    namespace: PidNamespace,
    interval: Millis,
    library: Arc<Library>,
    sections: Sender<Section>,
    kernel: Sender<KernelOrder>,
    details: Sender<ProcessKey>,
    probes: Sender<(ProbeRequest, Frame)>,
    replays: Option<Sender<Traced>>,
    workers: BTreeMap<u32, Sender<WorkerCommand>>,
    at_oom: AtOom,
    gpus: BTreeMap<u32, Gpu>,
    driver: Option<Driver>,
    host: Option<Host>,
    processes: ProcessList,
    remembered: Remembered,
    /// Those whose ends are waited for.
    awaited: Vec<ProcessKey>,
    /// In a container: forked copies of processes there, which use no GPU themselves.
    copies: HashSet<ProcessKey>,
    leftovers: Option<Vec<Leftover>>,
    focus: Option<GpuUuid>,
    leave: Permissions,
    proc_root: PathBuf,
    frame_seq: u64,
    event_seq: u64,
}

/// The agent's reader is gone; everything winds up.
struct Closed;

impl Agent {
    fn run(mut self, hello: Hello, inbox: &Receiver<Section>) {
        self.feed.push(Update::Hello(Arc::new(hello)));
        let mut ticked = self.first_frame(inbox);
        while ticked.is_ok() {
            ticked = self.tick(inbox);
        }
    }

    /// As soon as every GPU has reported once; with what is there when the driver takes its time.
    fn first_frame(&mut self, inbox: &Receiver<Section>) -> Result<(), Closed> {
        let deadline = Instant::now() + PATIENCE;
        self.take_until(inbox, deadline, |agent| {
            agent.driver.is_some() && agent.gpus.len() == agent.workers.len()
        })?;
        self.publish(inbox)
    }

    fn tick(&mut self, inbox: &Receiver<Section>) -> Result<(), Closed> {
        let interval = self.interval.0.max(1);
        let due = (now_mono().0 / interval + 1) * interval;
        // Until the tick, requests are served and late sections taken; then the workers' reports are awaited.
        self.take_until(inbox, instant_of(due), |_| false)?;
        self.take_until(inbox, instant_of(due + interval / 4), |agent| {
            agent.all_reported(Mono(due))
        })?;
        self.publish(inbox)
    }

    fn all_reported(&self, due: Mono) -> bool {
        self.gpus
            .values()
            .all(|gpu| gpu.at >= due || gpu.health.state != HealthState::Answering)
    }

    /// Applies sections until `done` or the deadline.
    fn take_until(
        &mut self,
        inbox: &Receiver<Section>,
        deadline: Instant,
        done: impl Fn(&Self) -> bool,
    ) -> Result<(), Closed> {
        while !done(self) {
            let now = Instant::now();
            let due = self.xids.next_due().map(|due| instant_of(due.0));
            let until = due.map_or(deadline, |due| due.min(deadline));
            match inbox.recv_timeout(until.saturating_duration_since(now)) {
                Ok(section) => self.apply(section)?,
                Err(RecvTimeoutError::Timeout) if until < deadline => {}
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => return Err(Closed),
            }
            for xid in self.xids.due(now_mono()) {
                self.announce_driver_xid(xid);
            }
        }
        Ok(())
    }

    fn apply(&mut self, section: Section) -> Result<(), Closed> {
        match section {
            Section::Gpu(gpu) => self.take_gpu(*gpu),
            Section::Driver(found) => self.take_driver(found),
            Section::Kernel(kernel) => self.take_kernel(*kernel),
            Section::Pools(pools) => self.take_pools(pools),
            Section::Ooms(rise) => self.announce_ooms(*rise),
            Section::Stack(key, stack) => self.feed.push(Update::Stacks(key, Arc::new(*stack))),
            Section::FailureMap(map) => self.feed.push(Update::FailureMap(Arc::new(*map))),
            Section::Map(_, Ok(map)) => self.feed.push(Update::Map(Arc::new(map))),
            Section::Map(pool, Err(why)) => self.feed.push(Update::NoMap(pool, why)),
            Section::Log(told) => {
                self.announce(told.process, None, Observation::Log(Box::new(told.excerpt)));
            }
            Section::Hook(news) => {
                self.told = news.told;
                for (key, event) in news.events {
                    self.announce(Some(key), None, Observation::Hook(event));
                }
                self.replay(news.traced);
            }
            Section::Replayed(key, told) => {
                self.announce(Some(key), None, Observation::Replayed(told));
            }
            Section::Exit(ExitReport::End(end)) => self.announce_exit(*end),
            Section::Exit(ExitReport::Xid(line)) => self.take_xid_line(*line),
            Section::Exit(ExitReport::Unwatched(count)) => self.feed.push(Update::Notice(format!(
                "open-file limit {}: exits of {count} processes are noticed up to 2 s late (see `gputop doctor`)",
                limit().now
            ))),
            Section::Exit(ExitReport::LogEnded(why)) => self.log = Err(why),
            Section::Xid(gpu, number) => self.take_xid(gpu, number),
            Section::Request(request) => self.serve(request),
            Section::Closed => return Err(Closed),
        }
        Ok(())
    }

    fn take_kernel(&mut self, (host, readout): (Host, Option<ProcessReadout>)) {
        if let Some(readout) = readout {
            let list = self.without_copies(&readout.list);
            let before = std::mem::take(&mut self.processes);
            self.remembered.note_list(&before.list, &list, host.at);
            self.processes = ProcessList { at: host.at, list };
            for (key, last) in readout.ended {
                if !self.copies.contains(&key) && self.remembered.is_news(key, last, host.at) {
                    self.ends.found(key, before.at);
                }
            }
            let is_there = |key: &ProcessKey| readout.list.iter().any(|p| p.key == *key);
            self.copies.retain(is_there);
            self.leftovers = readout.leftovers;
            self.await_ends();
        }
        self.host = Some(host);
    }

    fn await_ends(&mut self) {
        let awaited = self.remembered.awaited(&self.processes.list);
        if awaited != self.awaited {
            self.ends.watch(awaited.clone(), self.processes.at);
            self.awaited = awaited;
        }
    }

    fn take_gpu(&mut self, mut gpu: Gpu) {
        if gpu.uuid == GpuUuid::default() {
            gpu.uuid = unnamed(gpu.index);
        }
        let before = self.gpus.get(&gpu.index).map(|g| g.health.state);
        if before.is_some_and(|before| before != gpu.health.state)
            || (before.is_none() && gpu.health.state == HealthState::Lost)
        {
            self.announce_health(&gpu.uuid, &gpu.health);
        }
        for (process, there) in self.at_oom.answers(&gpu) {
            let there = Observation::GpuAtOom(Box::new(there));
            self.announce(Some(process), Some(gpu.uuid.clone()), there);
        }
        self.gpus.insert(gpu.index, gpu);
    }

    fn take_driver(&mut self, driver: Driver) {
        // A driver that is gone for a moment does not take away the workers: each waits for its own GPU.
        for index in 0..driver.gpus.get().unwrap_or(0).min(MAX_GPUS) {
            self.start_worker(index);
        }
        if !self.workers.is_empty() && self.xid_thread.is_none() {
            self.start_xid_thread();
        }
        self.driver = Some(driver);
    }

    fn start_xid_thread(&mut self) {
        let (alive, is_alive) = mpsc::channel();
        match xid::spawn(Arc::clone(&self.library), is_alive, self.sections.clone()) {
            Ok(()) => self.xid_thread = Some(alive),
            Err(error) => tracing::error!(%error, "no thread for Xids"),
        }
    }

    fn start_worker(&mut self, index: u32) {
        if self.workers.contains_key(&index) {
            return;
        }
        let (orders, inbox) = mpsc::channel();
        match worker::spawn(
            index,
            Arc::clone(&self.library),
            self.interval,
            inbox,
            self.sections.clone(),
        ) {
            Ok(()) => {
                self.workers.insert(index, orders);
            }
            Err(error) => tracing::error!(index, %error, "no thread for a GPU"),
        }
    }

    fn publish(&mut self, inbox: &Receiver<Section>) -> Result<(), Closed> {
        let now = now_mono();
        self.mark_silent(now);
        self.read_kernel(now, inbox)?;
        self.link_processes();
        self.remembered.note_peaks(self.gpus.values(), now);
        self.read_pools(now, inbox)?;
        self.drop_copies();
        self.explain_unattributed();
        let frame = Frame {
            seq: self.frame_seq,
            time: now_wall(),
            mono: now_mono(),
            interval: self.interval,
            driver: Some(self.driver.clone().unwrap_or_else(not_answering)),
            host: self.host.clone(),
            gpus: self.gpus.values().cloned().collect(),
            processes: Some(self.processes.clone()),
            pools: Some(self.pools.clone()),
        };
        self.frame_seq += 1;
        self.feed.push(Update::Frame(Arc::new(frame)));
        Ok(())
    }

    /// A GPU whose worker has not come back from a call for two ticks.
    fn mark_silent(&mut self, now: Mono) {
        let limit = Millis(self.interval.0 * 2 + 500);
        let mut silent = Vec::new();
        for gpu in self.gpus.values_mut() {
            if gpu.health.state == HealthState::Answering && now.since(gpu.at) > limit {
                gpu.health = Health {
                    state: HealthState::Silent,
                    since: Some(gpu.at),
                    detail: None,
                };
                silent.push((gpu.uuid.clone(), gpu.health.clone()));
            }
        }
        for (uuid, health) in silent {
            self.announce_health(&uuid, &health);
        }
        // A GPU that never reported has no section to grow old.
        for index in self.workers.keys() {
            self.gpus.entry(*index).or_insert_with(|| Gpu {
                index: *index,
                uuid: unnamed(*index),
                name: "GPU that has not answered yet".into(),
                health: Health {
                    state: HealthState::Silent,
                    since: Some(now),
                    detail: None,
                },
                ..Gpu::default()
            });
        }
    }

    /// Has the host thread read the processes of this tick, and waits for it only a moment.
    fn read_kernel(&mut self, now: Mono, inbox: &Receiver<Section>) -> Result<(), Closed> {
        let order = self.kernel_order();
        if self.kernel.send(order).is_err() {
            return Err(Closed);
        }
        let patience = Duration::from_millis((self.interval.0 / 4).clamp(20, 200));
        self.take_until(inbox, Instant::now() + patience, |agent| {
            agent.host.as_ref().is_some_and(|host| host.at >= now)
        })
    }

    fn kernel_order(&self) -> KernelOrder {
        if self.namespace != PidNamespace::Host {
            let devices = self
                .gpus
                .values()
                .filter_map(|g| Some((g.board.minor.get()?, g.uuid.clone())))
                .collect();
            return KernelOrder {
                pids: Vec::new(),
                devices,
                leftovers: false,
            };
        }
        let listed = self
            .gpus
            .values()
            .filter_map(|g| g.processes.value())
            .flatten();
        let pids = listed.map(|process| process.pid).collect();
        let processes = &self.processes.list;
        let leftovers = self
            .gpus
            .values()
            .any(|gpu| is_worth_a_look(gpu, processes));
        KernelOrder {
            pids,
            devices: Vec::new(),
            leftovers,
        }
    }

    /// Ties the driver's entries to the kernel's processes: only here, where both were read in the same tick, and
    /// only where PIDs mean the same to both.
    fn link_processes(&mut self) {
        if self.namespace != PidNamespace::Host {
            return;
        }
        let list = &self.processes.list;
        for gpu in self.gpus.values_mut() {
            let Reading::Value(listed) = &mut gpu.processes else {
                continue;
            };
            for process in listed {
                let found = list.binary_search_by_key(&process.pid, |p| p.key.pid).ok();
                process.process = found.map(|at| list[at].key);
            }
        }
    }

    /// What the allocators were sampled as since the last frame; asked for right after the processes were read.
    fn read_pools(&mut self, now: Mono, inbox: &Receiver<Section>) -> Result<(), Closed> {
        self.watch_processes();
        if self.watched.is_empty() {
            self.take_pools(Pools {
                at: now,
                ..Pools::default()
            });
            return Ok(());
        }
        self.ask_for_map();
        let sections = self.sections.clone();
        self.sampler.pools(move |pools| {
            let _ = sections.send(Section::Pools(pools));
        });
        // Attaching to many processes takes longer than reading them: the first frame does not wait for it.
        let patience = if self.frame_seq == 0 {
            Duration::ZERO
        } else {
            Duration::from_millis((self.interval.0 / 10).clamp(10, 50))
        };
        self.take_until(inbox, Instant::now() + patience, |agent| {
            agent.pools.at >= now
        })
    }

    fn take_pools(&mut self, pools: Pools) {
        let pools = reported_pools::added(pools, &self.told);
        self.pools = devices::placed(pools, &self.gpus, &self.processes.list);
    }

    fn watch_processes(&mut self) {
        let listed = self
            .gpus
            .values()
            .filter_map(|gpu| gpu.processes.value())
            .flatten();
        let local = self.processes.list.iter();
        let local = local
            .filter(|process| !process.open_gpus.is_empty())
            .map(|p| p.key);
        let mut keys: Vec<ProcessKey> = listed
            .filter(|process| process.kind != ContextKind::Graphics)
            .filter_map(|process| process.process)
            // In a container, those that hold a device open.
            .chain(local)
            // A process that could not be opened has no start, and no memory to read.
            .filter(|key| key.start != StartTicks(0))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        if keys != self.watched {
            self.sampler.watch(keys.clone());
            self.python.watch(keys.clone());
            self.logs.watch(&keys);
            self.watched = keys;
        }
    }

    /// In a container nobody says who really uses a GPU: a worker that was forked holds its parent's devices open and
    /// a copy of its allocator, and none of its memory.
    fn drop_copies(&mut self) {
        let why = Failure::Forked.missing();
        let unread = self.pools.unread.iter();
        let new: Vec<ProcessKey> = unread.filter(|u| u.why == why).map(|u| u.process).collect();
        if new.is_empty() {
            return;
        }
        Arc::make_mut(&mut self.pools.unread).retain(|unread| unread.why != why);
        self.copies.extend(new);
        self.processes.list = self.without_copies(&self.processes.list);
    }

    fn without_copies(&self, list: &[Process]) -> Arc<Vec<Process>> {
        let is_kept = |process: &&Process| !self.copies.contains(&process.key);
        Arc::new(list.iter().filter(is_kept).cloned().collect())
    }

    fn explain_unattributed(&mut self) {
        let known = GpuContext {
            namespace: self.namespace,
            processes: &self.processes.list,
            pools: &self.pools,
            leftovers: self.leftovers.as_deref(),
            peaks: self.remembered.peaks(),
        };
        for gpu in self.gpus.values_mut() {
            gpu.unattributed = explain(gpu, &known);
        }
    }
}

/// The stack at what the sampler saw.
fn wanted_at(rise: &AllocationSpike) -> StackRequest {
    StackRequest {
        process: rise.process,
        why: if rise.is_oom() {
            StackWhy::Oom
        } else {
            StackWhy::NewMaximum
        },
        since: rise.since,
        allocated: Some(rise.allocated),
    }
}

/// The driver while `nvmlInit` has not returned.
fn not_answering() -> Driver {
    let why = Missing::new(Reason::NotRead, "the driver has not answered yet");
    Driver {
        version: Reading::Missing(why.clone()),
        cuda: Reading::Missing(why.clone()),
        gpus: Reading::Missing(why),
    }
}

/// What stands for the UUID of a GPU that was never opened: screens tell GPUs apart by it.
fn unnamed(index: u32) -> GpuUuid {
    GpuUuid(format!("unknown, of the GPU with index {index}").into())
}

/// The moment on the program's clock at which the boot clock will read `mono`.
fn instant_of(mono: u64) -> Instant {
    Instant::now() + Duration::from_millis(mono.saturating_sub(now_mono().0))
}
