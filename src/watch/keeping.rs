//! From what was concluded to a record of the store, with what was seen around it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use super::{Found, Keep};
use crate::diagnose::live::Revision;
use crate::incidents::{
    Evidence, Excerpt, Key, NOTICE_LIMIT, Notice, Record, Track, Uid, notify, within,
};
use crate::model::event::Event;
use crate::model::frame::Frame;
use crate::model::host::Hello;
use crate::model::incident::Severity;
use crate::model::process::ProcessKey;

/// Events that are kept for what is found later.
const MOST_EVENTS: usize = 256;
/// How long the store may take; a home that hangs takes for ever.
const STORE_LIMIT: Duration = Duration::from_secs(3);
const MOST_COMMANDS: usize = 4_096;

pub struct Keeping {
    keep: Keep,
    tell: UnboundedSender<Found>,
    host: String,
    versions: BTreeMap<String, String>,
    events: VecDeque<Event>,
    commands: HashMap<ProcessKey, String>,
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
            commands: HashMap::new(),
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

    pub fn frame(&mut self, frame: &Frame) {
        if let Some(driver) = frame.driver.as_ref().and_then(|d| d.version.value()) {
            self.versions.insert("driver".into(), driver.clone());
        }
        for process in frame.processes.iter().flat_map(|p| &*p.list) {
            if self.commands.len() < MOST_COMMANDS
                && let Some(command) = process.command.value()
            {
                self.commands
                    .entry(process.key)
                    .or_insert_with(|| command.clone());
            }
        }
    }

    pub fn event(&mut self, event: &Event) {
        self.events.push_back(event.clone());
        if self.events.len() > MOST_EVENTS {
            self.events.pop_front();
        }
    }

    /// Its name in the store; `None` where it could not be kept, which is told.
    pub fn keep(&mut self, revision: &Revision) -> Option<Uid> {
        let (store, record) = (self.keep.store.clone(), self.record(revision));
        match within(STORE_LIMIT, move || store.write(record)) {
            Some(Ok(stored)) => {
                self.notify(revision, &stored.uid);
                Some(stored.uid)
            }
            Some(Err(error)) => {
                self.trouble(&error.to_string());
                None
            }
            None => {
                self.trouble("the incident is not kept: the state directory does not answer");
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
        Record {
            command: revision
                .key
                .process
                .and_then(|key| self.commands.get(&key).cloned()),
            excerpt: (!revision.excerpt.is_empty()).then(|| Excerpt {
                text: revision.excerpt.clone(),
                is_cut: false,
            }),
            evidence: Evidence {
                events: self.events.iter().filter(is_its).cloned().collect(),
                ..Evidence::default()
            },
            versions: self.versions.clone(),
            ..Record::new(incident, key)
        }
    }

    /// Adds the minutes around an incident, which whoever draws charts has.
    pub fn add_history(&mut self, uid: &Uid, tracks: Vec<Track>) {
        let store = &self.keep.store;
        let record = store.read(uid).map(|record| Record {
            history: tracks,
            ..record
        });
        if let Err(error) = record.and_then(|record| store.write(record)) {
            self.trouble(&error.to_string());
        }
    }

    fn trouble(&mut self, why: &str) {
        if !std::mem::replace(&mut self.is_trouble_told, true) {
            let _ = self.tell.send(Found::Trouble(why.to_owned()));
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
