//! Measures a day's recording of 8 GPUs and 64 processes, 8 of them training with PyTorch: its size, the time to write
//! it, to open it and to jump in it, and the memory of a replay that shows a map. Limits: 100 MB a day, 50 ms for a
//! jump with filled charts, 64 MiB resident.
//!
//! Run `cargo bench --bench recording`. Append `-- 3600` for a shorter day (in seconds) and `--maps 60` for a map every
//! minute. The bench writes to the temporary directory and removes its files.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gputop::source::map_schedule::{MapPeriod, MapScheduler};
use gputop::source::record::Recorder;
use gputop::source::replay::{Options, Recording, play};
use gputop_model::frame::Frame;
use gputop_model::history::History;
use gputop_model::pool::{Pool, Pools};
use gputop_model::protocol::stream::Source;
use gputop_model::protocol::{Play, Position, Request, Update};
use gputop_model::units::{Millis, Mono};

#[path = "../tests/it/support/training_day.rs"]
mod training_day;
#[path = "../tests/it/support/training_model.rs"]
mod training_model;

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
    // Replay in a separate process, to measure only the memory of the replay.
    let exe = std::env::current_exe().unwrap();
    let child = Command::new(exe).arg("--replay").arg(&file).status();
    assert!(child.unwrap().success());
}

fn record(file: &Path, seconds: u64) {
    let mut recorder = Recorder::create(file, &training_day::hello()).unwrap();
    let mut day = training_day::Day::new();
    let mut maps = Maps::new();
    let mut spent = Vec::new();
    for _ in 0..seconds {
        let frame = day.next();
        let before = Instant::now();
        recorder.frame(frame).unwrap();
        spent.push(before.elapsed());
        maps.follow(frame, &mut recorder);
    }
    recorder.finish().unwrap();
    let bytes = std::fs::metadata(file).unwrap().len();
    let a_day = |bytes: u64| {
        let day = bytes as f64 / 1e6 * 86_400.0 / seconds as f64;
        format!("{day:.1} MB")
    };
    row("recorded", format!("{seconds} s"));
    row("file", format!("{:.1} MB", bytes as f64 / 1e6));
    row("a day of it", a_day(bytes));
    row("  of which maps", a_day(maps.bytes));
    row("maps", maps.spent.len().to_string());
    row("a map", spread(&mut maps.spent));
    row("a map in the file", format!("{} bytes", maps.bytes / maps.spent.len().max(1) as u64));
    row("a frame", spread(&mut spent));
    let one = serde_json::to_string(day.next()).unwrap();
    let before = Instant::now();
    for _ in 0..1_000 {
        serde_json::from_str::<gputop_model::frame::Frame>(&one).unwrap();
    }
    let parsed = before.elapsed() / 1_000;
    row("a frame as JSON", format!("{} bytes", one.len()));
    row("reading one", format!("{parsed:.0?}"));
}

/// The maps of the trainers, requested on the schedule of `gputop record`.
struct Maps {
    trainers: Vec<training_model::Trainer>,
    rounds: MapScheduler,
    bytes: u64,
    spent: Vec<Duration>,
}

impl Maps {
    fn new() -> Self {
        Self {
            trainers: (0..training_day::GPUS).map(training_model::Trainer::new).collect(),
            rounds: MapScheduler::new(every()),
            bytes: 0,
            spent: Vec::new(),
        }
    }

    fn follow(&mut self, frame: &Frame, recorder: &mut Recorder) {
        let pool = |trainer: &training_model::Trainer| Pool {
            process: trainer.process(),
            ..Pool::default()
        };
        let mut request = self.rounds.frame(&Frame {
            mono: frame.mono,
            pools: Some(Pools {
                list: Arc::new(self.trainers.iter().map(pool).collect()),
                ..Pools::default()
            }),
            ..Frame::default()
        });
        while let Some(Request::Map(Some((process, _)))) = request {
            let trainer = self.trainers.iter_mut().find(|t| t.process() == process);
            let map = trainer.unwrap().map(Mono(frame.mono.0 + 1));
            assert!(self.rounds.takes(&map));
            let (before, bytes) = (Instant::now(), recorder.bytes());
            recorder.map(&map).unwrap();
            self.spent.push(before.elapsed());
            self.rounds.wrote(recorder.bytes() - bytes);
            self.bytes += recorder.bytes() - bytes;
            request = Some(self.rounds.ask_next());
        }
    }
}

/// Parses `-- 3600 --maps 60`: the period of maps in seconds, 0 for no maps.
fn every() -> MapPeriod {
    let mut args = std::env::args().skip_while(|arg| arg != "--maps").skip(1);
    match args.next().map(|seconds| seconds.parse::<u64>().unwrap()) {
        None => MapPeriod::Sparing,
        Some(0) => MapPeriod::Never,
        Some(seconds) => MapPeriod::Period(Millis(seconds * 1_000)),
    }
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
    let mut source = play(recording, Options { paused: true, ..Options::default() });
    let mut history = History::default();
    wait(&mut source, &mut history);
    row("a jump with charts", spread(&mut jumps(&mut source, &mut history, start, end)));
    source.send(Request::Map(Some((training_day::key(8), 0))));
    wait(&mut source, &mut history);
    row("the same with a map", spread(&mut jumps(&mut source, &mut history, start, end)));
    // The worst case: the last second of a minute, after at least an hour of recording.
    let mut spent: Vec<Duration> = (61..(end.0 - start.0) / 60_000)
        .take(JUMPS)
        .map(|minute| {
            let before = Instant::now();
            source.send(Request::Play(Play::To(Mono(start.0 + minute * 60_000 - 500))));
            wait(&mut source, &mut history);
            before.elapsed()
        })
        .collect();
    if !spent.is_empty() {
        row("a jump to the end of a minute", spread(&mut spent));
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    row("peak memory of the replay", peak.unwrap_or("?").trim().into());
}

fn jumps(source: &mut Source, history: &mut History, start: Mono, end: Mono) -> Vec<Duration> {
    let mut dice = 7_u64;
    let jump = |_| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let to = Mono(start.0 + (dice >> 20) % (end.0 - start.0));
        let before = Instant::now();
        source.send(Request::Play(Play::To(to)));
        wait(source, history);
        before.elapsed()
    };
    (0..JUMPS).map(jump).collect()
}

/// Processes updates like a screen until the recording reports its position.
fn wait(source: &mut Source, history: &mut History) -> Position {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
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

/// Formats median, 99th percentile and worst. On a shared machine, the worst is often caused by other programs.
fn spread(spent: &mut [Duration]) -> String {
    if spent.is_empty() {
        return "none".into();
    }
    spent.sort();
    let at = |share: usize| spent[(spent.len() - 1) * share / 100];
    format!("{:.2?}  {:.2?}  {:.2?}", at(50), at(99), at(100))
}

fn row(what: &str, value: String) {
    println!("{what:<38} {value}");
}
