//! Scans the target's heaps for words with specific values: the type pointers of Python tensors and the vtables of C++
//! storages. A match is only a candidate, because freed memory still contains its old words.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::cpython::reader::{AddressMap, Budget};
use crate::memory::Memory;
use crate::memory::heap_pages::{PresentPages, pieces, read_pages};
use crate::memory::maps::Mapping;

/// Size of the filter that precedes the exact comparison, in words. It fits into a processor's first cache.
const FILTER_WORDS: usize = 1_024;

#[derive(Debug, Default)]
pub struct Hits<T> {
    /// Address and meaning of each match, in no particular order.
    pub found: Vec<(u64, T)>,
    /// True if the scan stopped before the end of the heaps.
    pub is_incomplete: bool,
}

/// Scans all heaps for the wanted words. Scans small heaps first, because the largest ones usually contain tensor data
/// in host memory. With more than one thread, only the calling thread checks the budget, and stops the others.
pub fn scan<T: Copy + Send + Sync>(
    memory: &(dyn Memory + Sync),
    maps: &[Mapping],
    present: &PresentPages,
    wanted: &AddressMap<T>,
    budget: &Budget<'_>,
    percent: u32,
    threads: usize,
) -> Hits<T> {
    let filter = Filter::new(wanted.keys().copied());
    let mut heaps: Vec<&Mapping> = maps.iter().filter(|map| map.is_heap).collect();
    heaps.sort_by_key(|map| map.end.saturating_sub(map.start));
    let pieces = Mutex::new(heaps.into_iter().flat_map(pieces));
    let next_piece = || pieces.lock().ok().and_then(|mut pieces| pieces.next());
    let max_candidates = budget.options.maximums.candidates;
    let (candidates, is_stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
    let scan_until = |must_stop: &dyn Fn() -> bool| {
        let (mut found, mut buffer) = (Vec::new(), Vec::new());
        while !is_stopped.load(Ordering::Relaxed)
            && let Some(piece) = next_piece()
        {
            if must_stop() || candidates.load(Ordering::Relaxed) >= max_candidates {
                is_stopped.store(true, Ordering::Relaxed);
                break;
            }
            let before = found.len();
            for run in present.present(piece) {
                read_pages(memory, run, &mut buffer, &mut |bytes, address| {
                    matches(bytes, address, &filter, wanted, &mut found);
                });
            }
            candidates.fetch_add(found.len() - before, Ordering::Relaxed);
        }
        found
    };
    let found = thread::scope(|scope| {
        let start = |_| thread::Builder::new().spawn_scoped(scope, || scan_until(&|| false)).ok();
        let helpers: Vec<_> = (1..threads).filter_map(start).collect();
        let mut found = scan_until(&|| budget.is_beyond(percent));
        for helper in helpers {
            found.extend(helper.join().unwrap_or_default());
        }
        found
    });
    Hits { found, is_incomplete: is_stopped.into_inner() }
}

/// Adds the wanted words among the bytes, with their addresses. Almost the whole time of a reading is spent in this
/// loop, so it calls no function that a build for size would leave as a call.
fn matches<T: Copy>(
    bytes: &[u8],
    address: u64,
    filter: &Filter,
    wanted: &AddressMap<T>,
    found: &mut Vec<(u64, T)>,
) {
    let (words, _) = bytes.as_chunks();
    let mut index = 0;
    while index < words.len() {
        let word = u64::from_le_bytes(words[index]);
        if filter.may_contain(word)
            && let Some(meaning) = wanted.get(&word)
        {
            found.push((address + 8 * index as u64, *meaning));
        }
        index += 1;
    }
}

/// A bit table that shows which words may be wanted. Most words of a heap differ from all wanted ones, so this is
/// faster than a hash map.
struct Filter(Box<[u64; FILTER_WORDS]>);

impl Filter {
    fn new(words: impl Iterator<Item = u64>) -> Self {
        let mut bits = Box::new([0; FILTER_WORDS]);
        for word in words {
            let (index, bit) = Self::place(word);
            bits[index] |= bit;
        }
        Self(bits)
    }

    #[inline(always)]
    fn may_contain(&self, word: u64) -> bool {
        let (index, bit) = Self::place(word);
        self.0[index] & bit != 0
    }

    /// Returns the index and the bit for a word. The multiplication spreads addresses that differ in a few bits.
    #[inline(always)]
    fn place(word: u64) -> (usize, u64) {
        let hash = word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        ((hash >> 6) as usize % FILTER_WORDS, 1 << (hash % 64))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cpython::limits::Options;
    use crate::memory::{MemoryError, Range};

    /// Heaps in which every word is its own address.
    #[derive(Debug)]
    struct Addresses(Vec<Mapping>);

    impl Memory for Addresses {
        fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError> {
            for range in ranges {
                let words = (range.address..range.address + range.len as u64).step_by(8);
                into.extend(words.flat_map(u64::to_le_bytes));
            }
            Ok(())
        }

        fn maps(&self) -> Result<Vec<Mapping>, MemoryError> {
            Ok(self.0.clone())
        }
    }

    fn scanned(maps: &[(u64, u64)], wanted: &[u64], threads: usize, candidates: usize) -> Hits<u8> {
        let heap = |&(start, end)| Mapping { start, end, is_heap: true, ..Mapping::default() };
        let memory = Addresses(maps.iter().map(heap).collect());
        let wanted = wanted.iter().map(|&word| (word, 7)).collect();
        let mut options = Options::default();
        options.maximums.candidates = candidates;
        let (clock, is_cancelled) = (|| Duration::ZERO, AtomicBool::new(false));
        let budget = Budget::new(&options, &clock, &is_cancelled);
        let mut hits =
            scan(&memory, &memory.0, &PresentPages::all(), &wanted, &budget, 60, threads);
        hits.found.sort_unstable();
        hits
    }

    #[test]
    fn any_number_of_threads_finds_the_same_words() {
        let maps = [(0x10_0004, 0x40_0000), (0x80_0000, 0x90_0000)];
        let wanted = [0x10_0008, 0x17_fff8, 0x18_0000, 0x8f_fff8, 0x90_0000];
        for threads in [1, 2, 5] {
            let hits = scanned(&maps, &wanted, threads, 100);
            let expected = [(0x10_0008, 7), (0x17_fff8, 7), (0x18_0000, 7), (0x8f_fff8, 7)];
            assert_eq!(hits.found, expected);
            assert!(!hits.is_incomplete);
        }
    }

    #[test]
    fn scan_stops_at_the_maximum_number_of_candidates() {
        let wanted: Vec<u64> = (0x10_0000..0x10_1000).step_by(8).collect();
        for threads in [1, 3] {
            let hits = scanned(&[(0x10_0000, 0x1000_0000)], &wanted, threads, 10);
            assert!(hits.is_incomplete);
            assert!(hits.found.len() >= 10);
        }
    }
}
