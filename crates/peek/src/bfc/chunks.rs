//! Regions and chunks of the allocator, parsed from copies of its two vectors.
//!
//! A region is memory from one request to the driver. Each of its bytes belongs to exactly one chunk. A chunk names its
//! neighbours by their indices in the vector of all chunks:
//!
//! ```text
//! region.handles[0] = 4 ─► chunks[4] {prev -1, next 0} ─► chunks[0] {prev 4, next 7} ─► chunks[7] {prev 0, next -1}
//! ```
//!
//! Chunks that are not part of a chain are unused slots, whatever their members say. A free chunk need not be in a bin:
//! from JAX 0.11 on, the large free chunk of a preallocated pool is in none.

use crate::memory::view::View;

/// Sizes are multiples of this.
const GRANULE: u64 = 256;
const MAX_REGIONS: usize = 4_096;
/// Bytes of a region that all releases have: address, size, end, and the vector of handles.
const REGION_MEMBERS: usize = 40;
/// Number that stands for no chunk and no allocation.
const NONE: u64 = u64::MAX;
/// Offset of the number of a chunk's bin, and the number that stands for no bin.
const BIN: usize = 48;
const NO_BIN: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    pub address: u64,
    pub size: u64,
    /// Address of the index of the region's first chunk.
    pub handles: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    pub address: u64,
    pub size: u64,
    /// Bytes that the program requested. 0 if the chunk is free.
    pub requested: u64,
    pub is_in_use: bool,
    /// Index of the region.
    pub region: usize,
}

/// Parses the regions. Returns `None` unless all are plausible.
pub fn regions(bytes: &[u8], region_size: usize) -> Option<Vec<Region>> {
    let count = bytes.len().checked_div(region_size)?;
    if region_size < REGION_MEMBERS || count > MAX_REGIONS {
        return None;
    }
    bytes.chunks_exact(region_size).map(|bytes| region(View(bytes))).collect()
}

fn region(view: View<'_>) -> Option<Region> {
    let [address, size, end, handles, handles_end] = words(view, 0)?;
    let has_handles = handles_end.checked_sub(handles)? == size / GRANULE * 8;
    let is_region = size > 0
        && size.is_multiple_of(GRANULE)
        && address.checked_add(size) == Some(end)
        && has_handles;
    is_region.then_some(Region { address, size, handles })
}

fn words<const N: usize>(view: View<'_>, offset: usize) -> Option<[u64; N]> {
    let mut found = [0; N];
    for (index, word) in found.iter_mut().enumerate() {
        *word = view.word(offset + 8 * index)?;
    }
    Some(found)
}

/// Members of one slot of the vector of chunks.
struct Slot {
    size: u64,
    requested: u64,
    allocation: u64,
    address: u64,
    previous: u64,
    next: u64,
    is_in_bin: bool,
}

impl Slot {
    fn parse(slots: &[u8], chunk_size: usize, index: u64) -> Option<Self> {
        let at = usize::try_from(index).ok()?.checked_mul(chunk_size)?;
        let bytes = slots.get(at..at.checked_add(chunk_size)?)?;
        let [size, requested, allocation, address, previous, next] = words(View(bytes), 0)?;
        let is_in_bin = View(bytes).int(BIN)? != NO_BIN;
        Some(Self { size, requested, allocation, address, previous, next, is_in_bin })
    }
}

/// Follows the chain of chunks of each region, from the index of its first chunk. Returns `None` unless each chain covers
/// its region exactly.
pub fn walk(
    slots: &[u8],
    chunk_size: usize,
    regions: &[Region],
    first: &[u64],
) -> Option<Vec<Chunk>> {
    let count = slots.len().checked_div(chunk_size)?;
    let mut chunks = Vec::new();
    for (number, (region, first)) in regions.iter().zip(first).enumerate() {
        let end = region.address.checked_add(region.size)?;
        let (mut address, mut previous, mut index) = (region.address, NONE, *first);
        while index != NONE {
            let slot = Slot::parse(slots, chunk_size, index)?;
            let is_linked = slot.address == address && slot.previous == previous;
            let is_size = slot.size > 0 && slot.size.is_multiple_of(GRANULE);
            if !is_linked || !is_size || chunks.len() >= count {
                return None;
            }
            let is_in_use = slot.allocation != NONE;
            chunks.push(Chunk {
                address,
                size: slot.size,
                requested: if is_in_use { slot.requested.min(slot.size) } else { 0 },
                is_in_use,
                region: number,
            });
            address = address.checked_add(slot.size).filter(|address| *address <= end)?;
            previous = std::mem::replace(&mut index, slot.next);
        }
        if address != end {
            return None;
        }
    }
    Some(chunks)
}

pub fn bytes_in_use(chunks: &[Chunk]) -> u64 {
    let used = chunks.iter().filter(|chunk| chunk.is_in_use);
    used.fold(0, |sum, chunk| sum.saturating_add(chunk.size))
}

/// Returns true if most slots of a changing vector are linked to their successors, so `chunk_size` must be right.
pub fn are_mostly_linked(slots: &[u8], chunk_size: usize) -> bool {
    const MIN_LINKS: usize = 16;
    let count = slots.len().checked_div(chunk_size).unwrap_or(0) as u64;
    let (mut linked, mut all) = (0_usize, 0_usize);
    for index in 0..count {
        let Some(slot) = Slot::parse(slots, chunk_size, index) else { continue };
        let is_size = slot.size > 0 && slot.size.is_multiple_of(GRANULE);
        let is_unused = slot.allocation == NONE && !slot.is_in_bin;
        if !is_size || is_unused || slot.next >= count {
            continue;
        }
        all += 1;
        let next = Slot::parse(slots, chunk_size, slot.next);
        let is_linked = next.is_some_and(|next| {
            next.previous == index && Some(next.address) == slot.address.checked_add(slot.size)
        });
        linked += usize::from(is_linked);
    }
    all >= MIN_LINKS && linked.saturating_mul(10) >= all.saturating_mul(9)
}
