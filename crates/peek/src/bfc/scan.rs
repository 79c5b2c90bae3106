//! Searches a process's own memory for objects of a class, in steps.
//!
//! Only memory that is resident is read, and no mapping above 1 GiB. The tables of handles, which take 1/32 of a pool, are
//! left out as soon as the pool is known. `[heap]` comes first, because it contains the objects if the main thread
//! initialized the framework, and then the mappings from the smallest to the largest.

use std::collections::VecDeque;

use crate::memory::maps::Mapping;
use crate::memory::view::View;
use crate::memory::{Memory, MemoryError, Range};

/// Bytes to read in one step.
const BLOCK: usize = 1 << 20;
const MAX_MAPPING_BYTES: u64 = 1 << 30;
/// Maximum number of bytes to read in one search, for programs with many large arrays on the host.
const MAX_BYTES: usize = 8 << 30;
/// Maximum number of words that look like an object. Known processes have fewer than ten.
const MAX_CANDIDATES: usize = 256;

#[derive(Debug)]
pub struct ObjectScan {
    vtables: Vec<u64>,
    mappings: VecDeque<Range>,
    parts: VecDeque<Range>,
    buffer: Vec<u8>,
    left: usize,
    candidates_left: usize,
    /// Address and vtable of each word found and not yet taken.
    pub found: Vec<(u64, u64)>,
}

impl ObjectScan {
    pub fn new(maps: &[Mapping], vtables: Vec<u64>) -> Self {
        let len = |map: &Mapping| map.end.saturating_sub(map.start);
        let is_searched = |map: &&Mapping| map.is_heap && len(map) <= MAX_MAPPING_BYTES;
        let mut heaps: Vec<&Mapping> = maps.iter().filter(is_searched).collect();
        heaps.sort_by_key(|map| (!map.is_main_heap, len(map)));
        let range = |map: &Mapping| Range {
            address: map.start,
            len: usize::try_from(len(map)).unwrap_or_default(),
        };
        Self {
            vtables,
            mappings: heaps.into_iter().map(range).collect(),
            parts: VecDeque::new(),
            buffer: Vec::new(),
            left: MAX_BYTES,
            candidates_left: MAX_CANDIDATES,
            found: Vec::new(),
        }
    }

    /// Leaves out a range. The kernel joins neighbouring mappings, so there may be objects on both sides of it.
    pub fn exclude(&mut self, range: Range) {
        for ranges in [&mut self.mappings, &mut self.parts] {
            let all = std::mem::take(ranges).into_iter();
            ranges.extend(all.flat_map(|one| without(one, range)));
        }
    }

    /// Searches one more block. Returns true once the scan has ended.
    pub fn advance(&mut self, memory: &dyn Memory) -> Result<bool, MemoryError> {
        let is_full = self.left == 0 || self.candidates_left == 0;
        if is_full || self.vtables.is_empty() {
            return Ok(true);
        }
        let Some(part) = self.parts.pop_front() else {
            let Some(mapping) = self.mappings.pop_front() else { return Ok(true) };
            self.parts = memory.resident(mapping).into();
            return Ok(false);
        };
        let len = part.len.min(BLOCK).min(self.left);
        if part.len > len {
            let address = part.address.saturating_add(len as u64);
            self.parts.push_front(Range { address, len: part.len - len });
        }
        self.left -= len;
        self.buffer.clear();
        memory.read(&[Range { address: part.address, len }], &mut self.buffer)?;
        let words = (0_u64..).zip(View(&self.buffer).words());
        let wanted = words.filter(|(_, word)| self.vtables.contains(word));
        let objects = wanted.map(|(index, word)| (part.address.wrapping_add(8 * index), word));
        let known = self.found.len();
        self.found.extend(objects.take(self.candidates_left));
        self.candidates_left -= self.found.len() - known;
        Ok(false)
    }
}

/// Returns what is left of a range before and after another one.
fn without(range: Range, other: Range) -> impl Iterator<Item = Range> {
    let end = |range: Range| range.address.saturating_add(range.len as u64);
    let part = |start: u64, end: u64| {
        let len = usize::try_from(end.checked_sub(start)?).ok().filter(|len| *len > 0)?;
        Some(Range { address: start, len })
    };
    let before = part(range.address, end(range).min(other.address));
    let after = part(range.address.max(end(other)), end(range));
    before.into_iter().chain(after)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const VTABLE: u64 = 0x7f00_0000_1000;

    /// Memory in which every page contains a word that looks like an object, and half of each mapping is resident.
    #[derive(Debug, Default)]
    struct Pages(RefCell<Vec<Range>>);

    impl Memory for Pages {
        fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError> {
            self.0.borrow_mut().extend(ranges);
            for range in ranges {
                into.resize(into.len() + range.len - 8, 0);
                into.extend(VTABLE.to_le_bytes());
            }
            Ok(())
        }

        fn maps(&self) -> Result<Vec<Mapping>, MemoryError> {
            Ok(Vec::new())
        }

        fn resident(&self, range: Range) -> Vec<Range> {
            vec![Range { len: range.len / 2, ..range }]
        }
    }

    fn heap(start: u64, len: u64) -> Mapping {
        Mapping { start, end: start + len, is_heap: true, ..Mapping::default() }
    }

    #[test]
    fn reads_resident_memory_of_the_main_heap_first_and_no_large_mapping() {
        let maps = [
            heap(0x1000_0000, 0x8000),
            heap(0x2000_0000, 0x2000),
            Mapping { is_main_heap: true, ..heap(0x3000_0000, 0x10_0000) },
            heap(0x1_0000_0000, (1 << 30) + 0x1000),
            Mapping { is_heap: false, ..heap(0x4000_0000, 0x1000) },
            heap(0x5000_0000, 0x1_4000),
        ];
        let memory = Pages::default();
        let mut scan = ObjectScan::new(&maps, vec![VTABLE]);
        scan.exclude(Range { address: 0x5000_2000, len: 0x1_0000 });
        scan.exclude(Range { address: 0x6000_0000, len: 0x1000 });
        while !scan.advance(&memory).expect("memory") {}
        let read: Vec<(u64, usize)> =
            memory.0.borrow().iter().map(|range| (range.address, range.len)).collect();
        assert_eq!(
            read,
            [
                (0x3000_0000, 0x8_0000),
                (0x2000_0000, 0x1000),
                (0x1000_0000, 0x4000),
                (0x5000_0000, 0x1000),
                (0x5001_2000, 0x1000),
            ]
        );
        assert_eq!(scan.found[1], (0x2000_0ff8, VTABLE));
    }

    #[test]
    fn stops_at_the_maximum_number_of_candidates() {
        let maps: Vec<Mapping> = (1..1_000).map(|number| heap(number << 20, 0x2000)).collect();
        let memory = Pages::default();
        let mut scan = ObjectScan::new(&maps, vec![VTABLE]);
        while !scan.advance(&memory).expect("memory") {}
        assert_eq!(scan.found.len(), MAX_CANDIDATES);
    }
}
