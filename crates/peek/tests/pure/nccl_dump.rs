//! Process groups in dumps of real ranks, one folder for each layout, with the reading of the live process.
//!
//! The rank waits for another one, which left a collective out. tests/bed/ranks.rs compares the reading with what the rank
//! counted itself, and records the dump if `GPUTOP_BED_RECORD` names a folder.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use gputop_model::process_group::{ProcessGroup, RankReading};
use gputop_model::units::{Pid, StartTicks};
use gputop_model::{ProcessKey, Reason};
use gputop_peek::clock::Instants;
use gputop_peek::memory::dump::Dump;
use gputop_peek::memory::maps::Mapping;
use gputop_peek::memory::{Memory, MemoryError, Range};
use gputop_peek::nccl::{Failure, ProcessGroups};
use proptest::prelude::*;
use serde::Deserialize;

/// Maximum number of reads for a search and a reading. An intact dump takes a tenth.
const MAX_READS: usize = 20_000;

#[derive(Clone, Deserialize)]
struct Recorded {
    boot_ns: u64,
    monotonic_ns: u64,
    reading: RankReading,
}

/// Counts the reads of a dump.
#[derive(Debug)]
struct Counted<'a>(Dump, &'a Cell<usize>);

impl Memory for Counted<'_> {
    fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError> {
        self.1.set(self.1.get() + 1);
        self.0.read(ranges, into)
    }

    fn maps(&self) -> Result<Vec<Mapping>, MemoryError> {
        self.0.maps()
    }
}

fn folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/nccl");
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert!(folders.len() >= 3, "{folders:?}");
    folders
}

fn load(folder: &Path) -> (Dump, Recorded) {
    let dump = Dump::from_bytes(&std::fs::read(folder.join("dump.zst")).unwrap()).unwrap();
    let recorded = std::fs::read(folder.join("reading.json")).unwrap();
    (dump, serde_json::from_slice(&recorded).unwrap())
}

fn read(dump: Dump, recorded: &Recorded, reads: &Cell<usize>) -> Result<RankReading, Failure> {
    let now = Instants { boot_ns: recorded.boot_ns, monotonic_ns: recorded.monotonic_ns };
    let key = ProcessKey { pid: Pid(1), start: StartTicks(0) };
    ProcessGroups::attach(Counted(dump, reads), key)?.read(now)
}

fn groups(dump: Dump, recorded: &Recorded) -> Vec<ProcessGroup> {
    let reading = read(dump, recorded, &Cell::default());
    reading.map(|reading| reading.groups.value().cloned().unwrap_or_default()).unwrap_or_default()
}

#[test]
fn every_dump_reads_as_the_live_process() {
    for folder in folders() {
        let (dump, recorded) = load(&folder);
        let reading = read(dump, &recorded, &Cell::default()).unwrap();
        let expected = &recorded.reading;
        let name = folder.display();
        assert_eq!(reading.groups, expected.groups, "{name}");
        assert_eq!(reading.store, expected.store, "{name}");
        assert_eq!((reading.rank, reading.world_size), (Some(2), Some(3)), "{name}");
        let groups = reading.groups.value().unwrap();
        let called: Vec<u64> = groups.iter().filter_map(|group| group.called.get()).collect();
        assert_eq!(called, [30, 30, 0], "{name}");
    }
}

/// Replaces words of the dump.
fn mutate(dump: &mut Dump, mut change: impl FnMut(u64) -> Option<u64>) {
    for (address, bytes) in dump.bytes_mut() {
        let skipped = address.next_multiple_of(8) - address;
        let words = bytes.get_mut(skipped as usize..).unwrap_or_default();
        for (index, word) in words.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            if let Some(changed) = change(address + skipped + 8 * index as u64) {
                *word = changed.to_le_bytes();
            }
        }
    }
}

/// Moves what follows the first word of every object of the heaps, so that each object begins with its vtable but has its
/// fields elsewhere.
#[test]
fn shifted_objects_are_refused() {
    for folder in folders() {
        let (dump, recorded) = load(&folder);
        for shift in -16i64..=16 {
            let mut shifted = dump.clone();
            let heaps: Vec<Mapping> =
                dump.maps().unwrap().into_iter().filter(|map| map.is_heap).collect();
            let word = |address: u64| {
                let mut bytes = Vec::new();
                dump.read(&[Range { address, len: 8 }], &mut bytes).unwrap();
                bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
            };
            // Only groups have more than 512 bytes.
            let objects = heaps.iter().filter(|heap| heap.end - heap.start > 512);
            let objects: Vec<&Mapping> = objects.collect();
            mutate(&mut shifted, |address| {
                let heap = objects.iter().find(|heap| (heap.start..heap.end).contains(&address))?;
                if address == heap.start {
                    return None;
                }
                Some(word(address.wrapping_add_signed(-8 * shift)).unwrap_or_default())
            });
            let found = groups(shifted, &recorded);
            let expected = if shift == 0 { 3 } else { 0 };
            assert_eq!(found.len(), expected, "{}, shifted by {}", folder.display(), 8 * shift);
        }
    }
}

#[test]
fn process_without_nccl_is_refused() {
    let dump = Dump::default();
    let failure = ProcessGroups::attach(dump, ProcessKey::default()).unwrap_err();
    assert_eq!(failure, Failure::NotNccl);
    assert_eq!(failure.missing().reason, Reason::Unsupported);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn mutated_dump_does_not_panic_and_is_not_read_without_bound(
        folder in any::<prop::sample::Selector>(),
        period in 2u64..2_000,
        value in any::<u64>(),
        kind in 0..3,
    ) {
        let (mut dump, recorded) = load(&folder.select(folders()));
        mutate(&mut dump, |address| {
            let is_hit = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            is_hit.is_multiple_of(period).then_some(match kind {
                0 => value,
                1 => address & !7,
                _ => value % 64,
            })
        });
        let reads = Cell::default();
        let reading = read(dump, &recorded, &reads);
        prop_assert!(reads.get() < MAX_READS, "{} reads", reads.get());
        for group in reading.ok().iter().filter_map(|reading| reading.groups.value()).flatten() {
            prop_assert!(group.rank < group.size);
        }
    }
}
