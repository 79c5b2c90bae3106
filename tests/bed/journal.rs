//! The journal that a churning harness keeps: the true state after each of its operations.
//!
//! A reading taken at full speed is right if it is the state at *some* moment of the time it took. So the question is
//! whether a record of that time has these statistics, and these allocated blocks.

use std::path::Path;

use crate::compare::blocks_in;
use crate::reader::{Device, Stat, Stats};

/// `Record` of tests/fake_cuda/harness.cpp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    time: u64,
    blocks: u64,
    stats: [i64; 14],
}

const FIELDS: usize = 16;

pub struct Journal(Vec<Record>);

impl Journal {
    pub fn open(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let fields: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|field| u64::from_le_bytes(field.try_into().unwrap()))
            .collect();
        Self(
            fields
                .chunks_exact(FIELDS)
                .map(|fields| Record {
                    time: fields[0],
                    blocks: fields[1],
                    stats: std::array::from_fn(|i| fields[2 + i] as i64),
                })
                .collect(),
        )
    }

    /// The states that were true at some moment from `start` to `end`.
    ///
    /// A state lasts until the next operation. The moment of a record is taken after its operation, so the one behind
    /// the last belongs to it too.
    pub fn between(&self, start: u64, end: u64) -> &[Record] {
        let first = self.0.partition_point(|record| record.time <= start);
        let last = self.0.partition_point(|record| record.time <= end);
        &self.0[first.saturating_sub(1)..(last + 1).min(self.0.len())]
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds, as the harness takes it.
pub fn now() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

/// The statistics of a reading, in the order of a record.
fn statistics(stats: &Stats) -> [i64; 14] {
    let zero = Stat {
        current: 0,
        peak: 0,
    };
    let pairs = [
        stats.allocated_bytes,
        stats.reserved_bytes,
        stats.active_bytes,
        stats.inactive_split_bytes,
        stats.requested_bytes.unwrap_or(zero),
        stats.segments,
    ];
    let mut all = [0; 14];
    for (i, pair) in pairs.iter().enumerate() {
        all[2 * i] = pair.current;
        all[2 * i + 1] = pair.peak;
    }
    all[12] = stats.num_alloc_retries;
    all[13] = stats.num_ooms;
    all
}

/// The hash of the allocated blocks of a reading, as the harness computes it.
fn hash(device: &Device) -> u64 {
    blocks_in(device, "allocated")
        .map(|(address, _, requested)| mix(address, requested.unwrap_or(0)))
        .fold(0, |all, one| all ^ one)
}

fn mix(address: u64, requested: u64) -> u64 {
    let mut x = address
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(requested);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Record {
    pub fn has_statistics(&self, stats: &Stats) -> bool {
        self.stats == statistics(stats)
    }

    /// The allocated blocks, and no others.
    pub fn has_blocks(&self, device: &Device) -> bool {
        self.blocks == hash(device)
    }
}
