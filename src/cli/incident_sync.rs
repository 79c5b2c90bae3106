//! Sends the client a list of this user's saved incidents, and the record of each incident that it requests.
//!
//! The service does not change the incident store; sending an incident does not mark it as read. It runs on its own
//! thread, because the home directory may be slow or unavailable. The thread waits while the client does not read.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use gputop_model::protocol::Update;
use gputop_model::{IncidentFile, RemoteIncident};
use tokio::sync::mpsc::{Sender, channel};

use crate::incident::{Changes, Store, Uid};
use crate::source::remote::MAX_LISTED_INCIDENTS;
use crate::source::remote::serve::IncidentRequests;

const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum age of incidents in the list.
const MAX_AGE: Duration = Duration::from_hours(30 * 24);

/// Starts a thread that serves this user's incident store. Returns `None` if the store is not available.
pub fn serve() -> Option<IncidentRequests> {
    let store = Store::of_this_user().ok()?;
    let (asked, requests) = sync_channel(MAX_LISTED_INCIDENTS);
    let (replies, told) = channel(1);
    let thread = thread::Builder::new().name("incidents".into());
    thread.spawn(move || watch(&store, &requests, &replies)).ok()?;
    Some(IncidentRequests { asked, replies: told })
}

fn watch(store: &Store, requests: &Receiver<String>, replies: &Sender<Update>) {
    let mut changes = Changes::default();
    loop {
        if replies.capacity() > 0 && changes.are_new(store) {
            let list = recent(store);
            if replies.blocking_send(Update::IncidentList(list)).is_err() {
                return;
            }
        }
        match requests.recv_timeout(POLL_INTERVAL) {
            Ok(uid) => {
                let incident = Arc::new(read(store, uid));
                if replies.blocking_send(Update::RemoteIncident(incident)).is_err() {
                    return;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn recent(store: &Store) -> Vec<IncidentFile> {
    let mut recent = store.recent_files(MAX_AGE).unwrap_or_default();
    recent.truncate(MAX_LISTED_INCIDENTS);
    recent
}

/// Reads an incident from the store. The result has no record if the incident is not found.
fn read(store: &Store, uid: String) -> RemoteIncident {
    let entry = uid.parse::<Uid>().ok().and_then(|uid| store.entry(&uid).ok());
    let Some(mut entry) = entry else {
        return RemoteIncident { uid, ..RemoteIncident::default() };
    };
    // Omit the memory blocks: they are most of the data, and no screen shows them.
    entry.record.forget_blocks();
    RemoteIncident {
        uid,
        is_read: entry.is_read,
        record: serde_json::to_value(&entry.record).unwrap_or_default(),
    }
}
