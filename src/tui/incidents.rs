//! The incidents that a dashboard knows: those of the store that nobody has read, and those that happen while it is open.
//!
//! They come through a [`IncidentInbox`], and what was opened goes back through it; who serves it knows the store, nobody here does.

use std::sync::Arc;
use std::sync::mpsc;

use tokio::sync::mpsc as tokio_mpsc;

use crate::diagnose::live::{CaseKey, Revision};
use crate::incidents::{Key, Record, Track, Uid};
use crate::model::incident::{Incident, Severity};
use crate::model::process::ProcessKey;
use crate::model::scene::Scene;
use crate::model::units::{GpuUuid, Mono, UnixMillis};
use crate::source::Update;
use crate::watch::{Keep, WatchResult, Watcher};

/// An incident, and whether a person has seen it.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedIncident {
    pub incident: Arc<Incident>,
    pub is_read: bool,
    pub place: IncidentSubject,
    /// What was there around it, without the blocks of its map; where it was watched.
    pub scene: Option<Arc<Scene>>,
    /// Of what was seen from here: what is told again under the same key is the same.
    pub key: Option<CaseKey>,
}

/// Incidents that are known although no store holds them, of one host and of the list of hosts: some ten kilobytes each. A store
/// has a bound of its own.
const MAX_UNSTORED: usize = 64;

/// Two slots: in come the incidents of the store, as they are now, each time they change; out go the names of those that
/// were opened.
pub struct IncidentInbox {
    pub incoming: tokio_mpsc::UnboundedReceiver<Vec<ListedIncident>>,
    pub opened: mpsc::Sender<String>,
    /// Where what happens now is kept.
    pub keep: Option<Keep>,
}

impl IncidentInbox {
    /// One that nobody serves: a recording has no store.
    #[must_use]
    pub fn unserved() -> Self {
        Self {
            incoming: tokio_mpsc::unbounded_channel().1,
            opened: mpsc::channel().0,
            keep: None,
        }
    }
}

/// Whom and when an incident is about, as far as a chart and a row ask for it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct IncidentSubject {
    pub boot_id: String,
    /// The first observation.
    pub at: Mono,
    pub processes: Vec<ProcessKey>,
    pub gpus: Vec<GpuUuid>,
}

impl IncidentSubject {
    fn of_revision(revision: &Revision) -> Self {
        let CaseKey { boot_id, gpu, .. } = &revision.key;
        Self::new(
            boot_id,
            revision.at,
            revision.processes.clone(),
            gpu.clone(),
            &revision.scene,
        )
    }

    /// Of a record of the store.
    #[must_use]
    pub fn of_record(record: &Record) -> Self {
        let observed = &record.observed;
        let scene = record.scene.as_deref().cloned().unwrap_or_default();
        let mut processes = scene.processes.clone();
        processes.extend(
            observed
                .process
                .filter(|process| !processes.contains(process)),
        );
        Self::new(
            &observed.boot_id,
            observed.first,
            processes,
            observed.gpu.clone(),
            &scene,
        )
    }

    fn new(
        boot_id: &str,
        at: Mono,
        processes: Vec<ProcessKey>,
        gpu: Option<GpuUuid>,
        scene: &Scene,
    ) -> Self {
        let there = scene.frame.gpus.iter().map(|gpu| gpu.uuid.clone());
        Self {
            boot_id: boot_id.to_owned(),
            at,
            processes,
            gpus: gpu.into_iter().chain(there).collect(),
        }
    }
}

impl ListedIncident {
    /// Whether `stored` is this: by its name, or where it could not be kept at once by whom and when.
    fn is_same(&self, stored: &Self) -> bool {
        match (&self.incident.uid, &self.key) {
            (Some(uid), _) => stored.incident.uid.as_ref() == Some(uid),
            (None, Some(key)) => {
                let (here, there) = (&self.place, &stored.place);
                let is_whom = match (&key.process, &key.gpu) {
                    (Some(process), _) => there.processes.contains(process),
                    (None, Some(gpu)) => there.processes.is_empty() && there.gpus.contains(gpu),
                    (None, None) => false,
                };
                is_whom && here.boot_id == there.boot_id && Key::are_near(here.at, there.at)
            }
            (None, None) => false,
        }
    }

