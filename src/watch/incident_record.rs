//! From what was concluded to a record of the store, with what was seen around it.
//!
//! What the store does not take now, since another writer holds it or the disk is slow, is owed and brought again: the
//! far side tells an incident once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::UnboundedSender;

use super::recording_incidents::Ledger;
use super::{Keep, WatchResult};
use crate::diagnose::live::Revision;
use crate::incidents::{
    Evidence, Excerpt, Key, NOTICE_LIMIT, Notice, Record, Stored, Track, Uid, in_time, notify, put,
};
use crate::model::event::Event;
use crate::model::host::Hello;
use crate::model::incident::Severity;
use crate::model::remote_incident::RemoteIncident;
use crate::model::scene::Scene;
use crate::model::units::{Millis, Mono};

/// Events that are kept for what is found later.
const MAX_EVENTS: usize = 256;
/// What is owed to the store; of more the oldest goes.
const MAX_OWED: usize = 64;
/// A store that could not be written is left alone for so long.
const AGAIN_AFTER: Millis = Millis(5_000);

/// And is brought so often: what is no incident is never taken.
const MAX_TRIES: u32 = 100;

/// What the store could not take.
struct UnsavedIncident {
    what: UnsavedRecord,
    tries: u32,
}

#[derive(Clone)]
enum UnsavedRecord {
    Own(Box<Record>),
    Remote(Arc<RemoteIncident>),
}

/// One thread is at the store at a time: when a job of a hundred hosts fails they all have something to keep, and whoever waits
/// for the store's own lock gives up after two seconds.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Keeping {
    /// None of a recording.
    keep: Option<Keep>,
    ledger: Ledger,
    tell: UnboundedSender<WatchResult>,
    host: String,
    versions: BTreeMap<String, String>,
    events: VecDeque<Event>,
    owed: VecDeque<UnsavedIncident>,
    /// Since when something is owed, or when it was tried last.
    tried: Option<Mono>,
    /// Said once: a store that cannot be written now cannot be written a second later.
    is_trouble_told: bool,
}

impl Keeping {
    pub fn new(keep: Option<Keep>, tell: UnboundedSender<WatchResult>) -> Self {
        Self {
            keep,
            ledger: Ledger::default(),
            tell,
            host: String::new(),
            versions: BTreeMap::new(),
            events: VecDeque::new(),
            owed: VecDeque::new(),
            tried: None,
            is_trouble_told: false,
        }
    }

    pub fn hello(&mut self, hello: &Hello) {
        self.host.clone_from(&hello.host);
        let mut put = |name: &str, version: Option<&String>| {
            if let Some(version) = version {
                self.versions.insert(name.into(), version.clone());
            }
        };
        put("gputop", Some(&hello.version));
        put("kernel", hello.kernel.value());
    }

    pub fn event(&mut self, event: &Event) {
        self.events.push_back(event.clone());
        if self.events.len() > MAX_EVENTS {
            self.events.pop_front();
        }
    }

    /// Makes of what is concluded what is known, by whomever; its name in the store, and none where it could not be kept,
    /// which is told.
    pub fn keep(&mut self, revision: &mut Revision) -> Option<Uid> {
        let record = self.record(revision);
        if self.keep.is_none() {
            let (key, known) = self.ledger.write(revision.key.clone(), record);
            (revision.key, revision.incident) = (key.clone(), known.incident.clone());
            return None;
        }
        let stored = self.bring(UnsavedRecord::Own(Box::new(record)), 1)?;
        revision.incident = *stored.incident;
        Some(stored.uid)
    }

    /// Into the store, or among what is owed.
    fn bring(&mut self, what: UnsavedRecord, tries: u32) -> Option<Stored> {
        let store = self.keep.as_ref()?.store.clone();
        let turn = turn();
        let brought = match what.clone() {
            UnsavedRecord::Own(record) => put(store, *record),
            UnsavedRecord::Remote(kept) => {
                in_time(move || store.adopt(RemoteIncident::clone(&kept)))
            }
        };
        drop(turn);
        match (brought, &what) {
            (Ok(stored), UnsavedRecord::Own(_)) => {
                self.notify(&stored);
                Some(stored)
            }
            (Ok(stored), UnsavedRecord::Remote(_)) => Some(stored),
            (Err(why), _) => {
                self.trouble(&why);
                if self.owed.len() == MAX_OWED {
                    self.owed.pop_front();
                }
                if tries < MAX_TRIES {
                    self.owed.push_back(UnsavedIncident { what, tries });
                }
                None
            }
        }
    }

    /// Brings what is owed, from time to time.
    pub fn settle(&mut self, now: Mono) {
        if self.owed.is_empty() {
            self.tried = None;
            return;
        }
        if now.since(*self.tried.get_or_insert(now)) < AGAIN_AFTER {
            return;
        }
        self.tried = Some(now);
        // What is not taken goes behind the others, which wait for the next time.
        while let Some(UnsavedIncident { what, tries }) = self.owed.pop_front() {
            if self.bring(what, tries + 1).is_none() {
                return;
            }
        }
    }

