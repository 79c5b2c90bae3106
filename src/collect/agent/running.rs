//! The agent while it runs: joins what the collectors read into one frame for each tick.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use gputop_model::gpu::Board;
use gputop_model::protocol::Update;
use gputop_model::protocol::stream::Feed;
use gputop_model::{
    ContextKind, Driver, Frame, Gpu, GpuUuid, Health, HealthState, Hello, Host, Memory, Millis,
    Missing, Mono, Observation, PidNamespace, Pools, Process, ProcessKey, ProcessList, RankReading,
    Reading, Reason, StartTicks,
};
use gputop_peek::clock::{now_mono, now_wall};
use gputop_peek::torch::Failure;
use gputop_peek::torch::sampler::Sampler;

use super::collectors::Collectors;
use super::driver::{DriverCommand, FoundDriver};
use super::followed_candidates::FollowedCandidates;
use super::gpu_at_oom::AtOom;
use super::kernel::ReadRequest;
use super::last_seen::LastSeen;
use super::options::Options;
use super::section::Section;
use super::unattributed::{GpuContext, explain, needs_leftover_search};
use super::underused::UnderusedGpus;
use super::workers::Workers;
use super::xids::Xids;
use super::{devices, reported_pools};
use crate::collect::candidates::CandidateFinder;
use crate::collect::exits::{ExitReport, ExitWatcher};
use crate::collect::hook::{ReportedPools, Traced};
use crate::collect::nvml::sleep::PciGpu;
use crate::collect::process::ProcessReadout;
use crate::collect::process::leftovers::Leftover;
use crate::open_files::limit;

/// Maximum time that loading the driver may delay the first frame.
pub(super) const FIRST_FRAME_TIMEOUT: Duration = Duration::from_millis(1_500);

/// Time without a report after which a GPU is silent, at least.
const MIN_SILENCE: Millis = Millis(2_500);

pub(super) struct Agent {
    pub(super) feed: Arc<Feed>,
    pub(super) exits: ExitWatcher,
    /// Thread that finds new programs with CUDA, which stops together with the agent.
    pub(super) _finder: Option<CandidateFinder>,
    pub(super) candidates: FollowedCandidates,
    /// Error if the kernel log cannot be read.
    pub(super) log: Result<(), Missing>,
    pub(super) xids: Xids,
    pub(super) sampler: Sampler,
    pub(super) collectors: Collectors,
    pub(super) pools: Pools,
    pub(super) ranks: Arc<Vec<RankReading>>,
    pub(super) reported: ReportedPools,
    /// Processes whose allocators are sampled: those that the driver lists.
    pub(super) watched: Vec<ProcessKey>,
    /// Candidates that the collectors were told to follow.
    pub(super) followed: Vec<ProcessKey>,
    /// Process and device ordinal of the pool whose memory map is shown on a screen.
    pub(super) map_wanted: Option<(ProcessKey, u32)>,
    pub(super) hello: Arc<Hello>,
    pub(super) options: Options,
    pub(super) sections: Sender<Section>,
    pub(super) kernel: Sender<ReadRequest>,
    pub(super) replays: Sender<Traced>,
    pub(super) workers: Workers,
    pub(super) driver_commands: Sender<DriverCommand>,
    /// Time without use after which the GPUs are released. `None` if they cannot sleep or are not read.
    pub(super) idle_limit: Option<Duration>,
    /// Time at which something last used a GPU.
    pub(super) used_at: Mono,
    pub(super) at_oom: AtOom,
    pub(super) gpus: BTreeMap<u32, Gpu>,
    pub(super) driver: Option<Driver>,
    pub(super) host: Option<Host>,
    pub(super) processes: ProcessList,
    pub(super) last_seen: LastSeen,
    /// Processes whose exits are watched.
    pub(super) awaited: Vec<ProcessKey>,
    pub(super) underused: UnderusedGpus,
    /// Forked children that do not use a GPU themselves. Empty outside containers.
    pub(super) copies: HashSet<ProcessKey>,
    pub(super) leftovers: Option<Vec<Leftover>>,
    pub(super) frame_seq: u64,
    pub(super) event_seq: u64,
}

/// Error that stops all threads because the agent's reader has disconnected.
pub(super) struct Closed;

