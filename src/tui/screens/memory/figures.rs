//! Values of the memory screen: a process's memory in parts, rounded so that the printed values add up.
//!
//! Allocator statistics, map and driver values are read at slightly different times. Sizes that also appear on other
//! screens come from the statistics. The parts of cached memory come from the map if it is recent, because only the map
//! shows fragmentation. Values that combine data read at different times are approximate.

use gputop_allocator::fits::{FitConditions, Fits, fragmented, returnable};
use gputop_allocator::fragmentation::Fragmentation;
use gputop_model::frame::Frame;
use gputop_model::gpu::Gpu;
use gputop_model::pool::Pool;
use gputop_model::units::{Bytes, apportion};

use super::analysed_map::AnalysedMap;
use crate::dashboard::pools;

/// Resolution of printed sizes, which are in GiB with two decimals.
pub const STEP: u64 = Bytes::gib(1).0 / 100;

/// Sizes as printed: multiples of [`STEP`], so that printed sums add up.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Figures {
    pub allocated: Bytes,
    pub cached: Bytes,
    /// Parts of `cached`, or `None` if they are unknown.
    pub cached_parts: Option<CachedParts>,
    /// Memory of the process outside its pool, or `None` if the driver does not list the process.
    pub other: Option<Bytes>,
    /// Sum of the fields above.
    pub process: Bytes,
    /// Driver values for the GPU, or `None` if they were not read.
    pub card: Option<Card>,
    /// True if the memory outside the pool is computed from values that were read at different times.
    pub is_other_approximate: bool,
    /// True if the parts of cached memory were read at a different time than the pool statistics.
    pub is_split_approximate: bool,
    pub fits: Fits,
    /// Memory by which a pool with a limit may still grow.
    pub growth: Option<Bytes>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CachedParts {
    pub fragmented: Bytes,
    pub returnable: Bytes,
    /// Free segments of private pools.
    pub private: Bytes,
    /// Freed blocks that another stream may still use.
    pub waiting: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Card {
    /// Sum of the parts below.
    pub total: Bytes,
    pub driver: Bytes,
    /// Memory of other processes, and memory not attributed to any visible process.
    pub elsewhere: Bytes,
    pub free: Bytes,
}

/// Sizes of the parts of one pool's memory, before rounding.
#[derive(Debug, Clone, Copy, Default)]
struct Parts {
    allocated: Bytes,
    cached: Bytes,
    split: Option<CachedParts>,
    is_split_approximate: bool,
}

impl Parts {
    fn of(pool: &Pool, read: Option<&AnalysedMap>) -> Self {
        let parts = Self::of_stats(pool);
        read.map_or(parts, |read| parts.split_like(&read.fragmentation))
    }

    /// Returns true if the parts of cached memory should be taken from the map. This is the case if the map describes the
    /// same instant as the statistics, if the statistics do not contain the parts, or if private pools have free
    /// segments, which the statistics would count as returnable.
    fn needs(&self, map: &Fragmentation) -> bool {
        !self.differ(map) || self.split.is_none() || map.kept.0 > 0
    }

    /// Returns true if the map and the statistics describe different instants.
    fn differ(&self, map: &Fragmentation) -> bool {
        differ(self.allocated, self.cached, map)
    }

    /// Splits cached memory into the parts reported by a map. Their total is limited to the cached memory, because the map
    /// may have been read at a different time.
    fn split_like(self, map: &Fragmentation) -> Self {
        let mut left = self.cached.0;
        let mut part = |size: Bytes| {
            let size = size.0.min(left);
            left -= size;
            Bytes(size)
        };
        let (fragmented, waiting, private) =
            (part(map.fragmented), part(map.active), part(map.kept));
        let split = CachedParts { fragmented, waiting, private, returnable: part(Bytes(u64::MAX)) };
        Self { split: Some(split), is_split_approximate: self.differ(map), ..self }
    }

    fn of_stats(pool: &Pool) -> Self {
        let (stats, cached) = (&pool.stats, pool.stats.cached());
        let split = fragmented(stats).zip(returnable(stats)).map(|(fragmented, returnable)| {
            // Limit each part to what remains of the cached memory, because statistics that changed while they were being
            // read may not add up.
            let waiting = stats.waiting();
            let fragmented = fragmented.0.min(cached.0 - waiting.0);
            CachedParts {
                fragmented: Bytes(fragmented),
                returnable: Bytes(returnable.0.min(cached.0 - waiting.0 - fragmented)),
                private: Bytes(0),
                waiting,
            }
        });
        Self { allocated: stats.allocated.last(), cached, split, is_split_approximate: false }
    }

    /// Returns the known parts of cached memory, and the remainder.
    fn cached_list(&self) -> [Bytes; 5] {
        let split = self.split.unwrap_or_default();
        let known = [split.fragmented, split.returnable, split.private, split.waiting];
        let sum = known.iter().fold(0_u64, |sum, p| sum.saturating_add(p.0));
        let rest = Bytes(self.cached.0.saturating_sub(sum));
        [known[0], known[1], known[2], known[3], rest]
    }
}

/// Returns true if the sizes differ from those of a map, which was then read at a different time.
fn differ(allocated: Bytes, cached: Bytes, map: &Fragmentation) -> bool {
    let map_cached = map.free.0.saturating_add(map.active.0);
    allocated.0.abs_diff(map.allocated.0) > STEP || cached.0.abs_diff(map_cached) > STEP
}

/// Returns the exact memory values that the driver reports for a GPU, and whether they contradict the GPU memory
/// reported for the process.
fn card(gpu: &Gpu, process: u64) -> Option<([Bytes; 3], bool)> {
    let (total, free) = (gpu.memory.total.get()?, gpu.memory.free.get()?);
    let used = total.0.saturating_sub(free.0);
    let driver = gpu.memory.reserved.get().unwrap_or_default().0.min(used);
    let elsewhere = (used - driver).checked_sub(process);
    let parts = [Bytes(driver), Bytes(elsewhere.unwrap_or(0)), Bytes(free.0.min(total.0))];
    Some((parts, elsewhere.is_none()))
}

impl Figures {
    pub fn of(frame: &Frame, pool: &Pool, read: Option<&AnalysedMap>) -> Self {
        let read = read
            .filter(|read| read.is_fresh(pool) && Parts::of_stats(pool).needs(&read.fragmentation));
        let parts = Parts::of(pool, read);
        let gpu = pools::gpu_of(frame, pool);
        let vram = pools::vram(frame, pool);
        let reserved = parts.allocated.0.saturating_add(parts.cached.0);
        let other = vram.map(|vram| vram.0.saturating_sub(reserved));
        let process = reserved.saturating_add(other.unwrap_or(0));
        let card = gpu.and_then(|gpu| card(gpu, process));
        let contradicts = vram.is_some_and(|vram| vram.0 < reserved);
        // The driver and the allocator are read at different times. Mark the difference as approximate only if the pool
        // may have changed in between.
        let has_changed = pool.stats.reserved.min() != pool.stats.reserved.max();
        let mut figures = Self {
            is_other_approximate: has_changed
                || contradicts
                || card.is_some_and(|(_, contradicts)| contradicts),
            is_split_approximate: parts.is_split_approximate,
            fits: fits(frame, gpu, pool, read),
            growth: pool
                .limit
                .map(|limit| Bytes(limit.0.saturating_sub(pool.stats.reserved.last().0))),
            ..Self::default()
        };
        figures.print(&parts, other, card.map(|(card, _)| card));
        // Limit the sizes that fit, because a map read at another time may show more cached memory.
        if let Some(unused) = figures.unused() {
            let sizes = [&mut figures.fits.cache, &mut figures.fits.flushed];
            sizes.into_iter().flatten().for_each(|size| *size = (*size).min(unused));
        }
        figures
    }

    /// Rounds all parts of the GPU's memory together, so that every printed sum adds up.
    fn print(&mut self, parts: &Parts, other: Option<u64>, card: Option<[Bytes; 3]>) {
        let mut exact = vec![parts.allocated, Bytes(other.unwrap_or(0))];
        exact.extend(parts.cached_list());
        exact.extend(card.unwrap_or_default());
        let printed = apportion(&exact, STEP);
        let sum = |parts: &[Bytes]| Bytes(parts.iter().map(|p| p.0).sum());
        self.allocated = printed[0];
        self.other = other.map(|_| printed[1]);
        self.cached = sum(&printed[2..7]);
        self.process = sum(&printed[..7]);
        self.cached_parts = parts.split.map(|_| CachedParts {
            fragmented: printed[2],
            // Add the cached memory that is in no other part, because it can only consist of entirely free segments.
            returnable: sum(&[printed[3], printed[6]]),
            private: printed[4],
            waiting: printed[5],
        });
        self.card = card.map(|_| Card {
            total: sum(&printed),
            driver: printed[7],
            elsewhere: printed[8],
            free: printed[9],
        });
    }
}

impl Figures {
    /// Returns the unused memory: cached memory plus the memory that the driver reports as free, if the pool may use it.
    pub fn unused(&self) -> Option<Bytes> {
        let free = self.card?.free;
        Some(Bytes(self.cached.0 + self.growth.map_or(free, |growth| growth.min(free)).0))
    }

    /// Returns true if the figures and the map describe different instants.
    pub fn differ(&self, map: &Fragmentation) -> bool {
        differ(self.allocated, self.cached, map)
    }

    /// Says whether the fragmentation matters now: `harmless now: up to 79.44 GiB fits`.
    pub fn fragmentation_verdict(&self) -> String {
        let (Some(unused), Some(largest)) = (self.unused(), self.fits.largest()) else {
            return String::new();
        };
        let fits = down_with_unit(largest);
        match (is_harmless(largest, unused), self.fits.is_complete()) {
            (true, _) => format!("harmless now: up to {fits} fits"),
            (false, true) => format!("no request above {fits} fits"),
            (false, false) => format!("a request above {fits} may fail"),
        }
    }

    /// Summarizes the unused memory in one sentence: `8.93 GiB unused, but no request above 3.03 GiB fits: 5.90 GiB
    /// is fragmented`.
    pub fn headline(&self) -> String {
        let (Some(unused), Some(largest)) = (self.unused(), self.fits.largest()) else {
            return format!("{} GiB is cached but not in tensors", gib(self.cached));
        };
        let fits = down_with_unit(largest);
        if !self.fits.is_complete() {
            return format!(
                "{} GiB unused, and a request of {fits} fits; a larger one may not",
                gib(unused)
            );
        }
        if is_harmless(largest, unused) {
            return format!("{} GiB unused; requests up to {fits} fit", gib(unused));
        }
        let why = match self.cached_parts {
            Some(parts) if parts.fragmented.0 * 2 >= unused.0 - largest.0.min(unused.0) => {
                format!(": {} GiB is fragmented", gib(parts.fragmented))
            }
            Some(parts) if parts.private >= parts.waiting && parts.private.0 > 0 => {
                format!(": {} GiB is in private pools", gib(parts.private))
            }
            Some(parts) if parts.waiting.0 > 0 => {
                format!(": {} GiB is waiting for another stream", gib(parts.waiting))
            }
            _ => String::new(),
        };
        format!("{} GiB unused, but no request above {fits} fits{why}", gib(unused))
    }
}

/// Returns true if the largest request that fits differs from the unused memory by less than 10 %.
fn is_harmless(largest: Bytes, unused: Bytes) -> bool {
    largest.0.saturating_add(largest.0 / 9) >= unused.0
}

fn fits(frame: &Frame, gpu: Option<&Gpu>, pool: &Pool, read: Option<&AnalysedMap>) -> Fits {
    let mut processes = frame.processes.iter().flat_map(|p| &*p.list);
    let process = processes.find(|process| process.key == pool.process);
    let conditions = FitConditions::of(process, pool, gpu);
    match read {
        Some(read) => read.fits(conditions),
        None => Fits::of_pool(pool, &conditions),
    }
}

/// Formats a size in GiB with two decimals.
pub fn gib(size: Bytes) -> String {
    format!("{:.2}", size.as_gib())
}

/// Formats a size in GiB with two decimals, rounded down so that a request of the printed size fits. Small sizes
/// include their unit.
pub fn down(size: Bytes) -> String {
    match size.0 {
        0 => "0".into(),
        n if n < STEP * 10 => size.short(),
        n => gib(Bytes(n / STEP * STEP)),
    }
}

/// Formats a size like [`down`], but always with its unit.
pub fn down_with_unit(size: Bytes) -> String {
    match size.0 {
        n if n > 0 && n < STEP * 10 => size.short(),
        _ => format!("{} GiB", down(size)),
    }
}

#[cfg(test)]
mod tests;