    /// The process that failed, where others of its job followed.
    #[must_use]
    pub fn process(&self) -> Option<ProcessKey> {
        let pid = self.incident.fields.pid;
        let mut whose = self.place.processes.iter().copied();
        let named = whose.clone().find(|key| Some(key.pid) == pid);
        named.or_else(|| whose.next())
    }
}

/// A watcher, or none where the system gave no thread: then nothing is found.
#[derive(Debug)]
pub struct WatcherHandle(Option<Watcher>);

impl WatcherHandle {
    /// So many frames wait for it at most.
    #[must_use]
    pub fn start(keep: Option<Keep>, most_waiting: usize) -> Self {
        let watcher = Watcher::start_with(keep, most_waiting);
        Self(
            watcher
                .inspect_err(|error| tracing::warn!("nothing is watched: {error}"))
                .ok(),
        )
    }

    /// One that finds nothing.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }

    /// What was found next. Safe to cancel.
    pub async fn found(&mut self) -> WatchResult {
        match &mut self.0 {
            Some(watcher) => watcher.next().await,
            None => std::future::pending().await,
        }
    }

    /// Passes on what the screen got; never waits.
    pub fn see(&self, update: &Update) {
        if let Some(watcher) = &self.0 {
            watcher.see(update);
        }
    }

    pub fn add_history(&self, uid: Uid, tracks: Vec<Track>) {
        if let Some(watcher) = &self.0 {
            watcher.add_history(uid, tracks);
        }
    }
}

/// All that are known, the oldest first.
#[derive(Debug, Default)]
pub struct Incidents {
    list: Vec<ListedIncident>,
    /// Opened and not yet told to the desk.
    opened: Vec<String>,
}

impl Incidents {
    /// What the store holds now. What was opened here stays read although the store may not know it yet, unless it got
    /// worse; what the store does not hold stays as well. What was there around one of them is known as the store tells it: of
    /// the newest. Of the others it is in the store, whose name for it the screen says.
    pub fn take_stored(&mut self, stored: Vec<ListedIncident>) {
        let old = std::mem::take(&mut self.list);
        let mut list = stored;
        for known in &old {
            match list.iter_mut().find(|new| known.is_same(new)) {
                Some(new) => {
                    let is_news = new.incident.is_news_after(&known.incident);
                    new.is_read |= known.is_read && !is_news;
                    new.key.clone_from(&known.key);
                }
                None if known.incident.uid.is_none() => list.push(known.clone()),
                None => {}
            }
        }
        list.sort_by_key(|known| moment(&known.incident));
        self.list = list;
    }

    /// What is concluded of something that happens now; its name in the store, where it is kept.
    pub fn take_live(&mut self, revision: Revision, uid: Option<String>) {
        let place = IncidentSubject::of_revision(&revision);
        let Revision {
            key,
            incident,
            scene,
            ..
        } = revision;
        let is_it = |known: &&mut ListedIncident| {
            known.key.as_ref() == Some(&key) || (uid.is_some() && known.incident.uid == uid)
        };
        let old = self.list.iter_mut().find(is_it);
        let is_news = |old: &ListedIncident| incident.is_news_after(&old.incident);
        let is_read = old.as_ref().is_some_and(|old| old.is_read && !is_news(old));
        let uid = uid.or_else(|| old.as_ref()?.incident.uid.clone());
        let new = ListedIncident {
            incident: Arc::new(Incident { uid, ..incident }),
            is_read,
            place,
            scene: Some(scene),
            key: Some(key),
        };
        match old {
            Some(old) => *old = new,
            None => self.list.push(new),
        }
        self.forget_unstored();
    }

    /// Those that nothing else bounds: of what could not be kept, which was said, the oldest go, those that were read first.
    fn forget_unstored(&mut self) {
        let unstored = || {
            (0..)
                .zip(&self.list)
                .filter(|(_, known)| known.incident.uid.is_none())
        };
        if unstored().count() > MAX_UNSTORED {
            let oldest = unstored().min_by_key(|(at, known)| (!known.is_read, *at));
            let at: Option<usize> = oldest.map(|(at, _)| at);
            at.map(|at| self.list.remove(at));
        }
    }

