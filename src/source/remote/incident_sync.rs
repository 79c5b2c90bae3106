//! What is still to be heard of the far side's incident store: it tells a list, and each that is new is asked for, one at a
//! time, so that a hundred of them hold up no frame. A list comes with each connection and after each change over there;
//! what a lost connection still owed is asked for on the next, and what was written there meanwhile is new in its list.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::model::remote_incident::{OnShelf, RemoteIncident};

/// Of a list no more is read.
pub const MAX_ON_SHELF: usize = 64;
/// A far side is asked for no more in an hour, whatever it lists: more would push out of the store here what is this
/// user's.
const MAX_ASKED: usize = 256;
const HOUR: Duration = Duration::from_hours(1);

/// One for as long as a host is watched, over all its connections.
#[derive(Debug, Default)]
pub(super) struct IncidentSync {
    /// Of the newest list those that were told.
    told: Vec<OnShelf>,
    waiting: VecDeque<OnShelf>,
    asked: Option<OnShelf>,
    /// Since when they are counted, and how many were asked for since.
    hour: Option<Instant>,
    count: usize,
}

impl IncidentSync {
    /// There is another connection: what was asked for will not come.
    pub(super) fn connect(&mut self) {
        self.asked = None;
        self.waiting.clear();
    }

    /// What to ask for now.
    pub(super) fn take_list(&mut self, mut list: Vec<OnShelf>, now: Instant) -> Option<String> {
        list.truncate(MAX_ON_SHELF);
        let is_same = |one: &OnShelf, other: &OnShelf| {
            one.uid == other.uid && (one.modified, one.bytes) == (other.modified, other.bytes)
        };
        self.told
            .retain(|told| list.iter().any(|listed| is_same(listed, told)));
        let known = || self.told.iter().chain(&self.asked);
        list.retain(|listed| !known().any(|known| is_same(known, listed)));
        self.waiting = list.into();
        match self.asked {
            Some(_) => None,
            None => self.next(now),
        }
    }

    /// Whether it is what was asked for, and what to ask for now. What could not be read there is asked for again with the
    /// next list.
    pub(super) fn take(&mut self, kept: &RemoteIncident, now: Instant) -> (bool, Option<String>) {
        let Some(asked) = self.asked.take_if(|asked| asked.uid == kept.uid) else {
            return (false, None);
        };
        let is_told = !kept.record.is_null();
        if is_told {
            self.told.push(asked);
        }
        (is_told, self.next(now))
    }

    fn next(&mut self, now: Instant) -> Option<String> {
        if self.hour.is_none_or(|since| now - since >= HOUR) {
            (self.hour, self.count) = (Some(now), 0);
        }
        if self.count == MAX_ASKED {
            return None;
        }
        self.asked = self.waiting.pop_front();
        let asked = self.asked.as_ref()?;
        self.count += 1;
        Some(asked.uid.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(uid: &str, modified: i64) -> OnShelf {
        OnShelf {
            uid: uid.into(),
            modified,
            ..OnShelf::default()
        }
    }

    fn kept(uid: &str) -> RemoteIncident {
        RemoteIncident {
            uid: uid.into(),
            record: serde_json::json!({}),
            ..RemoteIncident::default()
        }
    }

    fn asks(uid: &str) -> Option<String> {
        Some(uid.to_owned())
    }

    #[test]
    fn each_is_asked_for_once_and_again_where_it_was_revised() {
        let (mut wanted, now) = (IncidentSync::default(), Instant::now());
        let list = || vec![listed("a", 1), listed("b", 1)];
        assert_eq!(wanted.take_list(list(), now), asks("a"));
        assert_eq!(wanted.take_list(list(), now), None);
        assert_eq!(wanted.take(&kept("b"), now), (false, None), "nobody asked");
        assert_eq!(wanted.take(&kept("a"), now), (true, asks("b")));
        assert_eq!(wanted.take(&kept("b"), now), (true, None));
        assert_eq!(wanted.take(&kept("b"), now), (false, None));
        assert_eq!(wanted.take_list(list(), now), None);
        let revised = vec![listed("a", 1), listed("b", 2)];
        assert_eq!(wanted.take_list(revised, now), asks("b"));
    }

    #[test]
    fn what_a_lost_connection_did_not_tell_is_asked_for_on_the_next() {
        let (mut wanted, now) = (IncidentSync::default(), Instant::now());
        let list = || vec![listed("a", 1), listed("b", 1)];
        assert_eq!(wanted.take_list(list(), now), asks("a"));
        assert_eq!(wanted.take(&kept("a"), now), (true, asks("b")));
        wanted.connect();
        assert_eq!(wanted.take(&kept("b"), now), (false, None));
        assert_eq!(wanted.take_list(list(), now), asks("b"));
    }

    #[test]
    fn a_far_side_that_always_has_another_one_is_not_asked_for_ever() {
        let (mut wanted, now) = (IncidentSync::default(), Instant::now());
        let mut asked = 0;
        for time in 0..1_000 {
            let mut next = wanted.take_list(vec![listed("a", time), listed("b", time)], now);
            while let Some(uid) = next {
                asked += 1;
                next = wanted.take(&kept(&uid), now).1;
            }
        }
        assert_eq!(asked, MAX_ASKED);
        // Somebody watches for weeks, and things fail now and then.
        let later = wanted.take_list(vec![listed("c", 1)], now + HOUR);
        assert_eq!(later, asks("c"));
        assert!(wanted.told.len() <= MAX_ON_SHELF);
    }

    #[test]
    fn what_could_not_be_read_there_is_asked_for_again() {
        let (mut wanted, now) = (IncidentSync::default(), Instant::now());
        let list = || vec![listed("a", 1)];
        assert_eq!(wanted.take_list(list(), now), asks("a"));
        let unread = RemoteIncident {
            record: serde_json::Value::Null,
            ..kept("a")
        };
        assert_eq!(wanted.take(&unread, now), (false, None));
        assert_eq!(wanted.take_list(list(), now), asks("a"));
    }
}
