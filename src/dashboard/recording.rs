//! The recording that is being played.

use gputop_model::protocol::Position;
use gputop_model::units::Mono;

use super::return_point::ReturnPoint;

/// The recording being played.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    pub name: String,
    /// The reason why gputop plays the built-in recording without being asked to.
    pub reason: Option<String>,
    pub position: Position,
    pub return_point: ReturnPoint,
    /// True if playback starts again from the beginning after the recording ends.
    pub repeats: bool,
}

impl Recording {
    /// Returns the time before the user went back, or `None` if playback has reached it again.
    pub fn return_time(&self) -> Option<Mono> {
        self.return_point.time(self.position.now)
    }

    pub fn move_to(&mut self, position: Position) {
        let before = std::mem::replace(&mut self.position, position);
        self.return_point.move_to(before.now, position.now);
    }
}
