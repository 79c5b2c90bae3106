//! Serves a dashboard's desk: the store's incidents to the screen, what was opened there back into the store.
//!
//! On a thread of its own, since a home may be slow or gone. It looks every two seconds whether the directory has
//! changed, so that what another `gputop` has kept or opened is seen here.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use crate::incidents::{Changes, Entry, Store, StoreError, Uid};
use crate::tui::incidents::{IncidentInbox, IncidentSubject, ListedIncident};
use crate::watch::Keep;

const PERIOD: Duration = Duration::from_secs(2);
/// Those that are shown although they were read, and with what was there around them: some ten kilobytes each.
const NEWEST: usize = 32;
/// How long the last of what was opened may take to be noted.
const PATIENCE: Duration = Duration::from_secs(1);

/// The thread behind a desk.
pub struct Service {
    ended: Receiver<()>,
}

impl Service {
    /// Waits a moment for what was opened last; after the dashboard has let go of its desk.
    pub fn finish(self) {
        // An error is its end: nothing is ever sent.
        let _ = self.ended.recv_timeout(PATIENCE);
    }
}

/// A desk of this user's store.
pub fn serve(keep: Option<Keep>) -> (IncidentInbox, Service) {
    let (incidents, incoming) = tokio::sync::mpsc::unbounded_channel();
    let (opened, orders) = mpsc::channel();
    let (alive, ended) = mpsc::channel();
    let thread = thread::Builder::new().name("incidents".into());
    let started = thread.spawn(move || {
        let _alive: mpsc::Sender<()> = alive;
        if let Ok(store) = Store::of_this_user() {
            watch(&store, &incidents, &orders);
        }
    });
    if let Err(error) = started {
        tracing::warn!("the incident store is not watched: {error}");
    }
    let desk = IncidentInbox {
        incoming,
        opened,
        keep,
    };
    (desk, Service { ended })
}

fn watch(
    store: &Store,
    incidents: &UnboundedSender<Vec<ListedIncident>>,
    orders: &Receiver<String>,
) {
    let mut changes = Changes::default();
    loop {
        if changes.are_new(store) {
            match worth_showing(store) {
                Ok(known) => {
                    if incidents.send(known).is_err() {
                        return;
                    }
                }
                Err(error) => tracing::warn!("{error}"),
            }
        }
        match orders.recv_timeout(PERIOD) {
            Ok(first) => mark_read(store, [first].into_iter().chain(orders.try_iter())),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// All that nobody has read, and of those that somebody has the newest, which have their marks in the charts.
///
/// A record at a time, since a store may have tens of mebibytes of them.
fn worth_showing(store: &Store) -> Result<Vec<ListedIncident>, StoreError> {
    let (mut list, mut count) = (Vec::new(), 0);
    store.each(|entry| {
        count += 1;
        let time = entry.record.observed.time;
        // Of old ones the whole is in the store.
        if count <= NEWEST || !entry.is_read {
            list.push((time, known(entry, count <= NEWEST)));
        }
    })?;
    list.reverse();
    list.sort_by_key(|(time, _)| *time);
    Ok(list.into_iter().map(|(_, known)| known).collect())
}

fn known(entry: Entry, with_scene: bool) -> ListedIncident {
    let subject = IncidentSubject::of_record(&entry.record);
    let scene = entry.record.scene.filter(|_| with_scene);
    ListedIncident {
        incident: Arc::new(entry.record.incident),
        is_read: entry.is_read,
        subject,
        scene: scene.map(|mut scene| {
            scene.forget_blocks();
            Arc::new(*scene)
        }),
        key: None,
    }
}

fn mark_read(store: &Store, opened: impl Iterator<Item = String>) {
    let uids: Vec<Uid> = opened.filter_map(|uid| uid.parse().ok()).collect();
    if let Err(error) = store.mark_read(&uids) {
        tracing::warn!("marking incidents as read: {error}");
    }
}
