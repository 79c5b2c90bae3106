//! The incidents known to a dashboard: unread incidents from the store, and incidents that occur while the dashboard is
//! open.
//!
//! Stored incidents arrive through an [`IncidentInbox`], which also receives the IDs of opened incidents. The dashboard
//! itself never accesses the store.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::mpsc;

use gputop_model::incident::Incident;
use gputop_model::incident_key::IncidentKey;
use gputop_model::incident_record::Record;
use gputop_model::memory_size;
use gputop_model::process::ProcessKey;
use gputop_model::scene::Scene;
use gputop_model::units::{GpuUuid, UnixMillis};
use tokio::sync::mpsc as tokio_mpsc;

use crate::incident::IncidentSink;

/// An incident in the list of the dashboard.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedIncident {
    pub incident: Arc<Incident>,
    pub is_read: bool,
    pub key: IncidentKey,
    pub processes: Vec<ProcessKey>,
    pub gpus: Vec<GpuUuid>,
    /// Host state at the time of the incident, without the blocks of the memory map. Set only if the host was
    /// monitored.
    pub scene: Option<Arc<Scene>>,
}

/// Maximum number of incidents that are not in the store. Applies to each host, and separately to the host list. Each
/// takes about 10 KB. The store has its own limit.
const MAX_UNSTORED: usize = 64;
/// Maximum memory of an incident's host state. An incident with a larger one is listed without it.
const MAX_SCENE_BYTES: usize = 1 << 20;

/// The dashboard's connection to the incident store.
pub struct IncidentInbox {
    /// All stored incidents, sent after each change.
    pub incoming: tokio_mpsc::Receiver<Vec<ListedIncident>>,
    /// IDs of incidents opened by the user.
    pub opened: mpsc::Sender<String>,
    /// Sink that stores live incidents.
    pub sink: Option<IncidentSink>,
}

impl IncidentInbox {
    /// Returns an inbox without a store, for recordings.
    #[must_use]
    pub fn without_store() -> Self {
        Self { incoming: tokio_mpsc::channel(1).1, opened: mpsc::channel().0, sink: None }
    }
}

impl ListedIncident {
    /// Returns the list entry for an incident record. The host state is retained only if `with_scene` is set, which
    /// applies only to the newest stored incidents.
    #[must_use]
    pub fn of_record(mut record: Record, is_read: bool, with_scene: bool) -> Self {
        record.forget_blocks();
        let processes = record.processes();
        let gpus = gpus(&record.key, record.scene.as_deref());
        Self {
            incident: Arc::new(record.incident),
            is_read,
            key: record.key,
            processes,
            gpus,
            scene: record.scene.filter(|_| with_scene),
        }
    }

    /// Returns true if both entries describe the same incident. Compares their IDs, or their keys if either entry has
    /// no ID yet.
    fn is_same(&self, other: &Self) -> bool {
        match (&self.incident.uid, &other.incident.uid) {
            (Some(uid), Some(other)) => uid == other,
            _ => self.key.is_same(&other.key),
        }
    }

    /// Returns true if this is the current revision of the incident shown on the screen.
    #[must_use]
    pub fn is_revision_of(&self, shown: &Incident) -> bool {
        match &shown.uid {
            Some(uid) => self.incident.uid.as_ref() == Some(uid),
            // Compare by time and PID, because a process has at most one incident at a time.
            None => {
                shown.time.is_some()
                    && self.incident.time == shown.time
                    && self.incident.fields.pid == shown.fields.pid
            }
        }
    }

    /// Returns the incident's process. If the incident includes several processes of a job, returns the one that failed
    /// first.
    #[must_use]
    pub fn process(&self) -> Option<ProcessKey> {
        let pid = self.incident.fields.pid;
        let mut processes = self.processes.iter().copied();
        processes.clone().find(|key| Some(key.pid) == pid).or_else(|| processes.next())
    }
}

/// Returns the GPUs affected by an incident, for charts and table rows.
fn gpus(key: &IncidentKey, scene: Option<&Scene>) -> Vec<GpuUuid> {
    let of_scene = scene.into_iter().flat_map(|scene| &scene.frame.gpus);
    key.gpu.iter().cloned().chain(of_scene.map(|gpu| gpu.uuid.clone())).collect()
}

/// All known incidents, oldest first.
#[derive(Debug, Default)]
pub struct Incidents {
    list: Vec<ListedIncident>,
    /// IDs of opened incidents that have not been reported to the inbox.
    opened: Vec<String>,
}

