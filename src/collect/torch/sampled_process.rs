//! One process of the [`sampler`](super::sampler): attached or waiting, and what was sampled since it was asked for.

use std::path::Path;

use super::allocation_spike::{AllocationSpike, LastReport, Level};
use super::retry::Waiting;
use super::{Attached, DeviceStats, Failure};
use crate::collect::clock::now_mono;
use crate::collect::memory::MemoryError;
use crate::collect::memory::live::Live;
use crate::collect::process::stat::{StatBuffer, StatFile};
use crate::collect::process::statm::mapped_pages;
use crate::model::pool::{Allocator, Pool, PoolMap, PoolStats, Sampled, Unread};
use crate::model::process::ProcessKey;
use crate::model::units::Mono;

/// A process is attached to in up to five milliseconds: on one sample, one process.
const ATTACH_EACH_SAMPLE: u32 = 1;

/// One round over all processes.
pub struct Tick {
    now: Mono,
    attached: u32,
    suspects_copies: bool,
}

impl Tick {
    pub fn new(now: Mono, suspects_copies: bool) -> Self {
        Self {
            now,
            attached: 0,
            suspects_copies,
        }
    }

    pub fn now(&self) -> Mono {
        self.now
    }
}

pub struct SampledProcess {
    key: ProcessKey,
    state: State,
    pools: Vec<Sampling>,
    /// What was told of rises.
    told: LastReport,
}

enum State {
    /// Nothing is known yet.
    New,
    Attached(Box<Attached<Live>>),
    Waiting(Waiting),
}

/// One pool and the extremes since it was handed out.
struct Sampling {
    pool: Pool,
    level: Level,
    /// Handed out since the last sample: the next one begins a new minimum and maximum.
    is_handed_out: bool,
}

impl SampledProcess {
    pub fn new(key: ProcessKey) -> Self {
        Self {
            key,
            state: State::New,
            pools: Vec::new(),
            told: LastReport::default(),
        }
    }

    pub fn sample(&mut self, proc_root: &Path, tick: &mut Tick) {
        self.attach_when_due(proc_root, tick);
        let State::Attached(attached) = &mut self.state else {
            return;
        };
        match attached.sample() {
            Ok(stats) => self.take(&stats, tick.now),
            Err(failure) => self.fail(failure, tick.now),
        }
    }

    /// When it wants the thread next; not at all when only a look at all devices ([`refresh`](Self::refresh)) could
    /// find anything new.
    pub fn wake(&self) -> Option<Mono> {
        match &self.state {
            State::New => Some(Mono(0)),
            State::Attached(attached) => attached.is_in_use().then_some(Mono(0)),
            State::Waiting(waiting) => Some(waiting.again()),
        }
    }

    fn attach_when_due(&mut self, proc_root: &Path, tick: &mut Tick) {
        let is_due = self.wake().is_some_and(|wake| wake <= tick.now);
        if matches!(self.state, State::Attached(_)) || !is_due {
            return;
        }
        let is_new = matches!(self.state, State::New);
        if is_new && tick.attached >= ATTACH_EACH_SAMPLE {
            return;
        }
        // Before the look: what is mapped meanwhile is a change.
        let pages = mapped_pages(proc_root, self.key.pid).ok();
        if let State::Waiting(waiting) = &mut self.state
            && waiting.is_unchanged(pages, tick.now)
        {
            waiting.postpone(tick.now);
            return;
        }
        if tick.attached >= ATTACH_EACH_SAMPLE {
            return;
        }
        tick.attached += 1;
        match open(proc_root, self.key, tick.suspects_copies) {
            Ok(attached) => {
                self.state = State::Attached(Box::new(attached));
                self.refresh(tick.now);
            }
            Err(failure) => self.wait(failure, pages, tick.now),
        }
    }

    fn fail(&mut self, failure: Failure, now: Mono) {
        self.wait(failure, None, now);
    }

    fn wait(&mut self, failure: Failure, pages: Option<u64>, now: Mono) {
        self.pools.clear();
        let before = match &self.state {
            State::Waiting(waiting) => Some(waiting),
            _ => None,
        };
        self.state = State::Waiting(Waiting::new(failure, before, pages, now));
    }

    fn take(&mut self, stats: &[DeviceStats], now: Mono) {
        let is_any_touched = stats.iter().any(DeviceStats::is_touched);
        let is_idle = |ordinal| {
            stats
                .iter()
                .any(|s| s.ordinal == ordinal && !s.is_touched())
        };
        self.pools
            .retain(|s| !is_any_touched || !is_idle(s.pool.ordinal));
        for stats in stats {
            // Every process sees every GPU; those it never used would be rows of zeros.
            let is_shown = stats.is_touched() || (!is_any_touched && stats.ordinal == 0);
            match self
                .pools
                .iter_mut()
                .find(|s| s.pool.ordinal == stats.ordinal)
            {
                Some(sampling) => sampling.take(stats, now),
                None if is_shown => {
                    let sampling = self.begin(stats, now);
                    self.pools.push(sampling);
                }
                None => {}
            }
        }
    }

