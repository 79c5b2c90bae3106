//! A client of a replayed recording that waits for updates, and small recordings for it.

use std::time::Duration;

use gputop::source::record::Recorder;
use gputop::source::replay::{OpenError, Options, Recording, play};
use gputop_model::frame::Frame;
use gputop_model::gpu::{Gpu, Health, HealthState};
use gputop_model::protocol::stream::Source;
use gputop_model::protocol::{Play, Position, Request, Update};
use gputop_model::units::{GpuUuid, Millis, Mono, Percent};

use super::training_day;

pub const PAUSED: Options = Options { paused: true, speed: 1.0, repeat: false, start: Millis(0) };

/// Returns a frame that is small enough for tests with thousands of recordings.
pub fn frame(seq: u64) -> Frame {
    Frame {
        seq,
        mono: Mono(100_000 + seq * 1_000),
        gpus: vec![Gpu {
            uuid: GpuUuid("GPU-1".into()),
            health: Health { state: HealthState::Answering, ..Health::default() },
            sm: Percent((seq % 100) as f64).into(),
            ..Gpu::default()
        }],
        ..Frame::default()
    }
}

/// Opens a recording.
pub fn open(bytes: Vec<u8>) -> Result<Recording, OpenError> {
    Recording::from_bytes(bytes.into())
}

pub fn start(bytes: Vec<u8>, options: Options) -> ReplayClient {
    ReplayClient::new(play(open(bytes).unwrap(), options))
}

/// A source and its updates so far. Waits for updates instead of sleeping.
pub struct ReplayClient {
    pub source: Source,
    runtime: tokio::runtime::Runtime,
    pub updates: Vec<Update>,
}

impl ReplayClient {
    /// Returns a client that has received nothing yet.
    pub fn new(source: Source) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        Self { source, runtime, updates: Vec::new() }
    }

    pub fn next(&mut self) -> Update {
        let next =
            async { tokio::time::timeout(Duration::from_secs(10), self.source.next()).await };
        let update = self.runtime.block_on(next).expect("an update in time");
        let update = update.expect("a stream that goes on");
        self.updates.push(update.clone());
        update
    }

    /// Waits for a position. Updates before it are in `updates`.
    pub fn position(&mut self, wanted: impl Fn(&Position) -> bool) -> Position {
        loop {
            if let Update::Position(position) = self.next()
                && wanted(&position)
            {
                return position;
            }
        }
    }

    pub fn ask(&mut self, play: Play) {
        self.updates.clear();
        self.source.send(Request::Play(play));
    }

    /// Sends a command and returns the number of the frame that is then shown.
    pub fn go(&mut self, play: Play) -> u64 {
        self.ask(play);
        self.position(|_| true);
        self.last_frame()
    }

    pub fn frames(&self) -> Vec<u64> {
        let frames = self.updates.iter().filter_map(|update| match update {
            Update::Frame(frame) => Some(frame.seq),
            _ => None,
        });
        frames.collect()
    }

    pub fn last_frame(&self) -> u64 {
        *self.frames().last().expect("a frame")
    }

    pub fn notices(&self) -> Vec<&str> {
        let notices = self.updates.iter().filter_map(|update| match update {
            Update::Notice(text) => Some(text.as_str()),
            _ => None,
        });
        notices.collect()
    }
}

/// Returns a minute of lines that this version did not write.
pub fn minute_of(text: &str) -> Vec<u8> {
    let mut bytes = Recorder::new(Vec::new(), &training_day::hello()).unwrap().finish().unwrap();
    // Drop the index of the empty recording, which lists no minutes.
    let hello = 8 + u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
    bytes.truncate(hello);
    bytes.extend(zstd::bulk::compress(text.as_bytes(), 3).unwrap());
    bytes
}
