//! Reads the statistics and all chunks of an allocator as they were at one instant.
//!
//! One system call copies the object, its regions, the index of each region's first chunk, the chunks, and the object
//! again. The kernel copies these one after another while the program runs. The copies belong together if both copies of
//! the object are equal, the chain of each region covers it, and the chunks in use add up to `bytes_in_use`.
//!
//! A program that allocates 18,000 times a second passes within five attempts in nine of ten cases. If no attempt
//! passes, the statistics are still those of one instant, because they are copied at once, but the chunks are unknown.

use gputop_model::{Bytes, PoolKind, Segment};

use super::chunks::{self, Chunk, Region};
use super::failure::Failure;
use super::layout::{Extent, Layout, MAX_CHUNK_BYTES, MAX_REGION_BYTES, VECTOR};
use crate::memory::view::View;
use crate::memory::{Memory, Range};

/// Maximum number of attempts. The first attempt of a new reader only finds the vectors.
const MAX_TRIES: u32 = 6;

/// Statistics that the allocator itself keeps, in bytes except for the number of allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Number of allocations since the start.
    pub allocations: u64,
    pub in_use: u64,
    pub peak_in_use: u64,
    pub largest_allocation: u64,
    pub limit: u64,
    /// Size of the pool: memory reserved from the driver.
    pub reserved: u64,
    pub peak_reserved: u64,
}

impl Stats {
    /// Parses a copy that starts at the vector of regions.
    fn parse(view: View<'_>, layout: &Layout) -> Option<Self> {
        let word = |offset: usize| view.word(offset - layout.regions);
        let counter = |index: usize| word(layout.stats + 8 * index);
        let (in_use, reserved) = (counter(1)?, word(layout.pool)?);
        let stats = Self {
            allocations: counter(0)?,
            in_use,
            // The allocator updates a peak after the current value, and may be interrupted in between.
            peak_in_use: counter(2)?.max(in_use),
            largest_allocation: counter(3)?,
            limit: counter(4)?,
            reserved,
            peak_reserved: word(layout.peak_pool())?.max(reserved),
        };
        (in_use <= reserved).then_some(stats)
    }
}

/// Regions and chunks at one instant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChunkMap {
    pub regions: Vec<Region>,
    /// Chunks of all regions, in the order of the regions and of their addresses.
    pub chunks: Vec<Chunk>,
}

impl ChunkMap {
    /// Returns the regions and chunks as the model describes segments and blocks.
    pub fn segments(&self) -> Vec<Segment> {
        let chunks = self.chunks.chunk_by(|one, other| one.region == other.region);
        let mut segments: Vec<Segment> = self
            .regions
            .iter()
            .zip(chunks)
            .map(|(region, chunks)| Segment {
                address: region.address,
                size: Bytes(region.size),
                pool: PoolKind::Region,
                blocks: chunks.iter().map(Chunk::block).collect(),
                ..Segment::default()
            })
            .collect();
        segments.sort_by_key(|segment| segment.address);
        segments
    }

    pub fn largest_free(&self) -> u64 {
        let free = self.chunks.iter().filter(|chunk| !chunk.is_in_use);
        free.map(|chunk| chunk.size).max().unwrap_or(0)
    }
}

/// Places of the vectors, from the last copy of the object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Vectors {
    regions: Vec<u8>,
    /// Words of the object that describe both vectors.
    members: Vec<u8>,
}

/// Result of one attempt.
enum Attempt {
    Exact(Stats, ChunkMap),
    /// The copies do not belong together. Contains the statistics, if they are plausible.
    Torn(Option<Stats>),
    /// Both copies of the object are equal, but the chunks do not add up, so the layout may be wrong.
    Broken(Option<Stats>),
}

/// Reads one allocator again and again.
#[derive(Debug, Clone)]
pub struct Reader {
    address: u64,
    vtable: u64,
    layout: Layout,
    vectors: Vectors,
    buffer: Vec<u8>,
}

/// What one read found.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub stats: Stats,
    /// The chunks, or `None` if the allocator changed during every attempt.
    pub map: Option<ChunkMap>,
    /// True if the chunks did not add up although the allocator did not change.
    pub is_broken: bool,
}

