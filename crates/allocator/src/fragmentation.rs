//! Fragmentation of a pool's free memory: a histogram, the usual metrics, and the requests that can use each part.
//!
//! Every free byte belongs to exactly one of three groups. *Returnable*: the allocator can return it to the driver.
//! *Fragmented*: it shares a segment with a live block, so the allocator cannot return it, and only requests of the same
//! stream that fit into the gap can use it. *Kept*: it is in a completely free segment of a private pool, which only
//! the pool's CUDA graph or MemPool can use. With expandable segments, memory is returned in pages (2 MiB in the small
//! pool, 20 MiB in the large one), so a free page is returnable even if other pages of its segment are in use.
//! PyTorch's statistics do not count fragmented bytes in expandable segments.

use std::collections::BTreeMap;

use gputop_model::{Block, BlockState, Bytes, PoolKind, PoolMap, Segment};
use serde::Serialize;

use super::{LARGE_SEGMENT, SMALL_SEGMENT, whole};

/// Histogram bucket for free blocks that are larger than `up_to / 2` and at most `up_to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Bucket {
    /// Upper limit of the block size, a power of two.
    #[serde(rename = "up_to_bytes")]
    pub up_to: Bytes,
    pub count: u64,
    pub bytes: Bytes,
}

/// The free blocks of one stream in one kind of pool; only requests of that stream can use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamPool {
    pub pool: PoolKind,
    pub stream: u64,
    pub count: u64,
    pub free: Bytes,
    pub largest: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fragmentation {
    /// Size buckets from the smallest free block to the largest, including empty ones.
    pub histogram: Vec<Bucket>,
    /// Free blocks by pool and stream, sorted by free bytes, largest first.
    pub by_stream: Vec<StreamPool>,
    pub free: Bytes,
    pub largest: Bytes,
    /// Free bytes in segments with a live block. See the module documentation on expandable segments.
    pub fragmented: Bytes,
    /// `inactive_split_bytes` of `torch.cuda.memory_stats()`; excludes expandable segments.
    pub inactive_split: Bytes,
    pub returnable: Bytes,
    /// Bytes in fully free segments of private pools.
    pub kept: Bytes,
    pub allocated: Bytes,
    /// Bytes in freed blocks that another stream may still use.
    pub active: Bytes,
    /// Bytes by which blocks of live tensors are larger than requested, where known.
    pub rounding: Bytes,
    /// True if the map contains the requested size of at least one block.
    pub rounding_known: bool,
    pub expandable: bool,
}

impl Fragmentation {
    pub fn of(map: &PoolMap) -> Self {
        let mut all = Self::default();
        let mut sizes: Vec<u64> = Vec::new();
        let mut by_stream: BTreeMap<(u8, u64), StreamPool> = BTreeMap::new();
        for segment in &map.segments {
            all.expandable |= segment.expandable;
            let whole_free = is_whole_free(segment);
            for block in &segment.blocks {
                all.take_live(block);
                if block.state == BlockState::Free && block.size.0 > 0 {
                    all.take_free(segment, block, whole_free);
                    sizes.push(block.size.0);
                    add_to_stream(&mut by_stream, segment, block.size);
                }
            }
        }
        all.histogram = histogram(&sizes);
        all.by_stream = by_stream.into_values().collect();
        all.by_stream.sort_by_key(|entry| std::cmp::Reverse(entry.free));
        all
    }

    fn take_live(&mut self, block: &Block) {
        match block.state {
            BlockState::Allocated => {
                add(&mut self.allocated, block.size.0);
                if let Some(requested) = block.requested {
                    self.rounding_known = true;
                    add(&mut self.rounding, block.size.0.saturating_sub(requested.0));
                }
            }
            BlockState::Active => add(&mut self.active, block.size.0),
            _ => {}
        }
    }

    fn take_free(&mut self, segment: &Segment, block: &Block, whole_free: bool) {
        let size = block.size.0;
        add(&mut self.free, size);
        self.largest = self.largest.max(block.size);
        if !segment.expandable && !whole_free {
            add(&mut self.inactive_split, size);
        }
        let returnable = returnable_of(segment, block, whole_free);
        add(&mut self.returnable, returnable);
        let left = size - returnable;
        if is_shared(segment.pool) || !whole_free {
            add(&mut self.fragmented, left);
        } else {
            add(&mut self.kept, left);
        }
    }

    /// Returns 1 − largest free block / free bytes: 0 means that all free bytes are in one block, and a value close to
    /// 1 means many small blocks. `None` if nothing is free.
    pub fn external(&self) -> Option<f64> {
        let free = share(self.largest.0, self.free.0)?;
        Some((1.0 - free).clamp(0.0, 1.0))
    }
}

