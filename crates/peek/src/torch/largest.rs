//! Finds the largest free block of a CUDA device without walking all blocks.
//!
//! The free blocks of an allocator pool are in a tree sorted by stream, then by size. The last node is therefore the
//! largest block of the last stream. The largest block of any other stream is the last node before the first node of
//! the next stream. With a single stream, this takes three system calls for both pools. Each additional stream requires
//! one more descent of the tree.
//!
//! Private pools are skipped, because allocations outside a private pool cannot use its blocks.

use std::collections::HashSet;

use super::block::{BlockLayout, TorchBlock};
use super::containers::{Set, TreeNode};
use super::walk::Device;
use crate::memory::view::View;
use crate::memory::{Memory, MemoryError, exact, objects};

/// Maximum depth to descend in a tree of free blocks. A red-black tree of 2^18 nodes has a depth of at most 36.
const MAX_DEPTH: usize = 40;
/// Maximum number of streams to search for the largest block. PyTorch has 32 streams per priority.
const MAX_STREAMS: usize = 32;

#[derive(Debug, PartialEq, Eq)]
pub enum UnknownReason {
    /// Tree nodes changed or disappeared during the search.
    Busy,
    TooManyStreams,
    Memory(MemoryError),
}

impl From<MemoryError> for UnknownReason {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::Unreadable { .. } => Self::Busy,
            other => Self::Memory(other),
        }
    }
}

impl Device<'_> {
    /// Returns the size of the largest free block, or 0 if no block is free. The block layout is needed only if a block
    /// is free.
    pub fn largest_free_block(&self, blocks: Option<&BlockLayout>) -> Result<u64, UnknownReason> {
        let sets = self.free_sets()?;
        if sets.is_empty() {
            return Ok(0);
        }
        let search = LargestSearch {
            memory: self.memory,
            blocks: blocks.ok_or(UnknownReason::Busy)?,
            pools: HashSet::from(
                [self.layout.large, self.layout.small].map(|pool| self.address + pool as u64),
            ),
        };
        search.largest(&sets)
    }

    /// Reads the non-empty sets of free blocks of both pools in one read, because the pools are adjacent.
    fn free_sets(&self) -> Result<Vec<Set>, UnknownReason> {
        let first = self.address + self.layout.large as u64;
        let second = self.layout.small - self.layout.large;
        let bytes = exact(self.memory, first, second + Set::SIZE, "the pools' free blocks")?;
        let parse = |offset| Set::parse(View(&bytes), first, offset).ok_or(UnknownReason::Busy);
        let sets = [parse(0)?, parse(second)?];
        Ok(sets.into_iter().filter(|set| set.count > 0).collect())
    }
}

struct LargestSearch<'a> {
    memory: &'a dyn Memory,
    blocks: &'a BlockLayout,
    pools: HashSet<u64>,
}

impl LargestSearch<'_> {
    fn largest(&self, sets: &[Set]) -> Result<u64, UnknownReason> {
        let ends: Vec<u64> = sets.iter().flat_map(|set| [set.leftmost, set.rightmost]).collect();
        let ends = self.free_blocks(&ends)?;
        if ends.len() != 2 * sets.len() {
            return Err(UnknownReason::Busy);
        }
        let mut largest = 0;
        for (set, ends) in sets.iter().zip(ends.chunks_exact(2)) {
            let (first, last) = (ends[0].1, ends[1].1);
            largest = largest.max(self.largest_in_set(set, first.stream, last)?);
        }
        Ok(largest)
    }

    /// Returns the size of the largest free block in one set. Checks each stream's largest block, starting at the last
    /// stream.
    fn largest_in_set(
        &self,
        set: &Set,
        first_stream: u64,
        last: TorchBlock,
    ) -> Result<u64, UnknownReason> {
        let mut largest = last.size;
        let mut stream = last.stream;
        for _ in 0..MAX_STREAMS {
            if stream == first_stream {
                return Ok(largest);
            }
            let below = self.last_below(set.root, stream)?;
            largest = largest.max(below.size);
            stream = below.stream;
        }
        Err(UnknownReason::TooManyStreams)
    }

    /// Returns the largest free block of the stream before `stream`.
    fn last_below(&self, root: u64, stream: u64) -> Result<TorchBlock, UnknownReason> {
        let mut best = None;
        let mut at = root;
        for _ in 0..MAX_DEPTH {
            if at == 0 {
                break;
            }
            let found = self.free_blocks(&[at])?;
            let [(node, block)] = found[..] else { return Err(UnknownReason::Busy) };
            if block.stream < stream {
                best = Some(block);
                at = node.right;
            } else {
                at = node.left;
            }
        }
        best.ok_or(UnknownReason::Busy)
    }

    /// Reads tree nodes and their blocks, and omits invalid nodes.
    fn free_blocks(&self, nodes: &[u64]) -> Result<Vec<(TreeNode, TorchBlock)>, MemoryError> {
        let copies = objects::read(self.memory, nodes, TreeNode::SIZE)?;
        let nodes: Vec<TreeNode> = copies.readable().filter_map(TreeNode::parse).collect();
        let at: Vec<u64> = nodes.iter().map(|node| node.value).collect();
        let copies = objects::read(self.memory, &at, self.blocks.len())?;
        let found = nodes.iter().zip(&at).zip(copies.iter());
        Ok(found
            .filter_map(|((node, &at), copy)| Some((*node, self.blocks.parse(at, copy?, false)?)))
            .filter(|(_, block)| {
                block.is_plausible(&self.pools, u64::MAX) && block.is_mapped && !block.is_allocated
            })
            .collect())
    }
}
