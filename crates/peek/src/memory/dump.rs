//! Memory dumps: address ranges read from a live process, saved for replays.
//!
//! A [`DumpRecorder`] wraps a [`Memory`] and stores every range read from it. A dump therefore contains only what gputop
//! reads: a few hundred kilobytes, even of a process with many gigabytes, and none of the program's data.
//!
//! A dump file is one zstd stream: the line `gputop-dump 1`, a JSON line with the mappings and the ranges, and the
//! concatenated bytes of the ranges. `zstdcat FILE | head -2` shows the two lines.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};

use gputop_model::bounded_json;
use serde::{Deserialize, Serialize};

use super::maps::Mapping;
use super::{Memory, MemoryError, Range};

const MAGIC: &[u8] = b"gputop-dump 1\n";
const COMPRESSION_LEVEL: i32 = 19;
/// Maximum uncompressed size of a dump file.
const MAX_BYTES: u64 = 256 << 20;
/// Uncompressed size allowed for every dump file, in bytes. Each compressed byte raises the limit by
/// [`UNPACKED_PER_BYTE`], which protects against decompression bombs.
const MIN_UNPACKED: u64 = 16 << 20;
const UNPACKED_PER_BYTE: u64 = 8;
/// Maximum memory used for the lists in a dump file's header, in bytes.
const MAX_HEADER_MEMORY: usize = 16 << 20;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Dump {
    maps: Vec<Mapping>,
    /// Recorded bytes by start address. Ranges do not overlap or touch.
    ranges: BTreeMap<u64, Vec<u8>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    maps: Vec<Mapping>,
    /// Address and length of each recorded range.
    ranges: Vec<(u64, usize)>,
}

impl Dump {
    pub fn from_bytes(file: &[u8]) -> io::Result<Self> {
        let max_unpacked = MIN_UNPACKED + file.len() as u64 * UNPACKED_PER_BYTE;
        let mut bytes = Vec::new();
        zstd::Decoder::new(file)?.take(max_unpacked.min(MAX_BYTES)).read_to_end(&mut bytes)?;
        Self::parse(&bytes).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let end = rest.iter().position(|&b| b == b'\n')?;
        let header = bounded_json::read(rest.get(..end)?, MAX_HEADER_MEMORY);
        let (header, _): (Header, usize) = header.ok()?;
        let mut rest = rest.get(end + 1..)?;
        let mut ranges = BTreeMap::new();
        for (address, len) in header.ranges {
            let (bytes, later) = rest.split_at_checked(len)?;
            ranges.insert(address, bytes.to_vec());
            rest = later;
        }
        Some(Self { maps: header.maps, ranges })
    }

    /// Returns the content of a dump file.
    pub fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let header = Header {
            maps: self.maps.clone(),
            ranges: self.ranges.iter().map(|(&address, bytes)| (address, bytes.len())).collect(),
        };
        let mut file = MAGIC.to_vec();
        serde_json::to_writer(&mut file, &header)?;
        file.push(b'\n');
        file.extend(self.ranges.values().flatten());
        zstd::encode_all(&file[..], COMPRESSION_LEVEL)
    }

    /// Inserts a range into the dump. The new bytes replace old ones where ranges overlap.
    fn insert(&mut self, address: u64, bytes: &[u8]) {
        let (mut start, mut end) = (address, address.saturating_add(bytes.len() as u64));
        let touching: Vec<u64> = self
            .ranges
            .range(..=end)
            .rev()
            .take_while(|(at, old)| **at + old.len() as u64 >= start)
            .map(|(at, _)| *at)
            .collect();
        let old: Vec<(u64, Vec<u8>)> =
            touching.iter().filter_map(|at| Some((*at, self.ranges.remove(at)?))).collect();
        for (at, bytes) in &old {
            start = start.min(*at);
            end = end.max(at + bytes.len() as u64);
        }
        let mut merged = vec![0; offset(end, start)];
        let newer = std::iter::once((&address, bytes));
        for (at, bytes) in old.iter().rev().map(|(at, b)| (at, &b[..])).chain(newer) {
            let from = offset(*at, start);
            merged[from..from + bytes.len()].copy_from_slice(bytes);
        }
        self.ranges.insert(start, merged);
    }

    /// Returns the recorded bytes from `address` to the end of the recorded range.
    fn from(&self, address: u64) -> Option<&[u8]> {
        let (start, bytes) = self.ranges.range(..=address).next_back()?;
        bytes.get(offset(address, *start)..)
    }

    /// Returns all recorded ranges for modification. Tests use this to corrupt the data.
    pub fn bytes_mut(&mut self) -> impl Iterator<Item = (u64, &mut [u8])> {
        self.ranges.iter_mut().map(|(at, bytes)| (*at, &mut bytes[..]))
    }
}

fn offset(address: u64, start: u64) -> usize {
    usize::try_from(address - start).unwrap_or(usize::MAX)
}