    /// A recording jumped: what is known of it may not have happened yet.
    pub fn forget_live(&mut self) {
        self.list.retain(|known| known.incident.uid.is_some());
    }

    /// The one to look at: the newest that nobody has read, a mere note only where there is nothing else.
    #[must_use]
    pub fn news(&self) -> Option<&Arc<Incident>> {
        let unread = || self.list.iter().rev().filter(|known| !known.is_read);
        let is_note = |known: &&ListedIncident| known.incident.severity == Severity::Note;
        let known = unread().find(|known| !is_note(known));
        known
            .or_else(|| unread().next())
            .map(|known| &known.incident)
    }

    #[must_use]
    pub fn newest(&self) -> Option<&Arc<Incident>> {
        self.list.last().map(|known| &known.incident)
    }

    pub fn newest_first(&self) -> impl Iterator<Item = &ListedIncident> {
        self.list.iter().rev()
    }

    /// Those of one boot: the moments of another have nothing in common with these.
    pub fn of_boot<'a, 'b>(
        &'a self,
        boot_id: &'b str,
    ) -> impl Iterator<Item = &'a ListedIncident> + use<'a, 'b> {
        let is_its = move |known: &&ListedIncident| known.place.boot_id == boot_id;
        self.list.iter().filter(is_its)
    }

    /// The gravest of a process, of equal ones the newest.
    #[must_use]
    pub fn of_process<'a>(
        &'a self,
        boot_id: &str,
        process: ProcessKey,
    ) -> Option<&'a ListedIncident> {
        self.of_boot(boot_id)
            .filter(|known| known.place.processes.contains(&process))
            .max_by_key(|known| known.incident.severity)
    }

    #[must_use]
    pub fn unread(&self) -> usize {
        self.list.iter().filter(|known| !known.is_read).count()
    }

    /// The same as it is known now: it may have been revised.
    #[must_use]
    pub fn again(&self, incident: &Incident) -> Option<&ListedIncident> {
        let is_it = |known: &&ListedIncident| match &incident.uid {
            Some(uid) => known.incident.uid.as_ref() == Some(uid),
            // What happened at one moment to one process is one thing.
            None => {
                known.incident.time.is_some()
                    && known.incident.time == incident.time
                    && known.incident.fields.pid == incident.fields.pid
            }
        };
        self.list.iter().find(is_it)
    }

    /// A person looks at it.
    pub fn open(&mut self, incident: &Arc<Incident>) {
        for known in &mut self.list {
            let is_same = match &known.incident.uid {
                Some(uid) => incident.uid.as_ref() == Some(uid),
                None => Arc::ptr_eq(&known.incident, incident),
            };
            if is_same && !known.is_read {
                known.is_read = true;
                self.opened.extend(known.incident.uid.clone());
            }
        }
    }

    /// The names of those that were opened since this was asked last.
    pub fn take_opened(&mut self) -> Vec<String> {
        std::mem::take(&mut self.opened)
    }
}

