//! State of one process in the [`sampler`](super::sampler): attached or waiting, with the samples since the last
//! request.

use std::path::Path;

use gputop_model::{
    Allocator, Missing, Mono, Pool, PoolMap, PoolStats, ProcessKey, Sampled, Unread,
};

use super::allocation_spike::{AllocationSpike, ReportLimiter, SpikeDetector};
use super::retry::WaitingProcess;
use super::{Attached, DeviceStats, Failure};
use crate::clock::now_mono;
use crate::memory::MemoryError;
use crate::memory::live::Live;
use crate::process::stat::is_running;
use crate::process::statm::mapped_pages;

/// Maximum number of processes to attach to per sample. Attaching to one takes up to 5 ms.
const MAX_ATTACH_PER_SAMPLE: u32 = 1;

/// State of one sampling round over all processes.
pub struct Tick {
    now: Mono,
    attached: u32,
    detects_copies: bool,
}

impl Tick {
    pub fn new(now: Mono, detects_copies: bool) -> Self {
        Self { now, attached: 0, detects_copies }
    }

    pub fn now(&self) -> Mono {
        self.now
    }
}

pub struct SampledProcess {
    key: ProcessKey,
    state: State,
    pools: Vec<Sampling>,
    limiter: ReportLimiter,
}

enum State {
    New,
    Attached(Box<Attached<Live>>),
    Waiting(WaitingProcess),
}

/// One pool with the minimum and maximum of its values since the last request.
struct Sampling {
    pool: Pool,
    detector: SpikeDetector,
    /// True if the caller has fetched this pool since the last sample. If so, the next sample resets the minimum and
    /// maximum.
    is_taken: bool,
}

impl SampledProcess {
    pub fn new(key: ProcessKey) -> Self {
        Self { key, state: State::New, pools: Vec::new(), limiter: ReportLimiter::default() }
    }

    pub fn sample(&mut self, proc_root: &Path, tick: &mut Tick) {
        self.attach_when_due(proc_root, tick);
        let State::Attached(attached) = &mut self.state else { return };
        match attached.sample() {
            Ok(stats) => self.add(&stats, tick.now),
            Err(failure) => self.wait(failure, None, tick.now),
        }
    }

    /// Returns the time of the next sample, or `None` if only a read of all devices ([`refresh`](Self::refresh)) can
    /// detect a change.
    pub fn wake(&self) -> Option<Mono> {
        match &self.state {
            State::New => Some(Mono(0)),
            State::Attached(attached) => attached.is_in_use().then_some(Mono(0)),
            State::Waiting(waiting) => Some(waiting.next_check()),
        }
    }

    fn attach_when_due(&mut self, proc_root: &Path, tick: &mut Tick) {
        let is_due = self.wake().is_some_and(|wake| wake <= tick.now);
        if matches!(self.state, State::Attached(_)) || !is_due {
            return;
        }
        let is_new = matches!(self.state, State::New);
        if is_new && tick.attached >= MAX_ATTACH_PER_SAMPLE {
            return;
        }
        // Read the size of the address space before attaching, so that memory mapped during the attachment counts as a
        // change.
        let pages = mapped_pages(proc_root, self.key.pid).ok().map(|pages| pages.total);
        if let State::Waiting(waiting) = &mut self.state
            && waiting.is_unchanged(pages, tick.now)
        {
            waiting.postpone(tick.now);
            return;
        }
        if tick.attached >= MAX_ATTACH_PER_SAMPLE {
            return;
        }
        tick.attached += 1;
        match open(proc_root, self.key, tick.detects_copies) {
            Ok(attached) => {
                self.state = State::Attached(Box::new(attached));
                self.refresh(tick.now);
            }
            Err(failure) => self.wait(failure, pages, tick.now),
        }
    }

    fn wait(&mut self, failure: Failure, pages: Option<u64>, now: Mono) {
        self.pools.clear();
        let before = match &self.state {
            State::Waiting(waiting) => Some(waiting),
            _ => None,
        };
        self.state = State::Waiting(WaitingProcess::new(failure, before, pages, now));
    }

    fn add(&mut self, stats: &[DeviceStats], now: Mono) {
        let is_any_used = stats.iter().any(DeviceStats::is_used);
        let is_idle = |ordinal| stats.iter().any(|s| s.ordinal == ordinal && !s.is_used());
        self.pools.retain(|s| !is_any_used || !is_idle(s.pool.ordinal));
        for stats in stats {
            // Omit unused devices: every process sees every GPU, so the unused ones would appear as rows of zeros.
            let is_shown = stats.is_used() || (!is_any_used && stats.ordinal == 0);
            match self.pools.iter_mut().find(|s| s.pool.ordinal == stats.ordinal) {
                Some(sampling) => sampling.add(stats, now),
                None if is_shown => {
                    let sampling = self.new_sampling(stats, now);
                    self.pools.push(sampling);
                }
                None => {}
            }
        }
    }

    fn new_sampling(&self, stats: &DeviceStats, now: Mono) -> Sampling {
        let library = match &self.state {
            State::Attached(attached) => attached.library(),
            _ => "",
        };
        Sampling {
            pool: Pool {
                process: self.key,
                allocator: Allocator::Native,
                library: library.to_owned(),
                ordinal: stats.ordinal,
                at: now,
                stats: stats.pool_stats(),
                ..Pool::default()
            },
            detector: SpikeDetector::new(&stats.pool_stats()),
            is_taken: false,
        }
    }

