//! Reads the heaps of a process page by page, for a search: only pages that exist, in pieces of bounded size.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::{io, iter};

use gputop_model::units::Pid;

use super::maps::Mapping;
use super::view::View;
use super::{Memory, Range};

const PIECE_BYTES: u64 = 512 << 10;
const PAGE_BYTES: u64 = 4 << 10;

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
    pub fn present(&self, range: Range) -> Vec<Range> {
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

/// Reads consecutive pages. The read fails if the program has unmapped some of them meanwhile. In that case, splits
/// the range until only unmapped pages are skipped.
pub fn read_pages(
    memory: &dyn Memory,
    run: Range,
    buffer: &mut Vec<u8>,
    use_bytes: &mut impl FnMut(&[u8], u64),
) {
    buffer.clear();
    if memory.read(&[run], buffer).is_ok() {
        return use_bytes(buffer, run.address);
    }
    let first = (run.len / 2).next_multiple_of(PAGE_BYTES as usize);
    if first < run.len {
        read_pages(memory, Range { len: first, ..run }, buffer, use_bytes);
        let rest = Range { address: run.address + first as u64, len: run.len - first };
        read_pages(memory, rest, buffer, use_bytes);
    }
}

/// Returns the parts of a heap that are read at once.
pub fn pieces(map: &Mapping) -> impl Iterator<Item = Range> {
    // Only a recorded part of a heap may start inside a word.
    let mut at = map.start.next_multiple_of(8);
    let end = map.end;
    iter::from_fn(move || {
        let len = PIECE_BYTES.min(end.checked_sub(at)?);
        let piece = Range { address: at, len: usize::try_from(len).unwrap_or_default() };
        at += len;
        (len > 0).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryError;

    /// Memory of zeros in which one page is no longer mapped.
    #[derive(Debug)]
    struct WithHole;

    impl Memory for WithHole {
        fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError> {
            let hole = 0x1_0000..0x1_1000;
            for range in ranges {
                if range.address < hole.end && range.address + range.len as u64 > hole.start {
                    let (what, address) = ("a page", hole.start);
                    return Err(MemoryError::Unreadable { what, address });
                }
                into.resize(into.len() + range.len, 0);
            }
            Ok(())
        }

        fn maps(&self) -> Result<Vec<Mapping>, MemoryError> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn pages_around_an_unmapped_page_are_read() {
        let mut read = Vec::new();
        let run = Range { address: 0, len: PIECE_BYTES as usize };
        read_pages(&WithHole, run, &mut Vec::new(), &mut |bytes, address| {
            read.push(address..address + bytes.len() as u64);
        });
        let bytes: u64 = read.iter().map(|range| range.end - range.start).sum();
        assert_eq!(bytes, PIECE_BYTES - PAGE_BYTES);
        assert!(read.iter().all(|range| range.end <= 0x1_0000 || range.start >= 0x1_1000));
        assert!(read.windows(2).all(|pair| pair[0].end <= pair[1].start), "{read:x?}");
    }
}
