//! Measures `gputop summary` on a day's recording of 8 GPUs and 64 processes: time and memory, beside the time that
//! decompressing the recording and reading its whole frames takes. Limits: 5 s and 100 MiB.
//!
//! Run `cargo bench --bench summary`. Append `-- 3600` for a shorter day (in seconds).
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gputop::source::record::Recorder;
use gputop::source::replay::Recording;
use gputop_model::protocol::Line;

#[path = "../tests/it/support/training_day.rs"]
mod training_day;

fn main() {
    let seconds = std::env::args().find_map(|arg| arg.parse().ok());
    let seconds: u64 = seconds.unwrap_or(86_400);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("day.gpt.zst");
    let mut recorder = Recorder::create(&file, &training_day::hello()).unwrap();
    let mut day = training_day::Day::new();
    (0..seconds).for_each(|_| recorder.frame(day.next()).unwrap());
    recorder.finish().unwrap();
    let bytes = std::fs::metadata(&file).unwrap().len();
    println!("recorded {seconds} s, {:.1} MB", bytes as f64 / 1e6);
    let recording = Recording::open(&file).unwrap();
    let lines = read_all(&recording, |line| line.len());
    println!("decompressing, one thread: {lines:.1?}");
    let frames = read_all(&recording, |line| usize::from(Line::read(line).is_ok()));
    println!("reading whole frames, one thread: {frames:.1?}");
    for format in ["--json", "--html"] {
        summarize(&file, format);
    }
}

fn read_all(recording: &Recording, mut read: impl FnMut(&[u8]) -> usize) -> Duration {
    let start = Instant::now();
    let mut sum = 0;
    for minute in 0..recording.minute_count() {
        recording.each_line(minute, |line| sum += read(line));
    }
    assert!(sum > 0);
    start.elapsed()
}

fn summarize(file: &Path, format: &str) {
    let start = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gputop"));
    let command = command.arg("summary").arg(format).arg(file);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = String::new();
    while child.try_wait().unwrap().is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("VmHWM"));
        peak = line.map_or(peak, str::to_owned);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(child.wait().unwrap().success());
    println!("gputop summary {format}: {:.1?}, {peak}", start.elapsed());
}
