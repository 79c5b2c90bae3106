//! Where the parts of a DeviceCachingAllocator lie, found by their shape and not by a version.
//!
//! No version number is in the process's memory at a known place, and vendors patch. So the layout is worked out
//! from what no other struct looks like: after the mutex the statistics, which obey their laws
//! ([`stats`](super::stats)); after them two BlockPools of one or more `std::set`s each and a flag (0 large, 1
//! small); after these the hash set of active blocks. These hold for an allocator that never handed out a byte.
//!
//! Example, torch 2.6 on x86_64: mutex 0, statistics 40, large pool 1016, small pool 1136, active blocks 1256. The
//! distance from the statistics to the first set, 1016 − 40 = 976, is the signature of torch 2.3 to 2.9 on both
//! architectures. A signature that is not in [`FAMILIES`] is a build that nobody tested: its statistics are believed
//! only when the walk over all blocks sums up to them.

use super::containers::{HashTable, Set};
use super::stats::{ARRAY, DeviceStats, StatArray};
use crate::collect::memory::elf::AARCH64;
use crate::collect::memory::view::View;
use crate::collect::memory::{Memory, MemoryError, is_pointer, up_to};

/// A range of versions with the same statistics.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// From the statistics to the first set.
    signature: usize,
    /// As the screen names it.
    pub name: &'static str,
    /// Of one BlockPool, where that tells versions apart which the signature does not.
    pool_size: Option<usize>,
}

const fn family(signature: usize, pool_size: Option<usize>, name: &'static str) -> Family {
    Family {
        signature,
        name,
        pool_size,
    }
}

/// All that were compared with PyTorch's own answer. A new one is a line here and a folder in tests/data/torch.
pub const FAMILIES: &[Family] = &[
    family(856, None, "torch 1.13"),
    family(952, Some(64), "torch 2.0"),
    family(952, Some(112), "torch 2.1 to 2.2"),
    family(976, None, "torch 2.3 to 2.9"),
    family(984, None, "torch 2.10 to 2.11"),
    family(992, None, "torch 2.12"),
    family(1024, None, "torch 2.13 to 2.15"),
];

/// The hash map that lies between the statistics from 2.13 on, behind the sixth array.
const HOLE_AFTER: usize = 6;
/// Everything that is looked for lies in here; no less than this may be mapped.
const DEVICE: usize = 4_096;
const MIN_MAPPED: usize = 1_200;
/// How far behind the statistics the first set is searched.
const FIRST_SET: std::ops::Range<usize> = 768..1_600;
/// A BlockPool has up to three sets so far.
const MAX_SETS: usize = 6;
/// How far behind the first pool's flag the second pool may begin.
const NEXT_POOL: usize = 160;
/// `__kind` of glibc's pthread_mutex_t, on both architectures.
const MUTEX_KIND: usize = 16;
const RECURSIVE: u32 = 1;
/// The map of private pools, searched behind the active blocks.
const GRAPH_POOLS: std::ops::Range<usize> = 32..2_048;

/// Offsets in a DeviceCachingAllocator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub stats: usize,
    /// Eight in torch 1.13, nine since.
    arrays: usize,
    /// Bytes between the sixth array and the seventh.
    hole: usize,
    pub large: usize,
    pub small: usize,
    pub pool_size: usize,
    /// How many `std::set`s a BlockPool begins with.
    pub sets: usize,
    pub active: usize,
}

/// What a candidate turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub enum LayoutMatch {
    Device(Layout),
    /// The statistics of an allocator in use, in a struct of another shape.
    Unknown,
    /// A recursive mutex that is held: what it guards is being changed.
    Busy,
    No,
}

impl Layout {
    /// Tries the struct at `address` on.
    pub fn calibrate(
        memory: &impl Memory,
        address: u64,
        machine: u16,
    ) -> Result<LayoutMatch, MemoryError> {
        if !is_pointer(address) {
            return Ok(LayoutMatch::No);
        }
        let bytes = up_to(memory, address, DEVICE)?;
        let view = View(&bytes);
        let stats = mutex_size(machine);
        if bytes.len() < MIN_MAPPED {
            return Ok(LayoutMatch::No);
        }
        let is_held = view.int(0) != Some(0) && view.int(MUTEX_KIND) == Some(RECURSIVE);
        let otherwise = if is_held {
            LayoutMatch::Busy
        } else {
            LayoutMatch::No
        };
        if !(0..HOLE_AFTER).all(|k| is_array(view, stats + ARRAY * k)) {
            return Ok(otherwise);
        }
        let layout = Self::after_stats(memory, address, view, stats)?;
        let reserved = StatArray::parse(view, stats + 5 * ARRAY).unwrap_or_default();
        Ok(match layout {
            Some(layout) => LayoutMatch::Device(layout),
            None if reserved.all.current > 0 => LayoutMatch::Unknown,
            None => otherwise,
        })
    }

