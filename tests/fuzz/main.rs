//! Runs the fuzz targets on the stable toolchain: all seeds and saved inputs, then mutations of them. See fuzz/README.md.
//!
//! Each target runs in a child process. The child writes every case to a file before it runs it, so that this process can
//! report the case after an abort, a hang or a failed allocation.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod mutate;
mod seeds;
#[path = "../../fuzz/targets.rs"]
mod targets;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gputop::source::remote::read_agent_stream;
use gputop_model::event::Observation;
use gputop_model::protocol::Update;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use targets::{TARGETS, Target, packed, repository};

/// Number of mutations per target without `GPUTOP_FUZZ_CASES`, enough to check that the target works.
const DEFAULT_CASES: u64 = 300;
/// Limits on the CPU time of one case and, because the machine may be busy, on its elapsed time.
const CASE_CPU_LIMIT: Duration = Duration::from_secs(10);
const CASE_TIMEOUT: Duration = Duration::from_secs(90);
/// The timeout for cases that hang on purpose.
const FAULT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the parent checks the child.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum memory of one case, and the additional memory for each byte of it.
const MAX_CASE_MEMORY: u64 = 64 << 20;
const MAX_MEMORY_PER_BYTE: u64 = 20;
/// Address space of the child in KiB, for `ulimit`. An allocation beyond it aborts.
const MAX_ADDRESS_SPACE: u64 = 8 << 20;
/// Maximum number of bytes of a failed case that are printed. The saved file contains all of them.
const MAX_PRINTED: usize = 1 << 10;

const TARGET_VARIABLE: &str = "GPUTOP_FUZZ_TARGET";
const STATE_VARIABLE: &str = "GPUTOP_FUZZ_STATE";
const CASES_VARIABLE: &str = "GPUTOP_FUZZ_CASES";
const SEED_VARIABLE: &str = "GPUTOP_FUZZ_SEED";
const FILE_VARIABLE: &str = "GPUTOP_FUZZ_FILE";
const SEEDS_VARIABLE: &str = "GPUTOP_FUZZ_SEEDS";

macro_rules! target_tests {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            run(stringify!($name));
        })*
        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

target_tests!(log wire nvidia_smi recording snapshot incident dump hook redact config terminal);

#[test]
fn every_target_has_a_test_and_a_libfuzzer_program() {
    let manifest = fs::read_to_string(repository().join("fuzz/Cargo.toml")).unwrap();
    for target in TARGETS {
        let name = target.name;
        assert!(TESTED.contains(&name), "{name} has no test");
        let program = format!("fuzz/fuzz_targets/{name}.rs");
        assert!(repository().join(&program).exists(), "{program}");
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
        assert!(!seeds::of(name).is_empty(), "{name} has no seeds");
        assert!(!mutate::dictionary(name).is_empty(), "{name}");
    }
}

#[test]
fn each_line_of_the_wire_seeds_is_an_update() {
    for seed in seeds::WIRE {
        let updates = read_agent_stream(&packed(seed.as_bytes()));
        assert_eq!(updates.len(), seed.lines().count(), "{seed}");
        let is_unknown = |update: &Update| matches!(update, Update::Event(event) if matches!(event.observation, Observation::Unknown(_)));
        assert!(!updates.iter().any(is_unknown), "{updates:?}");
    }
}

/// Tests the reporting of failed cases with cases that panic, hang, and use too much memory.
#[test]
fn reports_and_saves_a_failed_case() {
    for (fault, expected) in [
        ("panic", "panicked"),
        ("memory", "memory"),
        ("hang", "longer than"),
        ("loop", "longer than"),
    ] {
        let failure = Supervisor::new("log").fault(fault).supervise().unwrap_err();
        assert!(failure.contains(expected), "{fault}: {failure}");
        let saved = failure.lines().find_map(|line| line.strip_prefix("saved: "));
        assert_eq!(fs::read(saved.unwrap()).unwrap(), fault.as_bytes());
    }
}

/// Writes the seeds as files, for libFuzzer.
#[test]
#[ignore = "writes files; see fuzz/README.md"]
fn write_seeds() {
    let folder = PathBuf::from(std::env::var_os(SEEDS_VARIABLE).expect("a directory"));
    for target in TARGETS {
        let folder = folder.join(target.name);
        fs::create_dir_all(&folder).unwrap();
        for (number, seed) in seeds::of(target.name).iter().enumerate() {
            fs::write(folder.join(format!("seed-{number:04}")), seed).unwrap();
        }
    }
}

/// Runs the cases of one target, in the child process.
#[test]
#[ignore = "started by the other tests"]
fn child() {
    let Some(name) = std::env::var_os(TARGET_VARIABLE) else { return };
    // Abort also on a panic on another thread, and on one that is caught.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
    let target = TARGETS.iter().find(|target| *target.name == *name).unwrap();
    let mut cases = Cases::new(target);
    if let Some(fault) = std::env::var_os("GPUTOP_FUZZ_FAULT") {
        let fault = fault.into_string().unwrap();
        cases.target = &FAULTY;
        return cases.run(fault.as_bytes());
    }
    if let Some(file) = std::env::var_os(FILE_VARIABLE) {
        return cases.run(&fs::read(file).unwrap());
    }
    let seeds = seeds::of(target.name);
    for seed in &seeds {
        cases.run(seed);
    }
    let mut mutator = mutate::Mutator::new(target.name, number(SEED_VARIABLE).unwrap_or(0));
    for _ in 0..number(CASES_VARIABLE).unwrap_or(DEFAULT_CASES) {
        cases.run(&mutator.mutated(&seeds));
    }
    println!("{}: {} cases", target.name, cases.count);
}

