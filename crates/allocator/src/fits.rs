//! FITS: the largest request that would succeed now under the allocator's rules. The allocator tries these steps in
//! order:
//!
//! 1. *From the cache*: the smallest free block of the same stream and pool that is large enough (`get_free_block`).
//!    Requests up to 1 MiB search the small pool, all others the large one. Private pools serve only their owner.
//! 2. *From the driver*: a segment of 2 MiB for the small pool, of 20 MiB for requests below 10 MiB, otherwise of the
//!    request's size rounded up to 2 MiB (`alloc_block`). With expandable segments, the allocator instead appends pages
//!    of 20 MiB (2 MiB in the small pool) to the free end of a segment, or maps memory to unmapped gaps inside it
//!    (`find_expandable_block`).
//! 3. *After a flush*: completely free segments of every stream, and completely free pages of expandable segments, are
//!    returned to the driver; then the allocator repeats step 2 (`release_cached_blocks`). `num_alloc_retries` counts
//!    this. The allocator does not flush while a CUDA graph is being captured, which gputop cannot see from outside the
//!    process.
//!
//! From the cache, a request equal to the largest free block always succeeds, whatever `max_split_size_mb` is: only
//! smaller requests are denied blocks above that size. FITS therefore does not depend on the option, although whether
//! one particular size fits does.
//!
//! FITS assumes that all memory that the driver reports as free is usable. This holds because the driver can combine
//! any free 2 MiB pages.

use gputop_model::{
    Block, BlockState, Bytes, Gpu, Pool, PoolKind, PoolMap, PoolStats, Process, Segment,
};

use super::config::Config;
use super::fragmentation::{is_shared, is_whole_free, page, whole_pages};
use super::{
    BFC_GRANULE, GRANULE, LARGE_SEGMENT, MIN_BLOCK, OWN_SEGMENT, SMALL_REQUEST, SMALL_SEGMENT,
    whole,
};

/// Inputs that a memory map does not contain: the free memory reported by the driver and, if known, the allocator
/// options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FitConditions {
    pub driver_free: Option<Bytes>,
    /// Additional memory that this process may reserve under `set_per_process_memory_fraction`, or `None` if there is
    /// no limit.
    pub allowed_more: Option<Bytes>,
    pub max_split: Option<Bytes>,
    /// Value of `expandable_segments`. If `None`, the option is assumed to be on if the map contains an expandable
    /// segment.
    pub expandable: Option<bool>,
}

impl FitConditions {
    pub fn with_free(driver_free: Option<Bytes>) -> Self {
        Self { driver_free, ..Self::default() }
    }

    /// Returns the conditions for a program that was started with the allocator options `config`. `total` is the device
    /// memory available to programs, and `reserved` is the pool's reserved memory on that device. Expandable segments
    /// are on if the map or the option says so.
    pub fn with_config(
        driver_free: Option<Bytes>,
        config: &Config,
        total: Option<Bytes>,
        reserved: Bytes,
    ) -> Self {
        let limit = total.and_then(|total| config.limit(total));
        Self {
            driver_free,
            allowed_more: limit.map(|limit| Bytes(limit.0.saturating_sub(reserved.0))),
            max_split: config.max_split,
            // Ignore the value `False`, because the program may have turned on expandable segments after it started.
            expandable: config.expandable.filter(|&is_on| is_on),
        }
    }

    /// Returns the conditions for a pool: its GPU's free memory and its process's allocator options. A pool of JAX or
    /// TensorFlow has a limit of its own.
    pub fn of(process: Option<&Process>, pool: &Pool, gpu: Option<&Gpu>) -> Self {
        if pool.allocator.is_bfc() {
            let reserved = pool.stats.reserved.last().0;
            let allowed = pool.limit.map(|limit| Bytes(limit.0.saturating_sub(reserved)));
            let driver_free = gpu.and_then(|gpu| gpu.memory.free.get());
            return Self { driver_free, allowed_more: allowed, ..Self::default() };
        }
        let conf = process.and_then(|process| process.alloc_conf.as_deref());
        let memory = gpu.map(|gpu| &gpu.memory);
        // CUDA's total excludes the memory reserved by the driver.
        let total = memory.and_then(|memory| {
            let reserved = memory.reserved.get().unwrap_or_default();
            Some(Bytes(memory.total.get()?.0.saturating_sub(reserved.0)))
        });
        Self::with_config(
            memory.and_then(|memory| memory.free.get()),
            &Config::parse(conf.unwrap_or_default()),
            total,
            pool.stats.reserved.last(),
        )
    }

