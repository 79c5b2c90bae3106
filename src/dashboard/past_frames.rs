//! Retains the frames of the last ten minutes, so that tables can be rewound together with the charts.
//!
//! At most one frame per second is retained. A frame with 8 GPUs and 64 processes takes about 0.1 MiB in memory, or a
//! tenth of that when compressed.

use std::collections::VecDeque;

use gputop_model::bounded_json;
use gputop_model::frame::Frame;
use gputop_model::units::{Millis, Mono};

/// Age at which retained frames are dropped.
const MAX_AGE: Millis = Millis(600_000);
/// Maximum total size of the compressed frames. If they take more, the oldest are dropped.
const MAX_BYTES: usize = 40 << 20;
/// Maximum size of a decompressed frame.
const MAX_FRAME_BYTES: usize = 64 << 20;
/// Minimum time between two retained frames. Less than 1 s, because samples are not exactly 1 s apart.
const MIN_DISTANCE: Millis = Millis(900);
/// The fastest compression level. Higher levels save little memory.
const COMPRESSION_LEVEL: i32 = 1;

#[derive(Debug, Default)]
pub struct PastFrames {
    /// Compressed frames, oldest first.
    frames: VecDeque<PackedFrame>,
    bytes: usize,
}

#[derive(Debug)]
struct PackedFrame {
    at: Mono,
    interval: Millis,
    json: Box<[u8]>,
}

impl PastFrames {
    /// Adds a frame, unless less than `MIN_DISTANCE` has passed since the previous one.
    pub fn push(&mut self, frame: &Frame) {
        if self.frames.back().is_some_and(|last| frame.mono < Mono(last.at.0 + MIN_DISTANCE.0)) {
            return;
        }
        // A frame that cannot be compressed is skipped.
        let Ok(json) = serde_json::to_vec(frame) else {
            return;
        };
        let Ok(json) = zstd::bulk::compress(&json, COMPRESSION_LEVEL) else {
            return;
        };
        self.bytes += json.len();
        self.frames.push_back(PackedFrame {
            at: frame.mono,
            interval: frame.interval,
            json: json.into(),
        });
        while self.bytes > MAX_BYTES || self.oldest_age() > MAX_AGE {
            let dropped = self.frames.pop_front();
            self.bytes -= dropped.map_or(self.bytes, |frame| frame.json.len());
        }
    }

    fn oldest_age(&self) -> Millis {
        match (self.frames.front(), self.frames.back()) {
            (Some(oldest), Some(newest)) => newest.at.since(oldest.at),
            _ => Millis(0),
        }
    }

    /// Returns the last frame at or before a time, or `None` if there is no such frame or it is too old to describe
    /// that time.
    pub fn at(&self, time: Mono) -> Option<Frame> {
        let after = self.frames.partition_point(|frame| frame.at <= time);
        let packed = self.frames.get(after.checked_sub(1)?)?;
        let max_age = packed.interval.0.max(1_000).saturating_mul(5) / 2;
        if time.since(packed.at).0 > max_age {
            return None;
        }
        let json = zstd::bulk::decompress(&packed.json, MAX_FRAME_BYTES).ok()?;
        bounded_json::read(&json, usize::MAX).ok().map(|(frame, _)| frame)
    }

    /// Returns the time of the oldest retained frame.
    pub fn oldest(&self) -> Option<Mono> {
        self.frames.front().map(|frame| frame.at)
    }

    /// Drops all retained frames at or after a time.
    pub fn forget_from(&mut self, time: Mono) {
        self.frames.retain(|frame| frame.at < time);
        self.bytes = self.frames.iter().map(|frame| frame.json.len()).sum();
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(millis: u64) -> Frame {
        Frame { seq: millis, mono: Mono(millis), interval: Millis(1_000), ..Frame::default() }
    }

    #[test]
    fn returns_the_frame_shown_at_a_time() {
        let mut past = PastFrames::default();
        (0..2_000).for_each(|tenths| past.push(&frame(tenths * 1_000 / 2)));
        assert_eq!(past.at(Mono(700_400)), Some(frame(700_000)));
        // More than ten minutes before the last frame.
        assert_eq!(past.at(Mono(300_000)), None);
        // Both ends of the ten-minute range are retained.
        assert_eq!(past.frames.len(), 601);
        // A time long after the last frame.
        assert_eq!(past.at(Mono(1_010_000)), None);
        past.forget_from(Mono(700_000));
        assert_eq!(past.at(Mono(700_400)), Some(frame(699_000)));
        past.forget_from(Mono(0));
        assert_eq!(past.bytes(), 0);
    }
}
