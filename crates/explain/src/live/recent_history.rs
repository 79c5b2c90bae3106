//! Stores recent measurements of each process and GPU, which help to explain a failure.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use gputop_allocator::pool_history::PoolHistory;
use gputop_allocator::warnings::before_failure;
use gputop_model::event::{Event, Observation, OomCountIncreased};
use gputop_model::frame::{Frame, MAX_GPUS};
use gputop_model::gpu::Gpu;
use gputop_model::pool::Pool;
use gputop_model::pool_location::{gpu_of, gpu_of_reported, listed};
use gputop_model::process::ProcessKey;
use gputop_model::reported_pool::ReportedPool;
use gputop_model::units::{Bytes, GpuUuid, Millis, Mono, Percent, Pid};

use super::figures::OomFigures;
use crate::evidence::{Measured, PoolAtFailure};

/// How long to keep the memory values of processes on a GPU, with one entry every [`USAGE_INTERVAL`].
const USAGE_RETENTION: Millis = Millis(70_000);
const USAGE_INTERVAL: Millis = Millis(5_000);
/// How long to keep processes and GPUs that are no longer in the frames.
const RETENTION: Millis = Millis(60_000);
/// A newly seen process that is at most this old is treated as watched from its start.
const MAX_AGE_AT_START: Millis = Millis(10_000);

/// SM utilization from which a process is taken to compute. Loading a model into GPU memory needs less.
const COMPUTING: f64 = 10.0;
/// Minimum number of usage entries that can show that a process computes, equal to half a minute.
const MIN_COMPUTING: usize = 6;

/// Maximum age of the values of a pool that describe a failure, which the explanation states, and maximum number of
/// frames whose pools are kept for that. The pools of a process disappear from the frames when it exits, and are emptier
/// after it handled the error.
const MAX_POOL_AGE: Millis = Millis(10_000);
const MAX_POOL_FRAMES: usize = 16;
/// Maximum number of pools that describe one failure.
const MAX_POOLS_AT_FAILURE: usize = 16;

/// Maximum number of processes to keep. If there are more, only those in the newest frame are kept.
const MAX_TRACKED_PROCESSES: usize = 8_192;

/// Usage of a GPU by one process.
#[derive(Debug, Clone, Copy)]
struct ProcessUsage {
    pid: Pid,
    vram: Bytes,
    sm: Option<Percent>,
}

/// Usage of a GPU by all its processes at one point in time.
type GpuUsage = (Mono, Vec<ProcessUsage>);

#[derive(Debug, Default)]
pub struct RecentHistory {
    pools: PoolHistory,
    processes: HashMap<ProcessKey, SeenProcess>,
    usage: HashMap<GpuUuid, VecDeque<GpuUsage>>,
    /// Recent frames with pools of JAX, TensorFlow or CuPy, oldest first.
    with_pools: VecDeque<Arc<Frame>>,
    newest: Arc<Frame>,
}

#[derive(Debug, Clone, Copy)]
struct SeenProcess {
    last: Mono,
    /// True if the process was watched from its start.
    from_start: bool,
}

impl RecentHistory {
    /// Adds a frame. `ticks` is the number of clock ticks per second, the unit of process start times. Ages are
    /// measured with the monotonic clock.
    pub fn push(&mut self, frame: &Arc<Frame>, ticks: u64) {
        self.newest = Arc::clone(frame);
        self.pools.push(frame);
        self.add_reported_pools(frame);
        for process in frame.processes.iter().flat_map(|p| &*p.list) {
            let started = process.key.start.0.saturating_mul(1_000).checked_div(ticks);
            let age = started.map(|started| frame.mono.since(Mono(started)));
            let entry = self.processes.entry(process.key).or_insert(SeenProcess {
                last: frame.mono,
                from_start: age.is_some_and(|age| age < MAX_AGE_AT_START),
            });
            entry.last = frame.mono;
        }
        for gpu in &frame.gpus {
            self.add_usage(gpu);
        }
        self.drop_old();
    }

    fn add_reported_pools(&mut self, frame: &Arc<Frame>) {
        if frame.pools.as_ref().is_some_and(|pools| !pools.reported.is_empty()) {
            self.with_pools.push_back(Arc::clone(frame));
        }
        let is_old = |kept: &Arc<Frame>| frame.mono.since(kept.mono) > MAX_POOL_AGE;
        while self.with_pools.len() > MAX_POOL_FRAMES || self.with_pools.front().is_some_and(is_old)
        {
            self.with_pools.pop_front();
        }
    }

    fn add_usage(&mut self, gpu: &Gpu) {
        let now = self.newest.mono;
        let ring = self.usage.entry(gpu.uuid.clone()).or_default();
        if ring.back().is_some_and(|(at, _)| now.since(*at) < USAGE_INTERVAL) {
            return;
        }
        let list = gpu.processes.value().into_iter().flatten();
        let usage = list
            .filter_map(|p| Some(ProcessUsage { pid: p.pid, vram: p.vram.get()?, sm: p.sm.get() }));
        ring.push_back((now, usage.collect()));
        while ring.front().is_some_and(|(at, _)| now.since(*at) > USAGE_RETENTION) {
            ring.pop_front();
        }
    }

