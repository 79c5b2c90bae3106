use std::sync::Arc;

use super::*;
use crate::tui::pool_maps::any_map;
use gputop_model::gpu::Memory;
use gputop_model::pool::{Block, BlockState, PoolKind, PoolMap, PoolStats, Sampled, Segment};
use gputop_model::process::ProcessKey;
use gputop_model::units::{GpuUuid, Mono};
use proptest::prelude::*;

fn frame(total: u64, free: u64, driver: u64, vram: Option<u64>) -> Frame {
    let mut gpu = Gpu {
        memory: Memory {
            total: Bytes(total).into(),
            free: Bytes(free).into(),
            reserved: Bytes(driver).into(),
            ..Memory::default()
        },
        processes: Vec::new().into(),
        ..Gpu::default()
    };
    if let (Some(vram), gputop_model::reading::Reading::Value(list)) = (vram, &mut gpu.processes) {
        list.push(gputop_model::gpu::GpuProcess {
            process: Some(ProcessKey::default()),
            vram: Bytes(vram).into(),
            ..Default::default()
        });
    }
    Frame { gpus: vec![gpu], ..Frame::default() }
}

fn pool(allocated: u64, reserved: u64, split: u64) -> Pool {
    Pool {
        gpu: GpuUuid::default().into(),
        stats: PoolStats {
            allocated: Sampled::new(Bytes(allocated)),
            active: Sampled::new(Bytes(allocated)),
            reserved: Sampled::new(Bytes(reserved)),
            inactive_split: Bytes(split),
            largest_free_block: Bytes(split).into(),
            ..PoolStats::default()
        },
        ..Pool::default()
    }
}

#[test]
fn headline_explains_fragmentation() {
    let size = |gib: f64| (gib * (1_u64 << 30) as f64) as u64;
    let frame = frame(size(23.99), size(2.13), size(0.44), Some(size(21.42)));
    let mut pool = pool(size(14.10), size(20.90), size(5.90));
    pool.stats.largest_free_block = Bytes(size(0.61)).into();
    let figures = Figures::of(&frame, &pool, None);
    let parts = figures.cached_parts.expect("a split");
    let printed =
        [figures.allocated, figures.cached, parts.fragmented, parts.returnable, figures.process];
    assert_eq!(printed.map(gib), ["14.10", "6.80", "5.90", "0.90", "21.42"]);
    assert_eq!(
        figures.headline(),
        "8.93 GiB unused, but no request above 3.02 GiB fits: 5.90 GiB is fragmented"
    );
}

#[test]
fn headline_does_not_warn_about_contiguous_memory() {
    let gib = Bytes::gib(1).0;
    let frame = frame(24 * gib, 10 * gib, 0, Some(14 * gib));
    let figures = Figures::of(&frame, &pool(13 * gib, 13 * gib + 1, 1), None);
    assert_eq!(figures.headline(), "10.00 GiB unused; requests up to 10.00 GiB fit");
    // With expandable segments, only the map shows which memory can be released.
    let figures = Figures::of(&frame, &pool(8 * gib, 13 * gib, 0), None);
    assert_eq!(figures.cached_parts, None);
    assert_eq!(
        figures.headline(),
        "15.00 GiB unused, and a request of 10.00 GiB fits; a larger one may not"
    );
    let figures = Figures::of(&Frame::default(), &pool(8 * gib, 13 * gib, 0), None);
    assert_eq!(figures.headline(), "5.00 GiB is cached but not in tensors");
}

