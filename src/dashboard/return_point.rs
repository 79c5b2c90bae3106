//! The time to which a user can return after going back in a recording.

use gputop_model::units::{Millis, Mono};

/// Maximum distance of two frames that are shown one after the other. Larger distances are jumps.
const MAX_FRAME_DISTANCE: Millis = Millis(5_000);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReturnPoint {
    /// Playback position before the user went back.
    time: Option<Mono>,
    /// True from the user's request to go back until the recording jumps. Playback continues in between.
    is_requested: bool,
}

impl ReturnPoint {
    pub fn request(&mut self) {
        self.is_requested = true;
    }

    pub fn is_requested(&self) -> bool {
        self.is_requested
    }

    /// Handles a move of the playback position. Several jumps in a row return to the start of the first one. Forgets the
    /// time once playback has reached it again.
    pub fn move_to(&mut self, before: Mono, now: Mono) {
        let is_jump = now < before || now.since(before) > MAX_FRAME_DISTANCE;
        if self.is_requested && is_jump {
            self.is_requested = false;
            self.time = self.time(before).or(Some(before));
            return;
        }
        let is_reached = |time: Mono| {
            if time == before { now > time && !is_jump } else { (before..=now).contains(&time) }
        };
        self.time = self.time.filter(|time| !is_reached(*time));
    }

    /// Returns the time to return to, or `None` if playback is there.
    pub fn time(&self, now: Mono) -> Option<Mono> {
        self.time.filter(|time| *time != now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn went_back(from: u64, to: u64) -> ReturnPoint {
        let mut point = ReturnPoint::default();
        point.request();
        // Playback continues until the jump.
        point.move_to(Mono(from - 1_000), Mono(from));
        point.move_to(Mono(from), Mono(to));
        point
    }

    #[test]
    fn several_jumps_return_to_the_start_of_the_first() {
        let mut point = went_back(282_000, 272_000);
        point.request();
        point.move_to(Mono(272_000), Mono(0));
        assert_eq!(point.time(Mono(0)), Some(Mono(282_000)));
    }

    #[test]
    fn the_time_is_forgotten_once_playback_reaches_it() {
        let mut point = went_back(282_000, 281_000);
        point.move_to(Mono(281_000), Mono(282_000));
        assert_eq!(point.time(Mono(283_000)), None);
        // Playback that continues from the same position leaves it, too.
        let mut point = went_back(282_000, 600_000);
        assert_eq!(point.time(Mono(600_000)), Some(Mono(282_000)));
        point.move_to(Mono(600_000), Mono(282_000));
        assert_eq!(point.time(Mono(282_000)), None);
        point.move_to(Mono(282_000), Mono(283_000));
        assert_eq!(point.time(Mono(283_000)), None);
    }

    #[test]
    fn a_jump_without_a_request_is_not_returned_from() {
        let mut point = ReturnPoint::default();
        // A recording that repeats.
        point.move_to(Mono(600_000), Mono(0));
        assert_eq!(point.time(Mono(0)), None);
    }
}
