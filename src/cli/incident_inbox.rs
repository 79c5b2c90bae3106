//! Connects a dashboard to the incident store: sends saved incidents to the screen, and marks opened ones as read.
//!
//! The inbox runs on its own thread, because the home directory may be slow or unavailable. The thread checks the
//! directory for changes every 2 seconds, to notice incidents that another `gputop` saved or opened.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::Sender;

use crate::dashboard::incidents::{IncidentInbox, ListedIncident};
use crate::incident::{Changes, IncidentSink, Store, StoreError, Uid};

const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Number of newest incidents to show even if they have been read. Each takes about 10 KB, because its scene (the state
/// of the host at that time) is loaded too.
const MAX_NEWEST: usize = 32;
/// Maximum time that gputop waits on exit for the most recently opened incidents to be marked as read.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// Thread that serves an [`IncidentInbox`].
pub struct Service {
    exited: Receiver<()>,
}

impl Service {
    /// Waits until the most recently opened incidents are marked as read. The dashboard must drop its inbox first.
    pub fn finish(self) {
        // The channel never carries a message. It closes when the thread exits.
        let _ = self.exited.recv_timeout(FINISH_TIMEOUT);
    }
}

/// Starts a thread that serves this user's incident store, and returns the inbox for the dashboard.
pub fn serve(sink: Option<IncidentSink>) -> (IncidentInbox, Service) {
    let (incidents, incoming) = tokio::sync::mpsc::channel(1);
    let (opened, opened_uids) = mpsc::channel();
    let (alive, exited) = mpsc::channel();
    let started = thread::Builder::new().name("incidents".into()).spawn(move || {
        let _alive: mpsc::Sender<()> = alive;
        if let Ok(store) = Store::of_this_user() {
            watch(&store, &incidents, &opened_uids);
        }
    });
    if let Err(error) = started {
        tracing::warn!("cannot watch the incident store: {error}");
    }
    let inbox = IncidentInbox { incoming, opened, sink };
    (inbox, Service { exited })
}

fn watch(store: &Store, incidents: &Sender<Vec<ListedIncident>>, opened_uids: &Receiver<String>) {
    let mut changes = Changes::default();
    loop {
        // While the screen does not read, the next list waits, because it replaces the unread one.
        if incidents.capacity() > 0 && changes.are_new(store) {
            match unread_and_newest(store) {
                Ok(listed) => {
                    if incidents.blocking_send(listed).is_err() {
                        return;
                    }
                }
                Err(error) => tracing::warn!("{error}"),
            }
        }
        match opened_uids.recv_timeout(POLL_INTERVAL) {
            Ok(first) => mark_read(store, [first].into_iter().chain(opened_uids.try_iter())),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Returns all unread incidents, and the newest of those already read, because the charts mark these too.
///
/// Reads one record at a time, because a store may hold tens of MiB.
fn unread_and_newest(store: &Store) -> Result<Vec<ListedIncident>, StoreError> {
    let (mut list, mut count) = (Vec::new(), 0);
    store.each(|entry| {
        count += 1;
        let time = entry.record.key.time;
        // Drop the scenes of old incidents to save memory. The store still has them.
        if count <= MAX_NEWEST || !entry.is_read {
            let with_scene = count <= MAX_NEWEST;
            let listed = ListedIncident::of_record(entry.record, entry.is_read, with_scene);
            list.push((time, listed));
        }
    })?;
    list.reverse();
    list.sort_by_key(|(time, _)| *time);
    Ok(list.into_iter().map(|(_, listed)| listed).collect())
}

fn mark_read(store: &Store, opened: impl Iterator<Item = String>) {
    let uids: Vec<Uid> = opened.filter_map(|uid| uid.parse().ok()).collect();
    if let Err(error) = store.mark_read(&uids) {
        tracing::warn!("cannot mark incidents as read: {error}");
    }
}
