//! What a store would hold of a recording, of which nothing is stored: a recording is judged anew each time it is played,
//! and what the host's own store had told while it was recorded lies in it as events.

use std::sync::Arc;

use crate::diagnose::live::{CaseKey, Revision};
use crate::incidents::Record;
use crate::model::remote_incident::RemoteIncident;

/// As many as a store keeps.
const MAX_INCIDENTS: usize = 200;

#[derive(Debug, Default)]
pub struct Ledger {
    /// Each under the key that it was first told by.
    entries: Vec<(CaseKey, Record)>,
}

impl Ledger {
    /// What is known of it now, and the key under which it is told.
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

    /// What the host's store had told, as it is told here; nothing of what is no record.
    pub fn adopt(&mut self, kept: &RemoteIncident) -> Option<Revision> {
        let told = Record::told(kept)?;
        let observed = told.observed.clone();
        let key = CaseKey {
            boot_id: observed.boot_id,
            process: observed.process,
            gpu: observed.gpu,
            first: observed.first,
        };
        let (key, record) = self.write(key, told);
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

    /// The recording jumped.
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

    const WHO: Option<ProcessKey> = Some(ProcessKey {
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
            process: WHO,
            first: Mono(first),
            ..Key::default()
        };
        Record::new(incident, observed)
    }

    fn key(first: u64) -> CaseKey {
        CaseKey {
            boot_id: "boot".into(),
            process: WHO,
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
    fn what_was_told_from_there_is_what_was_seen_here_whichever_came_first() {
        let mut ledger = Ledger::default();
        ledger.write(key(5_000), part(5_000));
        let told = ledger.adopt(&whole(5_900)).expect("an incident");
        assert_eq!(
            (&told.key, &*told.incident.id),
            (&key(5_000), "oom-fragmentation")
        );
        let (again, known) = ledger.write(key(5_000), part(5_000));
        assert_eq!(
            (again, &*known.incident.id),
            (&key(5_000), "oom-fragmentation")
        );

        ledger.forget();
        let told = ledger.adopt(&whole(5_900)).expect("an incident");
        let (again, known) = ledger.write(key(5_000), part(5_000));
        assert_eq!(
            (again, &*known.incident.id),
            (&told.key, "oom-fragmentation")
        );
        assert_eq!(ledger.entries.len(), 1);
        let nothing = RemoteIncident {
            record: serde_json::json!([1]),
            ..RemoteIncident::default()
        };
        assert!(ledger.adopt(&nothing).is_none());
    }
}
