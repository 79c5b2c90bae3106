//! Finds the member offsets of an allocator from relations between its members.
//!
//! | order | members | relation |
//! |---|---|---|
//! | 1 | vtable, `memory_limit_` | |
//! | 2 | 21 bins | sizes 256, 512, …, at equal distances, each with a pointer to the allocator |
//! | 3 | `name_` | a string |
//! | 4 | regions | each has as many handles as its size requires |
//! | 5 | chunks | the vector after that of the regions; the chain of each region covers it exactly |
//! | 6 | `stats_` | four counters and the same limit as at 1; the sum of the regions as `pool_bytes` |
//!
//! The sizes of a region and of a chunk are not known in advance: 48 and 64 bytes in most releases, 56 and 104 in JAX
//! 0.12. The right size is the one for which the chains hold.

use super::chunks::{self, Region};
use super::failure::mapped;
use crate::memory::view::View;
use crate::memory::{Memory, MemoryError, exact, is_pointer, up_to};

/// Bytes to read of an object. All known ones have fewer than 1,400.
const OBJECT_BYTES: usize = 4_096;
const BINS: usize = 21;
const BIN_SIZES: std::ops::RangeInclusive<usize> = 24..=96;
/// Range of offsets to search for the first bin. Known releases have it at 40 to 64.
const FIRST_BIN: std::ops::Range<usize> = 16..256;
/// Plausible limits of a pool.
const LIMITS: std::ops::Range<u64> = 1 << 20..1 << 46;
/// Maximum of a counter, which is in bytes or counts allocations.
const MAX_COUNT: u64 = 1 << 50;
const MAX_NAME: u64 = 127;
/// Size of a `std::string` and offset of its short content, in libstdc++.
const STRING: usize = 32;
const SHORT_CONTENT: u64 = 16;
/// Offset of `bytes_limit` in the statistics, and offsets where `pool_bytes` may be.
const LIMIT: usize = 32;
const POOL_OFFSETS: std::ops::RangeInclusive<usize> = 64..=144;
/// Distance from `pool_bytes` to its maximum. Both are `optional<int64>`, whose second word has the flag in one byte and
/// anything in the others.
const PEAK_POOL: usize = 16;
const REGION_SIZES: std::ops::RangeInclusive<usize> = 48..=96;
const CHUNK_SIZES: std::ops::RangeInclusive<usize> = 64..=256;
pub const MAX_REGION_BYTES: u64 = 256 << 10;
/// Maximum size of the vector of chunks: 300,000 chunks. Programs have a few thousand.
pub const MAX_CHUNK_BYTES: u64 = 32 << 20;
/// Bytes of chunks to read in one search, or when the structure of one allocator is checked again.
pub const MAX_CALIBRATION_BYTES: usize = 256 << 20;
/// Size of a `std::vector`: begin, end, end of storage.
pub const VECTOR: usize = 24;

/// Offsets from the object, and the sizes of the elements of its vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The vector of regions. The vector of chunks follows.
    pub regions: usize,
    pub region_size: usize,
    pub chunk_size: usize,
    pub stats: usize,
    /// Offset of `pool_bytes` from the object.
    pub pool: usize,
}

/// Result of matching a possible object against the structure of the allocator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayoutMatch {
    Pool {
        name: String,
        layout: Layout,
        regions: Vec<Region>,
    },
    /// An allocator that has reserved nothing yet.
    Empty,
    /// An allocator that is changing, or whose layout is unknown.
    Unknown,
    No,
}

impl Layout {
    /// Matches the object at `address` against the structure of the allocator. Reads at most `budget` bytes of chunks,
    /// and reduces it by what it read, so that a hostile program cannot keep the reader busy.
    pub fn calibrate(
        memory: &dyn Memory,
        address: u64,
        vtable: u64,
        budget: &mut usize,
    ) -> Result<LayoutMatch, MemoryError> {
        if !is_pointer(address) {
            return Ok(LayoutMatch::No);
        }
        let bytes = up_to(memory, address, OBJECT_BYTES)?;
        let object = Object { address, view: View(&bytes) };
        if object.view.word(0) != Some(vtable) {
            return Ok(LayoutMatch::No);
        }
        let Some((bins, bins_end)) = object.bins() else { return Ok(LayoutMatch::No) };
        let Some((name, name_end)) = object.name(memory, bins_end)? else {
            return Ok(LayoutMatch::Unknown);
        };
        let Some(stats) = object.stats(bins, name_end) else { return Ok(LayoutMatch::Unknown) };
        if let Some((layout, regions)) = object.layout(memory, name_end, stats, budget)? {
            return Ok(LayoutMatch::Pool { name, layout, regions });
        }
        let is_empty = object.is_empty(name_end, stats);
        Ok(if is_empty { LayoutMatch::Empty } else { LayoutMatch::Unknown })
    }

