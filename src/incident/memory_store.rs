//! An in-memory incident store for a recording. A recording is diagnosed each time it is played, so its incidents need
//! not be saved. A recording also contains, as events, the incidents that a remote host's store sent during the
//! recording.

use gputop_model::{IncidentKey, Record, RemoteIncident, memory_size};

use super::merge::{is_same, merge};

/// Maximum number of incidents, equal to the on-disk store's limit.
const MAX_INCIDENTS: usize = 200;
/// Maximum memory of the incidents.
const MAX_BYTES: usize = 16 << 20;

#[derive(Debug, Default)]
pub struct MemoryStore {
    /// Incidents, oldest first.
    entries: Vec<MemoryEntry>,
}

#[derive(Debug)]
struct MemoryEntry {
    /// Key under which the incident was first reported. The on-disk store identifies records by name instead.
    key: IncidentKey,
    record: Record,
    bytes: usize,
}

impl MemoryStore {
    /// Merges an incident record into the store. Returns the merged record with the key under which it is reported.
    pub fn write(&mut self, record: Record) -> Record {
        let at = match self.entries.iter().rposition(|known| is_same(&known.record, &record)) {
            Some(at) => {
                let known = &mut self.entries[at].record;
                let is_settled = known.concluded_by.is_none() && is_measured(known);
                if !is_settled || is_measured(&record) {
                    *known = merge(std::mem::take(known), record);
                }
                at
            }
            None => {
                if self.entries.len() == MAX_INCIDENTS {
                    self.entries.remove(0);
                }
                self.entries.push(MemoryEntry { key: record.key.clone(), record, bytes: 0 });
                self.entries.len() - 1
            }
        };
        let MemoryEntry { key, record, bytes } = &mut self.entries[at];
        *bytes = memory_size::of(record);
        let merged = Record { key: key.clone(), ..record.clone() };
        while self.entries.len() > 1
            && self.entries.iter().map(|entry| entry.bytes).sum::<usize>() > MAX_BYTES
        {
            self.entries.remove(0);
        }
        merged
    }

    /// Merges an incident from a remote host's store. Returns the merged record, or `None` if the incident is invalid.
    pub fn adopt(&mut self, remote: &RemoteIncident) -> Option<Record> {
        Some(self.write(Record::from_remote(remote)?))
    }

    /// Starts a new diagnosis of the recording after the playback position jumps. Conclusions based on measurements are
    /// then replaced only by better informed ones, because the new diagnosis lacks the measurements before the jump.
    pub fn restart(&mut self) {
        let records = self.entries.iter_mut().map(|entry| &mut entry.record);
        records.filter(|record| is_measured(record)).for_each(|record| record.concluded_by = None);
    }
}

/// Returns true if the host was watched when the incident happened. If playback jumped over it, only events are known.
fn is_measured(record: &Record) -> bool {
    record.scene.as_ref().is_some_and(|scene| !scene.frame.gpus.is_empty())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use gputop_model::frame::Frame;
    use gputop_model::gpu::Gpu;
    use gputop_model::incident::{DetectedBy, Fields, Incident, Severity};
    use gputop_model::process::ProcessKey;
    use gputop_model::scene::Scene;
    use gputop_model::units::Mono;

    const PROCESS: Option<ProcessKey> = Some(ProcessKey::new(418, 7));

    fn record(id: &str, first: u64, fields: Fields) -> Record {
        let incident = Incident {
            id: id.into(),
            severity: Severity::Fatal,
            detected_by: DetectedBy::Log,
            fields,
            ..Incident::default()
        };
        let key = IncidentKey {
            boot_id: "boot".into(),
            process: PROCESS,
            first: Mono(first),
            ..IncidentKey::default()
        };
        Record::new(incident, key)
    }

    fn part(first: u64) -> Record {
        record("oom-capacity", first, Fields::default())
    }

    fn whole(first: u64) -> RemoteIncident {
        let fields = Fields { requested_bytes: Some(2 << 30), ..Fields::default() };
        RemoteIncident {
            record: serde_json::to_value(record("oom-fragmentation", first, fields)).expect("JSON"),
            ..RemoteIncident::default()
        }
    }

    #[test]
    fn merges_remote_and_local_incidents_in_any_order() {
        let mut recording = MemoryStore::default();
        recording.write(part(5_000));
        let revision = recording.adopt(&whole(5_900)).expect("an incident");
        assert_eq!(
            (&revision.key, &*revision.incident.id),
            (&part(5_000).key, "oom-fragmentation")
        );
        let again = recording.write(part(5_000));
        assert_eq!((&again.key, &*again.incident.id), (&part(5_000).key, "oom-fragmentation"));

        let mut recording = MemoryStore::default();
        let revision = recording.adopt(&whole(5_900)).expect("an incident");
        let again = recording.write(part(5_000));
        assert_eq!((&again.key, &*again.incident.id), (&revision.key, "oom-fragmentation"));
        assert_eq!(recording.entries.len(), 1);
        let invalid =
            RemoteIncident { record: serde_json::json!([1]), ..RemoteIncident::default() };
        assert!(recording.adopt(&invalid).is_none());
    }

    #[test]
    fn a_conclusion_from_measurements_survives_jumps() {
        let mut recording = MemoryStore::default();
        let mut write = |id, gpus| {
            let scene = Scene { frame: Frame { gpus, ..Frame::default() }, ..Scene::default() };
            let record = Record {
                concluded_by: Some("agent".into()),
                scene: Some(Arc::new(scene)),
                ..record(id, 5_000, Fields::default())
            };
            let id = recording.write(record).incident.id;
            recording.restart();
            id
        };
        // Playback jumps over the failure, plays it, jumps over it again, and plays only its end.
        assert_eq!(write("oom-capacity", Vec::new()), "oom-capacity");
        assert_eq!(write("oom-leak-growth", vec![Gpu::default()]), "oom-leak-growth");
        assert_eq!(write("oom-capacity", Vec::new()), "oom-leak-growth");
        assert_eq!(write("oom-capacity", vec![Gpu::default()]), "oom-leak-growth");
    }
}
