//! Tells the other side of a connection what this user's incident store holds, and each incident that it asks for.
//!
//! It reads and writes nothing: what is told is neither read nor kept by that. On a thread of its own, since a home may
//! be slow or gone.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::incidents::{Changes, Store, Uid};
use crate::model::remote_incident::{OnShelf, RemoteIncident};
use crate::source::live_message::Reply;
use crate::source::remote::MAX_LISTED_INCIDENTS;
use crate::source::remote::serve::IncidentRequests;

const PERIOD: Duration = Duration::from_secs(2);
/// What is older is told to nobody who was not there.
const OLD: Duration = Duration::from_hours(30 * 24);

/// This user's store, or none where there is none to be had.
pub fn serve() -> Option<IncidentRequests> {
    let store = Store::of_this_user().ok()?;
    let (asked, orders) = mpsc::channel();
    let (tell, told) = unbounded_channel();
    let thread = thread::Builder::new().name("incidents".into());
    thread.spawn(move || watch(&store, &orders, &tell)).ok()?;
    Some(IncidentRequests {
        asked,
        replies: told,
    })
}

/// Until the other side is gone.
fn watch(store: &Store, orders: &Receiver<String>, tell: &UnboundedSender<Reply>) {
    let mut changes = Changes::default();
    loop {
        if changes.are_new(store) {
            let files = Reply {
                stored_incidents: Some(files(store)),
                ..Reply::default()
            };
            if tell.send(files).is_err() {
                return;
            }
        }
        match orders.recv_timeout(PERIOD) {
            Ok(uid) => {
                let incident = Reply {
                    incident: Some(Box::new(kept(store, uid))),
                    ..Reply::default()
                };
                if tell.send(incident).is_err() {
                    return;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// The newest first.
fn files(store: &Store) -> Vec<OnShelf> {
    let mut files = store.recent_files(OLD).unwrap_or_default();
    files.truncate(MAX_LISTED_INCIDENTS);
    files
}

fn kept(store: &Store, uid: String) -> RemoteIncident {
    let entry = uid
        .parse::<Uid>()
        .ok()
        .and_then(|uid| store.entry(&uid).ok());
    let Some(mut entry) = entry else {
        return RemoteIncident {
            uid,
            ..RemoteIncident::default()
        };
    };
    // No screen shows them, and they are most of it.
    if let Some(scene) = &mut entry.record.scene {
        scene.forget_blocks();
    }
    RemoteIncident {
        uid,
        is_read: entry.is_read,
        record: serde_json::to_value(&entry.record).unwrap_or_default(),
    }
}
