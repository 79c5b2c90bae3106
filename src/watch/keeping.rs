//! From what was concluded to a record of the store, with what was seen around it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::UnboundedSender;

use super::{Found, Keep};
use crate::diagnose::live::Revision;
use crate::incidents::{
    Evidence, Excerpt, Key, NOTICE_LIMIT, Notice, Record, Track, Uid, in_time, notify, put,
};
use crate::model::event::Event;
use crate::model::host::Hello;
use crate::model::incident::Severity;
use crate::model::kept::Kept;
use crate::model::scene::Scene;

/// Events that are kept for what is found later.
const MOST_EVENTS: usize = 256;

/// One thread is at the store at a time: when a job of a hundred hosts fails they all have something to keep, and whoever waits
/// for the store's own lock gives up after two seconds.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Keeping {
    keep: Keep,
    tell: UnboundedSender<Found>,
    host: String,
    versions: BTreeMap<String, String>,
    events: VecDeque<Event>,
    /// Said once: a store that cannot be written now cannot be written a second later.
    is_trouble_told: bool,
}

impl Keeping {
    pub fn new(keep: Keep, tell: UnboundedSender<Found>) -> Self {
        Self {
            keep,
            tell,
            host: String::new(),
            versions: BTreeMap::new(),
            events: VecDeque::new(),
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
        if self.events.len() > MOST_EVENTS {
            self.events.pop_front();
        }
    }

    /// Its name in the store; `None` where it could not be kept, which is told.
    pub fn keep(&mut self, revision: &Revision) -> Option<Uid> {
        let record = self.record(revision);
        let stored = {
            let _turn = turn();
            put(self.keep.store.clone(), record)
        };
        match stored {
            Ok(stored) => {
                self.notify(revision, &stored.uid);
                Some(stored.uid)
            }
            Err(why) => {
                self.trouble(&why);
                None
            }
        }
    }

    fn record(&self, revision: &Revision) -> Record {
        let mut incident = revision.incident.clone();
        incident.host = Some(self.host.clone()).filter(|host| !host.is_empty());
        let key = Key {
            boot_id: revision.key.boot_id.clone(),
            process: revision.key.process,
            gpu: revision.key.gpu.clone(),
            first: revision.key.first,
            time: revision.time,
        };
        let is_its = |event: &&Event| match event.process {
            Some(process) => revision.processes.contains(&process),
            None => event.gpu == revision.key.gpu,
        };
        let own = |(name, version): (&String, &String)| (name.clone(), version.clone());
        Record {
            command: revision.command.clone(),
            excerpt: (!revision.excerpt.is_empty()).then(|| Excerpt {
                text: revision.excerpt.clone(),
                is_cut: false,
            }),
            evidence: Evidence {
                events: self.events.iter().filter(is_its).cloned().collect(),
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

    /// Keeps what the far host's store holds. Whoever wanted to be told of it was told there, when it happened.
    pub fn adopt(&mut self, kept: &Kept) {
        let (store, kept) = (self.keep.store.clone(), kept.clone());
        let _turn = turn();
        match in_time(move || store.adopt(kept)) {
            Ok(_) => {}
            Err(why) => self.trouble(&why),
        }
    }

    /// Adds the minutes around an incident, which whoever draws charts has.
    pub fn add_history(&mut self, uid: &Uid, tracks: Vec<Track>) {
        let (store, uid) = (self.keep.store.clone(), uid.clone());
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
            let _ = self.tell.send(Found::Trouble(why));
        }
    }

    /// Tells whoever the user wants told: what failed for good or was caught, no notes.
    fn notify(&self, revision: &Revision, uid: &Uid) {
        let Some(command) = self.keep.on_incident.clone() else {
            return;
        };
        if matches!(
            revision.incident.severity,
            Severity::Note | Severity::Unknown
        ) {
            return;
        }
        let (store, uid, tell) = (self.keep.store.clone(), uid.clone(), self.tell.clone());
        // A command that hangs must not hold up the next incident.
        let run = move || {
            if let Notice::Failed(why) = notify(&store, &uid, &command, NOTICE_LIMIT) {
                let _ = tell.send(Found::Trouble(why));
            }
        };
        let _ = std::thread::Builder::new()
            .name("on_incident".into())
            .spawn(run);
    }
}
