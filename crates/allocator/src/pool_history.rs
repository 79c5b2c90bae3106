//! Recent samples of all pools of a host.

use std::collections::HashMap;

use gputop_model::frame::{Frame, MAX_TRACKED_POOLS};
use gputop_model::pool_location::gpu_of;
use gputop_model::{Millis, Mono, ProcessKey};

use super::warnings::{Note, PoolSamples, Sample};

/// Time after which the samples of a pool that is no longer in the frames are dropped.
const RETENTION: Millis = Millis(60_000);

/// A process, and the index of a device as seen by that process.
type PoolKey = (ProcessKey, u32);

#[derive(Debug, Default)]
pub struct PoolHistory {
    pools: HashMap<PoolKey, PoolSamples>,
}

impl PoolHistory {
    /// Adds the pools of a frame, and drops those that have not been in a frame for a minute.
    pub fn push(&mut self, frame: &Frame) {
        for pool in frame.pools.iter().flat_map(|pools| &*pools.list) {
            let free = gpu_of(frame, pool).and_then(|gpu| gpu.memory.free.get());
            self.add((pool.process, pool.ordinal), Sample::new(frame.mono, &pool.stats, free));
        }
        let is_recent = |at: Mono| frame.mono.since(at) < RETENTION;
        self.pools.retain(|_, samples| samples.last_at().is_some_and(is_recent));
        // The pools of a host whose clock stands still never become too old.
        if self.pools.len() > MAX_TRACKED_POOLS {
            let listed = frame.pool_keys();
            self.pools.retain(|key, _| listed.contains(key));
        }
    }

    pub fn add(&mut self, key: PoolKey, sample: Sample) {
        self.pools.entry(key).or_default().push(sample);
    }

    /// Drops the pools whose last sample is older than `time`.
    pub fn forget_before(&mut self, time: Mono) {
        self.pools.retain(|_, samples| samples.last_at().is_some_and(|at| at >= time));
    }

    /// Drops the samples at or after `time`.
    pub fn forget_from(&mut self, time: Mono) {
        self.pools.values_mut().for_each(|samples| samples.forget_from(time));
    }

    pub fn clear(&mut self) {
        self.pools.clear();
    }

    /// Returns the samples of a pool, oldest first.
    pub fn samples(&self, key: PoolKey) -> Vec<Sample> {
        self.pools.get(&key).map(PoolSamples::samples).unwrap_or_default()
    }

    /// Returns the early warnings for a pool, most severe first.
    pub fn notes(&self, key: PoolKey) -> Vec<Note> {
        self.pools.get(&key).map(PoolSamples::notes).unwrap_or_default()
    }

    /// Returns every pool with its early warnings.
    pub fn all_notes(&self) -> impl Iterator<Item = (PoolKey, Vec<Note>)> {
        self.pools.iter().map(|(key, samples)| (*key, samples.notes()))
    }
}
