//! Converts reports from the Python hook to evidence: the allocator's state at the time of an out-of-memory error.
//! Error messages do not contain that state.

use std::path::Path;

use gputop_model::event::{HookEvent, HookGauge, HookOom, Steps};
use gputop_model::incident::Incident;

use super::evidence::Measured;

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
                steps: event.steps.and_then(finished_steps),
                // If there were no earlier flushes, omit their number. It would not be evidence against any cause,
                // because the failed allocation may have caused the first flush.
                retries: oom.num_alloc_retries.map(earlier_retries).filter(|n| *n > 0),
                largest_free_block: oom.largest_free_block,
                largest_free_block_other_streams: oom.largest_free_block_other_streams,
                ..Measured::default()
            },
            oom: oom.clone(),
        }
    }

    /// Adds the values known only to the hook.
    pub fn complete(&self, incident: &mut Incident) {
        let fields = &mut incident.fields;
        let more = [
            ("largest_free_block_bytes", self.oom.largest_free_block),
            ("allocated_peak_bytes", self.oom.allocated_bytes.map(|gauge| gauge.peak)),
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
        fields.allocated_bytes = fields.allocated_bytes.or_else(|| gauge(self.oom.allocated_bytes));
        fields.reserved_bytes = fields.reserved_bytes.or_else(|| gauge(self.oom.reserved_bytes));
        if let (None, Some(frame)) = (&incident.at, self.oom.frames.first()) {
            let file = Path::new(&frame.file).file_name().unwrap_or_default();
            incident.at = Some(format!("{}:{}  in {}", file.display(), frame.line, frame.function));
        }
    }
}

/// Returns the number of finished optimizer steps. `None` if no step has begun, because the program may not have an
/// optimizer.
fn finished_steps(steps: Steps) -> Option<u64> {
    (steps.begun > 0).then_some(steps.done)
}

/// Returns the number of allocation retries before this failure.
fn earlier_retries(retries: u64) -> u64 {
    retries.saturating_sub(1)
}