#[test]
fn sizes_are_those_of_the_statistics_and_parts_of_another_instant_are_marked() {
    let gib = Bytes::gib(1).0;
    let mut pool = pool(8 * gib, 13 * gib, gib);
    let map = |free: u64| Fragmentation {
        allocated: Bytes(8 * gib),
        free: Bytes(free),
        fragmented: Bytes(4 * gib),
        returnable: Bytes(free.saturating_sub(4 * gib)),
        ..Fragmentation::default()
    };
    let same = Parts::of_stats(&pool).split_like(&map(5 * gib));
    let split = same.split.expect("a split");
    assert_eq!((split.fragmented, split.returnable), (Bytes::gib(4), Bytes::gib(1)));
    assert!(!same.is_split_approximate);
    let later = Parts::of_stats(&pool).split_like(&map(9 * gib));
    assert_eq!((later.cached, later.split), (Bytes::gib(5), same.split));
    assert!(later.is_split_approximate);
    let frame = frame(24 * gib, 10 * gib, 0, Some(14 * gib));
    assert!(!Figures::of(&frame, &pool, None).is_other_approximate);
    pool.stats.reserved = pool.stats.reserved.and(Bytes(12 * gib)).and(Bytes(13 * gib));
    assert!(Figures::of(&frame, &pool, None).is_other_approximate);
}

#[test]
fn no_more_fits_than_is_unused() {
    let gib = Bytes::gib(1).0;
    let frame = frame(24 * gib, 10 * gib, 0, Some(14 * gib));
    let free = Segment {
        pool: PoolKind::Large,
        size: Bytes::gib(9),
        blocks: vec![Block { size: Bytes::gib(9), state: BlockState::Free, ..Block::default() }],
        ..Segment::default()
    };
    let map = |kept: u64| {
        let mut read = AnalysedMap::new(Arc::new(PoolMap {
            segments: vec![free.clone()],
            ..PoolMap::default()
        }));
        read.fragmentation.kept = Bytes(kept);
        read
    };
    // The map was read at another time and has 9 GiB of free memory; the statistics have 5 GiB.
    let pool = pool(8 * gib, 13 * gib, gib);
    let now = Figures::of(&frame, &pool, None);
    let figures = Figures::of(&frame, &pool, Some(&map(0)));
    assert_eq!((figures.fits, figures.cached_parts), (now.fits, now.cached_parts));
    // The statistics do not report the memory of private pools separately.
    let figures = Figures::of(&frame, &pool, Some(&map(1)));
    assert!(figures.is_split_approximate);
    assert_eq!(figures.fits.largest(), figures.unused());
}

#[test]
fn ignores_an_old_map() {
    let mut pool = pool(100 << 20, 300 << 20, 50 << 20);
    pool.at = Mono(100_000);
    let old = AnalysedMap::new(Arc::new(PoolMap { at: Mono(90_000), ..PoolMap::default() }));
    let figures = Figures::of(&Frame::default(), &pool, Some(&old));
    assert!(figures.allocated.0 > 0);
}

proptest! {
    #[test]
    fn printed_parts_add_up_to_printed_sums(
        map in any_map(), with_map: bool,
        total in 0..200 * (1_u64 << 30), free: u64, driver in 0..1_u64 << 30,
        vram in prop::option::of(0..200 * (1_u64 << 30)),
        allocated in 0..100 * (1_u64 << 30), more in 0..100 * (1_u64 << 30), split in 0..100 * (1_u64 << 30),
    ) {
        let frame = frame(total, free.checked_rem(total).unwrap_or(0), driver, vram);
        let pool = pool(allocated, allocated + more, split);
        let read = AnalysedMap::new(Arc::new(map));
        let figures = Figures::of(&frame, &pool, with_map.then_some(&read));
        let other = figures.other.unwrap_or_default().0;
        prop_assert_eq!(figures.allocated.0 + figures.cached.0 + other, figures.process.0);
        if let Some(p) = figures.cached_parts {
            let sum = p.fragmented.0 + p.returnable.0 + p.private.0 + p.waiting.0;
            prop_assert_eq!(sum, figures.cached.0);
        }
        if let Some(card) = figures.card {
            let sum = card.driver.0 + card.elsewhere.0 + card.free.0 + figures.process.0;
            prop_assert_eq!(sum, card.total.0);
        }
        let _ = figures.headline();
    }
}
