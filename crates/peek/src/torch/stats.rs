//! Parses PyTorch's DeviceStats struct, the source of `torch.cuda.memory_stats()`.
//!
//! A `Stat` is {current, peak, allocated, freed}, 4 words of 8 bytes. A `StatArray` contains 3 of them: all, small
//! pool, large pool. Since torch 2.13, a hash map of 32 bytes separates the sixth and seventh arrays.
//!
//! A consistent copy satisfies these invariants, which most other memory does not: numbers are not negative, the peak
//! is not below the current value, and all = small + large, except for the peak. `current = allocated − freed` is
//! **not** an invariant: `reset_accumulated_memory_stats` sets `allocated` and `freed` to 0.

use gputop_model::{Bytes, PoolStats, Reading, Reason, Sampled};
use serde::{Serialize, Serializer};

use crate::memory::view::View;

pub const STAT_ARRAY_BYTES: usize = 96;
const STAT_BYTES: usize = 32;
/// Limits for plausible statistics. No GPU has a petabyte, and accumulated byte counters stay far below 2^62.
const MAX_BYTES: i64 = 1 << 50;
const MAX_COUNTED: i64 = 1 << 62;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct AllocatorStat {
    pub current: i64,
    pub peak: i64,
    /// Total of all increments since the program's start or the last reset.
    #[serde(skip)]
    pub allocated: i64,
    #[serde(skip)]
    pub freed: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatArray {
    pub all: AllocatorStat,
    pub small: AllocatorStat,
    pub large: AllocatorStat,
}

impl Serialize for StatArray {
    /// Serializes only the total of both pools.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.all.serialize(serializer)
    }
}

/// Allocator statistics of one device. The names are those in c10/cuda/CUDACachingAllocator.h or, since torch 2.5, in
/// c10/core/CachingDeviceAllocator.h. JSON uses the names from `torch.cuda.memory_stats()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DeviceStats {
    #[serde(skip)]
    pub ordinal: u32,
    #[serde(skip)]
    pub allocation: StatArray,
    #[serde(rename = "segments")]
    pub segment: StatArray,
    #[serde(skip)]
    pub active: StatArray,
    #[serde(skip)]
    pub inactive_split: StatArray,
    pub allocated_bytes: StatArray,
    pub reserved_bytes: StatArray,
    pub active_bytes: StatArray,
    pub inactive_split_bytes: StatArray,
    /// Bytes requested by the program, available in torch 2.0 and later.
    #[serde(serialize_with = "requested_reading")]
    pub requested_bytes: Option<StatArray>,
    pub num_alloc_retries: i64,
    pub num_ooms: i64,
}

impl AllocatorStat {
    fn parse(view: View<'_>, offset: usize) -> Option<Self> {
        Some(Self {
            current: view.signed(offset)?,
            peak: view.signed(offset + 8)?,
            allocated: view.signed(offset + 16)?,
            freed: view.signed(offset + 24)?,
        })
    }

    fn is_valid(self) -> bool {
        (0..=MAX_BYTES).contains(&self.peak)
            && (0..=self.peak).contains(&self.current)
            && (0..=MAX_COUNTED).contains(&self.allocated)
            && self.freed >= 0
            && self.allocated.saturating_sub(self.freed) <= self.current
    }
}

impl StatArray {
    pub fn parse(view: View<'_>, offset: usize) -> Option<Self> {
        Some(Self {
            all: AllocatorStat::parse(view, offset)?,
            small: AllocatorStat::parse(view, offset + STAT_BYTES)?,
            large: AllocatorStat::parse(view, offset + 2 * STAT_BYTES)?,
        })
    }

    pub fn is_valid(&self) -> bool {
        let adds_up = |part: fn(&AllocatorStat) -> i64| {
            part(&self.small).checked_add(part(&self.large)) == Some(part(&self.all))
        };
        [self.all, self.small, self.large].into_iter().all(AllocatorStat::is_valid)
            && adds_up(|stat| stat.current)
            && adds_up(|stat| stat.allocated)
            && adds_up(|stat| stat.freed)
    }
}

