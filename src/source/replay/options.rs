//! Options of the playback.

use gputop_model::units::Millis;

/// Playback options.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// True if playback starts paused on the first frame.
    pub paused: bool,
    pub speed: f32,
    /// True if playback restarts at the end of the recording instead of pausing.
    pub repeat: bool,
    /// Offset from the start of the recording at which playback starts.
    pub start: Millis,
}

impl Default for Options {
    fn default() -> Self {
        Self { paused: false, speed: 1.0, repeat: false, start: Millis(0) }
    }
}
