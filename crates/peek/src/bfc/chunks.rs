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

use gputop_model::{Block, BlockState, Bytes};

use crate::memory::Range;
use crate::memory::view::View;

/// Sizes are multiples of this.
const GRANULE: u64 = 256;
/// Bytes of a handle: the index of a chunk. A region has one for each granule.
const HANDLE: u64 = 8;
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

impl Chunk {
    /// Returns the chunk as the model describes a block.
    pub fn block(&self) -> Block {
        Block {
            address: self.address,
            size: Bytes(self.size),
            requested: self.is_in_use.then_some(Bytes(self.requested)),
            state: if self.is_in_use { BlockState::Allocated } else { BlockState::Free },
        }
    }
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
    let has_handles = handles_end.checked_sub(handles)? == size / GRANULE * HANDLE;
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

impl Region {
    /// Returns the memory of the region's handles.
    pub fn handle_table(&self) -> Range {
        let len = usize::try_from(self.size / GRANULE * HANDLE).unwrap_or(usize::MAX);
        Range { address: self.handles, len }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 64;

    /// A slot with size, allocation, address, previous, next and bin.
    fn slot(words: [u64; 5], bin: u32) -> [u8; SIZE] {
        let [size, allocation, address, previous, next] = words;
        let mut bytes = [0; SIZE];
        let members = [size, size - 1, allocation, address, previous, next, u64::from(bin)];
        for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(members) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    #[test]
    fn follows_the_chain_from_the_handle_and_ignores_stale_slots() {
        let region = Region { address: 0x1000, size: 0x800, handles: 0 };
        let slots = [
            // A stale slot with the address of the first chunk.
            slot([0x800, NONE, 0x1000, NONE, NONE], NO_BIN),
            slot([0x500, NONE, 0x1300, 2, NONE], NO_BIN),
            slot([0x300, 7, 0x1000, NONE, 1], NO_BIN),
        ];
        let slots = slots.as_flattened();
        let found = walk(slots, SIZE, &[region], &[2]).expect("a chain");
        let shape: Vec<(u64, bool, u64)> =
            found.iter().map(|chunk| (chunk.size, chunk.is_in_use, chunk.requested)).collect();
        assert_eq!(shape, [(0x300, true, 0x2ff), (0x500, false, 0)]);
        assert_eq!(bytes_in_use(&found), 0x300);
        // Chains that are too short, begin in the middle, end outside or have another chunk size.
        assert_eq!(walk(slots, SIZE, &[Region { size: 0x900, ..region }], &[2]), None);
        assert_eq!(walk(slots, SIZE, &[region], &[1]), None);
        assert_eq!(walk(slots, SIZE, &[region], &[3]), None);
        assert_eq!(walk(slots, 96, &[region], &[2]), None);
        assert_eq!(walk(slots, 0, &[region], &[2]), None);
    }

    #[test]
    fn a_circle_of_chunks_ends() {
        let region = Region { address: 0, size: 1 << 40, handles: 0 };
        let slots = [slot([0x100, 1, 0, 1, 1], NO_BIN), slot([0x100, 1, 0x100, 0, 0], NO_BIN)];
        assert_eq!(walk(slots.as_flattened(), SIZE, &[region], &[0]), None);
    }

    #[test]
    fn a_region_must_have_a_handle_for_each_granule() {
        let region = |handles_end: u64| -> Vec<u8> {
            let words = [0x1000_u64, 0x800, 0x1800, 0x9000, handles_end, 0];
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        assert_eq!(regions(&region(0x9040), 48).map(|regions| regions.len()), Some(1));
        assert_eq!(regions(&region(0x9048), 48), None);
        assert_eq!(regions(&region(0x9040), 0), None);
    }

    #[test]
    fn links_reveal_the_chunk_size_of_a_changing_allocator() {
        let count = 40;
        let mut slots: Vec<[u8; SIZE]> = (0..count)
            .map(|index: u64| {
                let previous = index.checked_sub(1).unwrap_or(NONE);
                slot([0x100, 1, 0x100 * index, previous, index + 1], NO_BIN)
            })
            .collect();
        slots[7] = slot([0x100, 1, 0, 3, 4], NO_BIN);
        assert!(are_mostly_linked(slots.as_flattened(), SIZE));
        assert!(!are_mostly_linked(slots.as_flattened(), 80));
        assert!(!are_mostly_linked(&slots.as_flattened()[..SIZE * 9], SIZE));
    }
}
