//! Converts diagnosed incidents to records with evidence, and saves them in the store.
//!
//! If the store cannot be written, because another process has locked it or the disk is slow, the incident record is
//! saved later. It must not be dropped, because a remote host sends each incident only once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gputop_model::holders::summary::HolderSummary;
use gputop_model::incident_record::{Evidence, Track};
use gputop_model::newest::Newest;
use gputop_model::{Event, Hello, Millis, Mono, Record, RemoteIncident, Severity};

use super::memory_store::MemoryStore;
use super::on_incident::{NOTICE_LIMIT, Notice, notify};
use super::results::{ResultSender, WatchResult};
use super::save::{in_time, put};
use super::sink::IncidentSink;
use super::store::Stored;
use super::uid::Uid;

/// Maximum number of recent events retained as evidence.
const MAX_EVENTS: usize = 256;
const MAX_EVENT_BYTES: usize = 2 << 20;
/// Maximum number of unsaved incidents. If it is exceeded, the oldest incident is dropped.
const MAX_UNSAVED: usize = 64;
const RETRY_INTERVAL: Millis = Millis(5_000);

/// Maximum number of attempts to save an incident. Without a limit, an invalid record would be retried forever.
const MAX_TRIES: u32 = 100;

struct UnsavedIncident {
    what: UnsavedRecord,
    tries: u32,
}

#[derive(Clone)]
enum UnsavedRecord {
    Own(Box<Record>),
    Remote(Arc<RemoteIncident>),
}

/// Lets one thread at a time use the store. When a job on a hundred hosts fails, all threads save an incident at once,
/// and each waits only a few seconds for the store's own lock.
fn store_access() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct IncidentSaver {
    /// Live incident store. `None` for a recording, whose incidents are stored only in `recording`.
    sink: Option<IncidentSink>,
    recording: MemoryStore,
    report: ResultSender,
    host: String,
    versions: BTreeMap<String, String>,
    events: Newest<Event>,
    unsaved: VecDeque<UnsavedIncident>,
    /// Time of the last attempt to save an unsaved incident, or the time at which saving first failed.
    tried: Option<Mono>,
    /// True after a save error was reported. Later attempts do not report the error again.
    is_error_reported: bool,
}

