//! Compares `gputop_peek::bfc` with the real allocator code of JAX and TensorFlow, without a GPU.
//!
//! tests/fake_cuda/fetch_bfc.py builds the bed: the library of a wheel, and a small process that creates allocators with
//! memory that only has addresses. The allocators report their own statistics and live allocations. Reading the process
//! from outside must find the same. Programs with arrays of JAX and CuPy report their names and sizes.
//!
//! ```sh
//! python3 tests/fake_cuda/fetch_bfc.py target/bed-bfc
//! python3 -m pip install --no-deps --target target/bed-cupy cupy-cuda13x==14.2.0 cuda-pathfinder numpy
//! for release in 0.4.30 0.7.2; do
//!   python3 -m venv target/bed-jax/$release && target/bed-jax/$release/bin/pip install jax==$release jaxlib==$release
//! done
//! export GPUTOP_BFC_BED=$PWD/target/bed-bfc GPUTOP_CUPY_BED=$PWD/target/bed-cupy GPUTOP_JAX_BED=$PWD/target/bed-jax
//! cargo test -p gputop-peek --test bfc_bed -- --nocapture
//! ```
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use gputop_model::{Bytes, Mono, Pid, ProcessKey};
use gputop_peek::bfc::watched::{SearchStep, WatchedPools};
use gputop_peek::bfc::{self, Allocator, Failure, Place, VtableCache};
use gputop_peek::cpython::limits::Options;
use gputop_peek::memory::dump::DumpRecorder;
use gputop_peek::memory::live::Live;
use gputop_peek::process::stat::start_time;
use gputop_peek::torch::holders::read_process;
use serde_json::Value;

#[path = "../pure/arrays_truth.rs"]
mod arrays_truth;

/// Time limit for reading arrays on a busy machine, without optimizations.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Commands for an allocator that reserves its whole pool at once, and for one that grows.
const RESERVED: &str = "new GPU_0_bfc 8000000000 0 0";
const GROWING: &str = "new GPU_0_bfc 100000000000 1 0";

const SCENARIOS: &[(&str, &[&str])] = &[
    ("nothing yet", &[GROWING]),
    ("one block", &[GROWING, "allocate 0 1000"]),
    ("reserved", &[RESERVED, "random 0 400 1"]),
    ("reserved and emptied", &[RESERVED, "allocate 0 256", "free 0"]),
    ("grown", &[GROWING, "random 0 3000 2"]),
    ("coalescing regions", &["new GPU_0_bfc 100000000000 1 1", "random 0 3000 3"]),
    ("all freed", &["new GPU_0_bfc 20000000000 1 0", "random 0 2000 4", "free 0"]),
    (
        "four allocators",
        &[
            RESERVED,
            "random 0 900 5",
            "new xla_gpu_host_bfc 68719476736 1 0",
            "random 1 300 6",
            "new GPU_collectivememory_0_bfc 800000000 1 0",
            "new GPU_1_bfc 8000000000 0 0",
            "random 3 500 7",
        ],
    ),
    ("30,000 operations", &["new GPU_0_bfc 16000000000 1 0", "random 0 30000 8"]),
];

/// Real pools of CuPy, as `total_bytes()` and `used_bytes()` report them. The program tries to allocate the largest free
/// block, and one byte more.
#[test]
fn pools_of_cupy_are_read_as_the_program_reports() {
    let (mut program, reported) = Harness::python("cupy_pool.py", with_cupy());
    let memory = program.memory();
    let found = bfc::find(&memory, &mut VtableCache::default());
    let key = ProcessKey::new(program.child.id(), 1);
    let pools = found.and_then(|mut found| found.read(key, &memory)).unwrap().gpu;
    assert_eq!(pools.len(), 1, "{pools:?}");
    let bytes = |name: &str| Some(Bytes(reported[name].as_u64().unwrap()));
    assert_eq!(
        (pools[0].allocated.get(), pools[0].reserved.get()),
        (bytes("used"), bytes("total"))
    );
    let largest = pools[0].largest_free_block.get().unwrap();
    let tried = program.run(&largest.0.to_string());
    assert_eq!((&tried["fits"], &tried["is_largest"]), (&true.into(), &true.into()), "{largest}");
    println!("CuPy {}: {} of {} in use", reported["version"], reported["used"], reported["total"]);
}

