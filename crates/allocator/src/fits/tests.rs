use super::super::fragmentation::Fragmentation;
use super::super::rounded;
use super::*;
use crate::pool_maps::{MIB, any_map, map, segment};
use gputop_model::gpu::Memory;
use gputop_model::pool::{Allocator, Sampled};
use proptest::prelude::*;

fn free(mib: u64) -> FitConditions {
    FitConditions::with_free(Some(Bytes::mib(mib)))
}

/// A cache with plenty of free memory, split into several blocks.
fn scattered() -> PoolMap {
    map(vec![
        segment(0, PoolKind::Large, false, &[('a', 300 * MIB), ('f', 600 * MIB), ('a', 100 * MIB)]),
        segment(2 << 30, PoolKind::Large, false, &[('f', 900 * MIB)]),
        segment(4 << 30, PoolKind::Small, false, &[('a', MIB), ('f', MIB)]),
    ])
}

#[test]
fn each_step_has_its_own_value() {
    let fits = Fits::of_map(&scattered(), &free(2_001));
    assert_eq!(fits.cache, Some(Bytes::mib(900)));
    assert_eq!(fits.driver, Some(Bytes::mib(2_000)), "whole granules");
    assert_eq!(fits.flushed, Some(Bytes::mib(2_900)));
    assert_eq!(fits.largest(), Some(Bytes::mib(2_900)));
}

#[test]
fn the_driver_provides_whole_segments() {
    let table = [(0, 0), (1, 0), (2, 1), (9, 1), (10, 10), (19, 18), (21, 20)];
    for (mib, expected) in table {
        assert_eq!(from_driver(mib * MIB, false), Bytes::mib(expected), "{mib}");
    }
    assert_eq!(from_driver(39 * MIB, true), Bytes::mib(20));
    assert_eq!(from_driver(19 * MIB, true), Bytes::mib(1));
}

#[test]
fn the_free_tail_of_an_expandable_segment_grows_by_pages() {
    let parts = [('a', 30 * MIB), ('f', 20 * MIB), ('a', 10 * MIB), ('f', 40 * MIB)];
    let map = map(vec![segment(0, PoolKind::Large, true, &parts)]);
    let fits = Fits::of_map(&map, &free(50));
    assert_eq!(fits.cache, Some(Bytes::mib(40)));
    assert_eq!(fits.driver, Some(Bytes::mib(80)), "the free tail and two new pages");
    // Pages 3 and 4 of the tail are unmapped and mapped again. The free block from 30 to 50 MiB contains no whole
    // page.
    assert_eq!(fits.flushed, Some(Bytes::mib(80)));
}

#[test]
fn a_gap_in_an_expandable_segment_is_mapped_again() {
    let parts =
        [('a', 20 * MIB), ('f', 20 * MIB), ('u', 40 * MIB), ('f', 20 * MIB), ('a', 20 * MIB)];
    let map = map(vec![segment(0, PoolKind::Large, true, &parts)]);
    assert_eq!(Fits::of_map(&map, &free(45)).driver, Some(Bytes::mib(80)));
    assert_eq!(Fits::of_map(&map, &free(25)).driver, Some(Bytes::mib(40)));
}

#[test]
fn a_released_segment_still_separates_expandable_segments() {
    let tail = [('a', 20 * MIB), ('f', 10 * MIB)];
    let segments = vec![
        segment(0, PoolKind::Large, true, &tail),
        segment(40 * MIB, PoolKind::Large, false, &[('f', 20 * MIB)]),
        segment(60 * MIB, PoolKind::Large, true, &[('a', 20 * MIB)]),
    ];
    let fits = Fits::of_map(&map(segments), &free(40));
    assert_eq!(fits.driver, Some(Bytes::mib(50)));
    assert_eq!(fits.flushed, Some(Bytes::mib(70)));
}

