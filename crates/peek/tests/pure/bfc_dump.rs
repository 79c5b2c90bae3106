//! Dumps of processes with the real allocators of JAX and TensorFlow, compared with the allocators' own report at that
//! time.
//!
//! `record_dumps` in tests/bfc_bed creates them. New files are tested automatically.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use gputop_model::reported_pool::{Framework, PoolSource};
use gputop_model::{Allocator as AllocatorKind, Bytes, ProcessKey};
use gputop_peek::bfc::{self, Allocator, Failure, FoundPools, Place, VtableCache};
use gputop_peek::memory::dump::Dump;
use gputop_peek::memory::maps::Mapping;
use gputop_peek::memory::{Memory, MemoryError, Range};
use proptest::prelude::*;
use serde_json::Value;

use crate::words::{peek, poke};

struct Recorded {
    name: String,
    dump: Dump,
    report: Value,
}

fn recorded() -> Vec<Recorded> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/bfc");
    let mut all: Vec<Recorded> = std::fs::read_dir(directory)
        .unwrap()
        .filter_map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name()?.to_str()?.strip_suffix(".dump.zst")?.to_owned();
            let report = std::fs::read(path.with_file_name(format!("{name}.json.zst"))).unwrap();
            let report = serde_json::from_slice(&zstd::decode_all(&report[..]).unwrap()).unwrap();
            let dump = Dump::from_bytes(&std::fs::read(path).unwrap()).unwrap();
            Some(Recorded { name, dump, report })
        })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn of(name: &str) -> Recorded {
    recorded().into_iter().find(|recorded| recorded.name == name).unwrap()
}

fn find(memory: &dyn Memory) -> Result<Vec<Allocator>, Failure> {
    bfc::find(memory, &mut VtableCache::default()).map(|found| found.allocators)
}

/// Returns the pool `GPU_0_bfc`.
fn first(memory: &dyn Memory) -> Allocator {
    let found = find(memory).unwrap();
    found.into_iter().find(|found| found.place == Place::Gpu(0)).unwrap()
}

#[test]
fn every_dump_reads_as_the_allocators_reported() {
    let all = recorded();
    for Recorded { name, dump, report } in &all {
        let mut found = find(dump).unwrap_or_else(|why| panic!("{name}: {why}"));
        let reported = report["allocators"].as_array().unwrap();
        assert_eq!(found.len(), reported.len(), "{name}");
        for allocator in &mut found {
            let is_same = |one: &&Value| one["address"] == allocator.address;
            let reported = reported.iter().find(is_same).unwrap();
            let at = format!("{name}, {}", allocator.name);
            let snapshot = allocator.read(dump).unwrap();
            let s = snapshot.stats;
            let read = [s.allocations, s.in_use, s.peak_in_use, s.largest_allocation, s.limit];
            assert_eq!(reported["statistics"], Value::from(read.to_vec()), "{at}");
            let chunks = snapshot.map.unwrap().chunks;
            let live = chunks.iter().filter(|chunk| chunk.is_in_use);
            let live: BTreeMap<u64, u64> =
                live.map(|chunk| (chunk.address, chunk.requested)).collect();
            let expected = reported["live"].as_array().unwrap().iter();
            let expected: BTreeMap<u64, u64> =
                expected.map(|e| (e[0].as_u64().unwrap(), e[1].as_u64().unwrap())).collect();
            assert_eq!(live, expected, "{at}");
            assert_eq!(chunks.iter().map(|chunk| chunk.size).sum::<u64>(), s.reserved, "{at}");
        }
    }
    assert!(all.len() >= 7, "only {} dumps were found", all.len());
}

/// A dump of JAX 0.11.2 on an H200 with default settings. The values are those of `memory_stats()`.
#[test]
fn a_dump_from_an_h200_reads_as_the_program_reported() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/h200/jax-0.11.2.dump.zst");
    let dump = Dump::from_bytes(&std::fs::read(file).unwrap()).unwrap();
    let snapshot = first(&dump).read(&dump).unwrap();
    let (map, stats) = (snapshot.map.unwrap(), snapshot.stats);
    assert_eq!((stats.allocations, stats.in_use), (411, 247_338_240));
    assert_eq!((stats.peak_in_use, stats.largest_allocation), (364_779_008, 50_331_904));
    assert_eq!((stats.limit, stats.reserved), (112_583_507_968, 112_583_507_968));
    assert_eq!(map.largest_free(), 112_332_551_424);
}

