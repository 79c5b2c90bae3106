//! Parses a Block of PyTorch's allocator: an allocated or free part of a segment.
//!
//! The members before `size` differ between PyTorch versions, but the offsets relative to the pointer to the block's
//! pool are stable: size −16 (−8 in 1.13), requested_size −8, ptr +8, allocated +16, mapped +17 (since 2.1), prev +24,
//! next +32. The stream is at offset 8 in all versions. Only the offset of the pool pointer therefore has to be found.
//! The pool pointer is the only word that points to a pool in all blocks. Its offset is 64 in torch 2.0, 72 in later
//! releases up to 2.10, and 80 since then.
//!
//! A Block may be freed and its memory reused between the reads of its address and its content. A size that is not a
//! multiple of 512, or a pointer to an unknown pool, reveals such a Block.

use std::collections::HashSet;

use super::layout::Layout;
use crate::memory::objects::Objects;
use crate::memory::view::View;

/// Range of offsets in a Block to search for the pool pointer.
const POOL_OFFSETS: std::ops::Range<usize> = 40..104;
/// Number of bytes to read from a Block when detecting its member offsets.
pub const SAMPLE_BYTES: usize = 144;
/// PyTorch rounds every size up to a multiple of this many bytes.
pub const GRANULE: u64 = 512;
/// Maximum size of an unmapped block. An expandable segment reserves address space for 9/8 of the GPU's memory.
const MAX_UNMAPPED_BYTES: u64 = 1 << 44;

const STREAM: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockLayout {
    pool: usize,
    size: usize,
    requested: Option<usize>,
    mapped: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TorchBlock {
    /// Address of the Block struct itself. The field `address` holds the address of the block's device memory.
    pub at: u64,
    pub address: u64,
    pub size: u64,
    /// Requested size in bytes, stale if the block is not allocated.
    pub requested: Option<u64>,
    pub pool: u64,
    pub stream: u64,
    pub prev: u64,
    pub next: u64,
    pub is_allocated: bool,
    pub is_mapped: bool,
    /// True if the allocator lists the block as active: allocated, or freed and waiting for another stream.
    pub is_active: bool,
}

impl BlockLayout {
    /// Finds the offsets of a Block's members. The pool pointer is the word that most often points to one of `pools`.
    /// Returns `None` if there is no majority.
    pub fn calibrate(sample: &Objects, layout: &Layout, pools: &HashSet<u64>) -> Option<Self> {
        let blocks: Vec<View<'_>> = sample.readable().collect();
        let votes = |offset: usize| {
            let points = |block: &&View<'_>| block.word(offset).is_some_and(|w| pools.contains(&w));
            blocks.iter().filter(points).count()
        };
        let pool = POOL_OFFSETS.step_by(8).max_by_key(|&offset| votes(offset))?;
        let size = if layout.has_requested() { pool - 16 } else { pool - 8 };
        let found = Self {
            pool,
            size,
            requested: layout.has_requested().then_some(pool - 8),
            mapped: layout.has_unmapped().then_some(pool + 17),
        };
        let valid = blocks
            .iter()
            .filter_map(|block| found.parse(0, *block, false))
            .filter(|block| block.is_plausible(pools, MAX_UNMAPPED_BYTES))
            .count();
        // Accept a layout that is valid for more than half of the sampled blocks, because some may have been freed
        // since the sample was taken.
        (valid > 0 && valid * 2 > blocks.len()).then_some(found)
    }

    /// Returns the number of bytes to read from a Block.
    pub fn len(&self) -> usize {
        self.pool + 40
    }

    /// Parses a Block at the address `at`. Returns `None` if the copy is too short.
    pub fn parse(&self, at: u64, view: View<'_>, is_active: bool) -> Option<TorchBlock> {
        let optional = |offset: Option<usize>| match offset {
            Some(offset) => view.word(offset).map(Some),
            None => Some(None),
        };
        Some(TorchBlock {
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

impl TorchBlock {
    /// Returns true if this is plausibly a Block, and not other data in reused memory. `max_size` is the maximum size
    /// of a mapped block.
    pub fn is_plausible(&self, pools: &HashSet<u64>, max_size: u64) -> bool {
        let max_size = if self.is_mapped { max_size } else { MAX_UNMAPPED_BYTES };
        self.size > 0
            && self.size.is_multiple_of(GRANULE)
            && self.size <= max_size
            && self.address.is_multiple_of(GRANULE)
            && self.end().is_some()
            && pools.contains(&self.pool)
    }

    /// Returns the end address of the block's device memory, or `None` on overflow.
    pub fn end(&self) -> Option<u64> {
        self.address.checked_add(self.size)
    }
}