    /// Returns the most severe allocation spike in the sample taken at `now`, if it should be reported.
    pub fn spike(&mut self, now: Mono) -> Option<AllocationSpike> {
        let spikes = self.pools.iter_mut().filter_map(|sampling| {
            let is_new = sampling.pool.at == now;
            sampling.detector.take_spike(self.key).filter(|_| is_new)
        });
        let mut spike = spikes.max_by_key(|spike| (spike.is_oom(), spike.allocated))?;
        if !self.limiter.allows(&spike, now) {
            return None;
        }
        let sampling = self.pools.iter_mut().find(|s| s.pool.ordinal == spike.ordinal)?;
        sampling.detector.mark_reported(&spike);
        spike.stats = sampling.pool.stats.clone();
        if spike.is_oom()
            && let State::Attached(attached) = &mut self.state
        {
            spike.stats.largest_free_block = attached.largest_free_block(spike.ordinal);
        }
        Some(spike)
    }

    /// Reads all devices, which also verifies that the allocator still exists.
    pub fn refresh(&mut self, now: Mono) {
        if let State::Attached(attached) = &mut self.state {
            match attached.stats() {
                Ok(stats) => self.add(&stats, now),
                Err(failure) => self.wait(failure, None, now),
            }
        }
    }

    /// Returns the pools with their largest free blocks, and resets the minimum and maximum of each pool.
    pub fn take_pools(&mut self) -> Vec<Pool> {
        let State::Attached(attached) = &mut self.state else { return Vec::new() };
        self.pools
            .iter_mut()
            .map(|sampling| {
                let pool = &mut sampling.pool;
                pool.stats.largest_free_block = attached.largest_free_block(pool.ordinal);
                sampling.is_taken = true;
                sampling.pool.clone()
            })
            .collect()
    }

    /// Returns why the allocator cannot be read. If the process does not use PyTorch, the reason is that of its other
    /// framework, or none if the pools of that could be read.
    pub fn unread(&self, other: Result<(), Option<Missing>>) -> Option<Unread> {
        let State::Waiting(WaitingProcess { failure, .. }) = &self.state else { return None };
        let why = match other {
            Ok(()) if *failure == Failure::NotTorch => return None,
            Err(Some(why)) if *failure == Failure::NotTorch => why,
            _ => failure.missing(),
        };
        Some(Unread { process: self.key, allocator: failure.allocator(), why })
    }

    pub fn map(&mut self, ordinal: u32) -> Result<PoolMap, Failure> {
        let attached = match &mut self.state {
            State::Attached(attached) => attached,
            State::Waiting(waiting) => return Err(waiting.failure.clone()),
            State::New => return Err(Failure::NotInitialised),
        };
        let mut map = attached.map(ordinal)?;
        map.process = self.key;
        map.at = now_mono();
        Ok(map)
    }
}

impl Sampling {
    fn add(&mut self, stats: &DeviceStats, now: Mono) {
        let new = stats.pool_stats();
        self.detector.next(&new, self.pool.at, self.pool.ordinal);
        let old = std::mem::replace(&mut self.pool.stats, new);
        self.pool.at = now;
        if self.is_taken {
            self.is_taken = false;
            return;
        }
        let stats = &mut self.pool.stats;
        let merged = |part: fn(&PoolStats) -> Sampled| part(&old).and(part(stats).last());
        (stats.allocated, stats.reserved, stats.active) = (
            merged(|stats| stats.allocated),
            merged(|stats| stats.reserved),
            merged(|stats| stats.active),
        );
    }
}

/// Attaches to a process. Compares the start time before and after attaching, to rule out another process with the same
/// PID.
fn open(
    proc_root: &Path,
    key: ProcessKey,
    detects_copies: bool,
) -> Result<Attached<Live>, Failure> {
    if !is_running(proc_root, key) {
        return Err(MemoryError::Gone.into());
    }
    let attached = Attached::open(proc_root, key.pid)?;
    if detects_copies && attached.is_forked_copy(proc_root, key.pid) {
        return Err(Failure::Forked);
    }
    if !is_running(proc_root, key) {
        return Err(MemoryError::Gone.into());
    }
    Ok(attached)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torch::{AllocatorStat, StatArray};
    use gputop_model::units::Bytes;

    fn stats(allocated: i64) -> DeviceStats {
        let all = AllocatorStat { current: allocated, ..AllocatorStat::default() };
        DeviceStats {
            allocated_bytes: StatArray { all, ..StatArray::default() },
            ..DeviceStats::default()
        }
    }

    #[test]
    fn spike_between_two_frames_is_in_the_first_frame_only() {
        let mut sampling = Sampling {
            pool: Pool { stats: stats(5).pool_stats(), ..Pool::default() },
            detector: SpikeDetector::new(&stats(5).pool_stats()),
            is_taken: false,
        };
        let mut add = |allocated, is_taken| {
            sampling.add(&stats(allocated), Mono(0));
            sampling.is_taken = is_taken;
            sampling.pool.stats.allocated
        };
        add(9, false);
        assert_eq!(add(6, true), Sampled(Bytes(5), Bytes(9), Bytes(6)));
        assert_eq!(add(7, false), Sampled(Bytes(7), Bytes(7), Bytes(7)));
        assert_eq!(add(4, true), Sampled(Bytes(4), Bytes(7), Bytes(4)));
    }
}