#[test]
fn arrays_have_the_names_and_sizes_that_the_program_reports() {
    let releases = std::fs::read_dir(folder("GPUTOP_JAX_BED")).unwrap();
    let jax = releases.map(|entry| Command::new(entry.unwrap().path().join("bin/python3")));
    let jax = jax.map(|python| ("jax_arrays.py", python));
    let mut count = 0;
    for (script, python) in jax.chain([("cupy_pool.py", with_cupy())]) {
        let (program, reported) = Harness::python(script, python);
        let pid = Pid(program.child.id());
        let options = Options { time_limit: READ_TIMEOUT, ..Options::default() };
        let read = read_process(Path::new("/proc"), pid, &options, &AtomicBool::new(false));
        let holders = read.unwrap_or_else(|why| panic!("{reported}: {why}"));
        let arrays = arrays_truth::check(&reported, &holders);
        let sum: u64 = holders.groups.iter().map(|group| group.bytes.0).sum();
        let used = reported["used"].as_u64().unwrap_or(sum);
        assert_eq!((sum, holders.allocated.0), (used, used));
        let (version, took) = (&reported["version"], holders.took);
        println!("{script} {version}: {arrays} arrays and parts of arrays in {} ms", took.0);
        count += 1;
    }
    assert!(count > 2, "{count}");
}

struct Build {
    name: String,
    dir: PathBuf,
}

/// Returns the folder that a variable names.
fn folder(variable: &str) -> PathBuf {
    std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} names a folder")).into()
}

fn with_cupy() -> Command {
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", folder("GPUTOP_CUPY_BED"));
    python
}

fn bed() -> PathBuf {
    folder("GPUTOP_BFC_BED")
}

fn builds() -> Vec<Build> {
    let entries = std::fs::read_dir(bed()).unwrap().map(|entry| entry.unwrap());
    let mut builds: Vec<Build> = entries
        .filter(|entry| entry.path().join("symbols.txt").exists())
        .map(|entry| Build { name: entry.file_name().into_string().unwrap(), dir: entry.path() })
        .collect();
    assert!(!builds.is_empty(), "the bed is empty");
    builds.sort_by(|a, b| a.name.cmp(&b.name));
    builds
}

/// A process with allocators or arrays, which is killed on drop.
struct Harness {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Harness {
    fn start(build: &Build, is_spatial: bool) -> Self {
        let files = std::fs::read_dir(&build.dir).unwrap().map(|entry| entry.unwrap().path());
        let library = files.into_iter().find(|path| is_library(path)).unwrap();
        let symbols = std::fs::read_to_string(build.dir.join("symbols.txt")).unwrap();
        let mut command = Command::new(bed().join("harness"));
        command.arg(library).args(symbols.split_whitespace());
        command.env("LD_LIBRARY_PATH", &build.dir);
        if is_spatial {
            command.env("SPATIAL", "1");
        }
        command.stderr(Stdio::null());
        Self::spawn(command).0
    }

    /// Starts a program of tests/fake_cuda. Returns it with what it reports.
    fn python(script: &str, mut python: Command) -> (Self, Value) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fake_cuda");
        python.arg(folder.join(script));
        Self::spawn(python)
    }

    fn spawn(mut command: Command) -> (Self, Value) {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut harness = Self { child, input, output };
        let answer = harness.answer();
        assert_eq!(answer["pid"], harness.child.id());
        (harness, answer)
    }

