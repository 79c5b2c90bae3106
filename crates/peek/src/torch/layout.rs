//! Finds the member offsets of a DeviceCachingAllocator from its structure instead of a version number.
//!
//! The process's memory contains no version number at a known address, and vendors patch PyTorch. The layout is
//! therefore detected from a sequence that no other struct has: the mutex; the statistics, which satisfy their
//! invariants ([`stats`](super::stats)); two BlockPools, each with one or more `std::set`s and a flag (0 large, 1
//! small); the hash set of active blocks. The detection works even for an allocator that has never allocated anything.
//!
//! Example: in torch 2.6 on x86_64, the offsets are mutex 0, statistics 40, large pool 1016, small pool 1136, active
//! blocks 1256. The distance from the statistics to the first set, 1016 − 40 = 976, is the signature of torch 2.3 to
//! 2.9 on both architectures. A signature that is not in [`FAMILIES`] belongs to an untested build. Its statistics are
//! accepted only if they match the total size of all blocks.

use super::containers::{HashTable, Set};
use super::stats::{DeviceStats, STAT_ARRAY_BYTES, StatArray};
use crate::memory::elf::AARCH64;
use crate::memory::view::View;
use crate::memory::{Memory, MemoryError, is_pointer, up_to};

/// A range of PyTorch versions whose statistics have the same layout.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// Distance from the statistics to the first set in bytes.
    signature: usize,
    /// Range of PyTorch versions, as shown on screens.
    pub name: &'static str,
    /// Size of a BlockPool in bytes, if it is needed to distinguish versions with the same signature.
    pool_size: Option<usize>,
}

const fn family(signature: usize, pool_size: Option<usize>, name: &'static str) -> Family {
    Family { signature, name, pool_size }
}

/// All allocator layouts that were compared with PyTorch's own output. A new layout needs a line here and a directory
/// in tests/data/torch.
pub const FAMILIES: &[Family] = &[
    family(856, None, "torch 1.13"),
    family(952, Some(64), "torch 2.0"),
    family(952, Some(112), "torch 2.1 to 2.2"),
    family(976, None, "torch 2.3 to 2.9"),
    family(984, None, "torch 2.10 to 2.11"),
    family(992, None, "torch 2.12"),
    family(1024, None, "torch 2.13 to 2.15"),
];

/// Number of statistics arrays before the hash map, which is between the arrays in torch 2.13 and later.
const HASH_MAP_AFTER: usize = 6;
/// Number of bytes to read from a possible DeviceCachingAllocator, and the number of those bytes that must be mapped.
const DEVICE_BYTES: usize = 4_096;
const MIN_MAPPED_BYTES: usize = 1_200;
/// Range of offsets after the statistics to search for the first `std::set`.
const FIRST_SET_OFFSETS: std::ops::Range<usize> = 768..1_600;
/// Maximum number of `std::set`s in a BlockPool. Known versions have up to three.
const MAX_SETS: usize = 6;
/// Maximum distance from the first BlockPool's flag to the second BlockPool in bytes.
const MAX_NEXT_POOL: usize = 160;
/// Offset of `__kind` in glibc's pthread_mutex_t, on both architectures.
const MUTEX_KIND: usize = 16;
const RECURSIVE: u32 = 1;
/// Range of offsets after the set of active blocks to search for the map of private pools.
const GRAPH_POOL_OFFSETS: std::ops::Range<usize> = 32..2_048;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub stats: usize,
    /// Number of statistics arrays: 8 in torch 1.13, 9 in later releases.
    arrays: usize,
    /// Size of the hash map between the sixth and seventh statistics arrays, or 0 before torch 2.13.
    hash_map_bytes: usize,
    pub large: usize,
    pub small: usize,
    pub pool_size: usize,
    /// Number of `std::set`s at the start of a BlockPool.
    pub sets: usize,
    pub active: usize,
}

/// Result of matching a candidate against the layout of a DeviceCachingAllocator.
#[derive(Debug, PartialEq, Eq)]
pub enum LayoutMatch {
    Device(Layout),
    /// The struct has the statistics of an allocator in use, but an unknown layout.
    Unknown,
    /// The recursive mutex is locked, so the allocator is changing.
    Busy,
    No,
}

impl Layout {
    /// Matches the struct at `address` against the structure of a DeviceCachingAllocator.
    pub fn calibrate(
        memory: &dyn Memory,
        address: u64,
        machine: u16,
    ) -> Result<LayoutMatch, MemoryError> {
        if !is_pointer(address) {
            return Ok(LayoutMatch::No);
        }
        let bytes = up_to(memory, address, DEVICE_BYTES)?;
        let view = View(&bytes);
        let stats = mutex_size(machine);
        if bytes.len() < MIN_MAPPED_BYTES {
            return Ok(LayoutMatch::No);
        }
        let is_locked = view.int(0) != Some(0) && view.int(MUTEX_KIND) == Some(RECURSIVE);
        let fallback = if is_locked { LayoutMatch::Busy } else { LayoutMatch::No };
        if !(0..HASH_MAP_AFTER).all(|k| is_array(view, stats + STAT_ARRAY_BYTES * k)) {
            return Ok(fallback);
        }
        let layout = Self::from_stats(memory, address, view, stats)?;
        let reserved = StatArray::parse(view, stats + 5 * STAT_ARRAY_BYTES).unwrap_or_default();
        Ok(match layout {
            Some(layout) => LayoutMatch::Device(layout),
            None if reserved.all.current > 0 => LayoutMatch::Unknown,
            None => fallback,
        })
    }

