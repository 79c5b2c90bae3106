//! Reads many structs of the same size, scattered over the target's heap, in as few system calls as possible.
//!
//! Neighbouring structs are read as one range, because the kernel's cost is per range and page, not per byte. Reading
//! 10,000 blocks as 100 ranges takes a quarter of the time needed for 10,000 ranges.

use super::view::View;
use super::{Memory, MemoryError, Range};

/// Maximum gap between two structs that are merged into one range, in bytes.
const MAX_GAP: u64 = 4_096;
/// Maximum length of a merged range of structs, in bytes.
const MAX_RUN_BYTES: u64 = 256 << 10;
/// Maximum bytes per batch of ranges, so that hostile addresses can cost time but not memory.
const MAX_BATCH_BYTES: usize = 8 << 20;
/// Maximum number of ranges in a batch: IOV_MAX, so that one batch is one system call.
const MAX_RUNS: usize = 1_024;

/// Copies of structs, in the order of the requested addresses.
#[derive(Debug, Default)]
pub struct Objects {
    size: usize,
    bytes: Vec<u8>,
    readable: Vec<bool>,
}

impl Objects {
    /// Returns the struct at `index`, or `None` if it was not readable.
    pub fn get(&self, index: usize) -> Option<View<'_>> {
        let is_readable = *self.readable.get(index)?;
        let at = index * self.size;
        is_readable.then(|| self.bytes.get(at..at + self.size).map(View))?
    }

    pub fn iter(&self) -> impl Iterator<Item = Option<View<'_>>> {
        (0..self.readable.len()).map(|index| self.get(index))
    }

    pub fn readable(&self) -> impl Iterator<Item = View<'_>> {
        self.iter().flatten()
    }

    fn put(&mut self, index: usize, bytes: &[u8]) {
        let at = index * self.size;
        self.bytes[at..at + self.size].copy_from_slice(bytes);
        self.readable[index] = true;
    }
}

/// Memory range that covers neighbouring structs and is read in one piece. `first` and `end` are indices in the sorted
/// list of the structs' addresses.
struct Run {
    range: Range,
    first: usize,
    end: usize,
}

/// Reads a struct of `size` bytes at each address. Fails if the process is unreadable, but not if only some of the
/// structs are.
pub fn read(memory: &dyn Memory, addresses: &[u64], size: usize) -> Result<Objects, MemoryError> {
    let mut order: Vec<usize> = (0..addresses.len()).collect();
    order.sort_unstable_by_key(|&index| addresses[index]);
    let sorted: Vec<u64> = order.iter().map(|&index| addresses[index]).collect();
    let mut objects = Objects {
        size,
        bytes: vec![0; size * addresses.len()],
        readable: vec![false; addresses.len()],
    };
    let runs = runs(&sorted, size);
    let mut rest = &runs[..];
    let mut buffer = Vec::new();
    while !rest.is_empty() {
        let (batch, rest_of_runs) = rest.split_at(batch_len(rest));
        let complete = read_batch(memory, batch, &mut buffer)?;
        let mut at = 0;
        for run in &batch[..complete] {
            for index in run.first..run.end {
                let from = at + offset(sorted[index], run.range.address);
                objects.put(order[index], &buffer[from..from + size]);
            }
            at += run.range.len;
        }
        // If a run contains unmapped memory, read its structs one by one, and then continue with a new batch that
        // begins at the next run.
        rest = rest_of_runs;
        if let Some(run) = batch.get(complete) {
            for index in run.first..run.end {
                let bytes = super::up_to(memory, sorted[index], size)?;
                if bytes.len() == size {
                    objects.put(order[index], &bytes);
                }
            }
            rest = &runs[runs.len() - rest_of_runs.len() - (batch.len() - complete - 1)..];
        }
    }
    Ok(objects)
}

/// Reads a batch of runs. Returns the number of runs that were read completely.
fn read_batch(
    memory: &dyn Memory,
    batch: &[Run],
    buffer: &mut Vec<u8>,
) -> Result<usize, MemoryError> {
    let ranges: Vec<Range> = batch.iter().map(|run| run.range).collect();
    buffer.clear();
    memory.read(&ranges, buffer)?;
    let mut left = buffer.len();
    let whole = ranges.iter().take_while(|range| {
        let is_whole = range.len <= left;
        left = left.saturating_sub(range.len);
        is_whole
    });
    Ok(whole.count())
}

/// Returns the number of runs in the next batch, which is at least one.
fn batch_len(runs: &[Run]) -> usize {
    let mut bytes = 0;
    runs.iter()
        .take(MAX_RUNS)
        .take_while(|run| {
            bytes += run.range.len;
            bytes <= MAX_BATCH_BYTES || bytes == run.range.len
        })
        .count()
}

fn runs(sorted: &[u64], size: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let length = u64::try_from(size).unwrap_or(u64::MAX);
    for (index, &address) in sorted.iter().enumerate() {
        let end = address.saturating_add(length);
        if let Some(run) = runs.last_mut() {
            let start = run.range.address;
            let run_end = start + u64::try_from(run.range.len).unwrap_or_default();
            if address < run_end.saturating_add(MAX_GAP) && end - start <= MAX_RUN_BYTES {
                run.range.len = run.range.len.max(offset(end, start));
                run.end = index + 1;
                continue;
            }
        }
        runs.push(Run { range: Range { address, len: size }, first: index, end: index + 1 });
    }
    runs
}

/// Returns the distance between two addresses of one run, in bytes.
fn offset(address: u64, start: u64) -> usize {
    usize::try_from(address - start).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::maps::Mapping;
    use proptest::prelude::*;
    use std::cell::Cell;

    /// Fake memory in which every byte is the low byte of its address, except for an unmapped range.
    #[derive(Debug)]
    struct Pattern {
        unmapped: std::ops::Range<u64>,
        calls: Cell<usize>,
    }

    impl Memory for Pattern {
        fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError> {
            self.calls.set(self.calls.get() + 1);
            for range in ranges {
                for address in range.address..range.address + range.len as u64 {
                    if self.unmapped.contains(&address) {
                        return Ok(());
                    }
                    into.push(address as u8);
                }
            }
            Ok(())
        }

        fn maps(&self) -> Result<Vec<Mapping>, MemoryError> {
            Ok(Vec::new())
        }
    }

    proptest! {
        #[test]
        fn reads_every_object_outside_the_unmapped_range(
            addresses in prop::collection::vec(0u64..2_000_000, 0..200),
            unmapped in 0u64..2_000_000,
            len in 0u64..50_000,
        ) {
            let memory = Pattern { unmapped: unmapped..unmapped + len, calls: Cell::new(0) };
            let objects = read(&memory, &addresses, 40).expect("a memory");
            for (index, &address) in addresses.iter().enumerate() {
                let is_unmapped = (address..address + 40).any(|a| memory.unmapped.contains(&a));
                let expected: Vec<u8> = (address..address + 40).map(|a| a as u8).collect();
                prop_assert_eq!(objects.get(index).map(|v| v.0), (!is_unmapped).then_some(&expected[..]));
            }
        }
    }

    #[test]
    fn neighbours_are_read_in_one_call() {
        let memory = Pattern { unmapped: 0..0, calls: Cell::new(0) };
        let addresses: Vec<u64> = (0..10_000).map(|k| k * 128).collect();
        assert_eq!(read(&memory, &addresses, 112).expect("a memory").readable().count(), 10_000);
        assert_eq!(memory.calls.get(), 1);
    }
}
