//! Sends the recorded readings of memory holders after a jump: those of the preceding minutes, oldest first.
//!
//! Readings are sent as they are read, like events. After a jump, a screen also needs the newest reading of each process
//! recorded before the replay position, and the readings before it, which show what grows.

use gputop_model::protocol::{Line, Update};

use super::next_frame::limited_holders;
use super::player::Player;

/// Maximum number of minutes to search for readings. A recorder reads each process every half minute, and the growth of
/// a group results from the last ten readings.
const MAX_MINUTES: usize = 6;

/// Start of a recorded reading. Testing for it is faster than parsing every line.
const LINE_START: &[u8] = b"{\"holder_reading\"";

impl Player {
    /// Sends the readings of the minutes before `minute`, the first minute whose frames a jump sends.
    pub fn send_earlier_holders(&self, minute: usize) {
        let recording = &self.reader.recording;
        let minutes = recording.of_same_boot_before(minute).filter(|minute| minute.holders > 0);
        let minutes: Vec<_> = minutes.take(MAX_MINUTES).collect();
        for minute in minutes.into_iter().rev() {
            let Ok(mut lines) = recording.lines(minute) else { continue };
            // Stop at the first damaged line; data after it is unreadable.
            while let Ok(Some(line)) = lines.next() {
                if line.starts_with(LINE_START)
                    && let Ok(Line::Update(Update::Holders(_, reading))) = Line::read(line)
                    && let Some(reading) = limited_holders(reading)
                {
                    self.feed.wait_for_room();
                    self.feed.push(reading);
                }
            }
        }
    }
}