impl DeviceStats {
    pub fn arrays(&self) -> impl Iterator<Item = &StatArray> {
        [
            &self.allocation,
            &self.segment,
            &self.active,
            &self.inactive_split,
            &self.allocated_bytes,
            &self.reserved_bytes,
            &self.active_bytes,
            &self.inactive_split_bytes,
        ]
        .into_iter()
        .chain(&self.requested_bytes)
    }

    /// Returns true if the statistics satisfy all invariants, and are therefore probably a consistent copy.
    pub fn is_valid(&self) -> bool {
        let requested = self.requested_bytes.map_or(0, |r| r.all.current);
        self.arrays().all(StatArray::is_valid)
            && self.num_alloc_retries >= 0
            && self.num_ooms >= 0
            // Compare the requested bytes with the active bytes, because both include freed blocks that wait for
            // another stream.
            && requested <= self.active_bytes.all.current
            && self.allocated_bytes.all.current <= self.active_bytes.all.current
            && self.active_bytes.all.current <= self.reserved_bytes.all.current
            && self.allocation.all.current <= self.active.all.current
    }

    /// Returns true if the process has ever used this device.
    pub fn is_used(&self) -> bool {
        self.arrays().any(|array| *array != StatArray::default()) || self.num_ooms != 0
    }

    /// Returns the requested bytes, or the reason why they are missing.
    pub fn requested(&self) -> Reading<AllocatorStat> {
        requested(self.requested_bytes)
    }

    pub fn pool_stats(&self) -> PoolStats {
        PoolStats {
            allocated: Sampled::new(bytes(self.allocated_bytes.all.current)),
            allocated_peak: bytes(self.allocated_bytes.all.peak),
            reserved: Sampled::new(bytes(self.reserved_bytes.all.current)),
            reserved_peak: bytes(self.reserved_bytes.all.peak),
            active: Sampled::new(bytes(self.active_bytes.all.current)),
            active_peak: bytes(self.active_bytes.all.peak),
            inactive_split: bytes(self.inactive_split_bytes.all.current),
            inactive_split_peak: bytes(self.inactive_split_bytes.all.peak),
            requested: self.requested().map(|requested| bytes(requested.current)),
            segments: count(self.segment.all.current),
            segments_peak: count(self.segment.all.peak),
            num_alloc_retries: count(self.num_alloc_retries),
            num_ooms: count(self.num_ooms),
            largest_free_block: Reading::default(),
        }
    }
}

fn requested(bytes: Option<StatArray>) -> Reading<AllocatorStat> {
    bytes.map_or_else(
        || Reading::missing(Reason::Unsupported, "available in torch 2.0 and later"),
        |bytes| bytes.all.into(),
    )
}

fn requested_reading<S: Serializer>(
    bytes: &Option<StatArray>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    requested(*bytes).serialize(serializer)
}

/// Converts a counter to unsigned. [`DeviceStats::is_valid`] has already rejected negative numbers.
fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

fn bytes(number: i64) -> Bytes {
    Bytes(count(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(current: i64, peak: i64, allocated: i64, freed: i64) -> AllocatorStat {
        AllocatorStat { current, peak, allocated, freed }
    }

    #[test]
    fn reset_counters_are_valid_and_inconsistent_sums_are_not() {
        let array = |all, small, large| StatArray { all, small, large };
        let reset = array(stat(7, 9, 0, 0), stat(3, 8, 0, 0), stat(4, 9, 0, 0));
        assert!(reset.is_valid());
        let inconsistent = array(stat(7, 9, 7, 0), stat(3, 8, 3, 0), stat(5, 9, 5, 0));
        assert!(!inconsistent.is_valid());
        let absurd = array(stat(1, 1, i64::MAX, 0), stat(1, 1, 1, 0), stat(0, 0, 0, 0));
        assert!(!absurd.is_valid());
        let overflowing = stat(i64::MAX, i64::MAX, i64::MAX, i64::MIN);
        assert!(!array(overflowing, overflowing, overflowing).is_valid());
    }
}