    /// Returns the offset of the end of the statistics.
    pub fn end(&self) -> usize {
        self.pool + PEAK_POOL + 16
    }

    pub fn peak_pool(&self) -> usize {
        self.pool + PEAK_POOL
    }
}

/// A vector's address and length in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub address: u64,
    pub len: usize,
}

impl Extent {
    /// Parses a `std::vector`. Returns `None` if it is implausible or larger than the limit. It may be empty.
    pub fn parse(view: View<'_>, offset: usize, max: u64) -> Option<Self> {
        let (begin, end) = (view.word(offset)?, view.word(offset + 8)?);
        let storage = view.word(offset + 16)?;
        let len = end.checked_sub(begin).filter(|len| *len <= max && end <= storage)?;
        let is_vector = is_pointer(begin) || (begin == 0 && storage == 0);
        Some(Self { address: begin, len: usize::try_from(len).ok()? }).filter(|_| is_vector)
    }
}

#[derive(Clone, Copy)]
struct Object<'a> {
    address: u64,
    view: View<'a>,
}

impl Object<'_> {
    /// Returns the offsets of the start and the end of the bins.
    fn bins(self) -> Option<(usize, usize)> {
        let sizes = || BIN_SIZES.step_by(8);
        let first = FIRST_BIN.step_by(8).filter(|bin| self.view.word(*bin) == Some(256));
        let mut candidates = first.flat_map(|bin| sizes().map(move |size| (bin, size)));
        let (bin, size) = candidates.find(|(bin, size)| {
            (0..BINS).all(|index| self.is_bin(bin + index * size, *size, 256 << index))
        })?;
        Some((bin, bin + BINS * size))
    }

    fn is_bin(self, bin: usize, size: usize, chunk_bytes: u64) -> bool {
        let mut members = (8..size).step_by(8);
        self.view.word(bin) == Some(chunk_bytes)
            && members.any(|member| self.view.word(bin + member) == Some(self.address))
    }

    /// Returns the first string after the bins, and the offset of its end.
    fn name(
        self,
        memory: &dyn Memory,
        bins_end: usize,
    ) -> Result<Option<(String, usize)>, MemoryError> {
        for offset in (bins_end..self.view.0.len()).step_by(8) {
            if let Some(name) = self.string(memory, offset)? {
                return Ok(Some((name, offset + STRING)));
            }
        }
        Ok(None)
    }

    fn string(self, memory: &dyn Memory, offset: usize) -> Result<Option<String>, MemoryError> {
        let word = |at: usize| self.view.word(offset + at);
        let (Some(content), Some(len), Some(capacity)) = (word(0), word(8), word(16)) else {
            return Ok(None);
        };
        let is_short = content == self.address + offset as u64 + SHORT_CONTENT;
        let is_long = content > 0x1_0000 && (len..=OBJECT_BYTES as u64).contains(&capacity);
        let is_len = (1..=MAX_NAME).contains(&len) && (!is_short || len < SHORT_CONTENT);
        if !is_len || !(is_short || is_long) {
            return Ok(None);
        }
        let len = usize::try_from(len).unwrap_or_default();
        let bytes = mapped(exact(memory, content, len, "a name"))?;
        let bytes = bytes.filter(|bytes| bytes.iter().all(u8::is_ascii_graphic));
        Ok(bytes.and_then(|bytes| String::from_utf8(bytes).ok()))
    }

    /// Returns the offset of the statistics: plausible counters before the limit of the pool.
    fn stats(self, bins: usize, name_end: usize) -> Option<usize> {
        let before_bins = || (8..bins).step_by(8).filter_map(|offset| self.view.word(offset));
        let limits: Vec<u64> = before_bins().filter(|word| LIMITS.contains(word)).collect();
        let end = self.view.0.len();
        (name_end..end).step_by(8).find(|stats| {
            let limit = self.optional(stats + LIMIT);
            limit.is_some_and(|limit| limits.contains(&limit)) && self.has_counters(*stats)
        })
    }

    fn has_counters(self, stats: usize) -> bool {
        let counter = |at: usize| self.view.word(stats + at).filter(|count| *count < MAX_COUNT);
        let counters = (counter(0), counter(8), counter(16), counter(24));
        let (Some(_), Some(in_use), Some(peak), Some(largest)) = counters else { return false };
        largest <= peak.max(in_use)
    }

    /// Returns the value of an `optional<int64>`.
    fn optional(self, offset: usize) -> Option<u64> {
        self.view.word(offset).filter(|_| self.view.byte(offset + 8) == Some(1))
    }

    /// Returns the possible offsets of `pool_bytes`, with their values.
    fn pools(self, stats: usize) -> impl Iterator<Item = (usize, u64)> {
        POOL_OFFSETS.step_by(8).filter_map(move |at| {
            let pool = self.optional(stats + at)?;
            let peak = self.optional(stats + at + PEAK_POOL)?;
            (pool.max(peak) < MAX_COUNT).then_some((stats + at, pool))
        })
    }

    /// Finds the vectors between the name and the statistics.
    fn layout(
        self,
        memory: &dyn Memory,
        name_end: usize,
        stats: usize,
        budget: &mut usize,
    ) -> Result<Option<(Layout, Vec<Region>)>, MemoryError> {
        for offset in (name_end..stats).step_by(8) {
            let vector = Extent::parse(self.view, offset, MAX_REGION_BYTES);
            let slots = Extent::parse(self.view, offset + VECTOR, MAX_CHUNK_BYTES);
            let (Some(vector), Some(slots)) = (vector, slots) else { continue };
            if vector.len == 0 || slots.len == 0 {
                continue;
            }
            let bytes = exact(memory, vector.address, vector.len, "the regions");
            let Some(bytes) = mapped(bytes)? else { continue };
            for region_size in REGION_SIZES.step_by(8) {
                if !bytes.len().is_multiple_of(region_size) {
                    continue;
                }
                let Some(regions) = chunks::regions(&bytes, region_size) else { continue };
                let sum = regions.iter().fold(0_u64, |sum, r| sum.saturating_add(r.size));
                let Some((pool, _)) = self.pools(stats).find(|(_, pool)| *pool == sum) else {
                    continue;
                };
                let Some(left) = budget.checked_sub(slots.len) else { return Ok(None) };
                *budget = left;
                let size = self.chunk_size(memory, slots, &regions, stats)?;
                if let Some(chunk_size) = size {
                    let layout = Layout { regions: offset, region_size, chunk_size, stats, pool };
                    return Ok(Some((layout, regions)));
                }
            }
        }
        Ok(None)
    }

    /// Returns the size of a chunk for which the chains cover the regions and add up to the statistics or, if the
    /// allocator is changing, for which most chunks are linked.
    fn chunk_size(
        self,
        memory: &dyn Memory,
        slots: Extent,
        regions: &[Region],
        stats: usize,
    ) -> Result<Option<usize>, MemoryError> {
        let bytes = exact(memory, slots.address, slots.len, "the chunks");
        let Some(bytes) = mapped(bytes)? else { return Ok(None) };
        let mut first = Vec::new();
        for region in regions {
            let index = exact(memory, region.handles, 8, "a handle");
            let Some(index) = mapped(index)? else { return Ok(None) };
            first.extend(View(&index).words());
        }
        let in_use = self.view.word(stats + 8);
        let sizes = || CHUNK_SIZES.step_by(8).filter(|size| bytes.len().is_multiple_of(*size));
        let is_exact = |size: &usize| {
            let found = chunks::walk(&bytes, *size, regions, &first);
            found.is_some_and(|found| Some(chunks::bytes_in_use(&found)) == in_use)
        };
        let is_linked = |size: &usize| chunks::are_mostly_linked(&bytes, *size);
        Ok(sizes().find(is_exact).or_else(|| sizes().find(is_linked)))
    }

    /// Returns true if the statistics say that the pool is empty, and there is a place where its vectors can be.
    fn is_empty(self, name_end: usize, stats: usize) -> bool {
        let is_pool_empty = self.pools(stats).all(|(_, pool)| pool == 0);
        let mut vectors = (name_end..stats).step_by(8).filter(|offset| {
            let empty =
                |at: usize| Extent::parse(self.view, at, 0).is_some_and(|extent| extent.len == 0);
            empty(*offset) && empty(offset + VECTOR)
        });
        self.view.word(stats + 8) == Some(0) && is_pool_empty && vectors.next().is_some()
    }
}
