//! Incidents of a recording, which are not written to the store. A recording is diagnosed each time it is played, and
//! incidents that a remote host's store sent while it was recorded are part of it as events.

use std::sync::Arc;

use crate::diagnose::live::{CaseKey, Revision};
use crate::incidents::Record;
use crate::model::remote_incident::RemoteIncident;

/// The same as the limit of the store.
const MAX_INCIDENTS: usize = 200;

#[derive(Debug, Default)]
pub struct RecordingIncidents {
    /// Each with the key under which it was first reported.
    entries: Vec<(CaseKey, Record)>,
}

impl RecordingIncidents {
    /// Merges a record. Returns the result and the key under which it is reported.
    pub fn write(&mut self, key: CaseKey, record: Record) -> (&CaseKey, &Record) {
        let known = |(_, known): &(CaseKey, Record)| known.is_same(&record);
        let at = match self.entries.iter().rposition(known) {
            Some(at) => {
                let known = &mut self.entries[at].1;
                *known = std::mem::take(known).revised_by(record);
                at
            }
            None => {
                if self.entries.len() == MAX_INCIDENTS {
                    self.entries.remove(0);
                }
                self.entries.push((key, record));
                self.entries.len() - 1
            }
        };
        let (key, record) = &self.entries[at];
        (key, record)
    }

    /// Merges an incident of a remote host's store and returns it as a revision; `None` if it is invalid.
    pub fn adopt(&mut self, remote: &RemoteIncident) -> Option<Revision> {
        let remote = Record::from_remote(remote)?;
        let observed = remote.observed.clone();
        let key = CaseKey {
            boot_id: observed.boot_id,
            process: observed.process,
            gpu: observed.gpu,
            first: observed.first,
        };
        let (key, record) = self.write(key, remote);
        let scene = record.scene.as_deref().cloned().unwrap_or_default();
        let excerpt = record.excerpt.as_ref();
        let mut processes = scene.processes.clone();
        processes.extend(key.process.filter(|process| !processes.contains(process)));
        Some(Revision {
            incident: record.incident.clone(),
            at: record.observed.first,
            time: record.observed.time,
            processes,
            run: record.observed.run,
            command: record.command.clone(),
            excerpt: excerpt.map_or_else(String::new, |excerpt| excerpt.text.clone()),
            scene: Arc::new(scene),
            key: key.clone(),
        })
    }

    /// Forgets everything after a jump in the recording.
    pub fn forget(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incidents::Key;
    use crate::model::incident::{DetectedBy, Fields, Incident, Severity};
    use crate::model::process::ProcessKey;
    use crate::model::units::{Mono, Pid};

    const PROCESS: Option<ProcessKey> = Some(ProcessKey {
        pid: Pid(418),
        start: crate::model::units::StartTicks(7),
    });

    fn record(id: &str, first: u64, fields: Fields) -> Record {
        let incident = Incident {
            id: id.into(),
            severity: Severity::Fatal,
            detected_by: DetectedBy::Log,
            fields,
            ..Incident::default()
        };
        let observed = Key {
            boot_id: "boot".into(),
            process: PROCESS,
            first: Mono(first),
            ..Key::default()
        };
        Record::new(incident, observed)
    }

    fn key(first: u64) -> CaseKey {
        CaseKey {
            boot_id: "boot".into(),
            process: PROCESS,
            gpu: None,
            first: Mono(first),
        }
    }

    fn part(first: u64) -> Record {
        record("oom-capacity", first, Fields::default())
    }

    fn whole(first: u64) -> RemoteIncident {
        let fields = Fields {
            requested_bytes: Some(2 << 30),
            ..Fields::default()
        };
        RemoteIncident {
            record: serde_json::to_value(record("oom-fragmentation", first, fields)).expect("JSON"),
            ..RemoteIncident::default()
        }
    }

    #[test]
    fn merges_remote_and_local_incidents_in_any_order() {
        let mut recording = RecordingIncidents::default();
        recording.write(key(5_000), part(5_000));
        let revision = recording.adopt(&whole(5_900)).expect("an incident");
        assert_eq!(
            (&revision.key, &*revision.incident.id),
            (&key(5_000), "oom-fragmentation")
        );
        let (again, known) = recording.write(key(5_000), part(5_000));
        assert_eq!(
            (again, &*known.incident.id),
            (&key(5_000), "oom-fragmentation")
        );

        recording.forget();
        let revision = recording.adopt(&whole(5_900)).expect("an incident");
        let (again, known) = recording.write(key(5_000), part(5_000));
        assert_eq!(
            (again, &*known.incident.id),
            (&revision.key, "oom-fragmentation")
        );
        assert_eq!(recording.entries.len(), 1);
        let invalid = RemoteIncident {
            record: serde_json::json!([1]),
            ..RemoteIncident::default()
        };
        assert!(recording.adopt(&invalid).is_none());
    }
}
