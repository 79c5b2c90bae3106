//! Many structs of one size that lie scattered on the target's heap, in as few system calls as possible.
//!
//! Neighbours are read as one range: the kernel's price is by range and page, not by byte, and ten thousand blocks
//! in a hundred ranges take a quarter of the time that ten thousand ranges take.

use super::view::View;
use super::{Memory, MemoryError, Range};

/// Structs closer than this are read with what lies between them.
const GAP: u64 = 4_096;
/// No range is longer.
const RUN: u64 = 256 << 10;
/// What one batch of ranges may bring, so that a hostile scatter costs time and not memory.
const BATCH: usize = 8 << 20;
/// IOV_MAX again: one batch is one system call.
const MAX_RUNS: usize = 1_024;

/// The copies, in the order of the addresses they were asked for by.
#[derive(Debug, Default)]
pub struct Objects {
    size: usize,
    bytes: Vec<u8>,
    readable: Vec<bool>,
}

impl Objects {
    /// `None` for one that was not readable.
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

/// A range, and which of the sorted addresses it covers.
struct Run {
    range: Range,
    first: usize,
    end: usize,
}

/// Reads `size` bytes at each address.
///
/// # Errors
/// When the process may not be read, or is gone; an address that is not mapped is no error.
pub fn read(memory: &impl Memory, addresses: &[u64], size: usize) -> Result<Objects, MemoryError> {
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
        let (batch, later) = rest.split_at(batch_len(rest));
        let done = read_batch(memory, batch, &mut buffer)?;
        let mut at = 0;
        for run in &batch[..done] {
            for index in run.first..run.end {
                let from = at + offset(sorted[index], run.range.address);
                objects.put(order[index], &buffer[from..from + size]);
            }
            at += run.range.len;
        }
        // The run that a hole cut short is read one by one; what follows it is tried again as a batch.
        rest = later;
        if let Some(run) = batch.get(done) {
            for index in run.first..run.end {
                let bytes = super::up_to(memory, sorted[index], size)?;
                if bytes.len() == size {
                    objects.put(order[index], &bytes);
                }
            }
            rest = &runs[runs.len() - later.len() - (batch.len() - done - 1)..];
        }
    }
    Ok(objects)
}

/// How many runs were read whole.
fn read_batch(
    memory: &impl Memory,
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

/// How many of the runs go into one batch; at least one.
fn batch_len(runs: &[Run]) -> usize {
    let mut bytes = 0;
    runs.iter()
        .take(MAX_RUNS)
        .take_while(|run| {
            bytes += run.range.len;
            bytes <= BATCH || bytes == run.range.len
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
            let reach = start + u64::try_from(run.range.len).unwrap_or_default();
            if address < reach.saturating_add(GAP) && end - start <= RUN {
                run.range.len = run.range.len.max(offset(end, start));
                run.end = index + 1;
                continue;
            }
        }
        runs.push(Run {
            range: Range { address, len: size },
            first: index,
            end: index + 1,
        });
    }
    runs
}

/// Both lie in one run, so the difference is small.
fn offset(address: u64, start: u64) -> usize {
    usize::try_from(address - start).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::memory::maps::Mapping;
    use proptest::prelude::*;
    use std::cell::Cell;

    /// Every byte is its address's low byte; what a hole covers is not mapped.
    struct Pattern {
        hole: std::ops::Range<u64>,
        calls: Cell<usize>,
    }

    impl Memory for Pattern {
        fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError> {
            self.calls.set(self.calls.get() + 1);
            for range in ranges {
                for address in range.address..range.address + range.len as u64 {
                    if self.hole.contains(&address) {
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
        fn every_object_is_its_own_bytes_and_only_a_hole_hides_one(
            addresses in prop::collection::vec(0u64..2_000_000, 0..200),
            hole in 0u64..2_000_000,
            len in 0u64..50_000,
        ) {
            let memory = Pattern { hole: hole..hole + len, calls: Cell::new(0) };
            let objects = read(&memory, &addresses, 40).expect("a memory");
            for (index, &address) in addresses.iter().enumerate() {
                let is_hidden = (address..address + 40).any(|a| memory.hole.contains(&a));
                let expected: Vec<u8> = (address..address + 40).map(|a| a as u8).collect();
                prop_assert_eq!(objects.get(index).map(|v| v.0), (!is_hidden).then_some(&expected[..]));
            }
        }
    }

    #[test]
    fn neighbours_are_one_call() {
        let memory = Pattern {
            hole: 0..0,
            calls: Cell::new(0),
        };
        let addresses: Vec<u64> = (0..10_000).map(|k| k * 128).collect();
        assert_eq!(
            read(&memory, &addresses, 112)
                .expect("a memory")
                .readable()
                .count(),
            10_000
        );
        assert_eq!(memory.calls.get(), 1);
    }
}