#[test]
fn pools_of_the_host_are_separate_from_those_of_the_gpus() {
    for (name, framework, kind) in [
        ("jax-0.12.0.1", Framework::Jax, AllocatorKind::XlaBfc),
        ("tensorflow-2.21.0", Framework::Tensorflow, AllocatorKind::TensorflowBfc),
    ] {
        let dump = of(name).dump;
        let mut found = find(&dump).unwrap();
        let pools = FoundPools::read(ProcessKey::new(7, 1), &mut found, &dump).unwrap();
        let ordinals: BTreeSet<u32> = pools.gpu.iter().map(|pool| pool.ordinal).collect();
        assert_eq!((ordinals, pools.pinned_host.len()), (BTreeSet::from([0, 1]), 1));
        for pool in &pools.gpu {
            assert_eq!((pool.framework, pool.allocator), (framework, kind));
            assert_eq!(pool.source, PoolSource::Memory);
            assert!(pool.allocated.get() > Some(Bytes(0)));
            assert!(pool.cached().get() >= pool.largest_free_block.get());
        }
    }
}

/// JAX 0.11 and later have the large free chunk of a preallocated pool in no bin.
#[test]
fn the_gap_of_a_preallocated_pool_counts_as_free() {
    for name in ["jax-0.11.2", "jax-0.12.0.1"] {
        let dump = of(name).dump;
        let snapshot = first(&dump).read(&dump).unwrap();
        let (map, stats) = (snapshot.map.unwrap(), snapshot.stats);
        assert_eq!(stats.reserved, 8_000_000_000);
        assert!(map.largest_free() > (stats.reserved - stats.in_use) / 2, "{name}");
    }
}

/// Offsets in JAX 0.6.2.
const BINS: u64 = 40;
const REGIONS: u64 = 1_392;
const CHUNKS: u64 = 1_416;
const STATS: u64 = 1_456;
const POOL: u64 = STATS + 88;

#[test]
fn only_the_flag_byte_of_an_optional_counts() {
    let Recorded { mut dump, .. } = of("jax-0.6.2");
    let expected = first(&dump).read(&dump).unwrap().stats;
    let object = first(&dump).address;
    for flag in [STATS + 40, POOL + 8, POOL + 24] {
        poke(&mut dump, object + flag, 0x1234_5678_9abc_de01);
    }
    assert_eq!(first(&dump).read(&dump).unwrap().stats, expected);
}

#[test]
fn a_pool_without_memory_is_not_initialized() {
    let Recorded { mut dump, .. } = of("jax-0.6.2");
    for object in find(&dump).unwrap().iter().map(|found| found.address) {
        let vectors = (0..6).map(|word| REGIONS + 8 * word);
        let counters = [STATS, STATS + 8, STATS + 16, STATS + 24, POOL, POOL + 16];
        for offset in vectors.chain(counters) {
            poke(&mut dump, object + offset, 0);
        }
    }
    assert_eq!(find(&dump).unwrap_err(), Failure::NotInitialised("JAX"));
}

#[test]
fn an_unknown_structure_is_an_error_and_not_a_guess() {
    for offset in [POOL, STATS + 32, REGIONS, CHUNKS] {
        let Recorded { mut dump, .. } = of("jax-0.6.2");
        for object in find(&dump).unwrap().iter().map(|found| found.address) {
            let value = peek(&dump, object + offset);
            poke(&mut dump, object + offset, value + 8);
        }
        let failure = find(&dump).unwrap_err();
        assert_eq!(failure, Failure::UnknownBuild, "{offset}");
        assert!(failure.missing().to_string().contains("unknown XLA build"));
    }
}

/// The allocator is freed: `free` overwrites the first two words of the object's vectors.
#[test]
fn a_freed_allocator_is_refused() {
    let Recorded { mut dump, .. } = of("jax-0.6.2");
    let object = first(&dump).address;
    let regions = peek(&dump, object + REGIONS);
    poke(&mut dump, regions, 0);
    poke(&mut dump, regions + 8, regions);
    assert!(find(&dump).unwrap().iter().all(|found| found.address != object));
}

#[test]
fn a_word_that_only_looks_like_an_allocator_is_refused() {
    let Recorded { mut dump, .. } = of("jax-0.6.2");
    let object = first(&dump).address;
    let vtable = peek(&dump, object);
    let slots = peek(&dump, object + CHUNKS);
    poke(&mut dump, slots, vtable);
    poke(&mut dump, object + BINS + 56 * 20, 0);
    let found = find(&dump).unwrap();
    assert!(found.iter().all(|found| found.address != object && found.address != slots));
}