impl Memory for Dump {
    fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError> {
        for range in ranges {
            let bytes = self.from(range.address).unwrap_or_default();
            into.extend(bytes.iter().take(range.len));
            if bytes.len() < range.len {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns the recorded mappings. Of a heap, returns only the parts that were read, so that a replayed scan reads
    /// only these parts.
    fn maps(&self) -> Result<Vec<Mapping>, MemoryError> {
        let parts = |map: &Mapping| {
            if map.is_heap { recorded_mappings(map, &self.ranges) } else { vec![map.clone()] }
        };
        Ok(self.maps.iter().flat_map(parts).collect())
    }

    fn resident(&self, range: Range) -> Vec<Range> {
        let end = range.address.saturating_add(range.len as u64);
        let part = |(start, end): (u64, u64)| Range { address: start, len: offset(end, start) };
        recorded_parts(range.address, end, &self.ranges).into_iter().map(part).collect()
    }
}

/// Wrapper of a [`Memory`] that records every range read.
#[derive(Debug)]
pub struct DumpRecorder<M> {
    memory: M,
    dump: RefCell<Dump>,
}

impl<M: Memory> DumpRecorder<M> {
    pub fn new(memory: M) -> Self {
        Self { memory, dump: RefCell::default() }
    }

    /// Returns the dump. Leaves out mappings that were not read, because replays do not need them, and the names of
    /// their files describe the user's program.
    pub fn into_dump(self) -> Dump {
        let mut dump = self.dump.into_inner();
        let ranges = &dump.ranges;
        let is_read = |map: &Mapping| {
            let before = ranges.range(..map.end).next_back();
            before.is_some_and(|(at, bytes)| at + bytes.len() as u64 > map.start)
        };
        let is_used = |file: &str| dump.maps.iter().any(|map| map.file == file && is_read(map));
        let is_kept = |map: &&Mapping| {
            // Python's outermost frames are on the stack.
            if map.file.is_empty() { is_read(map) } else { is_used(&map.file) }
        };
        let used = dump.maps.iter().filter(is_kept);
        // Remove directories from file names, because the directories of the user's programs are private.
        let without_directory =
            |map: &Mapping| Mapping { file: format!("/{}", map.file_name()), ..map.clone() };
        let kept = |map: &Mapping| {
            if map.file.is_empty() { map.clone() } else { without_directory(map) }
        };
        dump.maps = used.map(kept).collect();
        dump
    }
}

/// Returns the parts of a heap that were read.
fn recorded_mappings(heap: &Mapping, ranges: &BTreeMap<u64, Vec<u8>>) -> Vec<Mapping> {
    let parts = recorded_parts(heap.start, heap.end, ranges).into_iter();
    parts.map(|(start, end)| Mapping { start, end, ..heap.clone() }).collect()
}

/// Returns the start and end of each recorded part between two addresses.
fn recorded_parts(start: u64, end: u64, ranges: &BTreeMap<u64, Vec<u8>>) -> Vec<(u64, u64)> {
    let before = ranges.range(..start).next_back();
    let touching = before.into_iter().chain(ranges.range(start..end.max(start)));
    let part = |(&at, bytes): (&u64, &Vec<u8>)| (at.max(start), end.min(at + bytes.len() as u64));
    touching.map(part).filter(|(start, end)| start < end).collect()
}

impl<M: Memory> Memory for DumpRecorder<M> {
    fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError> {
        let start = into.len();
        self.memory.read(ranges, into)?;
        let mut bytes = &into[start..];
        for range in ranges {
            let (read, rest) = bytes.split_at(range.len.min(bytes.len()));
            if !read.is_empty() {
                self.dump.borrow_mut().insert(range.address, read);
            }
            bytes = rest;
        }
        Ok(())
    }

    fn maps(&self) -> Result<Vec<Mapping>, MemoryError> {
        let maps = self.memory.maps()?;
        self.dump.borrow_mut().maps.clone_from(&maps);
        Ok(maps)
    }

    fn resident(&self, range: Range) -> Vec<Range> {
        self.memory.resident(range)
    }

    fn open_file(&self, mapping: &Mapping) -> Option<File> {
        self.memory.open_file(mapping)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::up_to;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_inserted_in_any_order_read_back(
            ranges in prop::collection::vec((0u64..200, 0usize..40), 0..30), probe in 0u64..240,
        ) {
            let mut dump = Dump::default();
            let mut seen = [false; 300];
            for (address, len) in ranges {
                let bytes: Vec<u8> = (address..address + len as u64).map(|a| a as u8).collect();
                if !bytes.is_empty() {
                    dump.insert(address, &bytes);
                }
                seen[address as usize..address as usize + len].fill(true);
            }
            let expected: Vec<u8> = (probe..probe + 20)
                .take_while(|&a| seen[a as usize])
                .map(|a| a as u8)
                .collect();
            prop_assert_eq!(up_to(&dump, probe, 20), Ok(expected));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            let _ = Dump::parse(&bytes);
            let _ = Dump::from_bytes(&bytes);
        }
    }

    #[test]
    fn dump_contains_recorded_ranges_and_used_mappings_only() {
        let map = |start, file: &str| Mapping {
            start,
            end: start + 100,
            file: file.into(),
            ..Mapping::default()
        };
        let mut source = Dump {
            maps: vec![
                map(0, "/home/ana/a"),
                map(100, "/b"),
                map(200, "/home/ana/a"),
                map(300, ""),
                map(400, ""),
            ],
            ..Dump::default()
        };
        source.insert(10, b"abcdef");
        source.insert(310, b"heap");
        let recorder = DumpRecorder::new(source);
        recorder.maps().expect("maps");
        assert_eq!(up_to(&recorder, 12, 99), Ok(b"cdef".to_vec()));
        assert_eq!(up_to(&recorder, 310, 4), Ok(b"heap".to_vec()));
        let dump = recorder.into_dump();
        let again = Dump::from_bytes(&dump.to_bytes().expect("packed")).expect("unpacked");
        assert_eq!(again, dump);
        assert_eq!(again.maps, [map(0, "/a"), map(200, "/a"), map(300, "")]);
        assert_eq!(up_to(&again, 12, 9), Ok(b"cdef".to_vec()));
        assert_eq!(up_to(&again, 10, 9), Ok(Vec::new()));
    }
}
