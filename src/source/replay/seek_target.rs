//! Places in a recording as a person names them: a moment, or so many frames on.

use super::file::Recording;
use super::next_frame::FramePosition;
use crate::model::frame::Frame;
use crate::model::units::Mono;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The last frame that is not after it.
    Moment(Mono),
    /// Counted over the whole recording.
    Frame(u64),
}

/// How far into a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    Moment(Mono),
    /// Counted within the minute.
    Frame(u64),
}

impl Until {
    pub fn includes(self, place: FramePosition, frame: &Frame) -> bool {
        match self {
            Self::Moment(moment) => frame.mono <= moment,
            Self::Frame(number) => place.frame <= number,
        }
    }
}

impl Target {
    pub const START: Self = Self::Frame(0);

    /// The minute it lies in; beyond either end, the minute there.
    pub fn resolve(self, recording: &Recording) -> (usize, Until) {
        match self {
            Self::Moment(moment) => (minute_at(recording, moment), Until::Moment(moment)),
            Self::Frame(frame) => {
                let (minute, frame) = split(recording, frame);
                (minute, Until::Frame(frame))
            }
        }
    }
}

/// A minute that covers the moment, else the last that began before it: minutes of two boots may be in one file.
fn minute_at(recording: &Recording, moment: Mono) -> usize {
    let minutes = &recording.minutes;
    let covers =
        |m: &crate::source::layout::Minute| m.frames > 0 && m.start <= moment && moment <= m.end;
    minutes
        .iter()
        .position(covers)
        .or_else(|| {
            minutes
                .iter()
                .rposition(|m| m.frames > 0 && m.start <= moment)
        })
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

/// The number of a frame in the whole recording.
pub fn ordinal(recording: &Recording, place: FramePosition) -> u64 {
    let before = recording.minutes.iter().take(place.minute);
    before.fold(place.frame, |sum, m| sum.saturating_add(m.frames))
}

pub fn count(recording: &Recording) -> u64 {
    let frames = recording.minutes.iter().map(|m| m.frames);
    frames.fold(0, u64::saturating_add)
}