#[test]
fn a_destroyed_allocator_is_noticed() {
    let Recorded { mut dump, .. } = of("jax-0.6.2");
    let mut allocator = first(&dump);
    allocator.read(&dump).unwrap();
    poke(&mut dump, allocator.address, 0);
    assert_eq!(allocator.read(&dump).unwrap_err(), Failure::Changed);
    let mut found = vec![allocator];
    let pools = FoundPools::read(ProcessKey::new(7, 1), &mut found, &dump).unwrap();
    assert!(found.is_empty() && pools == FoundPools::default());
    assert_eq!(find(&Dump::default()).unwrap_err(), Failure::NotLoaded);
}

/// A dump whose object changes during each of the next reads.
#[derive(Debug)]
struct Changing {
    dump: Dump,
    changes: Cell<u32>,
    /// Number of bytes requested so far.
    requested: Cell<usize>,
}

impl Changing {
    fn new(dump: Dump, changes: u32) -> Self {
        Self { dump, changes: Cell::new(changes), requested: Cell::new(0) }
    }
}

impl Memory for Changing {
    fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError> {
        self.requested.set(self.requested.get() + ranges.iter().map(|r| r.len).sum::<usize>());
        self.dump.read(ranges, into)?;
        if ranges.len() > 2 && self.changes.get() > 0 {
            self.changes.set(self.changes.get() - 1);
            // The last range is the second copy of the object. This is a word that no statistic uses.
            let at = into.len() - 40;
            into[at] ^= 1;
        }
        Ok(())
    }

    fn maps(&self) -> Result<Vec<Mapping>, MemoryError> {
        self.dump.maps()
    }

    fn resident(&self, range: Range) -> Vec<Range> {
        self.dump.resident(range)
    }
}

#[test]
fn copies_that_do_not_belong_together_are_not_shown_as_a_map() {
    let changing = Changing::new(of("jax-0.6.2").dump, 0);
    let mut allocator = first(&changing);
    let exact = allocator.read(&changing).unwrap();
    changing.changes.set(3);
    assert_eq!(allocator.read(&changing).unwrap().map, exact.map);
    changing.changes.set(u32::MAX);
    let torn = allocator.read(&changing).unwrap();
    assert_eq!((torn.stats, torn.map, torn.is_broken), (exact.stats, None, false));
    let mut found = vec![allocator];
    let pools = FoundPools::read(ProcessKey::new(7, 1), &mut found, &changing).unwrap();
    assert_eq!(pools.gpu[0].allocated.get(), Some(Bytes(exact.stats.in_use)));
    let why = pools.gpu[0].largest_free_block.why().unwrap().to_string();
    assert_eq!(why, "the allocator changed during every read");
}

/// Limit of a search and a read of a damaged process: what is recorded, what calibrations may read, and 64 reads of the
/// largest vectors.
const MAX_REQUESTED: usize = (256 + 64 * 33) << 20;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn damaged_memory_is_read_within_limits(
        dump in 0_usize..7,
        damage in prop::collection::vec((any::<prop::sample::Index>(), 0_u8..6, any::<u64>()), 1..12),
    ) {
        let Recorded { mut dump, .. } = recorded().swap_remove(dump);
        let objects: Vec<u64> = find(&dump).unwrap().iter().map(|found| found.address).collect();
        let mut allocators = find(&dump).unwrap();
        let words: Vec<u64> = dump
            .bytes_mut()
            .filter(|(_, bytes)| !bytes.starts_with(b"\x7fELF"))
            .flat_map(|(at, bytes)| (0..bytes.len() as u64 / 8).map(move |word| at + 8 * word))
            .collect();
        for (index, kind, value) in damage {
            // Half of the damage is in the objects.
            let address = match kind % 2 {
                0 => objects[index.index(objects.len())] + value % 200 * 8,
                _ => words[index.index(words.len())],
            };
            let old = peek(&dump, address);
            let new = match kind {
                0 => value,
                1 => u64::MAX,
                2 => old.wrapping_add(value % (1 << 32) * 8),
                3 => old.wrapping_add(8),
                4 => objects[0],
                _ => value % 64,
            };
            poke(&mut dump, address, new);
        }
        let memory = Changing::new(dump, 0);
        allocators.extend(find(&memory).unwrap_or_default());
        for allocator in &mut allocators {
            if let Ok(snapshot) = allocator.read(&memory) {
                let stats = snapshot.stats;
                prop_assert!(stats.in_use <= stats.reserved);
                if let Some(map) = snapshot.map {
                    let sum: u64 = map.chunks.iter().map(|chunk| chunk.size).sum();
                    prop_assert_eq!(sum, stats.reserved);
                }
            }
        }
        prop_assert!(memory.requested.get() < MAX_REQUESTED, "{}", memory.requested.get());
    }
}
