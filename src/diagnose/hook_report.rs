//! What the Python hook tells from inside a program, as evidence: what its allocator held at the instant of an
//! out-of-memory error, beyond what any text says.

use std::path::Path;

use super::evidence::Measured;
use crate::model::event::{HookEvent, HookGauge, HookOom, Steps};
use crate::model::incident::{DetectedBy, Incident};

/// How incidents name the text that the hook heard; no log has this name, since all others have a path or are the output.
pub const NAME: &str = "what the hook heard";

/// What the hook measured at one failure.
#[derive(Debug, Clone, PartialEq)]
pub struct HookReport {
    pub measured: Measured,
    pub oom: HookOom,
}

impl HookReport {
    #[must_use]
    pub fn of(event: &HookEvent, oom: &HookOom) -> Self {
        Self {
            measured: Measured {
                steps: event.steps.and_then(done),
                // That it never was before rules nothing out: the first time can be the last.
                retries: oom.num_alloc_retries.map(earlier).filter(|n| *n > 0),
                largest_hole: oom.largest_free_block,
                largest_hole_elsewhere: oom.largest_free_block_other_streams,
                ..Measured::default()
            },
            oom: oom.clone(),
        }
    }

    /// Adds what only the hook could tell.
    pub fn complete(&self, incident: &mut Incident) {
        let fields = &mut incident.fields;
        let more = [
            ("largest_free_block_bytes", self.oom.largest_free_block),
            (
                "allocated_peak_bytes",
                self.oom.allocated_bytes.map(|gauge| gauge.peak),
            ),
        ];
        for (name, bytes) in more {
            if let Some(bytes) = bytes {
                fields.more.insert(name.to_owned(), bytes.0.into());
            }
        }
        if let Some(steps) = self.measured.steps {
            fields.more.insert("steps_done".to_owned(), steps.into());
        }
        let gauge = |gauge: Option<HookGauge>| Some(gauge?.current.0);
        fields.free_bytes = fields.free_bytes.or(Some(self.oom.free_bytes.0));
        fields.allocated_bytes = fields
            .allocated_bytes
            .or_else(|| gauge(self.oom.allocated_bytes));
        fields.reserved_bytes = fields
            .reserved_bytes
            .or_else(|| gauge(self.oom.reserved_bytes));
        if let (None, Some(frame)) = (&incident.at, self.oom.frames.first()) {
            let file = Path::new(&frame.file).file_name().unwrap_or_default();
            incident.at = Some(format!(
                "{}:{}  in {}",
                file.display(),
                frame.line,
                frame.function
            ));
        }
    }
}

/// A program that never began one may have no optimizer: nothing follows from that it did none.
fn done(steps: Steps) -> Option<u64> {
    (steps.begun > 0).then_some(steps.done)
}

/// The flush of this failure counts as well.
fn earlier(retries: u64) -> u64 {
    retries.saturating_sub(1)
}

/// Marks an incident whose text no log had.
pub fn name_source(incident: &mut Incident) {
    if incident.log.as_ref().is_some_and(|log| log.file == NAME) {
        incident.log = None;
        incident.detected_by = DetectedBy::Hook;
    }
    incident.secondary.iter_mut().for_each(name_source);
}