static FAULTY: Target = Target {
    name: "faulty",
    run: |data| match data {
        b"panic" => panic!("as asked"),
        b"memory" => drop(std::hint::black_box(vec![1_u8; 128 << 20])),
        b"hang" => loop {
            std::thread::park();
        },
        _ => while std::hint::black_box(true) {},
    },
};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs cases in the child and writes the current one to the state file.
struct Cases {
    target: &'static Target,
    state: File,
    count: u64,
    peak: u64,
}

impl Cases {
    fn new(target: &'static Target) -> Self {
        // Initialize statics first, so that they do not count as memory of the first case.
        (target.run)(b"");
        let path = std::env::var_os(STATE_VARIABLE).unwrap();
        Self { target, state: File::create(path).unwrap(), count: 0, peak: memory("VmHWM:") }
    }

    fn run(&mut self, case: &[u8]) {
        self.count += 1;
        self.state.write_all_at(case, 16).unwrap();
        let length = (case.len() as u64).to_le_bytes();
        let header = [self.count.to_le_bytes(), length].concat();
        self.state.write_all_at(&header, 0).unwrap();
        let before = memory("VmRSS:");
        (self.target.run)(case);
        let peak = memory("VmHWM:");
        if peak > self.peak {
            let taken = peak.saturating_sub(before);
            let allowed = MAX_CASE_MEMORY + MAX_MEMORY_PER_BYTE * case.len() as u64;
            assert!(taken <= allowed, "the case took {} MiB of memory", taken >> 20);
            self.peak = peak;
        }
    }
}

/// Returns the CPU time of a process; 0 if it has exited.
fn cpu_time(pid: u32) -> Duration {
    let time = clock_getcpuclockid(Pid::from_raw(pid.cast_signed())).and_then(clock_gettime);
    time.map_or(Duration::ZERO, Duration::from)
}

/// Returns a field of this process's status in bytes.
fn memory(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[track_caller]
fn run(name: &'static str) {
    if let Err(failure) = Supervisor::new(name).supervise() {
        panic!("{failure}");
    }
}

/// Starts a child and watches it.
struct Supervisor {
    name: &'static str,
    command: Command,
    cpu_limit: Duration,
    timeout: Duration,
    folder: tempfile::TempDir,
}

impl Supervisor {
    fn new(name: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        let limit = format!("ulimit -v {MAX_ADDRESS_SPACE}; ulimit -c 0; exec \"$0\" \"$@\"");
        command.arg("-c").arg(limit);
        command.arg(std::env::current_exe().unwrap());
        command.args(["child", "--exact", "--ignored", "--nocapture"]);
        command.env(TARGET_VARIABLE, name);
        command.env(STATE_VARIABLE, folder.path().join("state"));
        let output = File::create(folder.path().join("output")).unwrap();
        command.stdout(output.try_clone().unwrap()).stderr(output);
        command.stdin(Stdio::null());
        Self { name, command, cpu_limit: CASE_CPU_LIMIT, timeout: CASE_TIMEOUT, folder }
    }

    fn fault(mut self, fault: &str) -> Self {
        self.command.env("GPUTOP_FUZZ_FAULT", fault);
        self.timeout = FAULT_TIMEOUT;
        self.cpu_limit = FAULT_TIMEOUT / 2;
        self
    }

    fn supervise(mut self) -> Result<(), String> {
        let mut child = self.command.spawn().unwrap();
        let why = self.wait(&mut child);
        let output = fs::read_to_string(self.folder.path().join("output")).unwrap_or_default();
        match why {
            None => {
                let count = output.lines().find(|line| line.ends_with(" cases"));
                println!("{}", count.unwrap_or_default());
                Ok(())
            }
            Some(why) => Err(self.failure(&why, &output)),
        }
    }

    /// Waits until the child exits. Returns an error message if it failed.
    fn wait(&self, child: &mut Child) -> Option<String> {
        let (mut last, mut since, mut cpu) = (0, Instant::now(), Duration::ZERO);
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return (!status.success()).then(|| format!("it panicked or was killed: {status}"));
            }
            let count = self.state().map_or(0, |(count, _)| count);
            let used = cpu_time(child.id());
            if count != last {
                (last, since, cpu) = (count, Instant::now(), used);
            }
            let is_over =
                used.saturating_sub(cpu) > self.cpu_limit || since.elapsed() > self.timeout;
            // The limits do not apply while it reads the seeds, before the first case.
            if count > 0 && is_over {
                let _ = child.kill();
                let _ = child.wait();
                return Some(format!(
                    "it ran longer than {:?} of CPU time or {:?}",
                    self.cpu_limit, self.timeout
                ));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns the number and the bytes of the current case.
    fn state(&self) -> Option<(u64, Vec<u8>)> {
        let state = fs::read(self.folder.path().join("state")).ok()?;
        let number = |at: usize| Some(u64::from_le_bytes(state.get(at..at + 8)?.try_into().ok()?));
        let length = usize::try_from(number(8)?).ok()?;
        Some((number(0)?, state.get(16..16 + length)?.to_vec()))
    }

    fn failure(&self, why: &str, output: &str) -> String {
        let name = self.name;
        let (count, case) = self.state().unwrap_or_default();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{name}-{count}"));
        File::create(&path).unwrap().write_all(&case).unwrap();
        let printed = case[..case.len().min(MAX_PRINTED)].escape_ascii();
        let tail: Vec<&str> = output.lines().rev().take(20).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        format!(
            "target {name}, case {count} of {} bytes: {why}\n{}\nb\"{printed}\"\nsaved: {}\n\
             again: {FILE_VARIABLE}={} cargo test --test fuzz -- {name}",
            case.len(),
            tail.join("\n"),
            path.display(),
            path.display()
        )
    }
}
