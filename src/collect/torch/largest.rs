//! The largest free block of a device, without walking over all blocks.
//!
//! The free blocks of a pool are a tree sorted by stream, then by size. So the last node is the largest block of the
//! last stream, and the largest of any other stream is the last node before the next stream's first. With one stream
//! that is three system calls for both pools; each further stream is one descent.
//!
//! Private pools are left out: a program that is not inside of one cannot have their blocks.

use std::collections::HashSet;

use super::block::{Block, BlockLayout};
use super::containers::{Node, Set};
use super::walk::Device;
use crate::collect::memory::view::View;
use crate::collect::memory::{Memory, MemoryError, exact, objects};

/// A tree of 2^18 nodes is at most 36 deep.
const MAX_STEPS: usize = 40;
/// Descents are made for so many streams; PyTorch's stream pool has 32 for each priority.
const MAX_STREAMS: usize = 32;

/// Why there is none.
#[derive(Debug, PartialEq, Eq)]
pub enum UnknownReason {
    /// Nodes changed or vanished on the way.
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

impl<M: Memory> Device<'_, M> {
    /// 0 when no block is free, which can be told without knowing what a Block looks like.
    pub fn largest_free_block(&self, blocks: Option<&BlockLayout>) -> Result<u64, UnknownReason> {
        let sets = self.free_sets()?;
        if sets.is_empty() {
            return Ok(0);
        }
        let search = Search {
            memory: self.memory,
            blocks: blocks.ok_or(UnknownReason::Busy)?,
            pools: HashSet::from(
                [self.layout.large, self.layout.small].map(|pool| self.address + pool as u64),
            ),
        };
        search.largest(&sets)
    }

    /// Those of the two pools that hold anything, in one read: the pools lie side by side.
    fn free_sets(&self) -> Result<Vec<Set>, UnknownReason> {
        let first = self.address + self.layout.large as u64;
        let second = self.layout.small - self.layout.large;
        let bytes = exact(
            self.memory,
            first,
            second + Set::SIZE,
            "the pools' free blocks",
        )?;
        let parse = |offset| Set::parse(View(&bytes), first, offset).ok_or(UnknownReason::Busy);
        let sets = [parse(0)?, parse(second)?];
        Ok(sets.into_iter().filter(|set| set.count > 0).collect())
    }
}

struct Search<'a, M> {
    memory: &'a M,
    blocks: &'a BlockLayout,
    pools: HashSet<u64>,
}

impl<M: Memory> Search<'_, M> {
    fn largest(&self, sets: &[Set]) -> Result<u64, UnknownReason> {
        let ends: Vec<u64> = sets
            .iter()
            .flat_map(|set| [set.leftmost, set.rightmost])
            .collect();
        let ends = self.free_blocks(&ends)?;
        if ends.len() != 2 * sets.len() {
            return Err(UnknownReason::Busy);
        }
        let mut largest = 0;
        for (set, ends) in sets.iter().zip(ends.chunks_exact(2)) {
            let (first, last) = (ends[0].1, ends[1].1);
            largest = largest.max(self.largest_of(set, first.stream, last)?);
        }
        Ok(largest)
    }

    /// From the last stream's largest block down to the first stream's.
    fn largest_of(&self, set: &Set, first_stream: u64, last: Block) -> Result<u64, UnknownReason> {
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

    /// The largest block of the stream before `stream`.
    fn last_below(&self, root: u64, stream: u64) -> Result<Block, UnknownReason> {
        let mut best = None;
        let mut at = root;
        for _ in 0..MAX_STEPS {
            if at == 0 {
                break;
            }
            let found = self.free_blocks(&[at])?;
            let [(node, block)] = found[..] else {
                return Err(UnknownReason::Busy);
            };
            if block.stream < stream {
                best = Some(block);
                at = node.right;
            } else {
                at = node.left;
            }
        }
        best.ok_or(UnknownReason::Busy)
    }

    /// The nodes and their blocks; fewer when one is not what it should be.
    fn free_blocks(&self, nodes: &[u64]) -> Result<Vec<(Node, Block)>, MemoryError> {
        let copies = objects::read(self.memory, nodes, Node::SIZE)?;
        let nodes: Vec<Node> = copies.readable().filter_map(Node::parse).collect();
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