    fn after_stats(
        memory: &impl Memory,
        address: u64,
        view: View<'_>,
        stats: usize,
    ) -> Result<Option<Self>, MemoryError> {
        let is_set = |offset: usize| match Set::parse(view, address, offset) {
            Some(set) => set.is_anchored(memory),
            None => Ok(false),
        };
        let search = FIRST_SET.step_by(8).map(|offset| stats + offset);
        let Some(large) = first(search, is_set)? else {
            return Ok(None);
        };
        let mut sets = 1;
        while sets < MAX_SETS && is_set(large + Set::SIZE * sets)? {
            sets += 1;
        }
        let flag = large + Set::SIZE * sets;
        let search = (flag + 16..flag + NEXT_POOL).step_by(8);
        let Some(small) = first(search, is_set)? else {
            return Ok(None);
        };
        let pool_size = small - large;
        let signature = large - stats;
        let layout = Self {
            stats,
            arrays: if signature < 952 { 8 } else { 9 },
            hole: HashTable::parse(view, stats + HOLE_AFTER * ARRAY).map_or(0, |_| HashTable::SIZE),
            large,
            small,
            pool_size,
            sets,
            active: small + pool_size,
        };
        Ok(layout.is_anchored(view).then_some(layout))
    }

    /// The flags of both pools, their lack of an owner, the set of active blocks, and the remaining statistics.
    fn is_anchored(&self, view: View<'_>) -> bool {
        let flag = |pool: usize| view.byte(pool + Set::SIZE * self.sets);
        let owner = |pool: usize| view.word(pool + Set::SIZE * self.sets + 8);
        flag(self.large) == Some(0)
            && flag(self.small) == Some(1)
            && owner(self.large) == Some(0)
            && owner(self.small) == Some(0)
            && HashTable::parse(view, self.active).is_some()
            && self
                .family()
                .is_none_or(|family| (family.signature == 1024) == (self.hole != 0))
            && (0..self.arrays).all(|k| is_array(view, self.array(k)))
    }

    pub fn family(&self) -> Option<&'static Family> {
        FAMILIES.iter().find(|family| {
            family.signature == self.large - self.stats
                && family.pool_size.is_none_or(|size| size == self.pool_size)
        })
    }

    /// `requested_bytes` and the blocks' `requested_size` came together.
    pub fn has_requested(&self) -> bool {
        self.arrays > 8
    }

    /// Blocks without memory behind them came with the second set.
    pub fn has_unmapped(&self) -> bool {
        self.sets > 1
    }

    fn array(&self, index: usize) -> usize {
        let hole = if index < HOLE_AFTER { 0 } else { self.hole };
        self.stats + ARRAY * index + hole
    }

    fn counters(&self) -> usize {
        self.array(self.arrays)
    }

    /// From the start of the struct to the end of what the statistics need.
    pub fn stats_end(&self) -> usize {
        self.counters() + 16
    }

    /// The offsets at which the map of private pools may be.
    pub fn graph_pools(&self) -> impl Iterator<Item = usize> + use<> {
        let active = self.active;
        GRAPH_POOLS.step_by(8).map(move |offset| active + offset)
    }

    pub fn graph_pools_end(&self) -> usize {
        self.active + GRAPH_POOLS.end + HashTable::SIZE
    }

    /// The owner of a BlockPool, behind its flag: 0 for the device's own two.
    pub fn pool_owner(&self) -> usize {
        Set::SIZE * self.sets + 8
    }

    /// The statistics in a copy of the struct; `None` when it is too short.
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
            requested_bytes: if self.has_requested() {
                Some(array(8)?)
            } else {
                None
            },
            num_alloc_retries: view.signed(self.counters())?,
            num_ooms: view.signed(self.counters() + 8)?,
        })
    }
}

/// glibc's `std::recursive_mutex`. It must be known and not found: with one allocation made, statistics shifted by a
/// word obey all laws too.
fn mutex_size(machine: u16) -> usize {
    if machine == AARCH64 { 48 } else { 40 }
}

fn is_array(view: View<'_>, offset: usize) -> bool {
    StatArray::parse(view, offset).is_some_and(|array| array.is_lawful())
}

/// The first offset that passes; an error ends the search.
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
