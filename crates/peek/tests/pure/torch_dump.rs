//! Dumps of real torch processes, one folder per version, compared with PyTorch's own report at that time.
//!
//! tests/data/torch/record.py creates them. New folders are tested automatically. `GPUTOP_TORCH_DUMPS` can name another
//! directory with the same layout.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use gputop_model::pool::{Allocator, BlockState, PoolId, PoolKind, PoolMap};
use gputop_model::units::Bytes;
use gputop_peek::memory::dump::Dump;
use gputop_peek::memory::maps::Mapping;
use gputop_peek::memory::{Memory, MemoryError, Range};
use gputop_peek::torch::{AllocatorStat, Attached, DeviceStats, Failure, StatArray};
use proptest::prelude::*;
use serde::Deserialize;

/// What PyTorch answered.
#[derive(Deserialize)]
struct Truth {
    stats: Vec<TruthStats>,
    segments: Vec<TruthSegment>,
}

/// A Stat is [current, peak, allocated, freed], a StatArray [all, small, large].
#[derive(Deserialize)]
struct TruthStats {
    num_alloc_retries: i64,
    num_ooms: i64,
    #[serde(flatten)]
    arrays: HashMap<String, serde_json::Value>,
}

#[derive(Deserialize)]
struct TruthSegment {
    device: u32,
    address: u64,
    total_size: u64,
    large: u8,
    stream: u64,
    /// From 2.1 on.
    pool: Option<(u64, u64)>,
    expandable: Option<u8>,
    blocks: Vec<TruthBlock>,
}

/// [size, allocated, active, requested], the last from 2.0 on.
#[derive(Deserialize)]
struct TruthBlock(u64, u8, u8, #[serde(default)] Option<u64>);

struct Recorded {
    version: String,
    name: String,
    dump: Dump,
    truth: Truth,
}

fn directories() -> Vec<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/torch");
    let named = std::env::var_os("GPUTOP_TORCH_DUMPS").map(PathBuf::from);
    std::iter::once(own).chain(named).collect()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    entries
}

fn recorded() -> impl Iterator<Item = Recorded> {
    directories()
        .into_iter()
        .flat_map(|directory| entries(&directory))
        .filter(|path| path.is_dir())
        .flat_map(|version| entries(&version))
        .filter_map(|path| load(&path))
}

fn load(path: &Path) -> Option<Recorded> {
    let name = path.file_name()?.to_str()?.strip_suffix(".dump.zst")?;
    let truth = std::fs::read(path.with_file_name(format!("{name}.json.zst"))).unwrap();
    let truth = zstd::decode_all(&truth[..]).unwrap();
    Some(Recorded {
        version: path.parent()?.file_name()?.to_str()?.to_owned(),
        name: name.to_owned(),
        dump: Dump::from_bytes(&std::fs::read(path).unwrap()).unwrap(),
        truth: serde_json::from_slice(&truth).unwrap(),
    })
}