/// Returns the fraction of free bytes in blocks that are too small for a request, for every power of two, from 512 bytes
/// to the first that exceeds all blocks.
pub fn unusable_curve(map: &PoolMap) -> Vec<(Bytes, f64)> {
    let mut sizes: Vec<u64> = free_blocks(map).map(|block| block.size.0).collect();
    sizes.sort_unstable();
    let total = sizes.iter().fold(0_u64, |sum, s| sum.saturating_add(*s));
    let (mut curve, mut at, mut smaller) = (Vec::new(), 0, 0_u64);
    for power in 9..64 {
        let request = 1_u64 << power;
        while at < sizes.len() && sizes[at] < request {
            smaller = smaller.saturating_add(sizes[at]);
            at += 1;
        }
        let Some(unusable) = share(smaller, total) else { break };
        curve.push((Bytes(request), unusable));
        if at == sizes.len() {
            break;
        }
    }
    curve
}

fn free_blocks(map: &PoolMap) -> impl Iterator<Item = &Block> {
    map.segments
        .iter()
        .flat_map(|segment| &segment.blocks)
        .filter(|block| block.state == BlockState::Free && block.size.0 > 0)
}

fn share(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| (part as f64 / of as f64).clamp(0.0, 1.0))
}

fn add(sum: &mut Bytes, more: u64) {
    sum.0 = sum.0.saturating_add(more);
}

/// Returns true if requests from anywhere in the program can use the pool. A private pool serves only its owner.
pub(super) fn is_shared(pool: PoolKind) -> bool {
    matches!(pool, PoolKind::Large | PoolKind::Small)
}

/// Returns true if no block of the segment is live. Only then can a non-expandable segment be returned to the driver
/// (`release_blocks`: `!block->prev && !block->next`).
pub(super) fn is_whole_free(segment: &Segment) -> bool {
    segment
        .blocks
        .iter()
        .all(|block| matches!(block.state, BlockState::Free | BlockState::Unmapped))
}

/// Returns the page size of an expandable segment in bytes.
pub(super) fn page(pool: PoolKind) -> u64 {
    match pool {
        PoolKind::Small => SMALL_SEGMENT.0,
        _ => LARGE_SEGMENT.0,
    }
}

/// Returns the part of a free block in an expandable segment that consists of whole pages, as offsets into the block.
/// `ExpandableSegment::unmap` rounds in the same way. A mapped range always starts at a page boundary.
pub(super) fn whole_pages(segment: &Segment, block: &Block) -> std::ops::Range<u64> {
    let page = page(segment.pool);
    let from = block.address.saturating_sub(segment.address);
    let first = from.div_ceil(page).saturating_mul(page);
    let last = whole(from.saturating_add(block.size.0), page);
    if first < last { first - from..last - from } else { 0..0 }
}

fn returnable_of(segment: &Segment, block: &Block, whole_free: bool) -> u64 {
    match (is_shared(segment.pool), segment.expandable) {
        (false, _) => 0,
        (true, true) => {
            let pages = whole_pages(segment, block);
            pages.end - pages.start
        }
        (true, false) if whole_free => block.size.0,
        (true, false) => 0,
    }
}

fn add_to_stream(by_stream: &mut BTreeMap<(u8, u64), StreamPool>, segment: &Segment, size: Bytes) {
    let entry = by_stream.entry((segment.pool as u8, segment.stream)).or_insert(StreamPool {
        pool: segment.pool,
        stream: segment.stream,
        count: 0,
        free: Bytes(0),
        largest: Bytes(0),
    });
    entry.count += 1;
    add(&mut entry.free, size.0);
    entry.largest = entry.largest.max(size);
}

/// Returns the exponent of the smallest power of two that is at least `size` and at least 512.
fn power(size: u64) -> u32 {
    (u64::BITS - size.saturating_sub(1).leading_zeros()).clamp(9, 63)
}

