//! What the far host's store tells while it is recorded, as an event of the recording: a replay has no store to ask.

use std::sync::Arc;

use crate::incidents::Record;
use crate::model::event::{Event, Observation};
use crate::model::frame::Frame;
use crate::model::host::Hello;
use crate::model::remote_incident::RemoteIncident;
use crate::model::units::Mono;

/// Since when a host is recorded, and how many such events there were.
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

    /// Nothing of what had happened before the recording began.
    pub fn event(&mut self, kept: &RemoteIncident) -> Option<Event> {
        let (now, record) = (self.now.as_ref()?, Record::from_remote(kept)?.recorded());
        let observed = &record.observed;
        if observed.boot_id != self.boot_id || observed.first < self.since? {
            return None;
        }
        self.count += 1;
        Some(Event {
            boot_id: observed.boot_id.clone(),
            // No agent's name begins so.
            agent: "+store".into(),
            seq: self.count,
            time: now.time,
            mono: now.mono,
            process: observed.process,
            gpu: observed.gpu.clone(),
            observation: Observation::RemoteIncident(Box::new(RemoteIncident {
                uid: kept.uid.clone(),
                is_read: kept.is_read,
                record: serde_json::to_value(&record).ok()?,
            })),
        })
    }
}
