//! Converts incidents from the remote host's store to events of the recording, because a replay cannot query the store.

use std::sync::Arc;

use gputop_model::{Event, Frame, Hello, Mono, Observation, Record, RemoteIncident};

/// Converter of incidents from a remote host to recording events. Tracks when the recording began and how many events
/// were created.
#[derive(Debug, Default)]
pub struct RemoteIncidentEvents {
    boot_id: String,
    since: Option<Mono>,
    now: Option<Arc<Frame>>,
    count: u64,
}

impl RemoteIncidentEvents {
    pub fn hello(&mut self, hello: &Hello) {
        if self.boot_id != hello.boot_id {
            self.since = None;
        }
        self.boot_id.clone_from(&hello.boot_id);
    }

    pub fn frame(&mut self, frame: &Arc<Frame>) {
        self.since.get_or_insert(frame.mono);
        self.now = Some(Arc::clone(frame));
    }

    /// Returns the event for a remote incident, or `None` if the incident happened before the recording began.
    pub fn event(&mut self, incident: &RemoteIncident) -> Option<Event> {
        let (now, record) = (self.now.as_ref()?, Record::from_remote(incident)?.recorded());
        let key = &record.key;
        if key.boot_id != self.boot_id || key.first < self.since? {
            return None;
        }
        self.count += 1;
        Some(Event {
            boot_id: key.boot_id.clone(),
            // Agent IDs never begin with a plus sign, so this ID cannot be mistaken for one.
            agent: "+store".into(),
            seq: self.count,
            time: now.time,
            mono: now.mono,
            process: key.process,
            gpu: key.gpu.clone(),
            observation: Observation::RemoteIncident(Box::new(RemoteIncident {
                uid: incident.uid.clone(),
                is_read: incident.is_read,
                record: serde_json::to_value(&record).ok()?,
            })),
        })
    }
}