#[test]
fn memory_cached_on_one_stream_does_not_serve_another() {
    let mut other = segment(0, PoolKind::Large, false, &[('a', MIB), ('f', 63 * MIB)]);
    other.stream = 7;
    let map = map(vec![other]);
    let conditions = free(0);
    assert_eq!(of_stream(&map, &conditions, 7).cache, Some(Bytes::mib(63)));
    assert_eq!(of_stream(&map, &conditions, 0).largest(), Some(Bytes(0)));
    assert_eq!(serve(&map, &conditions, Bytes::mib(8), 0), Some(RequestOutcome::No));
    assert_eq!(serve(&map, &conditions, Bytes::mib(8), 7), Some(RequestOutcome::Cache));
}

#[test]
fn max_split_size_turns_small_requests_away_from_large_blocks() {
    let conditions = FitConditions { max_split: Some(Bytes::mib(100)), ..free(0) };
    let map = map(vec![segment(0, PoolKind::Large, false, &[('f', 200 * MIB)])]);
    let served = |mib| serve(&map, &conditions, Bytes::mib(mib), 0);
    assert_eq!(served(200), Some(RequestOutcome::Cache));
    assert_eq!(served(190), Some(RequestOutcome::Cache));
    assert_eq!(served(150), Some(RequestOutcome::Flush));
    assert_eq!(served(50), Some(RequestOutcome::Flush), "a flush returns the segment first");
    assert_eq!(served(201), Some(RequestOutcome::No));
}

#[test]
fn a_memory_fraction_limits_requests_to_the_driver() {
    let conditions = FitConditions { allowed_more: Some(Bytes::mib(100)), ..free(2_000) };
    let fits = Fits::of_map(&scattered(), &conditions);
    assert_eq!(fits.driver, Some(Bytes::mib(100)));
    assert_eq!(fits.flushed, Some(Bytes::mib(1_000)));
}

#[test]
fn start_options_limit_what_fits() {
    let config = Config::parse("max_split_size_mb:64,per_process_memory_fraction:0.5");
    let (free, total) = (Some(Bytes::mib(2_000)), Some(Bytes::mib(4_000)));
    let conditions = FitConditions::with_config(free, &config, total, Bytes::mib(1_900));
    assert_eq!(conditions.allowed_more, Some(Bytes::mib(100)));
    assert_eq!(conditions.max_split, Some(Bytes::mib(64)));
    let fits = Fits::of_stats(&PoolStats::default(), &conditions);
    assert_eq!(fits.driver, Some(Bytes::mib(100)));
    // The pool already exceeds the limit, so it cannot reserve any more memory.
    let above = FitConditions::with_config(free, &config, total, Bytes::mib(2_100));
    assert_eq!(above.allowed_more, Some(Bytes(0)));
    // Without the device's memory size or the option, the limit is unknown.
    let unknown = FitConditions::with_config(free, &config, None, Bytes(0));
    assert_eq!(unknown.allowed_more, None);

    let on = Config::parse("expandable_segments:True");
    let conditions = FitConditions::with_config(Some(Bytes::mib(5)), &on, total, Bytes(0));
    assert_eq!(conditions.expandable, Some(true));
    let off = Config::parse("expandable_segments:False");
    let conditions = FitConditions::with_config(free, &off, total, Bytes(0));
    assert_eq!(conditions.expandable, None, "expandable segments may have been turned on since");
}

#[test]
fn statistics_show_returnable_memory_only_without_expandable_segments() {
    let mut stats = PoolStats {
        reserved: Sampled::new(Bytes::mib(1_000)),
        active: Sampled::new(Bytes::mib(600)),
        inactive_split: Bytes::mib(300),
        largest_free_block: Bytes::mib(120).into(),
        ..PoolStats::default()
    };
    let fits = Fits::of_stats(&stats, &free(50));
    assert_eq!(fits.flushed, Some(Bytes::mib(150)));
    assert_eq!(fits.largest(), Some(Bytes::mib(150)));
    assert_eq!(fragmented(&stats), Some(Bytes::mib(300)));
    stats.inactive_split = Bytes(0);
    let fits = Fits::of_stats(&stats, &free(50));
    assert_eq!((fits.flushed, fragmented(&stats)), (None, None));
    assert_eq!(fits.largest(), Some(Bytes::mib(120)));
    assert!(!fits.is_complete());
    let empty = Fits::of_stats(&PoolStats::default(), &FitConditions::default());
    assert_eq!(empty.largest(), None);
}

