//! The map of the pool that a screen shows, at the moment a replay stands at: the newest that was recorded before.
//!
//! Maps on the way are passed on as they come. After a jump, or when another pool is wanted, the newest may lie
//! further back: in the minute that is shown, which is then read once more, or in an earlier one. Only minutes that
//! hold maps are looked into, and only a few: a recorder writes all pools' maps in one round, so where some are and
//! this one is not, it was not readable.

use std::sync::Arc;

use serde::de::IgnoredAny;

use super::file::Recording;
use super::next_frame::Ahead;
use super::player::Player;
use crate::model::pool::PoolMap;
use crate::model::process::ProcessKey;
use crate::model::reading::{Missing, Reason};
use crate::source::Update;
use crate::source::wire::WireLine;

/// How many minutes with maps are looked into for one that is not there.
const MAX_MINUTES: usize = 8;

impl Player {
    /// Another pool is wanted, or none.
    pub fn want_map(&mut self, wanted: Option<(ProcessKey, u32)>) {
        if self.reader.wanted_map == wanted {
            return;
        }
        self.reader.wanted_map = wanted;
        self.has_map = false;
        if wanted.is_some() && self.shown.is_some() {
            self.read_minute_again();
            self.answer_map();
        }
    }

    /// Passes on the maps of the minute that is shown, up to its frame, without showing anything else again.
    fn read_minute_again(&mut self) {
        let Some(shown) = self.shown else { return };
        let was_at_end = matches!(self.reader.ahead(), Ahead::End);
        self.reader.seek(shown.place.minute);
        while self
            .reader
            .take_if(|place, _| {
                (place.minute, place.frame) <= (shown.place.minute, shown.place.frame)
            })
            .is_some()
        {
            self.forget_events();
        }
        while was_at_end && matches!(self.reader.ahead(), Ahead::Unread) {
            self.reader.look();
        }
        if was_at_end {
            self.forget_events();
        }
        self.tell_notices();
    }

    /// They were told when this was read before.
    fn forget_events(&mut self) {
        self.reader.take_events();
        self.feed_map();
    }

    /// A map that was passed on the way.
    pub fn feed_map(&mut self) {
        if let Some(map) = self.reader.take_map() {
            self.has_map = true;
            self.feed.push(Update::Map(map));
        }
    }

    /// When none was passed on the way: an earlier one, or why there is none.
    pub fn answer_map(&mut self) {
        let (Some(wanted), Some(shown), false) = (self.reader.wanted_map, self.shown, self.has_map)
        else {
            return;
        };
        self.has_map = true;
        let update = match earlier(&self.reader.recording, wanted, shown.place.minute) {
            Some(map) => Update::Map(Arc::new(map)),
            None => Update::NoMap(wanted, why_none(&self.reader.recording)),
        };
        self.feed.push(update);
    }
}

fn why_none(recording: &Recording) -> Missing {
    let why = if recording.minutes.iter().any(|minute| minute.maps > 0) {
        "the recording holds no map of this pool up to here"
    } else {
        "the recording holds no maps: `gputop record` writes them unless told `--maps off`"
    };
    Missing::new(Reason::NotRead, why)
}

/// The newest map of a pool in the minutes before this one.
fn earlier(recording: &Recording, wanted: (ProcessKey, u32), minute: usize) -> Option<PoolMap> {
    let mut later = recording.minutes.get(minute)?.start;
    let same_boot = recording.minutes[..minute].iter().rev().take_while(|m| {
        let is_before = m.start <= later;
        later = m.start;
        is_before
    });
    same_boot
        .filter(|minute| minute.maps > 0)
        .take(MAX_MINUTES)
        .find_map(|minute| {
            let mut lines = recording.lines(minute).ok()?;
            let mut newest = None;
            // Behind damage nothing can be read.
            while let Ok(Some(line)) = lines.next() {
                let line = WireLine::<IgnoredAny>::read(line);
                let of_it = line
                    .ok()
                    .filter(|line| line.from == 0)
                    .and_then(|line| line.map);
                newest = of_it.filter(|map| map.is_of(wanted)).or(newest);
            }
            newest?.read().ok()
        })
}
