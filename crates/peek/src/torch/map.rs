//! Builds segments from an allocator's blocks, and checks the blocks for consistency.
//!
//! Blocks of one driver allocation form a chain through `prev` and `next`. A chain without expandable segments is a
//! segment. A chain with expandable segments covers an address range as large as the memory of a GPU, most of it
//! unmapped, and is split at the unmapped blocks, as in `torch.cuda.memory_snapshot()`. Only expandable segments have
//! unmapped blocks, so a chain with an unmapped block is expandable.
//!
//! ```text
//! chain   [2 MiB allocated][6 MiB free][4 MiB unmapped][8 MiB allocated][80 GiB unmapped]
//! segments└──────── 8 MiB ────────────┘                └─── 8 MiB ─────┘
//! ```

use gputop_model::{Block, BlockState, Bytes, Segment};

use super::block::TorchBlock as WalkedBlock;
use super::stats::DeviceStats;
use super::walk::{DevicePools, Walk};

/// Returns the segments ordered by address, and true if all blocks are consistent with their neighbours.
pub fn segments(walk: &Walk) -> (Vec<Segment>, bool) {
    let mut segments = Vec::new();
    let mut is_consistent = walk.lost == 0;
    let mut chain: Vec<&WalkedBlock> = Vec::new();
    for block in &walk.blocks {
        let Some(last) = chain.last() else {
            is_consistent &= block.prev == 0;
            chain.push(block);
            continue;
        };
        let is_after = last.end().is_some_and(|end| end <= block.address);
        if !is_after {
            // Skip a block that overlaps the previous one, because the two were read at different times.
            is_consistent = false;
            continue;
        }
        let continues =
            last.next == block.at && block.prev == last.at && last.end() == Some(block.address);
        if !continues {
            is_consistent &= last.next == 0 && block.prev == 0;
            split_chain(&chain, &walk.pools, &mut segments);
            chain.clear();
        }
        chain.push(block);
    }
    is_consistent &= chain.last().is_none_or(|last| last.next == 0);
    split_chain(&chain, &walk.pools, &mut segments);
    (segments, is_consistent)
}

fn split_chain(chain: &[&WalkedBlock], pools: &DevicePools, segments: &mut Vec<Segment>) {
    let is_expandable = chain.iter().any(|block| !block.is_mapped);
    for blocks in chain.split(|block| !block.is_mapped) {
        let Some(first) = blocks.first() else { continue };
        let (pool, pool_id) = pools.get(&first.pool).copied().unwrap_or_default();
        segments.push(Segment {
            address: first.address,
            size: Bytes(blocks.iter().map(|block| block.size).sum()),
            pool,
            pool_id,
            stream: first.stream,
            expandable: is_expandable,
            blocks: blocks.iter().map(|block| to_model(block)).collect(),
        });
    }
}

fn to_model(block: &WalkedBlock) -> Block {
    Block {
        address: block.address,
        size: Bytes(block.size),
        requested: block
            .requested
            .filter(|&requested| block.is_allocated && requested <= block.size)
            .map(Bytes),
        state: if block.is_allocated {
            BlockState::Allocated
        } else if block.is_active {
            BlockState::Active
        } else {
            BlockState::Free
        },
    }
}

/// Returns true if the blocks' sizes add up to the totals in the allocator statistics.
pub fn sums_agree(blocks: &[WalkedBlock], stats: &DeviceStats) -> bool {
    let sum = |is_counted: fn(&WalkedBlock) -> bool| {
        let counted = blocks.iter().filter(|block| is_counted(block));
        let sum = counted.fold(0u64, |sum, block| sum.saturating_add(block.size));
        i64::try_from(sum).ok()
    };
    sum(|block| block.is_allocated) == Some(stats.allocated_bytes.all.current)
        && sum(|block| block.is_active) == Some(stats.active_bytes.all.current)
        && sum(|block| block.is_mapped) == Some(stats.reserved_bytes.all.current)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_model::pool::{PoolId, PoolKind};

    /// Builds a chain of blocks that starts at 1 GiB, from sizes in MiB. A negative size is an unmapped block.
    fn chain(sizes: &[i64]) -> Vec<WalkedBlock> {
        let mut address = 1 << 30;
        let count = sizes.len();
        let at = |index: usize| 0x10_0000 + 0x100 * index as u64;
        sizes
            .iter()
            .enumerate()
            .map(|(index, size)| {
                let block = WalkedBlock {
                    at: at(index),
                    address,
                    size: size.unsigned_abs() << 20,
                    requested: Some(7),
                    pool: 0x8000,
                    is_mapped: *size > 0,
                    is_allocated: index == 0,
                    is_active: index < 2,
                    prev: index.checked_sub(1).map_or(0, at),
                    next: if index + 1 < count { at(index + 1) } else { 0 },
                    ..WalkedBlock::default()
                };
                address += block.size;
                block
            })
            .collect()
    }

    fn walk(blocks: Vec<WalkedBlock>) -> Walk {
        Walk {
            pools: DevicePools::from([(0x8000, (PoolKind::Private, Some(PoolId(0, 3))))]),
            blocks,
            lost: 0,
        }
    }

    #[test]
    fn splits_expandable_segment_at_unmapped_blocks() {
        let (segments, is_consistent) = segments(&walk(chain(&[2, 6, -4, 8, -80_000])));
        assert!(is_consistent);
        let sizes: Vec<Bytes> = segments.iter().map(|segment| segment.size).collect();
        assert_eq!(sizes, [Bytes::mib(8), Bytes::mib(8)]);
        assert!(segments.iter().all(|s| s.expandable && s.pool_id == Some(PoolId(0, 3))));
        let states: Vec<BlockState> = segments[0].blocks.iter().map(|b| b.state).collect();
        assert_eq!(states, [BlockState::Allocated, BlockState::Active]);
        assert_eq!(segments[0].blocks[0].requested, Some(Bytes(7)));
        assert_eq!(segments[0].blocks[1].requested, None);
        assert_eq!(segments[1].address, (1 << 30) + (12 << 20));
    }

    #[test]
    fn detects_missing_and_overlapping_blocks() {
        let mut missing = chain(&[2, 6, 8]);
        missing.remove(1);
        let (parts, is_consistent) = segments(&walk(missing));
        assert_eq!((parts.len(), is_consistent), (2, false));

        let mut overlapping = chain(&[2, 6, 8]);
        overlapping.insert(1, WalkedBlock { at: 1, ..overlapping[0] });
        let (parts, is_consistent) = segments(&walk(overlapping));
        assert_eq!((parts.len(), is_consistent), (1, false));

        let mut without_first = chain(&[2, 6]);
        without_first.remove(0);
        assert!(!segments(&walk(without_first)).1);
    }
}