    fn budget(&self, flushed: u64) -> Option<u64> {
        let free = self.driver_free?.0.saturating_add(flushed);
        let allowed = self.allowed_more.map_or(u64::MAX, |a| a.0);
        Some(free.min(allowed.saturating_add(flushed)))
    }
}

/// Largest request that each allocation step could serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fits {
    /// Largest request that the cache can serve. `None` if the cache was not read.
    pub cache: Option<Bytes>,
    /// Largest request that can be served from the memory that the driver reports as free. `None` if the driver reports
    /// no value.
    pub driver: Option<Bytes>,
    /// Largest request that can be served after all cached memory has been returned to the driver. `None` if the amount
    /// of cached memory is unknown.
    pub flushed: Option<Bytes>,
    /// True if the sizes were computed from the memory map rather than from statistics.
    pub exact: bool,
}

impl Fits {
    pub fn largest(&self) -> Option<Bytes> {
        [self.cache, self.driver, self.flushed].into_iter().flatten().max()
    }

    /// Returns true if the largest request of every step is known, so that no request above `largest` can succeed.
    pub fn is_complete(&self) -> bool {
        self.cache.is_some() && self.driver.is_some() && self.flushed.is_some()
    }

    /// Computes the largest requests from statistics alone, as the overview does every second. The statistics do not
    /// include the free memory at the end of expandable segments, so the true value may be larger by up to the size of
    /// that memory.
    pub fn of_stats(stats: &PoolStats, conditions: &FitConditions) -> Self {
        let expandable = conditions.expandable.unwrap_or(false);
        let step = |back| Some(from_driver(conditions.budget(back)?, expandable));
        Self {
            cache: stats.largest_free_block.get(),
            driver: step(0),
            flushed: returnable(stats).and_then(|back| step(back.0)),
            exact: false,
        }
    }

    /// Computes the largest requests from the statistics of a pool.
    pub fn of_pool(pool: &Pool, conditions: &FitConditions) -> Self {
        if pool.allocator.is_bfc() {
            return Self::of_bfc(pool.stats.largest_free_block.get(), conditions);
        }
        Self::of_stats(&pool.stats, conditions)
    }

    /// Computes the largest requests for a pool of JAX or TensorFlow (`bfc_allocator.cc`). A request is rounded up to 256
    /// bytes and takes the smallest free chunk that is large enough. If there is none, the pool adds a region, up to its
    /// limit. It never returns free regions to the driver, so nothing more fits after a flush.
    fn of_bfc(largest: Option<Bytes>, conditions: &FitConditions) -> Self {
        let growth = conditions.budget(0).map(|free| Bytes(whole(free, GRANULE.0)));
        let cache = largest.map(|largest| Bytes(whole(largest.0, BFC_GRANULE.0)));
        Self { cache, driver: growth, flushed: Some(Bytes(0)), exact: true }
    }

    /// Computes the largest requests from the memory map, as the maximum over all streams.
    pub fn of_map(map: &PoolMap, conditions: &FitConditions) -> Self {
        if map.allocator.is_bfc() {
            let blocks = map.segments.iter().flat_map(|segment| &segment.blocks);
            let largest = blocks.filter(|block| is_free(block)).map(|block| block.size).max();
            return Self::of_bfc(largest.or(Some(Bytes(0))), conditions);
        }
        Self::on_streams(map, conditions, |_| true)
    }