/// When it was, if it says.
#[must_use]
pub fn moment(incident: &Incident) -> Option<UnixMillis> {
    let time: jiff::Timestamp = incident.time.as_ref()?.parse().ok()?;
    Some(UnixMillis(time.as_millisecond()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(uid: &str, time: &str, severity: Severity) -> ListedIncident {
        ListedIncident {
            incident: Arc::new(Incident {
                uid: Some(uid.into()),
                time: Some(format!("2026-11-20T{time}Z")),
                severity,
                ..Incident::default()
            }),
            is_read: false,
            place: IncidentSubject::default(),
            scene: None,
            key: None,
        }
    }

    fn news(incidents: &Incidents) -> Option<&str> {
        incidents.news()?.uid.as_deref()
    }

    fn revision(severity: Severity) -> Revision {
        Revision {
            key: CaseKey::default(),
            incident: Incident {
                severity,
                ..Incident::default()
            },
            at: Mono(0),
            time: UnixMillis(0),
            processes: Vec::new(),
            run: None,
            command: None,
            excerpt: String::new(),
            scene: Arc::default(),
        }
    }

    #[test]
    fn what_is_told_again_is_the_same_and_unread_only_when_it_got_worse() {
        let mut incidents = Incidents::default();
        incidents.take_live(revision(Severity::Caught), None);
        let opened = incidents.news().cloned().expect("news");
        incidents.open(&opened);
        incidents.take_live(revision(Severity::Caught), Some("a".into()));
        assert_eq!(incidents.unread(), 0);
        // The store lists it, and it ends the process.
        incidents.take_stored(vec![known("a", "12:03:00", Severity::Caught)]);
        incidents.take_live(revision(Severity::Fatal), Some("a".into()));
        assert_eq!(incidents.unread(), 1);
        assert_eq!(news(&incidents), Some("a"));
    }

    #[test]
    fn the_newest_comes_first_and_notes_last() {
        let mut incidents = Incidents::default();
        incidents.take_stored(vec![
            known("b", "12:04:00", Severity::Caught),
            known("a", "12:03:00", Severity::Fatal),
            known("c", "12:05:00", Severity::Note),
        ]);
        let mut order = Vec::new();
        while let Some(incident) = incidents.news().cloned() {
            incidents.open(&incident);
            order.extend(incident.uid.clone());
        }
        assert_eq!(order, ["b", "a", "c"]);
        assert_eq!(incidents.take_opened(), order);
        assert_eq!(incidents.take_opened(), [""; 0]);
    }

    #[test]
    fn what_was_opened_here_stays_read_until_it_gets_worse() {
        let mut incidents = Incidents::default();
        incidents.take_stored(vec![known("a", "12:03:00", Severity::Caught)]);
        let opened = incidents.news().cloned().expect("news");
        incidents.open(&opened);
        incidents.take_stored(vec![known("a", "12:03:00", Severity::Caught)]);
        assert_eq!(news(&incidents), None);
        incidents.take_stored(vec![known("a", "12:03:00", Severity::Fatal)]);
        assert_eq!(news(&incidents), Some("a"));
    }

    #[test]
    fn what_no_store_holds_is_bounded_and_the_newest_that_nobody_read_stays() {
        let mut incidents = Incidents::default();
        for at in 0..200 {
            let mut revision = revision(Severity::Caught);
            revision.key.first = Mono(at);
            incidents.take_live(revision, None);
            if at == 150 {
                let opened = incidents.news().cloned().expect("news");
                incidents.open(&opened);
            }
        }
        assert_eq!(incidents.newest_first().count(), MAX_UNSTORED);
        assert_eq!(incidents.unread(), MAX_UNSTORED, "what was read went first");
        let first = |known: &ListedIncident| known.key.as_ref().map(|key| key.first.0);
        let kept: Vec<_> = incidents.newest_first().filter_map(first).collect();
        assert_eq!((kept[0], kept[MAX_UNSTORED - 1]), (199, 135));
    }

    #[test]
    fn the_store_does_not_take_away_what_it_does_not_hold() {
        let mut incidents = Incidents::default();
        incidents.take_live(revision(Severity::Caught), None);
        incidents.take_stored(vec![known("a", "12:03:00", Severity::Fatal)]);
        assert_eq!(incidents.unread(), 2);
        incidents.take_stored(Vec::new());
        assert_eq!(incidents.unread(), 1, "somebody forgot it");
    }

    #[test]
    fn what_could_not_be_kept_at_once_is_the_one_that_the_store_holds_later() {
        let mut incidents = Incidents::default();
        let process = ProcessKey {
            pid: crate::model::units::Pid(418),
            start: crate::model::units::StartTicks(7),
        };
        let mut seen = revision(Severity::Fatal);
        seen.key.process = Some(process);
        seen.processes = vec![process];
        incidents.take_live(seen.clone(), None);
        let mut stored = known("a", "12:03:00", Severity::Fatal);
        stored.place.processes = vec![process];
        let mut later = known("b", "12:04:00", Severity::Fatal);
        later.place = IncidentSubject {
            at: Mono(60_000),
            ..stored.place.clone()
        };
        incidents.take_stored(vec![stored, later]);
        assert_eq!(incidents.unread(), 2);
        incidents.take_live(seen, Some("a".into()));
        assert_eq!(incidents.unread(), 2);
    }
}