/// Groups sizes by power of two. Returns the number of sizes and the total bytes in each group, including empty groups.
pub fn histogram(sizes: &[u64]) -> Vec<Bucket> {
    let powers = || sizes.iter().map(|&size| power(size));
    let (Some(min), Some(max)) = (powers().min(), powers().max()) else { return Vec::new() };
    let mut buckets: Vec<Bucket> =
        (min..=max).map(|power| Bucket { up_to: Bytes(1 << power), ..Bucket::default() }).collect();
    for &size in sizes {
        let bucket = &mut buckets[(power(size) - min) as usize];
        bucket.count += 1;
        add(&mut bucket.bytes, size);
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool_maps::{MIB, any_map, map, segment};
    use proptest::prelude::*;

    /// Returns the fraction of free bytes that are in blocks too small for `request`.
    fn unusable(map: &PoolMap, request: Bytes) -> Option<f64> {
        let sum = |blocks: &mut dyn Iterator<Item = &Block>| blocks.map(|block| block.size.0).sum();
        let smaller = sum(&mut free_blocks(map).filter(|block| block.size < request));
        share(smaller, sum(&mut free_blocks(map)))
    }

    #[test]
    fn free_bytes_are_returnable_stuck_or_kept() {
        let of = Fragmentation::of(&map(vec![
            segment(0, PoolKind::Large, false, &[('a', 8 * MIB), ('f', 12 * MIB)]),
            segment(1 << 30, PoolKind::Large, false, &[('f', 40 * MIB)]),
            segment(2 << 30, PoolKind::Private, false, &[('f', 20 * MIB)]),
            segment(3 << 30, PoolKind::Private, false, &[('w', 4 * MIB), ('f', 16 * MIB)]),
        ]));
        assert_eq!(of.free, Bytes::mib(88));
        assert_eq!(of.returnable, Bytes::mib(40));
        assert_eq!(of.fragmented, Bytes::mib(28));
        assert_eq!(of.inactive_split, Bytes::mib(28));
        assert_eq!(of.kept, Bytes::mib(20));
        assert_eq!((of.allocated, of.active), (Bytes::mib(8), Bytes::mib(4)));
        assert_eq!(of.rounding, Bytes(100));
        assert_eq!(of.external(), Some(1.0 - 40.0 / 88.0));
    }

    #[test]
    fn only_whole_free_pages_of_an_expandable_segment_are_returnable() {
        // The free block extends from 10 to 75 MiB, so the 20 MiB pages 1 and 2 are fully free.
        let of = Fragmentation::of(&map(vec![segment(
            0,
            PoolKind::Large,
            true,
            &[('a', 10 * MIB), ('f', 65 * MIB), ('a', 25 * MIB), ('u', 900 * MIB)],
        )]));
        assert_eq!(of.returnable, Bytes::mib(40));
        assert_eq!(of.fragmented, Bytes::mib(25));
        assert_eq!(of.inactive_split, Bytes(0), "PyTorch counts none");
        assert_eq!(of.free, Bytes::mib(65), "unmapped address space is not free memory");
    }

    #[test]
    fn the_histogram_has_all_powers_of_two() {
        let blocks = [('f', 512), ('a', 512), ('f', 513), ('a', 512), ('f', 8 * MIB)];
        let of = Fragmentation::of(&map(vec![segment(0, PoolKind::Large, false, &blocks)]));
        let counts: Vec<(u64, u64)> = of.histogram.iter().map(|b| (b.up_to.0, b.count)).collect();
        assert_eq!(counts[..3], [(512, 1), (1_024, 1), (2_048, 0)]);
        assert_eq!(counts.last(), Some(&(8 * MIB, 1)));
    }

    #[test]
    fn the_curve_ends_at_the_first_size_without_a_block() {
        let parts = [('f', 1_024), ('a', 512), ('f', 3 * 1_024)];
        let map = map(vec![segment(0, PoolKind::Small, false, &parts)]);
        let curve = unusable_curve(&map);
        assert_eq!(
            curve,
            [(Bytes(512), 0.0), (Bytes(1_024), 0.0), (Bytes(2_048), 0.25), (Bytes(4_096), 1.0)]
        );
        assert_eq!(unusable(&map, Bytes(3_000)), Some(0.25));
        assert_eq!(unusable_curve(&PoolMap::default()), []);
    }

    proptest! {
        #[test]
        fn the_histogram_and_the_streams_add_up_to_all_free_bytes(map in any_map()) {
            let of = Fragmentation::of(&map);
            let count: u64 = of.histogram.iter().map(|b| b.count).sum();
            let bytes: u64 = of.histogram.iter().map(|b| b.bytes.0).sum();
            prop_assert_eq!(count, free_blocks(&map).count() as u64);
            prop_assert_eq!(bytes, of.free.0);
            prop_assert_eq!(of.by_stream.iter().map(|s| s.free.0).sum::<u64>(), of.free.0);
            prop_assert_eq!(of.by_stream.iter().map(|s| s.count).sum::<u64>(), count);
            for bucket in of.histogram.iter().filter(|b| b.count > 0) {
                prop_assert!(bucket.bytes.0 <= bucket.count * bucket.up_to.0);
            }
        }

        #[test]
        fn free_bytes_are_the_sum_of_the_three_groups(map in any_map()) {
            let of = Fragmentation::of(&map);
            prop_assert_eq!(of.fragmented.0 + of.returnable.0 + of.kept.0, of.free.0);
        }

        #[test]
        fn shares_are_within_bounds_and_the_curve_rises(map in any_map()) {
            let external = Fragmentation::of(&map).external();
            prop_assert!(external.is_none_or(|e| (0.0..=1.0).contains(&e)));
            let curve = unusable_curve(&map);
            prop_assert!(curve.iter().all(|(_, u)| (0.0..=1.0).contains(u)));
            prop_assert!(curve.is_sorted_by(|a, b| a.1 <= b.1));
            for (request, unusable_then) in curve {
                prop_assert_eq!(unusable(&map, request), Some(unusable_then));
            }
        }
    }
}