fn dump(version: &str, name: &str) -> Dump {
    let path = directories()[0].join(version).join(format!("{name}.dump.zst"));
    Dump::from_bytes(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn every_dump_reads_as_pytorch_itself_answered() {
    let mut count = 0;
    for recorded in recorded() {
        let at = format!("torch {}, {}", recorded.version, recorded.name);
        let mut attached = Attached::attach(recorded.dump).unwrap_or_else(|e| panic!("{at}: {e}"));
        assert_eq!(attached.library(), library(&recorded.version), "{at}");
        let stats = attached.stats().unwrap();
        assert_eq!(stats.len(), recorded.truth.stats.len(), "{at}");
        for (stats, truth) in stats.iter().zip(&recorded.truth.stats) {
            let at = format!("{at}, device {}", stats.ordinal);
            assert_stats(stats, truth, &at);
            let map = attached.map(stats.ordinal).unwrap();
            assert!(map.exact, "{at}");
            assert_segments(&map, &recorded.truth.segments, &at);
            let largest = attached.largest_free_block(stats.ordinal);
            assert_eq!(largest, largest_free(&map).into(), "{at}");
        }
        assert_eq!(attached.sample().unwrap(), touched(&stats), "{at}");
        count += 1;
    }
    assert!(count >= 14, "only {count} dumps were found");
}

fn touched(stats: &[DeviceStats]) -> Vec<DeviceStats> {
    stats.iter().copied().filter(DeviceStats::is_used).collect()
}

/// Returns the library name that the user sees.
fn library(version: &str) -> &'static str {
    let minor: Vec<u32> = version.split('.').map(|n| n.parse().unwrap()).collect();
    match (minor[0], minor[1]) {
        (1, 13) => "torch 1.13",
        (2, 0) => "torch 2.0",
        (2, 1..=2) => "torch 2.1 to 2.2",
        (2, 3..=9) => "torch 2.3 to 2.9",
        (2, 10..=11) => "torch 2.10 to 2.11",
        (2, 12) => "torch 2.12",
        _ => "torch 2.13 to 2.15",
    }
}

fn assert_stats(stats: &DeviceStats, truth: &TruthStats, at: &str) {
    let arrays = [
        ("allocation", Some(stats.allocation)),
        ("segment", Some(stats.segment)),
        ("active", Some(stats.active)),
        ("inactive_split", Some(stats.inactive_split)),
        ("allocated_bytes", Some(stats.allocated_bytes)),
        ("reserved_bytes", Some(stats.reserved_bytes)),
        ("active_bytes", Some(stats.active_bytes)),
        ("inactive_split_bytes", Some(stats.inactive_split_bytes)),
        ("requested_bytes", stats.requested_bytes),
    ];
    for (name, array) in arrays {
        let truth = truth
            .arrays
            .get(name)
            .map(|value| serde_json::from_value::<[[i64; 4]; 3]>(value.clone()).unwrap());
        assert_eq!(array.map(words), truth, "{at}: {name}");
    }
    assert_eq!(stats.num_alloc_retries, truth.num_alloc_retries, "{at}");
    assert_eq!(stats.num_ooms, truth.num_ooms, "{at}");
}

fn words(array: StatArray) -> [[i64; 4]; 3] {
    let stat = |s: AllocatorStat| [s.current, s.peak, s.allocated, s.freed];
    [stat(array.all), stat(array.small), stat(array.large)]
}

fn assert_segments(map: &PoolMap, truth: &[TruthSegment], at: &str) {
    let mut truth: Vec<&TruthSegment> = truth.iter().filter(|s| s.device == map.ordinal).collect();
    truth.sort_by_key(|segment| segment.address);
    assert_eq!(map.segments.len(), truth.len(), "{at}: segments");
    for (segment, truth) in map.segments.iter().zip(truth) {
        let at = format!("{at}, segment {:#x}", truth.address);
        assert_eq!(segment.address, truth.address, "{at}");
        assert_eq!(segment.size, Bytes(truth.total_size), "{at}");
        assert_eq!(segment.stream, truth.stream, "{at}");
        assert_eq!(segment.expandable, truth.expandable == Some(1), "{at}");
        let own = if truth.large == 1 { PoolKind::Large } else { PoolKind::Small };
        match truth.pool {
            Some((0, 0)) => assert_eq!(segment.pool, own, "{at}"),
            Some((a, b)) => {
                assert_eq!(segment.pool, PoolKind::Private, "{at}");
                assert_eq!(segment.pool_id, Some(PoolId(a, b)), "{at}");
            }
            None => assert!([own, PoolKind::Private].contains(&segment.pool), "{at}"),
        }
        let blocks: Vec<_> = segment
            .blocks
            .iter()
            .map(|b| (b.address, b.size.0, b.state, b.requested.map(|r| r.0)))
            .collect();
        assert_eq!(blocks, truth_blocks(truth), "{at}");
    }
}

fn truth_blocks(segment: &TruthSegment) -> Vec<(u64, u64, BlockState, Option<u64>)> {
    let mut address = segment.address;
    let blocks = segment.blocks.iter().map(|&TruthBlock(size, allocated, active, requested)| {
        let state = match (allocated, active) {
            (1, _) => BlockState::Allocated,
            (_, 1) => BlockState::Active,
            _ => BlockState::Free,
        };
        address += size;
        (address - size, size, state, requested.filter(|_| allocated == 1))
    });
    blocks.collect()
}

fn largest_free(map: &PoolMap) -> Bytes {
    let shared = map.segments.iter().filter(|s| s.pool != PoolKind::Private);
    let blocks = shared.flat_map(|segment| &segment.blocks);
    let free = blocks.filter(|block| block.state == BlockState::Free);
    free.map(|block| block.size).max().unwrap_or_default()
}

/// Returns a dump of a process with `PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync`.
fn other_backend() -> Dump {
    let path = directories()[0].join("backends/cuda-malloc-async.zst");
    Dump::from_bytes(&std::fs::read(path).unwrap()).unwrap()
}

/// Replaces the class name in the dump with another one.
fn rename_class(dump: &mut Dump, name: &[u8]) {
    const NAME: &[u8] =
        b"N3c104cuda20CUDACachingAllocator15CudaMallocAsync24CudaMallocAsyncAllocatorE\0";
    for (_, bytes) in dump.bytes_mut() {
        if let Some(at) = bytes.windows(NAME.len()).position(|window| window == NAME) {
            bytes[at..at + name.len()].copy_from_slice(name);
            return;
        }
    }
    panic!("no such class in the dump");
}

#[test]
fn a_backend_with_nothing_to_read_is_named() {
    let failure = Attached::attach(other_backend()).unwrap_err();
    assert_eq!(failure, Failure::CudaMallocAsync);
    assert_eq!(failure.allocator(), Allocator::CudaMallocAsync);

    let mut pluggable = other_backend();
    let name = b"N5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE\0";
    rename_class(&mut pluggable, name);
    assert_eq!(Attached::attach(pluggable).unwrap_err(), Failure::Pluggable);

    let mut unheard = other_backend();
    rename_class(&mut unheard, b"3Own\0");
    let failure = Attached::attach(unheard).unwrap_err();
    assert_eq!(failure, Failure::OtherBackend("3Own".into()));
}

#[test]
fn foreign_library_with_the_same_name_is_reported() {
    let mut damaged = dump("2.6.0", "fresh");
    // Without its symbols, nothing in it is recognized.
    for (_, bytes) in damaged.bytes_mut() {
        if !bytes.starts_with(b"\x7fELF") {
            bytes.fill(0);
        }
    }
    assert_eq!(Attached::attach(damaged).unwrap_err(), Failure::NotTorch);
    assert_eq!(Attached::attach(Dump::default()).unwrap_err(), Failure::NotTorch);
}

/// Offset of the first pool in torch 2.6.
const LARGE_POOL: u64 = 1_016;
/// Offset of the end of the last member that is read, the map of private pools.
const POOLS_END: u64 = 1_584;
const SHIFT: u64 = 24;

/// Returns a dump of an unknown build: everything after the statistics is shifted, by an offset that no real build has.
fn unknown_build() -> Dump {
    let recorded = recorded().find(|r| r.version == "2.6.0" && r.name == "mixed").unwrap();
    let mut dump = recorded.dump;
    for truth in &recorded.truth.stats {
        let device = device_of(&mut dump, truth);
        let pools = device + LARGE_POOL..device + POOLS_END;
        for (_, bytes) in dump.bytes_mut() {
            for word in bytes.as_chunks_mut::<8>().0 {
                let value = u64::from_le_bytes(*word);
                if pools.contains(&value) {
                    *word = (value + SHIFT).to_le_bytes();
                }
            }
        }
        let (address, bytes) = range_at(&mut dump, device);
        let from = usize::try_from(pools.start - address).unwrap();
        let to = usize::try_from(pools.end - address).unwrap();
        let further = usize::try_from(SHIFT).unwrap();
        bytes.copy_within(from..to - further, from + further);
    }
    dump
}

fn range_at(dump: &mut Dump, at: u64) -> (u64, &mut [u8]) {
    let mut ranges = dump.bytes_mut();
    ranges.find(|(address, bytes)| (*address..address + bytes.len() as u64).contains(&at)).unwrap()
}

/// Returns the address of the device with these statistics, found by its allocated bytes.
fn device_of(dump: &mut Dump, truth: &TruthStats) -> u64 {
    let words = &truth.arrays["allocated_bytes"];
    let words: [[i64; 4]; 3] = serde_json::from_value(words.clone()).unwrap();
    let words: Vec<u8> = words.as_flattened().iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut found = dump.bytes_mut().filter_map(|(address, bytes)| {
        let at = bytes.windows(words.len()).position(|window| window == words)?;
        Some(address + at as u64 - 40 - 4 * 96)
    });
    found.next().unwrap()
}

#[test]
fn unknown_build_is_read_only_if_its_blocks_are_consistent() {
    let recorded = recorded().find(|r| r.version == "2.6.0" && r.name == "mixed").unwrap();
    let mut attached = Attached::attach(unknown_build()).unwrap();
    assert!(attached.library().starts_with("unknown torch build"));
    for (stats, truth) in attached.stats().unwrap().iter().zip(&recorded.truth.stats) {
        assert_stats(stats, truth, "unheard");
        let map = attached.map(stats.ordinal).unwrap();
        assert_segments(&map, &recorded.truth.segments, "unheard");
    }

    let mut other = unknown_build();
    let block = recorded.truth.segments.iter().find(|s| s.device == 0).unwrap();
    let size = (block.blocks[0].0).to_le_bytes();
    let address = block.address.to_le_bytes();
    // One block has another size, as if the size field were somewhere else.
    for (_, bytes) in other.bytes_mut() {
        if let Some(at) = bytes.windows(8).position(|window| window == address) {
            let size_at = at - 24;
            assert_eq!(bytes[size_at..at - 16], size);
            bytes[size_at..at - 16].copy_from_slice(&1024u64.to_le_bytes());
            break;
        }
    }
    assert_eq!(Attached::attach(other).unwrap_err(), Failure::UnknownBuild);
}

/// Two dumps in one address space.
#[derive(Debug)]
struct CombinedDumps(Dump, Dump);

impl Memory for CombinedDumps {
    fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError> {
        for range in ranges {
            let wanted = into.len() + range.len;
            self.0.read(&[*range], into)?;
            if into.len() < wanted {
                into.truncate(wanted - range.len);
                self.1.read(&[*range], into)?;
            }
            if into.len() < wanted {
                return Ok(());
            }
        }
        Ok(())
    }

    fn maps(&self) -> Result<Vec<Mapping>, MemoryError> {
        let mut maps = [self.0.maps()?, self.1.maps()?].concat();
        maps.sort_by_key(|map| map.start);
        Ok(maps)
    }
}

#[test]
fn torch_in_use_is_read_when_two_are_loaded() {
    let (idle, busy) = (dump("2.6.0", "fresh"), dump("2.13.0", "mixed"));
    let attached = Attached::attach(CombinedDumps(idle.clone(), busy)).unwrap();
    assert_eq!(attached.library(), "torch 2.13 to 2.15");
    let not_one = dump("2.6.0", "mixed");
    let attached = Attached::attach(CombinedDumps(other_backend(), not_one)).unwrap();
    assert_eq!(attached.library(), "torch 2.3 to 2.9");
    let attached = Attached::attach(CombinedDumps(idle, other_backend())).unwrap();
    assert_eq!(attached.library(), "torch 2.3 to 2.9");
}

/// Memory that counts reads: whatever the target contains, the reads stay below a limit.
#[derive(Debug)]
struct Metered {
    dump: Dump,
    calls: Cell<usize>,
    bytes: Cell<usize>,
}

const MAX_CALLS: usize = 200_000;
const MAX_BYTES: usize = 1 << 30;

impl Memory for Metered {
    fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError> {
        self.calls.set(self.calls.get() + 1);
        let asked: usize = ranges.iter().map(|range| range.len).sum();
        self.bytes.set(self.bytes.get() + asked);
        assert!(self.calls.get() < MAX_CALLS, "too many reads");
        assert!(self.bytes.get() < MAX_BYTES, "too much read");
        self.dump.read(ranges, into)
    }

    fn maps(&self) -> Result<Vec<Mapping>, MemoryError> {
        self.dump.maps()
    }
}

/// The replacement for a word.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Word(u64),
    /// A pointer to a recorded place.
    Pointer(usize),
    /// A pointer to itself.
    SelfPointer,
    Flip(u32),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        Just(Damage::Word(0)),
        Just(Damage::Word(u64::MAX)),
        any::<u64>().prop_map(Damage::Word),
        (0u64..1 << 20).prop_map(Damage::Word),
        any::<usize>().prop_map(Damage::Pointer),
        Just(Damage::SelfPointer),
        (0u32..64).prop_map(Damage::Flip),
    ]
}

