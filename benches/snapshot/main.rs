//! Measures how fast a memory snapshot opens and how much memory that takes: parsing, and everything that a screen
//! needs. Also measures how long `gputop snapshot A B` takes to compare two of 100 MB.
//!
//! Run `cargo bench --bench snapshot [-- FILE…]`. Without files it creates some (requires python3), of 100 and of 580
//! MB (10 million events).
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gputop_allocator::snapshot::{self, DeviceAnalysis};

/// Number of events in a file of 100 MB.
const EVENTS: u64 = 1_750_000;
/// The number of events, and the maximum time in seconds to open a file with that many.
const GENERATED: [(u64, f64); 2] = [(EVENTS, 1.0), (10_000_000, 5.0)];
/// Maximum time to compare two files of 100 MB.
const MAX_COMPARISON: Duration = Duration::from_secs(2);

fn main() {
    // Flag that `cargo bench` passes to every bench.
    let named = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let files: Vec<(PathBuf, Option<f64>)> = match named.collect::<Vec<_>>() {
        none if none.is_empty() => {
            GENERATED.iter().map(|&(n, most)| (generate(n, 7), Some(most))).collect()
        }
        named => named.iter().map(|file| (file.into(), None)).collect(),
    };
    if files.iter().any(|(_, most)| most.is_some()) {
        compare(&generate(EVENTS, 7), &generate(EVENTS, 8));
    }
    for (file, most) in files {
        let took = open(&file);
        if let Some(most) = most {
            assert!(took.as_secs_f64() <= most, "it took longer than {most} s");
        }
    }
}

fn compare(first: &Path, second: &Path) {
    let start = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gputop"));
    let output = command.args(["snapshot", "--json"]).args([first, second]).output().unwrap();
    let took = start.elapsed();
    assert!(output.status.success());
    println!("comparing two: {:.2} s", took.as_secs_f64());
    assert!(took <= MAX_COMPARISON, "it took longer than {MAX_COMPARISON:?}");
}

fn generate(events: u64, seed: u64) -> PathBuf {
    let file = format!("snapshot-{events}-{seed}.pickle");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
    if !file.exists() {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/snapshot/make.py");
        let mut python = Command::new("python3");
        python.arg(script).arg(&file);
        python.args([events, seed].map(|number| number.to_string()));
        assert!(python.status().unwrap().success());
    }
    file
}

fn open(file: &Path) -> Duration {
    let size = file.metadata().unwrap().len();
    let start = Instant::now();
    let snapshot = snapshot::read(File::open(file).unwrap(), size).unwrap();
    let read = start.elapsed();
    let mut events = 0;
    for device in &snapshot.devices {
        events += device.events.len();
        let study = DeviceAnalysis::of(device);
        study.by_stack(device);
        study.history.growth(device, 0, device.events.len());
    }
    let all = start.elapsed();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    println!(
        "{}: {} MB, {events} events: read {:.2} s, with history {:.2} s, {}",
        file.display(),
        size / 1_000_000,
        read.as_secs_f64(),
        all.as_secs_f64(),
        peak.split_whitespace().collect::<Vec<_>>().join(" "),
    );
    all
}
