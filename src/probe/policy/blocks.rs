//! Blocks of segments, by address: best fit, split, merged with free neighbours of the same segment.

use std::collections::BTreeMap;

use crate::model::pool::{self, BlockState, PoolKind, Segment};
use crate::model::units::Bytes;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    size: u64,
    state: BlockState,
    /// The address of its segment: blocks of two never merge.
    segment: u64,
}

/// The blocks of one pool, each segment without gaps.
#[derive(Debug, Default)]
pub struct Blocks {
    blocks: BTreeMap<u64, Block>,
}

impl Blocks {
    /// A new segment, as one block.
    pub fn add(&mut self, address: u64, size: u64, state: BlockState) {
        let block = Block {
            size,
            state,
            segment: address,
        };
        self.blocks.insert(address, block);
    }

    /// The smallest free block that is large enough; the lowest of those.
    pub fn best_fit(&self, size: u64) -> Option<u64> {
        let fits = self
            .blocks
            .iter()
            .filter(|(_, block)| block.state == BlockState::Free && block.size >= size);
        fits.min_by_key(|(address, block)| (block.size, **address))
            .map(|(address, _)| *address)
    }

    /// Makes the free block live. What is left over is split off where it is at least `least_rest`.
    pub fn take(&mut self, address: u64, size: u64, least_rest: u64) {
        let Some(whole) = self.blocks.get(&address).map(|block| block.size) else {
            return;
        };
        let kept = if whole - size >= least_rest.max(1) {
            size
        } else {
            whole
        };
        self.turn(address, kept, BlockState::Allocated);
    }

    /// Frees a live block.
    pub fn give(&mut self, address: u64) {
        if let Some(block) = self.blocks.get(&address).copied() {
            self.turn(address, block.size, BlockState::Free);
        }
    }

    /// A part of a block, or all of it, gets another state, and merges with neighbours that have it already; live
    /// blocks stay for themselves.
    pub fn turn(&mut self, address: u64, size: u64, state: BlockState) {
        let Some((&start, &block)) = self.blocks.range(..=address).next_back() else {
            return;
        };
        let end = start + block.size;
        let (before, after) = (address - start, end - (address + size));
        self.blocks.remove(&start);
        if before > 0 {
            self.blocks.insert(
                start,
                Block {
                    size: before,
                    ..block
                },
            );
        }
        if after > 0 {
            let rest = Block {
                size: after,
                ..block
            };
            self.blocks.insert(address + size, rest);
        }
        let turned = Block {
            size,
            state,
            ..block
        };
        self.blocks.insert(address, turned);
        if state != BlockState::Allocated {
            self.merge(address);
        }
    }

    fn merge(&mut self, address: u64) {
        let Some(&block) = self.blocks.get(&address) else {
            return;
        };
        let is_like = |other: &Block| other.state == block.state && other.segment == block.segment;
        let (mut start, mut size) = (address, block.size);
        if let Some(next) = self.blocks.get(&(address + block.size)).copied()
            && is_like(&next)
        {
            self.blocks.remove(&(address + block.size));
            size += next.size;
        }
        let before = self.blocks.range(..address).next_back();
        if let Some((&at, &before)) = before
            && is_like(&before)
        {
            self.blocks.remove(&address);
            start = at;
            size += before.size;
        }
        self.blocks.insert(start, Block { size, ..block });
    }

    /// Segments that are one free block, with their sizes.
    pub fn whole_free(&self) -> Vec<(u64, u64)> {
        let mut parts: BTreeMap<u64, u32> = BTreeMap::new();
        for block in self.blocks.values() {
            *parts.entry(block.segment).or_default() += 1;
        }
        self.of_state(BlockState::Free)
            .filter(|(address, _)| parts.get(address) == Some(&1))
            .collect()
    }

    /// Address and size of every block of a state.
    pub fn of_state(&self, state: BlockState) -> impl Iterator<Item = (u64, u64)> {
        let blocks = self.blocks.iter();
        blocks
            .filter(move |(_, block)| block.state == state)
            .map(|(address, block)| (*address, block.size))
    }

    /// The free block that ends where this address begins.
    pub fn free_before(&self, address: u64) -> Option<(u64, u64)> {
        let (at, block) = self.blocks.range(..address).next_back()?;
        let touches = block.state == BlockState::Free && at + block.size == address;
        touches.then_some((*at, block.size))
    }

    /// Forgets a segment that is one block.
    pub fn remove(&mut self, address: u64) {
        self.blocks.remove(&address);
    }

    /// Address and size of all segments.
    pub fn extents(&self) -> Vec<(u64, u64)> {
        let mut extents: BTreeMap<u64, u64> = BTreeMap::new();
        for block in self.blocks.values() {
            *extents.entry(block.segment).or_default() += block.size;
        }
        extents.into_iter().collect()
    }

    pub fn segments(&self, pool: PoolKind, expandable: bool) -> Vec<Segment> {
        let segment = |(address, size): (u64, u64)| Segment {
            address,
            size: Bytes(size),
            pool,
            pool_id: None,
            stream: 0,
            expandable,
            blocks: self
                .blocks
                .range(address..address + size)
                .map(|(address, block)| pool::Block {
                    address: *address,
                    size: Bytes(block.size),
                    requested: None,
                    state: block.state,
                })
                .collect(),
        };
        self.extents().into_iter().map(segment).collect()
    }
}
