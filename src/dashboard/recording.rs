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
    /// True until the user presses a key. Until then, the status line shows the reason.
    pub is_reason_new: bool,
    pub position: Position,
    pub return_point: ReturnPoint,
    /// True if playback starts again from the beginning after the recording ends.
    pub repeats: bool,
    /// True from the start of a jump until its position is known. The frames in between lead up to it.
    pub is_jumping: bool,
}

impl Recording {
    /// Returns the time before the user went back, or `None` if playback has reached it again.
    pub fn return_time(&self) -> Option<Mono> {
        self.return_point.time(self.position.now)
    }

    /// Returns the time to return to, also right after the user went back, while the recording has yet to jump.
    pub fn target_of_return(&self) -> Option<Mono> {
        let pending = self.return_point.is_requested().then_some(self.position.now);
        self.return_time().or(pending)
    }

    pub fn move_to(&mut self, position: Position) {
        self.is_jumping = false;
        let before = std::mem::replace(&mut self.position, position);
        self.return_point.move_to(before.now, position.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returning_before_the_jump_leads_to_where_playback_was() {
        let at = |now| Position { now: Mono(now), ..Position::default() };
        let mut recording = Recording {
            name: String::new(),
            reason: None,
            position: at(282_000),
            return_point: ReturnPoint::default(),
            repeats: false,
            is_jumping: false,
            is_reason_new: false,
        };
        assert_eq!(recording.target_of_return(), None);
        recording.return_point.request();
        assert_eq!(recording.target_of_return(), Some(Mono(282_000)));
        recording.move_to(at(237_000));
        assert_eq!(recording.target_of_return(), Some(Mono(282_000)));
    }
}
