//! Scans the target's heaps for words with specific values: the type pointers of Python tensors and the vtables of C++
//! storages. A match is only a candidate, because freed memory still contains its old words.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::reader::{AddressMap, Budget};
use crate::collect::memory::maps::Mapping;
use crate::collect::memory::view::View;
use crate::collect::memory::{Memory, Range};
use crate::model::units::Pid;

const PIECE_BYTES: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4 << 10;
/// Number of entries in the filter that rejects most words before the exact comparison.
const FILTER: usize = 4_096;

/// Pages of a process that are in memory or in swap. Reading any other page would allocate it in the target.
#[derive(Debug)]
pub struct PresentPages(Option<File>);

impl PresentPages {
    pub fn open(proc_root: &Path, pid: Pid) -> Self {
        Self(File::open(proc_root.join(pid.to_string()).join("pagemap")).ok())
    }

    /// Treats all pages as present, for memory that is not from a live process.
    pub fn all() -> Self {
        Self(None)
    }

    /// Returns the parts of a range whose pages exist, in memory or in swap.
    fn present(&self, range: Range) -> Vec<Range> {
        self.read(range).unwrap_or_else(|_| vec![range])
    }

    fn read(&self, range: Range) -> io::Result<Vec<Range>> {
        let file = self.0.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let pages = range.len.div_ceil(PAGE_BYTES as usize);
        let mut entries = vec![0; pages * 8];
        file.read_exact_at(&mut entries, range.address / PAGE_BYTES * 8)?;
        let mut runs: Vec<Range> = Vec::new();
        for (index, entry) in View(&entries).words().enumerate() {
            // In a pagemap entry, the highest bit marks a page in memory, and the next bit a page in swap.
            if entry >> 62 == 0 {
                continue;
            }
            let address = range.address + index as u64 * PAGE_BYTES;
            match runs.last_mut() {
                Some(run) if run.address + run.len as u64 == address => {
                    run.len += PAGE_BYTES as usize;
                }
                _ => runs.push(Range { address, len: PAGE_BYTES as usize }),
            }
        }
        Ok(runs)
    }
}

#[derive(Debug, Default)]
pub struct Hits<T> {
    /// Address and meaning of each match, in no particular order.
    pub found: Vec<(u64, T)>,
    /// True if the scan stopped before the end of the heaps.
    pub is_incomplete: bool,
}

/// Scans all heaps for the wanted words. Scans small heaps first, because the largest ones usually contain tensor data
/// in host memory.
pub fn scan<T: Copy>(
    memory: &impl Memory,
    maps: &[Mapping],
    present: &PresentPages,
    wanted: &AddressMap<T>,
    budget: &Budget<'_>,
    percent: u32,
) -> Hits<T> {
    let mut filter = vec![false; FILTER];
    for word in wanted.keys() {
        filter[filter_index(*word)] = true;
    }
    let lowest = wanted.keys().min().copied().unwrap_or(u64::MAX);
    let highest = wanted.keys().max().copied().unwrap_or(0);
    let mut hits = Hits { found: Vec::new(), is_incomplete: false };
    let mut heaps: Vec<&Mapping> = maps.iter().filter(|map| map.is_heap).collect();
    heaps.sort_by_key(|map| map.end.saturating_sub(map.start));
    let mut buffer = Vec::new();
    for map in heaps {
        let mut at = map.start;
        while at < map.end {
            if hits.found.len() >= budget.options.maximums.candidates || budget.is_beyond(percent) {
                hits.is_incomplete = true;
                return hits;
            }
            let len = PIECE_BYTES.min(map.end - at);
            let piece = Range { address: at, len: usize::try_from(len).unwrap_or_default() };
            for run in present.present(piece) {
                buffer.clear();
                if memory.read(&[run], &mut buffer).is_err() {
                    continue;
                }
                for (index, word) in View(&buffer).words().enumerate() {
                    if word < lowest || word > highest || !filter[filter_index(word)] {
                        continue;
                    }
                    if let Some(meaning) = wanted.get(&word) {
                        hits.found.push((run.address + 8 * index as u64, *meaning));
                    }
                }
            }
            at += len;
        }
    }
    hits
}

fn filter_index(word: u64) -> usize {
    usize::try_from(word >> 3).unwrap_or_default() % FILTER
}