    fn on_streams(map: &PoolMap, conditions: &FitConditions, wanted: impl Fn(u64) -> bool) -> Self {
        let expandable = conditions.expandable.unwrap_or_else(|| has_expandable(map));
        let (after, back) = flush(map);
        let step = |map: &PoolMap, flushed| {
            let budget = conditions.budget(flushed)?;
            let grown = grown(map, budget, &wanted);
            Some(from_driver(budget, expandable).max(Bytes(grown)))
        };
        Self {
            cache: Some(from_cache(map, &wanted)),
            driver: step(map, 0),
            flushed: step(&after, back),
            exact: map.exact,
        }
    }
}

/// Returns the bytes in fully free segments according to the statistics: reserved − active − inactive split. `None` if
/// PyTorch has never counted any split bytes. It does not count them for expandable segments, so the result could
/// include memory that is in use.
pub fn returnable(stats: &PoolStats) -> Option<Bytes> {
    if stats.inactive_split.max(stats.inactive_split_peak) == Bytes(0) {
        return None;
    }
    let free = stats.reserved.last().0.saturating_sub(stats.active.last().0);
    Some(Bytes(free.saturating_sub(stats.inactive_split.0)))
}

/// Returns the free bytes in segments with live blocks, according to the statistics. `None` if no split bytes were ever
/// counted, as in [`returnable`].
pub fn fragmented(stats: &PoolStats) -> Option<Bytes> {
    returnable(stats).map(|_| stats.inactive_split)
}

fn has_expandable(map: &PoolMap) -> bool {
    map.segments.iter().any(|segment| segment.expandable)
}

/// Returns the largest request that a new segment from the driver can serve, given `free` bytes of GPU memory.
pub(crate) fn from_driver(free: u64, expandable: bool) -> Bytes {
    let large = if expandable {
        whole(free, LARGE_SEGMENT.0)
    } else {
        let own = whole(free, GRANULE.0);
        if own >= OWN_SEGMENT.0 { own } else { 0 }
    };
    let small = if free >= SMALL_SEGMENT.0 { SMALL_REQUEST.0 } else { 0 };
    Bytes(large.max(small))
}

fn from_cache(map: &PoolMap, wanted: impl Fn(u64) -> bool) -> Bytes {
    let mut best = 0;
    for segment in map.segments.iter().filter(|s| wanted(s.stream)) {
        for block in segment.blocks.iter().filter(|b| is_free(b)) {
            best = best.max(usable(segment.pool, block.size.0));
        }
    }
    Bytes(best)
}

fn is_free(block: &Block) -> bool {
    block.state == BlockState::Free
}

/// Returns the largest request that a free block of this size in this pool can serve. The small pool serves only
/// requests up to 1 MiB, and the large pool only larger ones.
fn usable(pool: PoolKind, size: u64) -> u64 {
    let size = whole(size, MIN_BLOCK.0);
    match pool {
        PoolKind::Large if size > SMALL_REQUEST.0 => size,
        PoolKind::Small => size.min(SMALL_REQUEST.0),
        _ => 0,
    }
}

/// An unused part of an expandable segment: free memory, or address space to which no memory is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FreeRange {
    size: u64,
    mapped: bool,
}

/// Returns the largest request that expandable segments can serve if the driver maps up to `budget` bytes of new pages.
fn grown(map: &PoolMap, budget: u64, wanted: impl Fn(u64) -> bool) -> u64 {
    let mut best = 0;
    for (i, segment) in map.segments.iter().enumerate() {
        if !segment.expandable || !is_shared(segment.pool) || !wanted(segment.stream) {
            continue;
        }
        let budget = whole(budget, page(segment.pool));
        for run in runs(segment, room_after(&map.segments, i)) {
            best = best.max(usable(segment.pool, widest(&run, budget)));
        }
    }
    best
}

