//! Jump targets in a recording: a time or a frame number.

use gputop_model::{Frame, Mono};

use super::file::Recording;
use super::next_frame::FramePosition;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The last frame at or before a time.
    Time(Mono),
    /// Frame number in the whole recording.
    Frame(u64),
}

/// Position within a minute of the recording. Earlier frames are shown, later ones are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    Time(Mono),
    /// Frame number within the minute.
    Frame(u64),
}

impl Until {
    pub fn includes(self, position: FramePosition, frame: &Frame) -> bool {
        match self {
            Self::Time(time) => frame.mono <= time,
            Self::Frame(number) => position.frame <= number,
        }
    }
}

impl Target {
    pub const START: Self = Self::Frame(0);
    pub const END: Self = Self::Frame(u64::MAX);

    /// Returns the minute that contains the target, or the first or last minute if the target is outside the recording.
    pub fn resolve(self, recording: &Recording) -> (usize, Until) {
        match self {
            Self::Time(time) => (minute_at(recording, time), Until::Time(time)),
            Self::Frame(frame) => {
                let (minute, frame) = split(recording, frame);
                (minute, Until::Frame(frame))
            }
        }
    }
}

/// Returns the minute that covers a time, or the last minute that started before the time. Minutes in a file may be
/// from several boots.
fn minute_at(recording: &Recording, time: Mono) -> usize {
    let minutes = &recording.minutes;
    let covers =
        |m: &crate::source::layout::Minute| m.frames > 0 && m.start <= time && time <= m.end;
    minutes
        .iter()
        .position(covers)
        .or_else(|| minutes.iter().rposition(|m| m.frames > 0 && m.start <= time))
        .or_else(|| minutes.iter().position(|m| m.frames > 0))
        .unwrap_or(0)
}

fn split(recording: &Recording, mut frame: u64) -> (usize, u64) {
    let mut last = (0, 0);
    for (i, minute) in recording.minutes.iter().enumerate() {
        if frame < minute.frames {
            return (i, frame);
        }
        frame -= minute.frames;
        if minute.frames > 0 {
            last = (i, minute.frames - 1);
        }
    }
    last
}

/// Returns a frame's number in the whole recording.
pub fn ordinal(recording: &Recording, position: FramePosition) -> u64 {
    let before = recording.minutes.iter().take(position.minute);
    before.fold(position.frame, |sum, m| sum.saturating_add(m.frames))
}

pub fn count(recording: &Recording) -> u64 {
    recording.minutes.iter().map(|m| m.frames).fold(0, u64::saturating_add)
}
