//! PyTorch's DeviceStats: what `torch.cuda.memory_stats()` is made of.
//!
//! A `Stat` is {current, peak, allocated, freed}, four words of 8 bytes; a `StatArray` is three of them: all, small
//! pool, large pool. From torch 2.13 a hash map of 32 bytes lies between the sixth array and the seventh.
//!
//! Laws that hold for a copy taken while nobody wrote, and seldom for any other: no number is negative, the peak is
//! not below the current value, all = small + large for all but the peak. `current = allocated − freed` is **no**
//! law: `reset_accumulated_memory_stats` sets the latter two to 0.

use crate::collect::memory::view::View;
use crate::model::pool::{PoolStats, Sampled};
use crate::model::reading::{Reading, Reason};
use crate::model::units::Bytes;

/// Of one StatArray.
pub const ARRAY: usize = 96;
const STAT: usize = 32;
/// No GPU has a petabyte, and no counter of bytes handed out gets this far.
const MAX_BYTES: i64 = 1 << 50;
const MAX_COUNTED: i64 = 1 << 62;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stat {
    pub current: i64,
    pub peak: i64,
    /// Everything that was added, since the start or the last reset.
    pub allocated: i64,
    pub freed: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatArray {
    pub all: Stat,
    pub small: Stat,
    pub large: Stat,
}

/// Names as in c10/cuda/CUDACachingAllocator.h, or c10/core/CachingDeviceAllocator.h from 2.5 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceStats {
    /// The device's number inside the process.
    pub ordinal: u32,
    pub allocation: StatArray,
    pub segment: StatArray,
    pub active: StatArray,
    pub inactive_split: StatArray,
    pub allocated_bytes: StatArray,
    pub reserved_bytes: StatArray,
    pub active_bytes: StatArray,
    pub inactive_split_bytes: StatArray,
    /// From torch 2.0 on.
    pub requested_bytes: Option<StatArray>,
    pub num_alloc_retries: i64,
    pub num_ooms: i64,
}

impl Stat {
    fn parse(view: View<'_>, offset: usize) -> Option<Self> {
        Some(Self {
            current: view.signed(offset)?,
            peak: view.signed(offset + 8)?,
            allocated: view.signed(offset + 16)?,
            freed: view.signed(offset + 24)?,
        })
    }

    fn is_lawful(self) -> bool {
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
            all: Stat::parse(view, offset)?,
            small: Stat::parse(view, offset + STAT)?,
            large: Stat::parse(view, offset + 2 * STAT)?,
        })
    }

    pub fn is_lawful(&self) -> bool {
        let adds_up = |part: fn(&Stat) -> i64| {
            part(&self.small).checked_add(part(&self.large)) == Some(part(&self.all))
        };
        [self.all, self.small, self.large]
            .into_iter()
            .all(Stat::is_lawful)
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

    /// Whether this can be one moment of an allocator, and not parts of two.
    pub fn is_lawful(&self) -> bool {
        let requested = self.requested_bytes.map_or(0, |r| r.all.current);
        self.arrays().all(StatArray::is_lawful)
            && self.num_alloc_retries >= 0
            && self.num_ooms >= 0
            // A block that waits for another stream is still counted as requested.
            && requested <= self.active_bytes.all.current
            && self.allocated_bytes.all.current <= self.active_bytes.all.current
            && self.active_bytes.all.current <= self.reserved_bytes.all.current
            && self.allocation.all.current <= self.active.all.current
    }

    /// Whether anything was ever asked of this device.
    pub fn is_touched(&self) -> bool {
        self.arrays().any(|array| *array != StatArray::default()) || self.num_ooms != 0
    }

    /// One sample, as the model keeps it.
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
            requested: self.requested_bytes.map_or_else(
                || Reading::missing(Reason::Unsupported, "torch counts it from 2.0 on"),
                |requested| bytes(requested.all.current).into(),
            ),
            segments: count(self.segment.all.current),
            segments_peak: count(self.segment.all.peak),
            num_alloc_retries: count(self.num_alloc_retries),
            num_ooms: count(self.num_ooms),
            largest_free_block: Reading::default(),
        }
    }
}

/// Negative is what a broken copy has, and [`DeviceStats::is_lawful`] lets none pass.
fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

fn bytes(number: i64) -> Bytes {
    Bytes(count(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(current: i64, peak: i64, allocated: i64, freed: i64) -> Stat {
        Stat {
            current,
            peak,
            allocated,
            freed,
        }
    }

    #[test]
    fn a_reset_of_the_counters_is_lawful_and_a_torn_sum_is_not() {
        let array = |all, small, large| StatArray { all, small, large };
        let reset = array(stat(7, 9, 0, 0), stat(3, 8, 0, 0), stat(4, 9, 0, 0));
        assert!(reset.is_lawful());
        let torn = array(stat(7, 9, 7, 0), stat(3, 8, 3, 0), stat(5, 9, 5, 0));
        assert!(!torn.is_lawful());
        let absurd = array(stat(1, 1, i64::MAX, 0), stat(1, 1, 1, 0), stat(0, 0, 0, 0));
        assert!(!absurd.is_lawful());
        let wide = stat(i64::MAX, i64::MAX, i64::MAX, i64::MIN);
        assert!(!array(wide, wide, wide).is_lawful());
    }
}