impl IncidentSaver {
    pub fn new(sink: Option<IncidentSink>, report: ResultSender) -> Self {
        Self {
            sink,
            recording: MemoryStore::default(),
            report,
            host: String::new(),
            versions: BTreeMap::new(),
            events: Newest::new(MAX_EVENTS, MAX_EVENT_BYTES),
            unsaved: VecDeque::new(),
            tried: None,
            is_error_reported: false,
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
        self.events.push(event.clone());
    }

    /// Saves an incident record and replaces it with the store's merged record and name. If saving fails, reports the
    /// error; the record then has no name.
    pub fn save(&mut self, record: &mut Record) {
        self.add_evidence(record);
        let names = self.take_names(record);
        if self.sink.is_none() {
            *record = self.recording.write(std::mem::take(record));
        } else if let Some(stored) = self.try_save(UnsavedRecord::Own(Box::new(record.clone())), 1)
        {
            record.incident = *stored.incident;
        }
        // Screens do not show evidence or block maps, so only the stored record retains them.
        record.evidence = Evidence::default();
        record.forget_blocks();
        if let (Some(scene), Some(holders)) = (&mut record.scene, names) {
            Arc::make_mut(scene).holders = Some(holders);
        }
    }

    /// Removes the tensor names from the record unless they may be stored. Returns the memory holders with their names,
    /// which are shown but not stored.
    fn take_names(&self, record: &mut Record) -> Option<HolderSummary> {
        if self.sink.as_ref().is_none_or(|sink| sink.record_names) {
            return None;
        }
        let scene = record.scene.as_mut()?;
        let holders = scene.holders.clone()?;
        Arc::make_mut(scene).holders.iter_mut().for_each(HolderSummary::forget_names);
        Some(holders)
    }

    /// Writes an incident record to the store, or queues it as unsaved on failure.
    fn try_save(&mut self, what: UnsavedRecord, tries: u32) -> Option<Stored> {
        let store = self.sink.as_ref()?.store.clone();
        let lock = store_access();
        let result = match what.clone() {
            UnsavedRecord::Own(record) => put(store, *record),
            UnsavedRecord::Remote(remote) => {
                in_time(move || store.adopt(RemoteIncident::clone(&remote)))
            }
        };
        drop(lock);
        match (result, &what) {
            (Ok(stored), UnsavedRecord::Own(_)) => {
                self.notify(&stored);
                Some(stored)
            }
            (Ok(stored), UnsavedRecord::Remote(_)) => Some(stored),
            (Err(why), _) => {
                self.report_error(&why);
                if self.unsaved.len() == MAX_UNSAVED {
                    self.unsaved.pop_front();
                }
                if tries < MAX_TRIES {
                    self.unsaved.push_back(UnsavedIncident { what, tries });
                }
                None
            }
        }
    }

    /// Retries saving the unsaved incidents at intervals.
    pub fn retry(&mut self, now: Mono) {
        if self.unsaved.is_empty() {
            self.tried = None;
            return;
        }
        if now.since(*self.tried.get_or_insert(now)) < RETRY_INTERVAL {
            return;
        }
        self.tried = Some(now);
        // If saving an incident fails again, the incident moves to the end of the queue, and the other incidents wait
        // for the next attempt.
        while let Some(UnsavedIncident { what, tries }) = self.unsaved.pop_front() {
            if self.try_save(what, tries + 1).is_none() {
                return;
            }
        }
    }

    fn add_evidence(&self, record: &mut Record) {
        record.incident.host = Some(self.host.clone()).filter(|host| !host.is_empty());
        let processes = record.processes();
        let is_related = |event: &&Event| match event.process {
            Some(process) => processes.contains(&process),
            None => event.gpu == record.key.gpu,
        };
        let events: Vec<Event> = self.events.iter().filter(is_related).cloned().collect();
        record.concluded_by = events.first().map(|event| event.agent.clone());
        record.evidence.events = events;
        record.versions.clone_from(&self.versions);
        let scene = record.scene.iter();
        record.versions.extend(scene.flat_map(|scene| scene.versions()));
    }

    /// Saves an incident received from a remote host's store.
    pub fn adopt(&mut self, remote: &Arc<RemoteIncident>) {
        self.try_save(UnsavedRecord::Remote(Arc::clone(remote)), 1);
    }

    /// Returns the incident record for a remote incident in a recording, or `None` for a live source, which has no such
    /// events.
    pub fn replay(&mut self, remote: &RemoteIncident) -> Option<Record> {
        match self.sink {
            Some(_) => None,
            None => self.recording.adopt(remote),
        }
    }

    /// Prepares for a new diagnosis after the playback position jumps.
    pub fn restart(&mut self) {
        self.events.clear();
        self.recording.restart();
    }

    /// Adds the chart values measured around the time of an incident to its saved record.
    pub fn add_history(&mut self, uid: &Uid, tracks: Vec<Track>) {
        let Some(sink) = &self.sink else { return };
        let (store, uid) = (sink.store.clone(), uid.clone());
        let _lock = store_access();
        let added = in_time(move || {
            let record = store.read(&uid)?;
            store.write(Record { history: tracks, ..record })
        });
        if let Err(why) = added {
            self.report_error(&why);
        }
    }

    fn report_error(&mut self, why: &str) {
        if !std::mem::replace(&mut self.is_error_reported, true) {
            let why = format!("cannot save the incident: {why}");
            self.report.send(WatchResult::Error(why));
        }
    }

    /// Runs the user's `on_incident` command for fatal and caught errors, but not for notes. For incidents from a
    /// remote host's store, the remote host runs the command.
    fn notify(&self, stored: &Stored) {
        let Some(sink) = &self.sink else { return };
        let Some(command) = sink.on_incident.clone() else { return };
        if matches!(stored.incident.severity, Severity::Note | Severity::Unknown) {
            return;
        }
        let (store, uid) = (sink.store.clone(), stored.uid.clone());
        let report = self.report.downgrade();
        let notification = sink.notifications.add(format!("{uid}: {}", stored.incident.title));
        // Run the command on a separate thread, so that a hanging command does not delay the next incident. If no
        // thread can be started, the notification is dropped and counts as not sent.
        let run = move || {
            let is_cancelled = notification.is_cancelled();
            match notify(&store, &uid, &command, NOTICE_LIMIT, is_cancelled) {
                Notice::Sent | Notice::AlreadySent => notification.close(Ok(()), &report),
                Notice::Failed(why) => notification.close(Err(why), &report),
            }
        };
        let _ = std::thread::Builder::new().name("on_incident".into()).spawn(run);
    }
}

#[cfg(test)]
mod tests;