/// Returns the address space after a mapped range, up to the next one. After the last range, this space exceeds the
/// GPU's memory (PyTorch reserves 9/8 of it for each stream and pool).
fn room_after(segments: &[Segment], i: usize) -> u64 {
    let end = segments[i].address.saturating_add(segments[i].size.0);
    segments
        .get(i + 1)
        .filter(|next| next.expandable)
        .map_or(u64::MAX, |next| next.address.saturating_sub(end))
}

/// Returns the runs of adjacent free ranges, which have no live block between them.
fn runs(segment: &Segment, room: u64) -> Vec<Vec<FreeRange>> {
    let mut runs = vec![Vec::new()];
    for block in &segment.blocks {
        let mapped = match block.state {
            BlockState::Free => true,
            BlockState::Unmapped => false,
            _ => {
                runs.push(Vec::new());
                continue;
            }
        };
        if let Some(run) = runs.last_mut() {
            run.push(FreeRange { size: block.size.0, mapped });
        }
    }
    if let Some(run) = runs.last_mut() {
        run.push(FreeRange { size: room, mapped: false });
    }
    runs.retain(|run| !run.is_empty());
    runs
}

/// Returns the size of the largest free block that a run of free ranges can provide if at most `budget` bytes are newly
/// mapped. The last gap may be mapped only partly.
fn widest(run: &[FreeRange], budget: u64) -> u64 {
    let (mut best, mut end) = (0_u64, 0);
    let (mut free, mut gaps) = (0_u64, 0_u64);
    for start in 0..run.len() {
        while end < run.len() && gaps.saturating_add(gap(run[end])) <= budget {
            gaps += gap(run[end]);
            free = free.saturating_add(mapped(run[end]));
            end += 1;
        }
        let next = run.get(end).map_or(0, |range| gap(*range));
        let new_pages = gaps.saturating_add(next).min(budget);
        best = best.max(free.saturating_add(new_pages));
        if end > start {
            gaps -= gap(run[start]);
            free = free.saturating_sub(mapped(run[start]));
        } else {
            end = start + 1;
        }
    }
    best
}

fn gap(range: FreeRange) -> u64 {
    if range.mapped { 0 } else { range.size }
}

fn mapped(range: FreeRange) -> u64 {
    if range.mapped { range.size } else { 0 }
}

/// Simulates a cache flush. Returns the resulting memory map, in which a released segment has no blocks, and the bytes
/// released to the driver.
pub fn flush(map: &PoolMap) -> (PoolMap, u64) {
    let (mut segments, mut back) = (Vec::new(), 0_u64);
    for segment in &map.segments {
        let shared = is_shared(segment.pool);
        if shared && segment.expandable {
            let (left, unmapped) = unmap(segment);
            back = back.saturating_add(unmapped);
            segments.push(left);
        } else if shared && is_whole_free(segment) {
            back = back.saturating_add(segment.size.0);
            // The empty segment still shows that the ranges before and after it belong to different segments.
            segments.push(Segment { blocks: Vec::new(), ..segment.clone() });
        } else {
            segments.push(segment.clone());
        }
    }
    (PoolMap { segments, ..*map }, back)
}

/// Returns a copy of an expandable segment without its fully free pages, and the bytes in these pages.
fn unmap(segment: &Segment) -> (Segment, u64) {
    let (mut blocks, mut back) = (Vec::new(), 0_u64);
    for block in &segment.blocks {
        let pages = if is_free(block) { whole_pages(segment, block) } else { 0..0 };
        if pages.is_empty() {
            blocks.push(*block);
            continue;
        }
        back = back.saturating_add(pages.end - pages.start);
        let cuts = [
            (0..pages.start, BlockState::Free),
            (pages.clone(), BlockState::Unmapped),
            (pages.end..block.size.0, BlockState::Free),
        ];
        for (part, state) in cuts.into_iter().filter(|(part, _)| !part.is_empty()) {
            blocks.push(Block {
                address: block.address.saturating_add(part.start),
                size: Bytes(part.end - part.start),
                requested: None,
                state,
            });
        }
    }
    (Segment { blocks, ..*segment }, back)
}

#[cfg(test)]
mod tests;
