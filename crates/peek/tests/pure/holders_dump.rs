//! Names of tensors, read from dumps of real Python processes and compared with what the process itself reported.
//!
//! Each folder of tests/data/holders has a dump and the names from benches/hardware/holders/target.py. To record a dump
//! of another Python or PyTorch without a GPU, run tests/fake_cuda/record_holders.py. The tests with corrupted dumps
//! check that hostile memory causes neither a panic nor endless reads, and that no bytes are lost.
//!
//! The dumps in tests/data/arrays have arrays of JAX and CuPy, and what tests/fake_cuda/jax_arrays.py and cupy_pool.py
//! printed: `gputop memory PID --dump FILE`.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gputop_model::holders::{HolderClass, Holders};
use gputop_peek::cpython::limits::{Maximums, Options};
use gputop_peek::memory::dump::Dump;
use gputop_peek::memory::maps::Mapping;
use gputop_peek::memory::{Memory, MemoryError, Range};
use gputop_peek::torch::Failure;
use gputop_peek::torch::holders::read_recorded;

use crate::arrays_truth;
use crate::holders_truth::{Truth, listed};

/// Maximum number of reads of one reading of a small dump. An intact dump takes a tenth.
const MAX_READS: usize = 2_000_000;

/// Counts the reads of a dump.
#[derive(Debug)]
struct Counted {
    dump: Dump,
    reads: AtomicUsize,
}

impl Memory for Counted {
    fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.dump.read(ranges, into)
    }

    fn maps(&self) -> Result<Vec<Mapping>, MemoryError> {
        self.dump.maps()
    }
}

fn folders() -> Vec<PathBuf> {
    folders_in("tests/data/holders")
}

fn folders_in(data: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(data);
    let folders = std::fs::read_dir(root).unwrap();
    let folders = folders.map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> = folders.filter(|path| path.is_dir()).collect();
    folders.sort();
    assert!(!folders.is_empty());
    folders
}

/// Returns the folder for the tests with limits and corrupted memory.
fn intact_folder() -> PathBuf {
    let mut folders = folders().into_iter();
    folders.find(|folder| folder.ends_with("python3.12-torch2.8.0")).unwrap()
}

fn dump(folder: &Path) -> Dump {
    Dump::from_bytes(&std::fs::read(folder.join("dump.zst")).unwrap()).unwrap()
}

fn read_dump(dump: Dump, time_limit: Duration) -> (Result<Holders, Failure>, usize) {
    let options = Options { time_limit, ..Options::default() };
    let started = Instant::now();
    read_with(dump, &options, |_| started.elapsed())
}

/// Reads a dump with a clock that depends on the number of reads.
fn read_with(
    dump: Dump,
    options: &Options,
    clock: impl Fn(usize) -> Duration,
) -> (Result<Holders, Failure>, usize) {
    let memory = Counted { dump, reads: AtomicUsize::new(0) };
    let clock = || clock(memory.reads.load(Ordering::Relaxed));
    let holders = read_recorded(&memory, &memory, options, &clock, &AtomicBool::new(false));
    (holders, memory.reads.into_inner())
}

fn sum(holders: &Holders) -> u64 {
    holders.groups.iter().map(|group| group.bytes.0).sum()
}

#[test]
fn names_and_sums_equal_those_of_the_program() {
    for folder in folders() {
        let truth = std::fs::read_to_string(folder.join("truth.json")).unwrap();
        let truth: Truth = serde_json::from_str(&truth).unwrap();
        let (holders, _) = read_dump(dump(&folder), Duration::from_secs(120));
        let holders = holders.unwrap();
        truth.check(&holders, &folder.file_name().unwrap().to_string_lossy());
        let found = listed(&holders);
        let parameters = truth.names.get(&HolderClass::Parameter);
        let tied = parameters.and_then(|names| names.get("model.embedding.weight"));
        if let Some(tied) = tied {
            assert_eq!(found[&tied.0].1.aliases, ["model.head.weight"]);
        }
        let is_reached = |class| {
            holders.groups.iter().any(|group| group.class == class && !group.tensors.is_empty())
        };
        assert!(!is_reached(HolderClass::Unnamed));
    }
}