    fn begin(&self, stats: &DeviceStats, now: Mono) -> Sampling {
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
            level: Level::new(&stats.pool_stats()),
            is_handed_out: false,
        }
    }

    /// What rose in the sample of this moment, if it is worth telling: of several devices, the worst.
    pub fn rise(&mut self, now: Mono) -> Option<AllocationSpike> {
        let rises = self.pools.iter_mut().filter_map(|sampling| {
            let is_new = sampling.pool.at == now;
            sampling.level.take_rise(self.key).filter(|_| is_new)
        });
        let mut rise = rises.max_by_key(|rise| (rise.is_oom(), rise.allocated))?;
        if !self.told.tell(&rise, now) {
            return None;
        }
        let mut pools = self.pools.iter_mut();
        let sampling = pools.find(|s| s.pool.ordinal == rise.ordinal)?;
        sampling.level.mark(&rise);
        rise.stats = sampling.pool.stats.clone();
        if rise.is_oom()
            && let State::Attached(attached) = &mut self.state
        {
            rise.stats.largest_free_block = attached.largest_free_block(rise.ordinal);
        }
        Some(rise)
    }

    /// A look at all devices, which also sees whether it still is that process's allocator.
    pub fn refresh(&mut self, now: Mono) {
        if let State::Attached(attached) = &mut self.state {
            match attached.stats() {
                Ok(stats) => self.take(&stats, now),
                Err(failure) => self.fail(failure, now),
            }
        }
    }

    /// The pools, with the largest free block of each; from now on minimum and maximum begin anew.
    pub fn hand_out(&mut self) -> Vec<Pool> {
        let State::Attached(attached) = &mut self.state else {
            return Vec::new();
        };
        self.pools
            .iter_mut()
            .map(|sampling| {
                let pool = &mut sampling.pool;
                pool.stats.largest_free_block = attached.largest_free_block(pool.ordinal);
                sampling.is_handed_out = true;
                sampling.pool.clone()
            })
            .collect()
    }

    pub fn unread(&self) -> Option<Unread> {
        let State::Waiting(Waiting { failure, .. }) = &self.state else {
            return None;
        };
        Some(Unread {
            process: self.key,
            allocator: failure.allocator(),
            why: failure.missing(),
        })
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
    fn take(&mut self, stats: &DeviceStats, now: Mono) {
        let new = stats.pool_stats();
        self.level.next(&new, self.pool.at, self.pool.ordinal);
        let old = std::mem::replace(&mut self.pool.stats, new);
        self.pool.at = now;
        if self.is_handed_out {
            self.is_handed_out = false;
            return;
        }
        let stats = &mut self.pool.stats;
        let joined = |part: fn(&PoolStats) -> Sampled| part(&old).and(part(stats).last());
        (stats.allocated, stats.reserved, stats.active) = (
            joined(|stats| stats.allocated),
            joined(|stats| stats.reserved),
            joined(|stats| stats.active),
        );
    }
}

/// The start time is compared on both sides of the attachment, so that it is this process or none.
fn open(
    proc_root: &Path,
    key: ProcessKey,
    suspects_copies: bool,
) -> Result<Attached<Live>, Failure> {
    if !is_same(proc_root, key) {
        return Err(MemoryError::Gone.into());
    }
    let attached = Attached::open(proc_root, key.pid)?;
    if suspects_copies && attached.is_forked_copy(proc_root, key.pid) {
        return Err(Failure::Forked);
    }
    if !is_same(proc_root, key) {
        return Err(MemoryError::Gone.into());
    }
    Ok(attached)
}

fn is_same(proc_root: &Path, key: ProcessKey) -> bool {
    let path = proc_root.join(key.pid.to_string()).join("stat");
    let file = StatFile::open(&path);
    file.and_then(|file| Ok(file.read(&mut StatBuffer::new())?.start == key.start))
        .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::torch::{Stat, StatArray};
    use crate::model::units::Bytes;

    fn stats(allocated: i64) -> DeviceStats {
        let all = Stat {
            current: allocated,
            ..Stat::default()
        };
        DeviceStats {
            allocated_bytes: StatArray {
                all,
                ..StatArray::default()
            },
            ..DeviceStats::default()
        }
    }

    #[test]
    fn a_spike_between_two_frames_is_in_the_first_and_not_in_the_second() {
        let mut sampling = Sampling {
            pool: Pool {
                stats: stats(5).pool_stats(),
                ..Pool::default()
            },
            level: Level::new(&stats(5).pool_stats()),
            is_handed_out: false,
        };
        let mut take = |allocated, is_handed_out| {
            sampling.take(&stats(allocated), Mono(0));
            sampling.is_handed_out = is_handed_out;
            sampling.pool.stats.allocated
        };
        take(9, false);
        assert_eq!(take(6, true), Sampled(Bytes(5), Bytes(9), Bytes(6)));
        assert_eq!(take(7, false), Sampled(Bytes(7), Bytes(7), Bytes(7)));
        assert_eq!(take(4, true), Sampled(Bytes(4), Bytes(7), Bytes(4)));
    }
}