impl Reader {
    pub fn new(address: u64, vtable: u64, layout: Layout) -> Self {
        Self { address, vtable, layout, vectors: Vectors::default(), buffer: Vec::new() }
    }

    /// Reads the allocator. Returns [`Failure::Changed`] if it no longer exists.
    pub fn read(&mut self, memory: &dyn Memory) -> Result<Snapshot, Failure> {
        let (mut last, mut is_broken) = (None, false);
        for _ in 0..MAX_TRIES {
            let torn = match self.attempt(memory)? {
                Attempt::Exact(stats, map) => {
                    return Ok(Snapshot { stats, map: Some(map), is_broken: false });
                }
                Attempt::Torn(stats) => stats,
                Attempt::Broken(stats) => {
                    is_broken = true;
                    stats
                }
            };
            last = torn.or(last);
        }
        last.map(|stats| Snapshot { stats, map: None, is_broken }).ok_or(Failure::Busy)
    }

    fn attempt(&mut self, memory: &dyn Memory) -> Result<Attempt, Failure> {
        let members = self.layout.end() - self.layout.regions;
        let table = View(&self.vectors.members);
        let place = |offset, max| Extent::parse(table, offset, max).filter(|extent| extent.len > 0);
        let region_table = place(0, MAX_REGION_BYTES);
        let slots = place(VECTOR, MAX_CHUNK_BYTES);
        let regions =
            chunks::regions(&self.vectors.regions, self.layout.region_size).unwrap_or_default();
        let object =
            Range { address: self.address.wrapping_add(self.layout.regions as u64), len: members };
        let mut ranges = vec![Range { address: self.address, len: 8 }, object];
        let parts = region_table.into_iter().chain(slots);
        ranges.extend(parts.map(|Extent { address, len }| Range { address, len }));
        ranges.extend(regions.iter().map(|region| Range { address: region.handles, len: 8 }));
        ranges.push(object);
        self.buffer.clear();
        memory.read(&ranges, &mut self.buffer)?;
        let mut copies = Copies { bytes: &self.buffer };
        if View(copies.take(8)).word(0) != Some(self.vtable) {
            return Err(Failure::Changed);
        }
        let before = copies.take(members);
        let region_bytes = copies.take(region_table.map_or(0, |extent| extent.len));
        let slot_bytes = copies.take(slots.map_or(0, |extent| extent.len));
        let first: Vec<u64> = View(copies.take(8 * regions.len())).words().collect();
        let after = copies.take(members);
        let stats = Stats::parse(View(if after.is_empty() { before } else { after }), &self.layout);
        let is_same = before == after && before.get(..2 * VECTOR) == Some(&self.vectors.members);
        if !is_same || region_bytes != self.vectors.regions {
            let (before, after) = (before.to_vec(), after.to_vec());
            self.locate(memory, if after.is_empty() { &before } else { &after })?;
            return Ok(Attempt::Torn(stats));
        }
        let found = chunks::walk(slot_bytes, self.layout.chunk_size, &regions, &first);
        let sum = regions.iter().fold(0_u64, |sum, region| sum.saturating_add(region.size));
        let is_exact = |chunks: &Vec<Chunk>, stats: &Stats| {
            chunks::bytes_in_use(chunks) == stats.in_use && sum == stats.reserved
        };
        Ok(match (found, stats) {
            (Some(chunks), Some(stats)) if is_exact(&chunks, &stats) => {
                Attempt::Exact(stats, ChunkMap { regions, chunks })
            }
            _ => Attempt::Broken(stats),
        })
    }

    /// Notes where the vectors are, for the next attempt.
    fn locate(&mut self, memory: &dyn Memory, object: &[u8]) -> Result<(), Failure> {
        self.vectors = Vectors::default();
        let extent = Extent::parse(View(object), 0, MAX_REGION_BYTES);
        if let (Some(extent), Some(members)) = (extent, object.get(..2 * VECTOR)) {
            self.vectors.members = members.to_vec();
            let range = Range { address: extent.address, len: extent.len };
            memory.read(&[range], &mut self.vectors.regions)?;
        }
        Ok(())
    }
}

/// Copies of consecutive ranges. A range that is missing because the read ended early is empty.
struct Copies<'a> {
    bytes: &'a [u8],
}

impl<'a> Copies<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at_checked(len).unwrap_or_default();
        self.bytes = rest;
        taken
    }
}