proptest! {
    #[test]
    fn never_exceeds_the_sum_of_its_parts(map in any_map(), driver in 0..4_000_u64) {
        let fits = Fits::of_map(&map, &free(driver));
        let of = Fragmentation::of(&map);
        prop_assert!(fits.cache <= Some(of.largest));
        let parts = of.free.0 + driver * MIB;
        prop_assert!(fits.largest() <= Some(Bytes(parts)), "{fits:?}");
        prop_assert_eq!(flush(&map).1, of.returnable.0);
    }

    #[test]
    fn agrees_with_the_outcome_of_a_request_of_that_size(map in any_map(), driver in 0..4_000_u64) {
        let conditions = free(driver);
        for stream in 0..3 {
            let fits = of_stream(&map, &conditions, stream);
            let largest = fits.largest().expect("the driver reported its free memory");
            if largest.0 > 0 {
                let served = serve(&map, &conditions, largest, stream);
                prop_assert!(served < Some(RequestOutcome::No), "{fits:?}");
            }
            let above = Bytes(largest.0 + 512);
            prop_assert_eq!(serve(&map, &conditions, above, stream), Some(RequestOutcome::No), "{:?}", fits);
        }
    }

    #[test]
    fn one_more_free_segment_never_lowers_it(
        map in any_map(), driver in 0..4_000_u64, mib in 1..300_u64, expandable: bool,
    ) {
        // The option applies to the whole process, so an additional segment does not change it.
        let conditions = FitConditions { expandable: Some(expandable), ..free(driver) };
        let before = Fits::of_map(&map, &conditions);
        let mut more = map;
        more.segments.push(segment(0x7fff_0000_0000, PoolKind::Large, false, &[('f', 2 * mib * MIB)]));
        let after = Fits::of_map(&more, &conditions);
        prop_assert!(after.cache >= before.cache);
        prop_assert!(after.driver >= before.driver);
        prop_assert!(after.flushed >= before.flushed);
    }

    #[test]
    fn freeing_a_block_never_lowers_it(map in any_map(), driver in 0..4_000_u64, at: prop::sample::Index) {
        let conditions = free(driver);
        let before = Fits::of_map(&map, &conditions).largest();
        let mut freed = map;
        let blocks: usize = freed.segments.iter().map(|s| s.blocks.len()).sum();
        if blocks > 0 {
            let block = freed.segments.iter_mut().flat_map(|s| &mut s.blocks).nth(at.index(blocks));
            if let Some(block) = block.filter(|b| b.state != BlockState::Unmapped) {
                block.state = BlockState::Free;
            }
        }
        prop_assert!(Fits::of_map(&freed, &conditions).largest() >= before);
    }
}

/// The step that would serve a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RequestOutcome {
    Cache,
    Driver,
    /// The request would be served only after a cache flush (a retry).
    Flush,
    /// The request would fail.
    No,
}

/// Returns the outcome of a request on a stream. `None` if the outcome depends on the free memory reported by the
/// driver, and that value was not read.
fn serve(
    map: &PoolMap,
    conditions: &FitConditions,
    request: Bytes,
    stream: u64,
) -> Option<RequestOutcome> {
    let size = rounded(request).0;
    if in_cache(map, conditions.max_split, size, stream) {
        return Some(RequestOutcome::Cache);
    }
    let expandable = conditions.expandable.unwrap_or_else(|| has_expandable(map));
    let given = |map: &PoolMap, flushed| {
        let budget = conditions.budget(flushed)?;
        let new = segment_of(size, expandable) <= budget;
        Some(new || grown(map, budget, |other| other == stream) >= size && size > SMALL_REQUEST.0)
    };
    if given(map, 0)? {
        return Some(RequestOutcome::Driver);
    }
    let (after, back) = flush(map);
    Some(if given(&after, back)? { RequestOutcome::Flush } else { RequestOutcome::No })
}

