//! One Block of PyTorch's allocator: a piece of a segment, in use or free.
//!
//! The members before `size` changed with the versions, but around the pointer to its pool everything has kept its
//! place: size −16 (−8 in 1.13), requested_size −8, ptr +8, allocated +16, mapped +17 (from 2.1), prev +24, next +32.
//! The stream is at 8 in all. So one offset has to be found, and it is the only word that points to a pool in block
//! after block: 64 in torch 2.0, 72 up to 2.10, 80 since.
//!
//! A Block may have been freed and its memory given to something else between the read of its address and the read
//! of itself: sizes of no multiple of 512 and pools that are none betray it.

use std::collections::HashSet;

use super::layout::Layout;
use crate::collect::memory::objects::Objects;
use crate::collect::memory::view::View;

/// What the pool's offset is searched in.
const POOL: std::ops::Range<usize> = 40..104;
/// How much of a Block is read to calibrate.
pub const SAMPLE: usize = 144;
/// PyTorch rounds every size to this.
pub const GRANULE: u64 = 512;
/// An expandable segment reserves address space for the whole card and an eighth.
const MAX_ADDRESSES: u64 = 1 << 44;

const STREAM: usize = 8;

/// Offsets in a Block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockLayout {
    pool: usize,
    size: usize,
    requested: Option<usize>,
    mapped: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Block {
    /// Of the Block itself; `address` is the device memory's.
    pub at: u64,
    pub address: u64,
    pub size: u64,
    /// Stale in a block that is not allocated.
    pub requested: Option<u64>,
    pub pool: u64,
    pub stream: u64,
    pub prev: u64,
    pub next: u64,
    pub is_allocated: bool,
    pub is_mapped: bool,
    /// In the set of active blocks: allocated, or freed and waiting for another stream.
    pub is_active: bool,
}

impl BlockLayout {
    /// By the word that most often points to one of `pools`; `None` when no offset has a majority.
    pub fn calibrate(sample: &Objects, layout: &Layout, pools: &HashSet<u64>) -> Option<Self> {
        let blocks: Vec<View<'_>> = sample.readable().collect();
        let votes = |offset: usize| {
            let points = |block: &&View<'_>| block.word(offset).is_some_and(|w| pools.contains(&w));
            blocks.iter().filter(points).count()
        };
        let pool = POOL.step_by(8).max_by_key(|&offset| votes(offset))?;
        let size = if layout.has_requested() {
            pool - 16
        } else {
            pool - 8
        };
        let found = Self {
            pool,
            size,
            requested: layout.has_requested().then_some(pool - 8),
            mapped: layout.has_unmapped().then_some(pool + 17),
        };
        let valid = blocks
            .iter()
            .filter_map(|block| found.parse(0, *block, false))
            .filter(|block| block.is_plausible(pools, MAX_ADDRESSES))
            .count();
        // Half, because some of the sample may have been freed on the way here.
        (valid > 0 && valid * 2 > blocks.len()).then_some(found)
    }

    /// How much of a Block is read.
    pub fn len(&self) -> usize {
        self.pool + 40
    }

    /// `None` when the copy is too short.
    pub fn parse(&self, at: u64, view: View<'_>, is_active: bool) -> Option<Block> {
        let optional = |offset: Option<usize>| match offset {
            Some(offset) => view.word(offset).map(Some),
            None => Some(None),
        };
        Some(Block {
            at,
            address: view.word(self.pool + 8)?,
            size: view.word(self.size)?,
            requested: optional(self.requested)?,
            pool: view.word(self.pool)?,
            stream: view.word(STREAM)?,
            prev: view.word(self.pool + 24)?,
            next: view.word(self.pool + 32)?,
            is_allocated: view.byte(self.pool + 16)? != 0,
            is_mapped: match self.mapped {
                Some(offset) => view.byte(offset)? != 0,
                None => true,
            },
            is_active,
        })
    }
}

impl Block {
    /// Whether this is a Block and not what came to lie where one was. `most` is what a block with memory behind it
    /// can have.
    pub fn is_plausible(&self, pools: &HashSet<u64>, most: u64) -> bool {
        let most = if self.is_mapped { most } else { MAX_ADDRESSES };
        self.size > 0
            && self.size.is_multiple_of(GRANULE)
            && self.size <= most
            && self.address.is_multiple_of(GRANULE)
            && self.end().is_some()
            && pools.contains(&self.pool)
    }

    pub fn end(&self) -> Option<u64> {
        self.address.checked_add(self.size)
    }
}