impl Agent {
    pub(super) fn run(mut self, inbox: &Receiver<Section>) {
        self.feed.push(Update::Hello(Arc::clone(&self.hello)));
        let mut ticked = self.first_frame(inbox);
        while ticked.is_ok() {
            ticked = self.tick(inbox);
        }
    }

    /// Publishes the first frame when every GPU has reported once. At the timeout, publishes it with the data available
    /// so far.
    pub(super) fn first_frame(&mut self, inbox: &Receiver<Section>) -> Result<(), Closed> {
        let deadline = Instant::now() + FIRST_FRAME_TIMEOUT;
        self.take_until(inbox, deadline, |agent| {
            let mut indices = agent.workers.indices();
            agent.driver.is_some() && indices.all(|index| agent.gpus.contains_key(&index))
        })?;
        self.publish(inbox)
    }

    pub(super) fn tick(&mut self, inbox: &Receiver<Section>) -> Result<(), Closed> {
        let interval = self.options.interval.0.max(1);
        let due = (now_mono().0 / interval + 1) * interval;
        // Serve requests and apply late sections until the tick, then wait for the workers' reports.
        self.take_until(inbox, instant_of(due), |_| false)?;
        self.take_until(inbox, instant_of(due + interval / 4), |agent| {
            agent.all_reported(Mono(due))
        })?;
        self.publish(inbox)
    }

    pub(super) fn all_reported(&self, due: Mono) -> bool {
        self.gpus.values().all(|gpu| gpu.at >= due || gpu.health.state != HealthState::Answering)
    }