    fn drop_old(&mut self) {
        let now = self.newest.mono;
        self.processes.retain(|_, seen| now.since(seen.last) < RETENTION);
        self.usage.retain(|_, ring| ring.back().is_some_and(|(at, _)| now.since(*at) < RETENTION));
        self.drop_surplus();
    }

    /// Drops what is not in the newest frame if there is too much of it. A host whose clock stands still never becomes
    /// too old.
    fn drop_surplus(&mut self) {
        if self.processes.len() > MAX_TRACKED_PROCESSES {
            let list = self.newest.processes.iter().flat_map(|processes| &*processes.list);
            let listed: HashSet<ProcessKey> = list.map(|process| process.key).collect();
            self.processes.retain(|key, _| listed.contains(key));
        }
        if self.usage.len() > MAX_GPUS {
            let list = &self.newest.gpus;
            self.usage.retain(|uuid, _| list.iter().any(|gpu| gpu.uuid == *uuid));
        }
    }

    /// Drops the measurements at or after `time`.
    pub fn forget_from(&mut self, time: Mono) {
        self.pools.forget_from(time);
        self.usage.values_mut().for_each(|ring| ring.retain(|(at, _)| *at < time));
        self.with_pools.retain(|frame| frame.mono < time);
    }

    pub fn is_known(&self, process: ProcessKey) -> bool {
        self.processes.contains_key(&process)
    }

    pub fn newest(&self) -> &Frame {
        &self.newest
    }

    pub fn gpus(&self) -> &[Gpu] {
        &self.newest.gpus
    }

    fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.newest.pools.iter().flat_map(|pools| &*pools.list)
    }

    /// Returns the measurements before `event` and, for a failed allocation, the memory figures.
    pub fn measured(&self, process: ProcessKey, event: &Event) -> (Measured, Option<OomFigures>) {
        let rose = match &event.observation {
            Observation::Ooms(rose) => Some(&**rose),
            _ => None,
        };
        let ordinal = rose.map_or_else(|| self.fullest(process), |rose| Some(rose.ordinal));
        let shared_page_cache = self.shared_page_cache();
        let Some(ordinal) = ordinal else {
            let gpu = self.only_gpu(process);
            let pools = self.pools_at_failure(process, gpu, event.mono);
            let gpu_free = gpu.and_then(|gpu| gpu.memory.free.get());
            return (Measured { shared_page_cache, pools, gpu_free, ..Measured::default() }, None);
        };
        let key = (process, ordinal);
        let pool = self.pools().find(|p| (p.process, p.ordinal) == key);
        let is_reported = |gpu: &&Gpu| Some(&gpu.uuid) == event.gpu.as_ref();
        let gpu = self.gpus().iter().find(is_reported).or_else(|| gpu_of(&self.newest, pool?));
        let figures = rose.map(|rose| OomFigures::new(process, rose, pool, gpu));
        let mut measured = self.minutes_before(key, process, gpu, rose);
        measured.shared_page_cache = shared_page_cache;
        measured.others_grew = gpu.and_then(|gpu| self.others_grew(gpu, process));
        measured.pools = self.pools_at_failure(process, gpu, event.mono);
        measured.gpu_free = gpu.and_then(|gpu| gpu.memory.free.get());
        if let Some(figures) = &figures {
            measured.largest_free_block = figures.largest_free_block;
            measured.free_block_lag = rose.map(|rose| event.mono.since(rose.since));
            measured.request_over = figures.request_over();
        }
        (measured, figures)
    }

    /// Returns the GPU of a process that the driver lists on only one GPU. The process may have exited recently.
    fn only_gpu(&self, process: ProcessKey) -> Option<&Gpu> {
        let frames = std::iter::once(&self.newest).chain(self.with_pools.iter().rev());
        let uuid = frames.into_iter().find_map(|frame| {
            let mut on = frame.gpus.iter().filter(|gpu| listed(gpu, process).is_some());
            on.next().filter(|_| on.next().is_none()).map(|gpu| &gpu.uuid)
        })?;
        self.gpus().iter().find(|gpu| gpu.uuid == *uuid)
    }

    /// Returns the recent pools of JAX, TensorFlow and CuPy in the process, and those of other processes on the GPU. Of
    /// several readings of one pool, returns the fullest, because memory is freed after a failure.
    fn pools_at_failure(
        &self,
        process: ProcessKey,
        gpu: Option<&Gpu>,
        at: Mono,
    ) -> Vec<PoolAtFailure> {
        let mut found: Vec<PoolAtFailure> = Vec::new();
        for frame in self.with_pools.iter().rev() {
            for pool in frame.pools.iter().flat_map(|pools| &*pools.reported) {
                let is_own = pool.process == process;
                let is_beside = || {
                    let on = gpu_of_reported(frame, pool).map(|on| &on.uuid);
                    gpu.is_some_and(|gpu| on == Some(&gpu.uuid)) && self.is_listed(pool.process)
                };
                let lag = at.since(pool.at).max(pool.at.since(at));
                if lag > MAX_POOL_AGE || !(is_own || is_beside()) {
                    continue;
                }
                let new = || PoolAtFailure {
                    pool: pool.clone(),
                    is_own,
                    conf: frame.process(pool.process).and_then(|found| found.pool_conf.clone()),
                    lag: Some(lag),
                };
                match found.iter().position(|known| is_same_pool(&known.pool, pool)) {
                    Some(index) => {
                        let known = &mut found[index];
                        if is_own && pool.allocated.get() > known.pool.allocated.get() {
                            *known = new();
                        }
                    }
                    None if found.len() < MAX_POOLS_AT_FAILURE => found.push(new()),
                    None => {}
                }
            }
        }
        found
    }

    /// Returns true if the process is in the newest frame.
    fn is_listed(&self, process: ProcessKey) -> bool {
        self.newest.process(process).is_some()
    }

    /// Returns the ordinal of the device on which the process has reserved the most memory.
    fn fullest(&self, process: ProcessKey) -> Option<u32> {
        let of = self.pools().filter(|pool| pool.process == process);
        of.max_by_key(|pool| pool.stats.reserved.last()).map(|pool| pool.ordinal)
    }

    fn minutes_before(
        &self,
        key: (ProcessKey, u32),
        process: ProcessKey,
        gpu: Option<&Gpu>,
        rose: Option<&OomCountIncreased>,
    ) -> Measured {
        let samples = self.pools.samples(key);
        if samples.is_empty() {
            return Measured::default();
        }
        let computes = gpu.is_some_and(|gpu| self.computes(gpu, process));
        let before = before_failure(&samples, computes);
        let from_start = self.processes.get(&process).is_some_and(|seen| seen.from_start);
        let last_peak = rose.map(|rose| rose.stats.allocated.max());
        let last_peak = last_peak.max(samples.last().map(|s| s.allocated.1));
        Measured {
            watched: Some(before.watched),
            allocated_growth: match before.growth {
                Some(growth) => Some(growth.a_minute.0 as f64),
                None => before.is_flat.then_some(0.0),
            },
            // Ignore peaks as long as memory has only risen, because every new peak is then higher than all earlier
            // ones.
            spike: last_peak
                .zip(before.max_allocated)
                .filter(|(_, max_allocated)| max_allocated.0 > 0 && before.has_fallen)
                .map(|(peak, max_allocated)| peak.0 as f64 / max_allocated.0 as f64),
            highest_peak: before.max_allocated.filter(|_| before.has_fallen),
            has_fallen: if before.has_fallen { Some(true) } else { from_start.then_some(false) },
            retries: Some(before.retries),
            ..Measured::default()
        }
    }

    /// Returns true if the process computed on the GPU during most of the last minute. A program that trains or serves
    /// does, but one that is still loading its model does not.
    fn computes(&self, gpu: &Gpu, process: ProcessKey) -> bool {
        let own = listed(gpu, process).map_or(process.pid, |own| own.pid);
        let ring = self.usage.get(&gpu.uuid).into_iter().flatten();
        let own = ring.filter_map(|(_, list)| list.iter().find(|usage| usage.pid == own));
        let computing: Vec<bool> =
            own.map(|usage| usage.sm.is_some_and(|sm| sm.0 >= COMPUTING)).collect();
        let count = computing.iter().filter(|&&computing| computing).count();
        count >= MIN_COMPUTING && count * 4 >= computing.len() * 3
    }

    /// Returns the size of the host's page cache if the GPUs share the host's memory.
    fn shared_page_cache(&self) -> Option<Bytes> {
        let is_shared = self.gpus().iter().any(|gpu| gpu.memory.is_shared_with_host());
        self.newest.host.as_ref().filter(|_| is_shared)?.page_cache.get()
    }

    /// Returns the memory growth of other processes on the GPU within the last minute.
    fn others_grew(&self, gpu: &Gpu, process: ProcessKey) -> Option<Bytes> {
        let (then, earliest) = self.usage.get(&gpu.uuid)?.front()?;
        if self.newest.mono.since(*then) < Millis(20_000) {
            return None;
        }
        let own = listed(gpu, process).map_or(process.pid, |own| own.pid);
        let sum = |held: &mut dyn Iterator<Item = (Pid, Bytes)>| -> u64 {
            held.filter(|(pid, _)| *pid != own).map(|(_, b)| b.0).sum()
        };
        let list = gpu.processes.value()?.iter();
        let now = sum(&mut list.filter_map(|p| Some((p.pid, p.vram.get()?))));
        let before = sum(&mut earliest.iter().map(|usage| (usage.pid, usage.vram)));
        Some(Bytes(now.saturating_sub(before)))
    }
}

fn is_same_pool(one: &ReportedPool, other: &ReportedPool) -> bool {
    let key = |pool: &ReportedPool| (pool.process, pool.framework, pool.ordinal);
    key(one) == key(other)
}
