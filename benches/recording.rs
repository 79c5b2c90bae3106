//! What a day's recording of 8 GPUs and 64 processes costs: bytes, time to write, to open and to jump, and the
//! memory of a replay. Limits: 100 MB a day, 50 ms a jump with the charts filled, 64 MiB resident.
//!
//! `cargo bench --bench recording`; a shorter day with `-- 3600` (seconds). Writes into the folder for temporary
//! files and removes what it wrote.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use gputop::model::history::History;
use gputop::model::units::Mono;
use gputop::source::record::Recorder;
use gputop::source::replay::{Options, Recording, play};
use gputop::source::stream::Source;
use gputop::source::{Play, Position, Request, Update};

#[path = "../tests/it/day.rs"]
mod day;

const JUMPS: usize = 200;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, flag, file, ..] = args.as_slice()
        && flag == "--replay"
    {
        return replay(Path::new(file));
    }
    let seconds = args.iter().find_map(|a| a.parse().ok()).unwrap_or(86_400);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("day.gpt.zst");
    row("", "median, 99 % and worst where there are three".into());
    record(&file, seconds);
    open(&file, "with its index");
    let cut = folder.path().join("cut.gpt.zst");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() * 999 / 1_000]).unwrap();
    drop(bytes);
    open(&cut, "cut off, without");
    // In a process of its own, so that the memory is the replay's alone.
    let exe = std::env::current_exe().unwrap();
    let child = Command::new(exe).arg("--replay").arg(&file).status();
    assert!(child.unwrap().success());
}

fn record(file: &Path, seconds: u64) {
    let mut recorder = Recorder::create(file, &day::hello()).unwrap();
    let mut day = day::Day::new();
    let mut spent = Vec::new();
    for _ in 0..seconds {
        let frame = day.next();
        let before = Instant::now();
        recorder.frame(frame).unwrap();
        spent.push(before.elapsed());
    }
    recorder.finish().unwrap();
    let bytes = std::fs::metadata(file).unwrap().len();
    row("recorded", format!("{seconds} s"));
    row("file", format!("{:.1} MB", bytes as f64 / 1e6));
    row(
        "a day of it",
        format!("{:.1} MB", bytes as f64 / 1e6 * 86_400.0 / seconds as f64),
    );
    row("a frame", spread(&mut spent));
    let one = serde_json::to_string(day.next()).unwrap();
    let before = Instant::now();
    for _ in 0..1_000 {
        serde_json::from_str::<gputop::model::frame::Frame>(&one).unwrap();
    }
    let parsed = before.elapsed() / 1_000;
    row("a frame as JSON", format!("{} bytes", one.len()));
    row("reading one", format!("{parsed:.0?}"));
}

fn open(file: &Path, how: &str) {
    let mut spent: Vec<Duration> = (0..5)
        .map(|_| {
            let before = Instant::now();
            Recording::open(file).unwrap();
            before.elapsed()
        })
        .collect();
    row(&format!("opening {how}"), spread(&mut spent));
}

fn replay(file: &Path) {
    let recording = Recording::open(file).unwrap();
    let (start, end) = recording.span();
    let mut source = play(
        recording,
        Options {
            paused: true,
            ..Options::default()
        },
    );
    let mut history = History::default();
    wait(&mut source, &mut history);
    let mut dice = 7_u64;
    let mut spent = Vec::new();
    for _ in 0..JUMPS {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let to = Mono(start.0 + (dice >> 20) % (end.0 - start.0));
        let before = Instant::now();
        source.send(Request::Play(Play::To(to)));
        wait(&mut source, &mut history);
        spent.push(before.elapsed());
    }
    row("a jump with charts", spread(&mut spent));
    // The worst place: the last second of a minute, with an hour before it.
    let mut spent: Vec<Duration> = (61..(end.0 - start.0) / 60_000)
        .take(JUMPS)
        .map(|minute| {
            let before = Instant::now();
            source.send(Request::Play(Play::To(Mono(
                start.0 + minute * 60_000 - 500,
            ))));
            wait(&mut source, &mut history);
            before.elapsed()
        })
        .collect();
    if !spent.is_empty() {
        row("the same to the end of a minute", spread(&mut spent));
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    row(
        "peak memory of the replay",
        peak.unwrap_or("?").trim().into(),
    );
}

/// Takes updates as a screen does, until the recording says where it stands.
fn wait(source: &mut Source, history: &mut History) -> Position {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        loop {
            match source.next().await.unwrap() {
                Update::Jump { summaries, .. } => {
                    *history = History::default();
                    summaries.iter().for_each(|s| history.push_summary(s));
                }
                Update::Frame(frame) => history.push(&frame),
                Update::Position(position) => return position,
                _ => {}
            }
        }
    })
}

/// Median, 99th percentile and worst: on a shared machine the worst is often somebody else's.
fn spread(spent: &mut [Duration]) -> String {
    spent.sort();
    let at = |share: usize| spent[(spent.len() - 1) * share / 100];
    format!("{:.2?}  {:.2?}  {:.2?}", at(50), at(99), at(100))
}

fn row(what: &str, value: String) {
    println!("{what:<38} {value}");
}