#[test]
fn arrays_equal_those_of_the_program() {
    for folder in folders_in("tests/data/arrays") {
        let truth = std::fs::read_to_string(folder.join("truth.json")).unwrap();
        let (holders, _) = read_dump(dump(&folder), Duration::from_secs(120));
        let holders = holders.unwrap();
        arrays_truth::check(&serde_json::from_str(&truth).unwrap(), &holders);
        assert_eq!(sum(&holders), holders.allocated.0);
    }
}

#[test]
fn limits_have_a_sentence() {
    type Limit = fn(&mut Maximums);
    let folder = intact_folder();
    let dump = dump(&folder);
    let limited = |limit: Limit| {
        let mut options = Options { time_limit: Duration::from_secs(120), ..Options::default() };
        limit(&mut options.maximums);
        let (holders, _) = read_with(dump.clone(), &options, |_| Duration::ZERO);
        holders.unwrap()
    };
    assert!(!limited(|_| {}).is_incomplete);
    let table: [(Limit, &str); 8] = [
        (
            |max| max.candidates = 10,
            "The maximum number of candidates ended the search for tensors",
        ),
        (|max| max.tensors = 10, "Only 10 tensors were read."),
        (|max| max.interpreters = 0, "Only 0 Python interpreters were searched."),
        (|max| max.threads = 0, "Only 0 threads were searched"),
        (|max| max.locals = 0, "Only 0 local variables of each function"),
        (|max| max.classes = 1, "The maximum number of tensor classes (1) was reached."),
        (|max| max.depth = 2, "Names show at most 2 references."),
        (|max| max.items = 2, "Only 2 items of each container were searched."),
    ];
    for (limit, sentence) in table {
        let holders = limited(limit);
        let shown = holders.limit.clone().unwrap_or_default();
        assert!(shown.contains(sentence), "{sentence}\n{shown}");
        assert!(holders.is_incomplete, "{sentence}");
        assert_eq!(sum(&holders), holders.allocated.0, "{sentence}");
    }
    let options = Options { memory_limit: 100_000, ..Options::default() };
    let (holders, _) = read_with(dump.clone(), &options, |_| Duration::ZERO);
    let shown = holders.unwrap().limit.unwrap_or_default();
    assert!(shown.contains("The memory limit ended the search for names"), "{shown}");
}

/// The clock advances with each read, so each time limit ends the reading at another place.
#[test]
fn time_limit_has_a_sentence_wherever_it_ends_the_reading() {
    let folder = intact_folder();
    let dump = dump(&folder);
    let clock = |reads: usize| Duration::from_micros(reads as u64);
    let at_limit = |reads: usize| {
        let options = Options { time_limit: clock(reads), ..Options::default() };
        read_with(dump.clone(), &options, clock).0.ok()
    };
    let whole = at_limit(MAX_READS).unwrap();
    assert!(!whole.is_incomplete, "{:?}", whole.limit);
    let (_, reads) = read_dump(dump.clone(), Duration::from_secs(120));
    let names = |holders: &Holders| -> usize {
        let named = holders.groups.iter().filter(|group| !group.name.is_empty());
        named.map(|group| group.tensors.len()).sum()
    };
    let (mut ends, mut sentences) = (0, String::new());
    for part in 1..20 {
        let Some(holders) = at_limit(reads * part / 20) else { continue };
        assert_eq!(sum(&holders), holders.allocated.0);
        if names(&holders) < names(&whole) {
            let limit = holders.limit.unwrap_or_default();
            assert!(limit.contains("time limit"), "{part} of 20: {limit:?}");
            assert!(holders.is_incomplete);
            (ends, sentences) = (ends + 1, sentences + &limit);
        }
    }
    assert!(ends >= 5, "{ends} readings ended early");
    for sentence in
        ["The time limit ended the search for tensors", "The time limit ended the search for names"]
    {
        assert!(sentences.contains(sentence), "{sentence}\n{sentences}");
    }
}

/// A small random number generator, so that failures can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }
}

#[test]
fn corrupted_memory_causes_neither_panics_nor_endless_reads() {
    check_corrupted(&dump(&intact_folder()));
    folders_in("tests/data/arrays").iter().for_each(|folder| check_corrupted(&dump(folder)));
}