    /// Applies sections from the inbox until `done` returns true or the deadline passes.
    pub(super) fn take_until(
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

    pub(super) fn apply(&mut self, section: Section) -> Result<(), Closed> {
        match section {
            Section::Gpu(gpu) => self.take_gpu(*gpu),
            Section::Driver(found) => self.take_driver(*found),
            Section::Kernel(kernel) => self.take_kernel(*kernel),
            Section::Pools(pools) => self.take_pools(pools),
            Section::Ranks(ranks) => self.ranks = Arc::new(ranks),
            Section::Ooms(spike) => self.announce_ooms(*spike),
            Section::Update(update) => self.feed.push(update),
            Section::Observation(process, observation) => self.announce(process, None, observation),
            Section::Hook(update) => {
                self.reported = update.reported;
                for (key, event) in update.events {
                    self.announce(Some(key), None, Observation::Hook(event));
                }
                for failure in update.traced {
                    let _ = self.replays.send(failure);
                }
            }
            Section::Exit(ExitReport::Exit(exit)) => self.announce_exit(*exit),
            Section::Candidate(candidate) => {
                self.candidates.add(*candidate, &self.processes.list, now_mono());
                self.follow_candidates();
            }
            Section::Exit(ExitReport::Xid(line)) => self.take_xid_line(*line),
            Section::Exit(ExitReport::Unwatched(count)) => {
                let exits = match count {
                    1 => "exit of one process".to_owned(),
                    count => format!("exits of {count} processes"),
                };
                self.feed.push(Update::Notice(format!(
                    "open-file limit {} reached: gputop may notice the {exits} up to 2 s late (see `gputop doctor`)",
                    limit().now
                )));
            }
            Section::Exit(ExitReport::LogClosed(why)) => self.log = Err(why),
            Section::Xid(gpu, number) => self.take_xid(gpu, number),
            Section::Request(request) => self.serve(request),
            Section::Closed => return Err(Closed),
        }
        Ok(())
    }

    pub(super) fn take_kernel(&mut self, (host, readout): (Host, Option<ProcessReadout>)) {
        if let Some(readout) = readout {
            let list = self.without_copies(&readout.list);
            let before = std::mem::take(&mut self.processes);
            self.last_seen.note_list(&before.list, &list, host.at);
            self.processes = ProcessList { at: host.at, list };
            for (key, last) in readout.ended {
                if !self.copies.contains(&key) && self.last_seen.note_exit(key, last, host.at) {
                    self.exits.exit_found(key, before.at);
                }
            }
            self.copies.retain(|key| readout.list.iter().any(|p| p.key == *key));
            self.leftovers = readout.leftovers;
            self.watch_exits();
        }
        self.host = Some(host);
    }

    pub(super) fn watch_exits(&mut self) {
        let mut awaited = self.last_seen.awaited(&self.processes.list);
        awaited.extend(&self.followed);
        awaited.sort_unstable();
        awaited.dedup();
        if awaited != self.awaited {
            self.exits.watch(awaited.clone(), self.processes.at);
            self.awaited = awaited;
        }
    }

    pub(super) fn take_gpu(&mut self, mut gpu: Gpu) {
        // Ignore the last readings of a worker that was stopped.
        if !self.workers.has(gpu.index) {
            return;
        }
        if gpu.uuid == GpuUuid::default() {
            gpu.uuid = placeholder_uuid(gpu.index);
        }
        let before = self.gpus.get(&gpu.index).map(|g| g.health.state);
        if before.is_some_and(|before| before != gpu.health.state)
            || (before.is_none() && gpu.health.state == HealthState::Lost)
        {
            self.announce_health(&gpu.uuid, &gpu.health);
        }
        for (process, at_oom) in self.at_oom.answers(&gpu) {
            let observation = Observation::GpuAtOom(Box::new(at_oom));
            self.announce(Some(process), Some(gpu.uuid.clone()), observation);
        }
        self.gpus.insert(gpu.index, gpu);
    }

    pub(super) fn take_driver(&mut self, found: FoundDriver) {
        let count = found.driver.gpus.get().unwrap_or(0);
        if found.session.is_none() && !found.asleep.is_empty() {
            self.workers.stop();
        }
        for (index, gpu) in &found.asleep {
            if !self.workers.has(*index) {
                self.show_asleep(*index, Some(gpu));
            }
        }
        let is_awake = |index: &u32| found.asleep.iter().all(|(asleep, _)| asleep != index);
        let awake = (0..count).filter(is_awake);
        self.workers.start(awake, found.session.as_ref(), self.options.interval);
        self.idle_limit = found.idle_limit;
        // Keep the versions that were read before the GPUs fell asleep.
        if found.session.is_some() || self.driver.is_none() || found.asleep.is_empty() {
            self.driver = Some(found.driver);
        }
    }

    /// Shows a GPU as asleep, with what is known about it without asking the driver.
    fn show_asleep(&mut self, index: u32, found: Option<&PciGpu>) {
        let before = self.gpus.remove(&index);
        let is_new = before.as_ref().is_none_or(|gpu| gpu.health.state != HealthState::Asleep);
        let before = before.unwrap_or_else(|| {
            let board = Board {
                pci_bus: found.map_or_else(Reading::default, |gpu| gpu.bus.clone().into()),
                ..Board::default()
            };
            Gpu {
                index,
                uuid: placeholder_uuid(index),
                name: found.map_or_else(|| "NVIDIA GPU".into(), PciGpu::name),
                board: Arc::new(board),
                ..Gpu::default()
            }
        });
        let since = if is_new { Some(now_mono()) } else { before.health.since };
        let health = Health { state: HealthState::Asleep, since, detail: None };
        let memory = Memory { total: before.memory.total, ..Memory::default() };
        let (uuid, name, board) = (before.uuid, before.name, before.board);
        let at = now_mono();
        let processes = Reading::missing(Reason::NotRead, "the GPU is asleep");
        let gpu = Gpu { index, uuid, name, board, health, memory, at, processes, ..Gpu::default() };
        self.gpus.insert(index, gpu);
    }

    /// Stops reading the GPUs if nothing has used them for a while and they can sleep then.
    fn release_idle_gpus(&mut self, now: Mono) {
        let may_sleep = |gpu: &Gpu| {
            let mut processes = gpu.processes.value().into_iter().flatten();
            let is_answering = gpu.health.state == HealthState::Answering;
            let is_idle = gpu.sm.get().is_none_or(|sm| sm.0 <= 0.0)
                && gpu.processes.value().is_some()
                && processes.all(|process| process.kind == ContextKind::Graphics);
            let is_kept_awake = gpu.board.persistence.get() != Some(false);
            gpu.health.state == HealthState::Asleep || is_answering && is_idle && !is_kept_awake
        };
        let Some(limit) = self.idle_limit.filter(|_| self.gpus.values().all(may_sleep)) else {
            self.used_at = now;
            return;
        };
        if u128::from(now.since(self.used_at).0) < limit.as_millis() {
            return;
        }
        self.used_at = now;
        self.idle_limit = None;
        self.workers.stop();
        let indices: Vec<u32> = self.gpus.keys().copied().collect();
        for index in indices {
            self.show_asleep(index, None);
        }
        let _ = self.driver_commands.send(DriverCommand::Release);
    }

    pub(super) fn publish(&mut self, inbox: &Receiver<Section>) -> Result<(), Closed> {
        let now = now_mono();
        self.release_idle_gpus(now);
        self.mark_silent(now);
        self.read_kernel(now, inbox)?;
        self.link_processes();
        self.last_seen.note_peaks(self.gpus.values(), now);
        self.read_pools(now, inbox)?;
        self.drop_copies();
        self.watch_underused(now);
        self.explain_unattributed();
        let frame = Frame {
            seq: self.frame_seq,
            time: now_wall(),
            mono: now_mono(),
            interval: self.options.interval,
            driver: Some(self.driver.clone().unwrap_or_else(not_answering)),
            host: self.host.clone(),
            gpus: self.gpus.values().cloned().collect(),
            processes: Some(self.processes.clone()),
            pools: Some(self.pools.clone()),
            ranks: Arc::clone(&self.ranks),
        };
        self.frame_seq += 1;
        self.feed.push(Update::Frame(Arc::new(frame)));
        Ok(())
    }

    /// Marks a GPU as silent if its worker has not reported for two ticks, because it is stuck in a driver call. A busy
    /// machine delays a worker, too.
    pub(super) fn mark_silent(&mut self, now: Mono) {
        let limit = Millis(self.options.interval.0 * 2 + 500).max(MIN_SILENCE);
        let mut silent = Vec::new();
        for gpu in self.gpus.values_mut() {
            if gpu.health.state == HealthState::Answering && now.since(gpu.at) > limit {
                gpu.health =
                    Health { state: HealthState::Silent, since: Some(gpu.at), detail: None };
                silent.push((gpu.uuid.clone(), gpu.health.clone()));
            }
        }
        for (uuid, health) in silent {
            self.announce_health(&uuid, &health);
        }
        // Add placeholders for GPUs that never reported, because they have no previous data to show as stale.
        for index in self.workers.indices() {
            self.gpus.entry(index).or_insert_with(|| Gpu {
                index,
                uuid: placeholder_uuid(index),
                name: "GPU that has not answered yet".into(),
                health: Health { state: HealthState::Silent, since: Some(now), detail: None },
                ..Gpu::default()
            });
        }
    }

    /// Requests this tick's process data from the host thread, and waits briefly for the result.
    pub(super) fn read_kernel(
        &mut self,
        now: Mono,
        inbox: &Receiver<Section>,
    ) -> Result<(), Closed> {
        let request = self.read_request();
        if self.kernel.send(request).is_err() {
            return Err(Closed);
        }
        let timeout = Duration::from_millis((self.options.interval.0 / 4).clamp(20, 200));
        self.take_until(inbox, Instant::now() + timeout, |agent| {
            agent.host.as_ref().is_some_and(|host| host.at >= now)
        })
    }

    pub(super) fn read_request(&self) -> ReadRequest {
        if self.hello.namespace != PidNamespace::Host {
            let gpus = self.gpus.values();
            let devices = gpus.map(|gpu| (gpu.board.minor.get(), gpu.uuid.clone())).collect();
            return ReadRequest { pids: Vec::new(), devices, leftovers: false };
        }
        let listed = self.gpus.values().filter_map(|g| g.processes.value()).flatten();
        let pids = listed.map(|process| process.pid).collect();
        let processes = &self.processes.list;
        let leftovers = self.gpus.values().any(|gpu| needs_leftover_search(gpu, processes));
        ReadRequest { pids, devices: Vec::new(), leftovers }
    }

    /// Links the driver's entries to processes by PID. Requires that both lists are from the same tick and PID
    /// namespace.
    pub(super) fn link_processes(&mut self) {
        if self.hello.namespace != PidNamespace::Host {
            return;
        }
        let list = &self.processes.list;
        for gpu in self.gpus.values_mut() {
            let Reading::Value(listed) = &mut gpu.processes else { continue };
            for process in listed {
                let found = list.binary_search_by_key(&process.pid, |p| p.key.pid).ok();
                process.process = found.map(|at| list[at].key);
            }
        }
    }

    /// Requests the allocator samples taken since the last frame. Call it immediately after reading the processes.
    pub(super) fn read_pools(
        &mut self,
        now: Mono,
        inbox: &Receiver<Section>,
    ) -> Result<(), Closed> {
        self.watch_processes();
        if self.watched.is_empty() {
            self.take_pools(Pools { at: now, ..Pools::default() });
            return Ok(());
        }
        self.ask_for_map();
        let sections = self.sections.clone();
        self.sampler.pools(move |pools| {
            let _ = sections.send(Section::Pools(pools));
        });
        // Do not delay the first frame until the samples arrive, because attaching to many processes takes a long time.
        let timeout = if self.frame_seq == 0 {
            Duration::ZERO
        } else {
            Duration::from_millis((self.options.interval.0 / 10).clamp(10, 50))
        };
        self.take_until(inbox, Instant::now() + timeout, |agent| agent.pools.at >= now)
    }

    pub(super) fn take_pools(&mut self, pools: Pools) {
        let pools = reported_pools::merge(pools, &self.reported);
        let pools = devices::assign_gpus(pools, &self.gpus, &self.processes.list);
        let before = std::mem::replace(&mut self.pools, pools);
        for pool in devices::nearly_full(&before, &self.pools, &self.gpus) {
            self.collectors.iter().for_each(|collector| collector.nearly_full(pool));
        }
    }

    pub(super) fn watch_processes(&mut self) {
        let listed = self.gpus.values().filter_map(|gpu| gpu.processes.value()).flatten();
        let local = self.processes.list.iter();
        let local = local.filter(|process| !process.open_gpus.is_empty()).map(|p| p.key);
        let mut keys: Vec<ProcessKey> = listed
            .filter(|process| process.kind != ContextKind::Graphics)
            .filter_map(|process| process.process)
            // In a container, add the processes that have a GPU device file open.
            .chain(local)
            // Skip processes that could not be opened: they have no start time, and their memory cannot be read.
            .filter(|key| key.start != StartTicks(0))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        if keys != self.watched {
            self.sampler.watch(keys.clone());
            for collector in &*self.collectors {
                collector.watch(&keys);
            }
            self.watched = keys;
        }
        self.candidates.retain(&self.watched, now_mono());
        self.follow_candidates();
    }

    /// Tells the collectors which processes leave their GPUs idle.
    fn watch_underused(&mut self, now: Mono) {
        if let Some(processes) = self.underused.changed(now, self.gpus.values()) {
            for collector in &*self.collectors {
                collector.underused(&processes);
            }
        }
    }

    pub(super) fn follow_candidates(&mut self) {
        let keys = self.candidates.keys();
        if keys != self.followed {
            for collector in &*self.collectors {
                collector.follow(&keys);
            }
            self.followed = keys;
            self.watch_exits();
        }
    }

    /// Removes forked children from the process list. This is needed in a container, where the driver's process list is
    /// not available: a forked child has its parent's devices open and a copy of the parent's allocator, but uses none
    /// of the GPU memory itself.
    pub(super) fn drop_copies(&mut self) {
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

    pub(super) fn without_copies(&self, list: &[Process]) -> Arc<Vec<Process>> {
        let is_original = |process: &&Process| !self.copies.contains(&process.key);
        Arc::new(list.iter().filter(is_original).cloned().collect())
    }

    pub(super) fn explain_unattributed(&mut self) {
        let context = GpuContext {
            hello: &self.hello,
            processes: &self.processes.list,
            pools: &self.pools,
            leftovers: self.leftovers.as_deref(),
            peaks: self.last_seen.peaks(),
        };
        for gpu in self.gpus.values_mut() {
            gpu.unattributed = explain(gpu, &context);
        }
    }
}

/// Returns the driver data to show until `nvmlInit` returns.
pub(super) fn not_answering() -> Driver {
    let why = Missing::new(Reason::NotRead, "the driver has not answered yet");
    Driver {
        version: Reading::Missing(why.clone()),
        cuda: Reading::Missing(why.clone()),
        gpus: Reading::Missing(why),
    }
}

/// Returns a placeholder UUID for a GPU that was never opened. Screens distinguish GPUs by UUID.
pub(super) fn placeholder_uuid(index: u32) -> GpuUuid {
    GpuUuid(format!("unknown (GPU index {index})").into())
}

/// Converts a boot clock time in milliseconds to an `Instant`.
pub(super) fn instant_of(mono: u64) -> Instant {
    Instant::now() + Duration::from_millis(mono.saturating_sub(now_mono().0))
}
