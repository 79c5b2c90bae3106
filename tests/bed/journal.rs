//! The journal of a churning harness: the true state after each of its operations.
//!
//! A reading taken at full speed is correct if it is the state at *some* instant during the read. So one record from
//! that time must have the same statistics and the same allocated blocks.

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

    /// Returns the states that were current at some time from `start` to `end`.
    ///
    /// A state lasts until the next operation. A record's time is taken after its operation, so the first record after
    /// `end` is included.
    pub fn between(&self, start: u64, end: u64) -> &[Record] {
        let first = self.0.partition_point(|record| record.time <= start);
        let last = self.0.partition_point(|record| record.time <= end);
        &self.0[first.saturating_sub(1)..(last + 1).min(self.0.len())]
    }
}

/// Returns `CLOCK_MONOTONIC` in nanoseconds, the clock of the harness.
pub fn now() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

/// Returns the statistics of a reading in the order of a record.
fn statistics(stats: &Stats) -> [i64; 14] {
    let zero = Stat { current: 0, peak: 0 };
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

/// Returns the hash of the allocated blocks of a reading, computed as in the harness.
fn hash(device: &Device) -> u64 {
    blocks_in(device, "allocated")
        .map(|(address, _, requested)| mix(address, requested.unwrap_or(0)))
        .fold(0, |all, one| all ^ one)
}

fn mix(address: u64, requested: u64) -> u64 {
    let mut x = address.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(requested);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Record {
    pub fn has_statistics(&self, stats: &Stats) -> bool {
        self.stats == statistics(stats)
    }

    /// Returns true if the device has exactly the allocated blocks of this record.
    pub fn has_blocks(&self, device: &Device) -> bool {
        self.blocks == hash(device)
    }
}