    fn from_stats(
        memory: &dyn Memory,
        address: u64,
        view: View<'_>,
        stats: usize,
    ) -> Result<Option<Self>, MemoryError> {
        let is_set = |offset: usize| match Set::parse(view, address, offset) {
            Some(set) => set.is_anchored(memory),
            None => Ok(false),
        };
        let search = FIRST_SET_OFFSETS.step_by(8).map(|offset| stats + offset);
        let Some(large) = first(search, is_set)? else { return Ok(None) };
        let mut sets = 1;
        while sets < MAX_SETS && is_set(large + Set::SIZE * sets)? {
            sets += 1;
        }
        let flag = large + Set::SIZE * sets;
        let search = (flag + 16..flag + MAX_NEXT_POOL).step_by(8);
        let Some(small) = first(search, is_set)? else { return Ok(None) };
        let pool_size = small - large;
        let signature = large - stats;
        let layout = Self {
            stats,
            arrays: if signature < 952 { 8 } else { 9 },
            hash_map_bytes: HashTable::parse(view, stats + HASH_MAP_AFTER * STAT_ARRAY_BYTES)
                .map_or(0, |_| HashTable::SIZE),
            large,
            small,
            pool_size,
            sets,
            active: small + pool_size,
        };
        Ok(layout.is_consistent(view).then_some(layout))
    }

    /// Returns true if the pools' flags, their owners, the set of active blocks and the remaining statistics are
    /// plausible.
    fn is_consistent(&self, view: View<'_>) -> bool {
        let flag = |pool: usize| view.byte(pool + Set::SIZE * self.sets);
        let owner = |pool: usize| view.word(pool + Set::SIZE * self.sets + 8);
        flag(self.large) == Some(0)
            && flag(self.small) == Some(1)
            && owner(self.large) == Some(0)
            && owner(self.small) == Some(0)
            && HashTable::parse(view, self.active).is_some()
            && self
                .family()
                .is_none_or(|family| (family.signature == 1024) == (self.hash_map_bytes != 0))
            && (0..self.arrays).all(|k| is_array(view, self.array(k)))
    }

    pub fn family(&self) -> Option<&'static Family> {
        FAMILIES.iter().find(|family| {
            family.signature == self.large - self.stats
                && family.pool_size.is_none_or(|size| size == self.pool_size)
        })
    }

    /// Returns true for PyTorch versions with `requested_bytes`, which also introduced `requested_size` in blocks.
    pub fn has_requested(&self) -> bool {
        self.arrays > 8
    }

    /// Returns true for PyTorch versions with unmapped blocks. These versions also have more than one set in a
    /// BlockPool.
    pub fn has_unmapped(&self) -> bool {
        self.sets > 1
    }

    fn array(&self, index: usize) -> usize {
        let hash_map_bytes = if index < HASH_MAP_AFTER { 0 } else { self.hash_map_bytes };
        self.stats + STAT_ARRAY_BYTES * index + hash_map_bytes
    }

    fn counters(&self) -> usize {
        self.array(self.arrays)
    }

    pub fn stats_end(&self) -> usize {
        self.counters() + 16
    }

    /// Returns the possible offsets of the map of private pools.
    pub fn graph_pools(&self) -> impl Iterator<Item = usize> + use<> {
        let active = self.active;
        GRAPH_POOL_OFFSETS.step_by(8).map(move |offset| active + offset)
    }

    pub fn graph_pools_end(&self) -> usize {
        self.active + GRAPH_POOL_OFFSETS.end + HashTable::SIZE
    }

    /// Returns the offset of a BlockPool's owner. The owner of a device's own two pools is 0.
    pub fn pool_owner(&self) -> usize {
        Set::SIZE * self.sets + 8
    }

    /// Parses the allocator statistics. Returns `None` if the copy is too short.
    pub fn parse(&self, view: View<'_>, ordinal: u32) -> Option<DeviceStats> {
        let array = |k: usize| StatArray::parse(view, self.array(k));
        Some(DeviceStats {
            ordinal,
            allocation: array(0)?,
            segment: array(1)?,
            active: array(2)?,
            inactive_split: array(3)?,
            allocated_bytes: array(4)?,
            reserved_bytes: array(5)?,
            active_bytes: array(6)?,
            inactive_split_bytes: array(7)?,
            requested_bytes: if self.has_requested() { Some(array(8)?) } else { None },
            num_alloc_retries: view.signed(self.counters())?,
            num_ooms: view.signed(self.counters() + 8)?,
        })
    }
}

/// Returns the size of glibc's `std::recursive_mutex`. The size is fixed rather than detected: after a single
/// allocation, even statistics read at an offset that is wrong by one word satisfy all invariants.
fn mutex_size(machine: u16) -> usize {
    if machine == AARCH64 { 48 } else { 40 }
}

fn is_array(view: View<'_>, offset: usize) -> bool {
    StatArray::parse(view, offset).is_some_and(|array| array.is_valid())
}

/// Returns the first offset that passes the check. A memory error ends the search.
fn first(
    mut offsets: impl Iterator<Item = usize>,
    passes: impl Fn(usize) -> Result<bool, MemoryError>,
) -> Result<Option<usize>, MemoryError> {
    offsets
        .find_map(|offset| match passes(offset) {
            Ok(true) => Some(Ok(offset)),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        })
        .transpose()
}