impl Incidents {
    /// Replaces the stored incidents. Incidents that are not stored are retained. An opened incident stays marked as
    /// read, even if the store has not marked it yet, unless it has become more severe. The store sends the host state
    /// only for the newest incidents; for older ones, the screen shows their ID in the store instead.
    pub fn take_stored(&mut self, stored: Vec<ListedIncident>) {
        let old = std::mem::take(&mut self.list);
        let mut list = stored;
        for known in &old {
            match list.iter_mut().find(|new| known.is_same(new)) {
                Some(new) => {
                    let is_news = new.incident.should_notify_after(&known.incident);
                    new.is_read |= known.is_read && !is_news;
                    new.key.clone_from(&known.key);
                }
                None if known.incident.uid.is_none() => list.push(known.clone()),
                None => {}
            }
        }
        list.sort_by_key(|known| incident_time(&known.incident));
        self.list = list;
    }

    /// Adds or revises a live incident.
    pub fn take_live(&mut self, record: Record) {
        let with_scene = memory_size::of(&record.scene) <= MAX_SCENE_BYTES;
        let mut new = ListedIncident::of_record(record, false, with_scene);
        let old = self.list.iter_mut().find(|known| known.is_same(&new));
        if let Some(old) = &old {
            new.is_read = old.is_read && !new.incident.should_notify_after(&old.incident);
            if new.incident.uid.is_none() {
                Arc::make_mut(&mut new.incident).uid = old.incident.uid.clone();
            }
        }
        match old {
            Some(old) => *old = new,
            None => self.list.push(new),
        }
        self.forget_unstored();
    }

    /// Drops one unstored incident if there are too many: the oldest one that was read, or the oldest one if none was
    /// read.
    fn forget_unstored(&mut self) {
        let unstored = || (0..).zip(&self.list).filter(|(_, known)| known.incident.uid.is_none());
        if unstored().count() > MAX_UNSTORED {
            let oldest = unstored().min_by_key(|(at, known)| (!known.is_read, *at));
            let at: Option<usize> = oldest.map(|(at, _)| at);
            at.map(|at| self.list.remove(at));
        }
    }

    #[must_use]
    pub fn newest(&self) -> Option<&Arc<Incident>> {
        self.list.last().map(|known| &known.incident)
    }

    pub fn newest_first(&self) -> impl Iterator<Item = &ListedIncident> {
        self.list.iter().rev()
    }

    /// Returns the incidents from one boot. Monotonic times from different boots are not comparable.
    pub fn of_boot<'a, 'b>(
        &'a self,
        boot_id: &'b str,
    ) -> impl Iterator<Item = &'a ListedIncident> + use<'a, 'b> {
        let is_its = move |known: &&ListedIncident| known.key.boot_id == boot_id;
        self.list.iter().filter(is_its)
    }

    /// Returns the most severe incident of a process, or the newest of several equally severe ones.
    #[must_use]
    pub fn of_process<'a>(
        &'a self,
        boot_id: &str,
        process: ProcessKey,
    ) -> Option<&'a ListedIncident> {
        self.of_boot(boot_id)
            .filter(|known| known.processes.contains(&process))
            .max_by_key(|known| known.incident.severity)
    }

    /// Returns the current revision of an incident.
    #[must_use]
    pub fn again(&self, incident: &Incident) -> Option<&ListedIncident> {
        self.list.iter().find(|known| known.is_revision_of(incident))
    }

    pub fn open(&mut self, incident: &Arc<Incident>) {
        for known in &mut self.list {
            if known.is_revision_of(incident) && !known.is_read {
                known.is_read = true;
                self.opened.extend(known.incident.uid.clone());
            }
        }
    }

    /// Returns the IDs of incidents opened since the previous call.
    pub fn take_opened(&mut self) -> Vec<String> {
        std::mem::take(&mut self.opened)
    }
}

/// Returns the most severe of these incidents, which are given newest first, or the newest of equally severe ones.
pub fn news<'a>(unread: impl IntoIterator<Item = &'a ListedIncident>) -> Option<&'a Arc<Incident>> {
    let severity = |known: &&ListedIncident| Reverse(known.incident.severity);
    unread.into_iter().min_by_key(severity).map(|known| &known.incident)
}

#[must_use]
pub fn incident_time(incident: &Incident) -> Option<UnixMillis> {
    let time: jiff::Timestamp = incident.time.as_ref()?.parse().ok()?;
    Some(UnixMillis(time.as_millisecond()))
}

#[cfg(test)]
mod tests;
