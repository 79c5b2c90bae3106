//! Selects the memory map shown for a pool: the newest map recorded before the replay position.
//!
//! Maps are sent as they are read. After a jump, or after another pool is selected, the newest map may be at an earlier
//! position: in the current minute, which is then reread, or in an earlier minute. Only a few minutes with maps are
//! searched. A recorder writes the maps of all pools in one round, so a round without a map of this pool means that the
//! map could not be read.

use std::sync::Arc;

use gputop_model::protocol::map_line::MapLine;
use gputop_model::protocol::{Line, Update};
use gputop_model::{Missing, PoolMap, ProcessKey, Reason};

use super::file::Recording;
use super::next_frame::NextFrame;
use super::player::Player;

/// Maximum number of minutes to search for a map.
const MAX_MINUTES: usize = 8;

impl Player {
    /// Selects the pool whose maps are sent. `None` selects no pool.
    pub fn select_map(&mut self, wanted: Option<(ProcessKey, u32)>) {
        if self.reader.wanted_map == wanted {
            return;
        }
        self.reader.wanted_map = wanted;
        self.is_map_sent = false;
        if wanted.is_some() && self.shown.is_some() {
            self.read_minute_again();
            self.send_earlier_map();
        }
    }

    /// Rereads the current minute up to the shown frame, and sends only the maps found in it.
    fn read_minute_again(&mut self) {
        let Some(shown) = self.shown else { return };
        let was_at_end = matches!(self.reader.next_frame(), NextFrame::End);
        self.reader.seek(shown.position.minute);
        while self
            .reader
            .take_if(|position, _| {
                (position.minute, position.frame) <= (shown.position.minute, shown.position.frame)
            })
            .is_some()
        {
            self.discard_events();
        }
        while was_at_end && matches!(self.reader.next_frame(), NextFrame::Unread) {
            self.reader.read_ahead();
        }
        if was_at_end {
            self.discard_events();
        }
        self.send_notices();
    }

    /// Discards the events of a reread minute, because they were already sent.
    fn discard_events(&mut self) {
        self.reader.take_events();
        self.send_map();
    }

    /// Sends the map that was read together with the frames, if any.
    pub fn send_map(&mut self) {
        if let Some(map) = self.reader.take_map() {
            self.is_map_sent = true;
            self.feed.push(Update::Map(map));
        }
    }

    /// Sends the newest map recorded before the replay position, or the reason why no map exists. Does nothing if a map
    /// was already sent.
    pub fn send_earlier_map(&mut self) {
        let (Some(wanted), Some(shown), false) =
            (self.reader.wanted_map, self.shown, self.is_map_sent)
        else {
            return;
        };
        self.is_map_sent = true;
        let update = match earlier(&self.reader.recording, wanted, shown.position.minute) {
            Some(map) => Update::Map(Arc::new(map)),
            None => Update::NoMap(wanted, missing_map(&self.reader.recording)),
        };
        self.feed.push(update);
    }
}

fn missing_map(recording: &Recording) -> Missing {
    let why = if recording.minutes.iter().any(|minute| minute.maps > 0) {
        "the recording contains no map of this pool up to this time"
    } else {
        "the recording contains no maps (for example, recorded with `gputop record --maps off`)"
    };
    Missing::new(Reason::NotRead, why)
}

/// Returns the newest map of a pool, searching backward from the given minute.
fn earlier(recording: &Recording, wanted: (ProcessKey, u32), minute: usize) -> Option<PoolMap> {
    let minutes = recording.of_same_boot_before(minute);
    minutes.filter(|minute| minute.maps > 0).take(MAX_MINUTES).find_map(|minute| {
        let mut lines = recording.lines(minute).ok()?;
        let mut newest = None;
        // Stop at the first damaged line; data after it is unreadable.
        while let Ok(Some(line)) = lines.next() {
            if MapLine::is_map(line)
                && let Ok(Line::Map(map)) = Line::read(line)
                && map.is_of(wanted)
            {
                newest = Some(map);
            }
        }
        newest?.read().ok()
    })
}