    fn record(&self, revision: &Revision) -> Record {
        let mut incident = revision.incident.clone();
        incident.host = Some(self.host.clone()).filter(|host| !host.is_empty());
        let key = Key {
            boot_id: revision.key.boot_id.clone(),
            process: revision.key.process,
            run: revision.run,
            gpu: revision.key.gpu.clone(),
            first: revision.key.first,
            time: revision.time,
        };
        let is_its = |event: &&Event| match event.process {
            Some(process) => revision.processes.contains(&process),
            None => event.gpu == revision.key.gpu,
        };
        let events: Vec<Event> = self.events.iter().filter(is_its).cloned().collect();
        let own = |(name, version): (&String, &String)| (name.clone(), version.clone());
        Record {
            concluded_by: events.first().map(|event| event.agent.clone()),
            command: revision.command.clone(),
            excerpt: (!revision.excerpt.is_empty()).then(|| Excerpt {
                text: revision.excerpt.clone(),
                is_cut: false,
            }),
            evidence: Evidence {
                events,
                ..Evidence::default()
            },
            versions: self
                .versions
                .iter()
                .map(own)
                .chain(revision.scene.versions())
                .collect(),
            scene: Some(Box::new(Scene::clone(&revision.scene))),
            ..Record::new(incident, key)
        }
    }

    /// Keeps what the far host's store holds.
    pub fn adopt(&mut self, kept: &Arc<RemoteIncident>) {
        self.bring(UnsavedRecord::Remote(Arc::clone(kept)), 1);
    }

    /// As it lies in a recording; no living host says it so.
    pub fn replay(&mut self, kept: &RemoteIncident) -> Option<Revision> {
        match self.keep {
            Some(_) => None,
            None => self.ledger.adopt(kept),
        }
    }

    /// A recording jumped.
    pub fn forget(&mut self) {
        self.events.clear();
        self.ledger.forget();
    }

    /// Adds the minutes around an incident, which whoever draws charts has.
    pub fn add_history(&mut self, uid: &Uid, tracks: Vec<Track>) {
        let Some(keep) = &self.keep else { return };
        let (store, uid) = (keep.store.clone(), uid.clone());
        let _turn = turn();
        let added = in_time(move || {
            let record = store.read(&uid)?;
            store.write(Record {
                history: tracks,
                ..record
            })
        });
        if let Err(why) = added {
            self.trouble(&why);
        }
    }

    fn trouble(&mut self, why: &str) {
        if !std::mem::replace(&mut self.is_trouble_told, true) {
            let why = format!("the incident is not kept: {why}");
            let _ = self.tell.send(WatchResult::Trouble(why));
        }
    }

    /// Tells whoever the user wants told: what failed for good or was caught, no notes. What another host's store told was told there.
    fn notify(&self, stored: &Stored) {
        let Some(keep) = &self.keep else { return };
        let Some(command) = keep.on_incident.clone() else {
            return;
        };
        if matches!(stored.incident.severity, Severity::Note | Severity::Unknown) {
            return;
        }
        let (store, uid) = (keep.store.clone(), stored.uid.clone());
        let tell = self.tell.clone();
        // A command that hangs must not hold up the next incident.
        let run = move || {
            if let Notice::Failed(why) = notify(&store, &uid, &command, NOTICE_LIMIT) {
                let _ = tell.send(WatchResult::Trouble(why));
            }
        };
        let _ = std::thread::Builder::new()
            .name("on_incident".into())
            .spawn(run);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::incidents::Store;
    use crate::model::process::ProcessKey;

    #[test]
    fn what_a_busy_store_did_not_take_is_brought_again() {
        let home = tempfile::tempdir().expect("a directory");
        let store = Store::at(&home.path().join("incidents"));
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let keep = Keep {
            store: store.clone(),
            on_incident: None,
        };
        let mut keeping = Keeping::new(Some(keep), tell);
        let kept = |start: u64| {
            let observed = Key {
                boot_id: "boot".into(),
                process: Some(ProcessKey {
                    pid: crate::model::units::Pid(418),
                    start: crate::model::units::StartTicks(start),
                }),
                ..Key::default()
            };
            Arc::new(RemoteIncident {
                uid: "01kq3v7-x2c9".into(),
                is_read: false,
                record: serde_json::to_value(Record::new(Default::default(), observed))
                    .expect("JSON"),
            })
        };
        let count = || store.list().expect("a list").entries.len();
        keeping.adopt(&kept(1));
        assert_eq!(count(), 1);
        let lock = File::open(store.folder().join("lock")).expect("a lock");
        lock.lock().expect("it is held");
        keeping.adopt(&kept(2));
        assert_eq!(count(), 1);
        assert!(matches!(told.try_recv(), Ok(WatchResult::Trouble(_))));
        drop(lock);
        // Not at once.
        keeping.settle(Mono(1_000));
        assert_eq!(count(), 1);
        keeping.settle(Mono(1_000 + AGAIN_AFTER.0));
        assert_eq!((count(), keeping.owed.len()), (2, 0));
    }
}