fn check_corrupted(intact: &Dump) {
    let pointers: Vec<u64> = intact.clone().bytes_mut().map(|(at, _)| at).collect();
    let mut read = 0;
    for seed in 1..=40 {
        let mut random = Random(seed * 0x9e37_79b9);
        let mut corrupted = intact.clone();
        for (_, bytes) in corrupted.bytes_mut() {
            // Long ranges get several changes, most short ones none.
            let changes = (bytes.len() as u64 / 2_048 + random.below(2)) * u64::from(seed % 4 != 0);
            for _ in 0..changes.min(random.below(8)) {
                let at = random.below(bytes.len() as u64 / 8) as usize * 8;
                let Some(word) = bytes.get_mut(at..at + 8) else { continue };
                let value = match random.below(4) {
                    0 => random.below(u64::MAX),
                    1 => u64::MAX,
                    2 => 1 << random.below(64),
                    _ => pointers[random.below(pointers.len() as u64) as usize],
                };
                word.copy_from_slice(&value.to_le_bytes());
            }
        }
        let (holders, reads) = read_dump(corrupted, Duration::from_secs(2));
        assert!(reads < MAX_READS, "{reads} reads with seed {seed}");
        if let Ok(holders) = holders {
            assert_eq!(sum(&holders), holders.allocated.0);
            read += 1;
        }
    }
    assert!(read >= 5, "only {read} of 40 were readable at all");
}

#[test]
fn unreadable_interpreter_leaves_storages_without_names() {
    let folder = intact_folder();
    let mut dump = dump(&folder);
    let (holders, _) = read_dump(dump.clone(), Duration::from_secs(120));
    let allocated = holders.unwrap().allocated;
    // The cookie at the start of _PyRuntime exists from 3.13 on. Before, the version follows the list of interpreters.
    let maps = dump.maps().unwrap();
    let python: Vec<(u64, u64)> = maps
        .iter()
        .filter(|map| map.file_name().contains("python3") && !map.file_name().contains("torch"))
        .map(|map| (map.start, map.end))
        .collect();
    for (at, bytes) in dump.bytes_mut() {
        if python.iter().any(|(start, end)| (*start..*end).contains(&at)) {
            bytes.fill(0);
        }
    }
    let (holders, _) = read_dump(dump, Duration::from_secs(120));
    let holders = holders.unwrap();
    assert_eq!(holders.allocated, allocated);
    let limit = holders.limit.unwrap();
    assert!(limit.starts_with("Variable names are not available: "), "{limit}");
    assert!(holders.groups.iter().all(|group| group.name.is_empty()));
    assert!(holders.groups.iter().any(|group| group.class == HolderClass::CppStorage));
}

/// Returns what limits a reading of the dump of CPython 3.14 after `change` of the bytes of its interpreter.
fn limit_after(change: impl Fn(&mut [u8]) -> bool) -> String {
    let folder = folders().into_iter().find(|folder| folder.ends_with("python3.14-torch2.15.0"));
    let mut dump = dump(&folder.unwrap());
    let mut is_changed = false;
    for (_, bytes) in dump.bytes_mut() {
        is_changed |= change(bytes);
    }
    assert!(is_changed);
    let (holders, _) = read_dump(dump, Duration::from_secs(120));
    let holders = holders.unwrap();
    assert_eq!(sum(&holders), holders.allocated.0);
    assert!(holders.groups.iter().all(|group| group.name.is_empty()), "a name of unknown layout");
    assert!(holders.groups.iter().any(|group| group.class == HolderClass::CppStorage));
    holders.limit.unwrap()
}

#[test]
fn unsupported_interpreters_have_a_sentence_and_no_names() {
    // `_Py_DebugOffsets` begins with a cookie, the version, and whether the build is free-threaded.
    let limit = limit_after(|bytes| {
        let is_runtime = bytes.starts_with(b"xdebugpy");
        if is_runtime {
            bytes[16] = 1;
        }
        is_runtime
    });
    let sentence = "Variable names are not available: free-threaded Python is not supported.";
    assert_eq!(limit, sentence);
    // `Py_Version` is 0x030e0af0 in Python 3.14.10.
    let limit = limit_after(|bytes| {
        let is_version = bytes == 0x030e_0af0_u32.to_le_bytes();
        if is_version {
            bytes[2] = 99;
        }
        is_version
    });
    assert_eq!(limit, "Variable names are not available: Python 3.99 is not supported.");
}