    fn run(&mut self, command: &str) -> Value {
        writeln!(self.input, "{command}").unwrap();
        self.answer()
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|why| panic!("{why}: {line:?}"))
    }

    fn memory(&self) -> Live {
        Live::new(Path::new("/proc"), Pid(self.child.id()))
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_library(path: &Path) -> bool {
    path.file_name().unwrap().to_string_lossy().contains(".so")
}

/// Returns the differences between what was read and what the process reports.
fn differences(report: &Value, found: &mut [Allocator], memory: &Live) -> Vec<String> {
    let mut wrong = Vec::new();
    for reported in report["allocators"].as_array().unwrap() {
        let address = reported["address"].as_u64().unwrap();
        let live = reported["live"].as_array().unwrap();
        let live: BTreeMap<u64, u64> = live
            .iter()
            .map(|pair| (pair[0].as_u64().unwrap(), pair[1].as_u64().unwrap()))
            .collect();
        let Some(allocator) = found.iter_mut().find(|found| found.address == address) else {
            // An allocator that reserved nothing is not listed.
            if reported["statistics"][0] != 0 {
                wrong.push(format!("{address:#x} was not found"));
            }
            continue;
        };
        let snapshot = allocator.read(memory).unwrap();
        let s = snapshot.stats;
        let read = [s.allocations, s.in_use, s.peak_in_use, s.largest_allocation, s.limit]
            .map(Value::from);
        if reported["statistics"] != Value::from(read.to_vec()) {
            wrong.push(format!("{}: {read:?}, not {}", allocator.name, reported["statistics"]));
        }
        let Some(map) = snapshot.map else {
            wrong.push(format!("{}: no map", allocator.name));
            continue;
        };
        let used = map.chunks.iter().filter(|chunk| chunk.is_in_use);
        let used: BTreeMap<u64, u64> = used.map(|chunk| (chunk.address, chunk.requested)).collect();
        if used != live {
            wrong.push(format!("{}: {} live, not {}", allocator.name, used.len(), live.len()));
        }
        if map.chunks.iter().map(|chunk| chunk.size).sum::<u64>() != s.reserved {
            wrong.push(format!("{}: the chunks are not the pool", allocator.name));
        }
    }
    wrong
}

/// Returns how long one read of statistics and chunks takes.
fn read_time(allocator: &mut Allocator, memory: &Live) -> String {
    const READS: u32 = 200;
    let start = Instant::now();
    let mut chunks = 0;
    for _ in 0..READS {
        chunks = allocator.read(memory).unwrap().map.unwrap().chunks.len();
    }
    format!("reading {chunks} chunks takes {:?}", start.elapsed() / READS)
}

#[test]
fn statistics_and_chunks_are_those_of_the_allocator() {
    let mut wrong = Vec::new();
    for build in builds() {
        let mut cache = VtableCache::default();
        let is_two_ended = build.name == "jax-0.11.2" || build.name == "jax-0.12.0.1";
        let modes: &[bool] = if is_two_ended { &[false, true] } else { &[false] };
        let (mut allocators, mut first, mut later) = (0, Duration::ZERO, Duration::ZERO);
        let mut reads = String::new();
        for &is_spatial in modes {
            for (scenario, commands) in SCENARIOS {
                let mut harness = Harness::start(&build, is_spatial);
                commands.iter().for_each(|command| {
                    harness.run(command);
                });
                let report = harness.run("report");
                let memory = harness.memory();
                let start = Instant::now();
                let found = bfc::find(&memory, &mut cache).map(|found| found.allocators);
                let time = start.elapsed();
                if first.is_zero() {
                    first = time;
                } else {
                    later = later.max(time);
                }
                let what = format!("{}, {scenario}", build.name);
                match found {
                    Ok(mut found) => {
                        allocators += found.len();
                        reads = read_time(&mut found[0], &memory);
                        let differences = differences(&report, &mut found, &memory);
                        wrong.extend(differences.iter().map(|text| format!("{what}: {text}")));
                    }
                    Err(Failure::NotInitialised(_)) if *scenario == "nothing yet" => {}
                    Err(failure) => wrong.push(format!("{what}: {failure}")),
                }
            }
        }
        println!(
            "{}: {allocators} allocators; first search {first:?}, later {later:?}",
            build.name
        );
        println!("  {reads}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// While there are few chunks, their size is ambiguous. The reader notices when it was wrong.
#[test]
fn an_allocator_found_with_one_chunk_is_read_after_many() {
    for build in builds() {
        let mut harness = Harness::start(&build, false);
        for command in [RESERVED, "allocate 0 256", "free 0"] {
            harness.run(command);
        }
        let memory = harness.memory();
        let mut found = bfc::find(&memory, &mut VtableCache::default()).unwrap().allocators;
        for seed in 0..4 {
            harness.run(&format!("random 0 200 {seed}"));
            let report = harness.run("report");
            let differences = differences(&report, &mut found, &memory);
            assert!(differences.is_empty(), "{}: {differences:?}", build.name);
        }
    }
}

#[test]
fn an_empty_pool_is_read_from_its_first_allocation_on() {
    let proc_root = Path::new("/proc");
    for build in builds() {
        let mut harness = Harness::start(&build, false);
        harness.run(GROWING);
        let pid = Pid(harness.child.id());
        let key = ProcessKey { pid, start: start_time(proc_root, pid).unwrap() };
        let (mut watched, mut cache) = (WatchedPools::new(key), VtableCache::default());
        while watched.wake() == Mono(0) {
            let (now, until) = (Mono(1_000), Instant::now() + Duration::from_millis(10));
            let step = SearchStep { proc_root, now, until, detects_copies: false };
            watched.advance(&step, &mut cache);
        }
        assert!(watched.read(proc_root, Mono(1_000)).gpu.is_empty(), "{}", build.name);
        let why = watched.why_missing().unwrap().to_string();
        assert!(
            why.ends_with("has reserved no GPU memory in a pool that gputop can read"),
            "{}: {why}",
            build.name
        );
        harness.run("allocate 0 1000");
        let pools = watched.read(proc_root, Mono(2_000)).gpu;
        assert_eq!(pools[0].allocated.get(), Some(Bytes(1_024)), "{}", build.name);
    }
}

#[test]
fn pinned_memory_of_the_host_is_not_gpu_memory() {
    let build = builds().pop().unwrap();
    let mut harness = Harness::start(&build, false);
    for command in SCENARIOS[7].1 {
        harness.run(command);
    }
    let found = bfc::find(&harness.memory(), &mut VtableCache::default()).unwrap().allocators;
    let of = |place| found.iter().filter(|allocator| allocator.place == place).count();
    assert_eq!((of(Place::Gpu(0)), of(Place::Gpu(1)), of(Place::PinnedHost)), (1, 1, 1));
}

/// What a dump for tests/data/bfc contains: three pools and pinned memory, one of them with several regions.
const RECORDED: &[&str] = &[
    "new GPU_0_bfc 8000000000 0 0",
    "random 0 150 1",
    "new xla_gpu_host_bfc 68719476736 1 0",
    "random 1 40 2",
    "new GPU_1_bfc 100000000000 1 0",
    "random 2 150 3",
];

#[test]
#[ignore = "writes tests/data/bfc"]
fn record_dumps() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/bfc");
    std::fs::create_dir_all(&data).unwrap();
    for build in builds() {
        let is_two_ended = build.name == "jax-0.11.2" || build.name == "jax-0.12.0.1";
        let mut harness = Harness::start(&build, is_two_ended);
        for command in RECORDED {
            harness.run(command);
        }
        let report = harness.run("report");
        let recorder = DumpRecorder::new(harness.memory());
        bfc::record(&harness.memory(), &recorder).unwrap();
        let write = |ending: &str, bytes: &[u8]| {
            std::fs::write(data.join(format!("{}.{ending}", build.name)), bytes).unwrap();
        };
        write("dump.zst", &recorder.into_dump().to_bytes().unwrap());
        write("json.zst", &zstd::encode_all(report.to_string().as_bytes(), 19).unwrap());
    }
}

/// How many maps are exact depends on the machine, so that number is printed but not checked.
#[test]
fn a_busy_allocator_is_read_exactly_or_marked() {
    const READS: usize = 200;
    for build in builds() {
        let mut harness = Harness::start(&build, false);
        for command in ["new GPU_0_bfc 16000000000 0 0", "random 0 2000 1", "churn 0 150"] {
            harness.run(command);
        }
        std::thread::sleep(Duration::from_millis(300));
        let memory = harness.memory();
        let mut found = bfc::find(&memory, &mut VtableCache::default()).unwrap().allocators;
        let allocator = &mut found[0];
        let (mut exact, mut times) = (0, Vec::new());
        for _ in 0..READS {
            let start = Instant::now();
            let snapshot = allocator.read(&memory).unwrap();
            times.push(start.elapsed());
            let stats = snapshot.stats;
            assert!(stats.in_use <= stats.peak_in_use && stats.in_use <= stats.reserved);
            assert_eq!(stats.reserved, 16_000_000_000);
            if let Some(map) = snapshot.map {
                exact += 1;
                let sum: u64 = map.chunks.iter().map(|chunk| chunk.size).sum();
                assert_eq!(sum, stats.reserved);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        times.sort_unstable();
        println!("{}: {exact} of {READS} exact, median {:?}", build.name, times[READS / 2]);
        assert!(exact > 0, "{}: no map", build.name);
        harness.run("stop");
    }
}