fn inflict(dump: &mut Dump, places: &[(usize, Damage)]) {
    let starts: Vec<u64> = dump.bytes_mut().map(|(at, _)| at).collect();
    let words: usize = dump.bytes_mut().map(|(_, bytes)| bytes.len() / 8).sum();
    for &(place, damage) in places {
        let mut index = place % words;
        for (at, bytes) in dump.bytes_mut() {
            let (range, _) = bytes.as_chunks_mut::<8>();
            let Some(word) = range.get_mut(index) else {
                index -= range.len();
                continue;
            };
            let new = match damage {
                Damage::Word(new) => new,
                Damage::Pointer(to) => starts[to % starts.len()],
                Damage::SelfPointer => at + 8 * index as u64,
                Damage::Flip(bit) => u64::from_le_bytes(*word) ^ 1 << bit,
            };
            *word = new.to_le_bytes();
            break;
        }
    }
}

fn read_everything(dump: Dump) {
    let memory = Metered { dump, calls: Cell::default(), bytes: Cell::default() };
    let Ok(mut attached) = Attached::attach(memory) else { return };
    for stats in attached.stats().unwrap_or_default() {
        let _ = stats.pool_stats();
        let _ = attached.largest_free_block(stats.ordinal);
        if let Ok(map) = attached.map(stats.ordinal) {
            assert_order(&map);
        }
    }
}

/// Checks the guarantees that a screen relies on, for exact and inexact maps.
fn assert_order(map: &PoolMap) {
    let mut end = 0;
    for segment in &map.segments {
        assert!(segment.address >= end);
        end = segment.address;
        for block in &segment.blocks {
            assert_eq!(block.address, end);
            end = block.address + block.size.0;
        }
        assert_eq!(end, segment.address + segment.size.0);
    }
}

static WHOLE: LazyLock<[Dump; 4]> = LazyLock::new(|| {
    [
        dump("1.13.1", "mixed"),
        dump("2.6.0", "mixed"),
        dump("2.13.0", "mixed-expandable"),
        dump("2.15.0", "mixed"),
    ]
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_memory_never_panics_loops_or_reads_beyond_a_bound(
        which in 0usize..4,
        places in prop::collection::vec((any::<usize>(), damage()), 1..60),
    ) {
        let mut dump = WHOLE[which].clone();
        inflict(&mut dump, &places);
        read_everything(dump);
    }
}
