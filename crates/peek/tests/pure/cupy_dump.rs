//! A dump of a process with real pools of CuPy 14.2, recorded with `tests/fake_cuda/cupy_pool.py`.

use std::path::Path;

use gputop_model::reported_pool::{Framework, PoolSource};
use gputop_model::{Allocator, Bytes, ProcessKey, Reading, ReportedPool};
use gputop_peek::bfc::{self, Failure, Found, FoundPools, VtableCache};
use gputop_peek::memory::dump::Dump;

use crate::words::{peek, poke};

/// What the program reported: bytes from the driver, bytes in use, and the largest free block.
const TOTAL: u64 = 246_598_144;
const USED: u64 = 230_637_056;
const LARGEST: u64 = 1_775_104;

fn dump() -> Dump {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/cupy/cupy-14.2.0.dump.zst");
    Dump::from_bytes(&std::fs::read(file).unwrap()).unwrap()
}

fn find(dump: &Dump) -> Result<Found, Failure> {
    bfc::find(dump, &mut VtableCache::default())
}

fn read(dump: &Dump) -> FoundPools {
    find(dump).unwrap().read(ProcessKey::new(7, 1), dump).unwrap()
}

/// Returns the address of the pool with memory. The other one is empty.
fn pool(dump: &Dump) -> u64 {
    let found = find(dump).unwrap().others.cupy;
    assert_eq!(found.len(), 2);
    found.iter().map(|pool| pool.address).find(|at| peek(dump, at + 80) > 0).unwrap()
}

#[test]
fn a_dump_reads_as_the_program_reported() {
    let pools = read(&dump());
    let [ReportedPool { framework, allocator, source, ordinal, .. }] = pools.gpu[..] else {
        panic!("{pools:?}");
    };
    assert_eq!((framework, allocator), (Framework::Cupy, Allocator::CupyMemoryPool));
    assert_eq!((source, ordinal), (PoolSource::Memory, 0));
    let pool = &pools.gpu[0];
    assert_eq!(
        (pool.allocated.get(), pool.reserved.get()),
        (Some(Bytes(USED)), Some(Bytes(TOTAL)))
    );
    assert_eq!(pool.largest_free_block.get(), Some(Bytes(LARGEST)));
    for missing in [&pool.allocated_peak, &pool.limit] {
        assert!(matches!(missing, Reading::Missing(_)), "{missing:?}");
    }
    assert!(pools.pinned_host.is_empty());
}

#[test]
fn free_blocks_that_do_not_agree_are_not_shown() {
    let dump = dump();
    let at = pool(&dump);
    let entries = peek(&dump, peek(&dump, at + 32) + 32) + 40;
    let reference = peek(&dump, entries + 16);
    let arena = peek(&dump, reference + 16);
    let node = peek(&dump, arena + 64);
    let (list, chunk) = (peek(&dump, arena + 24), peek(&dump, node + 40));
    // The largest chunk has another size, belongs to another arena, is not the last one, or is larger than what is free.
    // A chunk waits to be freed, there is no last chunk, and there are endless arenas.
    let keys = peek(&dump, peek(&dump, at + 32) + 32);
    let wrong = [
        (chunk + 40, LARGEST + 512),
        (chunk + 48, arena + 8),
        (node + 24, node),
        (at + 88, TOTAL - 512),
        (list + 16, 1),
        (arena + 64, 0),
        (keys + 24, u64::MAX),
        (keys + 8, 0x2b03),
    ];
    for (address, value) in wrong {
        let mut dump = dump.clone();
        poke(&mut dump, address, value);
        let pools = read(&dump);
        let largest = &pools.gpu[0].largest_free_block;
        assert!(matches!(largest, Reading::Missing(_)), "{address:x} {largest:?}");
    }
}

#[test]
fn the_pools_of_one_device_count_as_one_and_a_limit_is_shown() {
    let mut dump = dump();
    let at = pool(&dump);
    poke(&mut dump, at + 96, 1 << 33);
    assert_eq!(read(&dump).gpu[0].limit.get(), Some(Bytes(1 << 33)));
    let empty =
        find(&dump).unwrap().others.cupy.iter().map(|pool| pool.address).find(|other| *other != at);
    poke(&mut dump, empty.unwrap() + 80, 1 << 20);
    let pools = read(&dump);
    assert_eq!((pools.gpu.len(), pools.gpu[0].reserved.get()), (1, Some(Bytes(TOTAL + (1 << 20)))));
}

#[test]
fn freed_and_implausible_objects_are_not_pools() {
    // A freed object, an odd sum, a sum above 2^50, a device above 127, and no dictionary.
    let wrong = [(0, 0x7f00_1234_5678), (80, 77), (88, 1 << 51), (120, 4_000), (32, 0)];
    for (offset, value) in wrong {
        let mut dump = dump();
        let at = pool(&dump);
        let mut found = find(&dump).unwrap();
        poke(&mut dump, at + offset, value);
        assert_eq!(find(&dump).unwrap().others.cupy.len(), 1, "{offset}");
        // A known pool that is freed disappears.
        let pools = found.read(ProcessKey::new(7, 1), &dump).unwrap();
        assert!(pools.gpu.is_empty() && found.others.cupy.len() == 1, "{offset}");
    }
}

#[test]
fn another_version_is_refused_with_a_reason() {
    let mut dump = dump();
    let at = pool(&dump);
    let type_object = peek(&dump, at + 8);
    poke(&mut dump, type_object + 32, 112);
    let why = find(&dump).unwrap_err();
    assert_eq!(why, Failure::UnknownCupy);
    assert!(why.missing().to_string().contains("CuPy 14.1 and 14.2"), "{why}");
}