/// Returns how much memory the allocator requests from the driver to serve a request, as `get_allocation_size` does.
/// With expandable segments, the allocator requests complete pages.
fn segment_of(size: u64, expandable: bool) -> u64 {
    match size {
        n if n <= SMALL_REQUEST.0 => SMALL_SEGMENT.0,
        n if expandable => n.div_ceil(LARGE_SEGMENT.0).saturating_mul(LARGE_SEGMENT.0),
        n if n < OWN_SEGMENT.0 => LARGE_SEGMENT.0,
        n => n.div_ceil(GRANULE.0).saturating_mul(GRANULE.0),
    }
}

/// Checks for a cached block as `get_free_block` does: it takes the smallest block that fits, except that
/// `max_split_size` keeps small requests from using large blocks.
fn in_cache(map: &PoolMap, max_split: Option<Bytes>, size: u64, stream: u64) -> bool {
    let pool = if size <= SMALL_REQUEST.0 { PoolKind::Small } else { PoolKind::Large };
    let fitting = map
        .segments
        .iter()
        .filter(|s| s.stream == stream && s.pool == pool)
        .flat_map(|s| s.blocks.iter().map(|b| (s.expandable, b)))
        .filter(|(_, b)| is_free(b) && b.size.0 >= size);
    let Some((expandable, best)) = fitting.min_by_key(|(_, b)| (b.size, b.address)) else {
        return false;
    };
    match max_split.map(|m| m.0) {
        Some(max) if pool == PoolKind::Large && !expandable => {
            if size < max {
                best.size.0 < max
            } else {
                best.size.0 < size.saturating_add(LARGE_SEGMENT.0)
            }
        }
        _ => true,
    }
}

fn of_stream(map: &PoolMap, conditions: &FitConditions, stream: u64) -> Fits {
    Fits::on_streams(map, conditions, |other| other == stream)
}

#[test]
fn a_pool_of_jax_serves_its_largest_chunk_or_grows_up_to_its_limit() {
    let blocks = [('a', 1_024), ('f', 700 * MIB), ('a', 256), ('f', 300 * MIB)];
    let map = PoolMap {
        allocator: Allocator::XlaBfc,
        ..map(vec![segment(0, PoolKind::Region, false, &blocks)])
    };
    let pool = |limit| Pool {
        allocator: Allocator::XlaBfc,
        limit,
        stats: PoolStats {
            reserved: Sampled::new(Bytes::mib(1_001)),
            largest_free_block: Bytes::mib(700).into(),
            ..PoolStats::default()
        },
        ..Pool::default()
    };
    let gpu = |free| Gpu {
        memory: Memory { free: Bytes(free).into(), ..Memory::default() },
        ..Gpu::default()
    };
    let fits = |limit, free| {
        let pool = pool(limit);
        let conditions = FitConditions::of(None, &pool, Some(&gpu(free)));
        let (by_map, by_stats) =
            (Fits::of_map(&map, &conditions), Fits::of_pool(&pool, &conditions));
        assert_eq!(by_map, by_stats);
        (by_map.cache, by_map.driver, by_map.largest(), by_map.is_complete())
    };
    let mib = |n| Some(Bytes::mib(n));
    // A preallocated pool cannot grow, whatever is free. Another one can, up to its limit and in steps of 2 MiB.
    assert_eq!(fits(mib(1_001), 8_000 * MIB), (mib(700), mib(0), mib(700), true));
    assert_eq!(fits(mib(3_000), 8_000 * MIB), (mib(700), mib(1_998), mib(1_998), true));
    assert_eq!(fits(mib(3_000), 5 * MIB), (mib(700), mib(4), mib(700), true));
    assert_eq!(fits(None, 900 * MIB), (mib(700), mib(900), mib(900), true));
    let missing = FitConditions::default();
    assert!(!Fits::of_map(&map, &missing).is_complete());
}
