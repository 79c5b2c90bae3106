//! Copies incidents from the store of a remote host. The host sends a list, and each new incident is requested
//! individually, so that a hundred incidents do not delay frames. A list arrives with each connection and after each
//! change. If a connection is lost before an incident arrives, the incident is requested on the next connection. The
//! next list contains all incidents saved since the previous list.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use gputop_model::{IncidentFile, RemoteIncident};

pub const MAX_LISTED_INCIDENTS: usize = 64;
/// Maximum length of an incident's name. The names that a store chooses have 12 letters.
const MAX_NAME_BYTES: usize = 64;
/// Maximum number of requests per hour, however many incidents the host lists. More incidents would evict this user's
/// own incidents from the local store.
const MAX_REQUESTS_PER_HOUR: usize = 256;
const HOUR: Duration = Duration::from_hours(1);

#[derive(Debug, Default)]
pub(super) struct IncidentSync {
    /// Incidents in the newest list that have already been received.
    received: Vec<IncidentFile>,
    waiting: VecDeque<IncidentFile>,
    requested: Option<IncidentFile>,
    /// Start of the hour in which requests are counted, and the number of requests since then.
    hour: Option<Instant>,
    count: usize,
}

impl IncidentSync {
    /// Discards pending requests when a new connection starts, because their replies will not arrive.
    pub(super) fn connect(&mut self) {
        self.requested = None;
        self.waiting.clear();
    }

    /// Processes an incident list from the remote host. Returns the incident to request now, if any.
    pub(super) fn receive_list(
        &mut self,
        mut list: Vec<IncidentFile>,
        now: Instant,
    ) -> Option<String> {
        list.truncate(MAX_LISTED_INCIDENTS);
        list.retain(|listed| listed.uid.len() <= MAX_NAME_BYTES);
        let is_same = |one: &IncidentFile, other: &IncidentFile| {
            one.uid == other.uid && (one.modified, one.bytes) == (other.modified, other.bytes)
        };
        self.received.retain(|received| list.iter().any(|listed| is_same(listed, received)));
        let known = || self.received.iter().chain(&self.requested);
        list.retain(|listed| !known().any(|known| is_same(known, listed)));
        self.waiting = list.into();
        match self.requested {
            Some(_) => None,
            None => self.next(now),
        }
    }

    /// Processes a received incident. Returns true if it was requested and could be read, and the incident to request
    /// next, if any. An incident that could not be read is requested again when the next list arrives.
    pub(super) fn receive(
        &mut self,
        incident: &RemoteIncident,
        now: Instant,
    ) -> (bool, Option<String>) {
        let Some(requested) = self.requested.take_if(|requested| requested.uid == incident.uid)
        else {
            return (false, None);
        };
        let is_readable = !incident.record.is_null();
        if is_readable {
            self.received.push(requested);
        }
        (is_readable, self.next(now))
    }

    fn next(&mut self, now: Instant) -> Option<String> {
        if self.hour.is_none_or(|since| now - since >= HOUR) {
            (self.hour, self.count) = (Some(now), 0);
        }
        if self.count == MAX_REQUESTS_PER_HOUR {
            return None;
        }
        self.requested = self.waiting.pop_front();
        let requested = self.requested.as_ref()?;
        self.count += 1;
        Some(requested.uid.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(uid: &str, modified: i64) -> IncidentFile {
        IncidentFile { uid: uid.into(), modified, ..IncidentFile::default() }
    }

    fn incident(uid: &str) -> RemoteIncident {
        RemoteIncident {
            uid: uid.into(),
            record: serde_json::json!({}),
            ..RemoteIncident::default()
        }
    }

    fn request(uid: &str) -> Option<String> {
        Some(uid.to_owned())
    }

    #[test]
    fn requests_each_incident_once_and_again_after_a_change() {
        let (mut sync, now) = (IncidentSync::default(), Instant::now());
        let list = || vec![listed("a", 1), listed("b", 1)];
        assert_eq!(sync.receive_list(list(), now), request("a"));
        assert_eq!(sync.receive_list(list(), now), None);
        assert_eq!(sync.receive(&incident("b"), now), (false, None), "not requested");
        assert_eq!(sync.receive(&incident("a"), now), (true, request("b")));
        assert_eq!(sync.receive(&incident("b"), now), (true, None));
        assert_eq!(sync.receive(&incident("b"), now), (false, None));
        assert_eq!(sync.receive_list(list(), now), None);
        let revised = vec![listed("a", 1), listed("b", 2)];
        assert_eq!(sync.receive_list(revised, now), request("b"));
    }

    #[test]
    fn requests_missing_incidents_on_the_next_connection() {
        let (mut sync, now) = (IncidentSync::default(), Instant::now());
        let list = || vec![listed("a", 1), listed("b", 1)];
        assert_eq!(sync.receive_list(list(), now), request("a"));
        assert_eq!(sync.receive(&incident("a"), now), (true, request("b")));
        sync.connect();
        assert_eq!(sync.receive(&incident("b"), now), (false, None));
        assert_eq!(sync.receive_list(list(), now), request("b"));
    }

    #[test]
    fn limits_the_requests_per_hour() {
        let (mut sync, now) = (IncidentSync::default(), Instant::now());
        let mut requested = 0;
        for time in 0..1_000 {
            let mut next = sync.receive_list(vec![listed("a", time), listed("b", time)], now);
            while let Some(uid) = next {
                requested += 1;
                next = sync.receive(&incident(&uid), now).1;
            }
        }
        assert_eq!(requested, MAX_REQUESTS_PER_HOUR);
        // After one hour, requests are allowed again.
        let later = sync.receive_list(vec![listed("c", 1)], now + HOUR);
        assert_eq!(later, request("c"));
        assert!(sync.received.len() <= MAX_LISTED_INCIDENTS);
    }

    #[test]
    fn requests_an_unreadable_incident_again() {
        let (mut sync, now) = (IncidentSync::default(), Instant::now());
        let list = || vec![listed("a", 1)];
        assert_eq!(sync.receive_list(list(), now), request("a"));
        let unread = RemoteIncident { record: serde_json::Value::Null, ..incident("a") };
        assert_eq!(sync.receive(&unread, now), (false, None));
        assert_eq!(sync.receive_list(list(), now), request("a"));
    }
}
