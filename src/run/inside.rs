//! What the command's processes said of themselves, as evidence: the text of exceptions that reached no log, and what
//! the allocator held at an out-of-memory error.

use std::path::Path;

use crate::collect::hook::Report;
use crate::diagnose::evidence::Measured;
use crate::diagnose::{Catalogue, LogFindings, LogReader};
use crate::model::event::{HookEvent, HookException, HookOom, Steps};
use crate::model::incident::{DetectedBy, Incident};

/// How incidents name it; no log has this name, since all others have a path or are the output.
pub(super) const NAME: &str = "what the hook heard";

#[derive(Debug, Default)]
pub(super) struct Inside {
    reports: Vec<Report>,
}

impl Inside {
    pub(super) fn new(reports: Vec<Report>) -> Self {
        Self { reports }
    }

    fn exceptions(&self) -> impl Iterator<Item = (&Report, &HookException)> {
        // A notebook's cell that fails ends nothing.
        self.reports.iter().flat_map(|report| {
            let told = report.events.iter().filter_map(|e| e.exception.as_deref());
            told.filter(|e| e.r#where != "cell")
                .map(move |e| (report, e))
        })
    }

    /// A log for each process that ended with an exception.
    pub(super) fn logs(&self, catalogue: &Catalogue) -> Vec<LogFindings> {
        let read = |(report, exception): (&Report, &HookException)| {
            let mut log = LogReader::new(catalogue, NAME);
            log.push(exception.traceback.as_bytes());
            let mut findings = log.finish();
            findings.rank = report.process.rank;
            findings
        };
        self.exceptions().map(read).collect()
    }

    /// The last exception: `KeyError: 'labels'`.
    pub(super) fn exception(&self) -> Option<String> {
        let (_, last) = self.exceptions().last()?;
        Some(format!("{}: {}", last.r#type, last.message))
    }

    /// What was measured at the failure that `incident` tells of.
    pub(super) fn measured(&self, incident: &Incident) -> Option<Known> {
        if incident.family != "oom" {
            return None;
        }
        let wanted = incident.fields.requested_bytes;
        let rank = incident.fields.rank;
        let mut all = self.reports.iter().flat_map(|report| {
            let is_other = rank.is_some() && report.process.rank.is_some_and(|r| Some(r) != rank);
            let events = report.events.iter().filter(move |_| !is_other);
            events.filter_map(|event| Some((event, event.oom.as_deref()?)))
        });
        let is_it = |(_, oom): &(&HookEvent, &HookOom)| match wanted {
            Some(wanted) => is_near(oom.requested_bytes.0, wanted),
            None => true,
        };
        // The last of them is the one that was not survived.
        let (event, oom) = all.by_ref().filter(is_it).last()?;
        Some(Known::of(event, oom))
    }
}

/// The text has two decimals.
fn is_near(a: u64, b: u64) -> bool {
    a.abs_diff(b) <= a.max(b) / 100
}

/// What the hook measured at one failure.
pub(super) struct Known {
    pub(super) measured: Measured,
    oom: HookOom,
}

impl Known {
    fn of(event: &HookEvent, oom: &HookOom) -> Self {
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
    pub(super) fn complete(&self, incident: &mut Incident) {
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
        let gauge = |gauge: Option<crate::model::event::HookGauge>| Some(gauge?.current.0);
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
pub(super) fn name_source(incident: &mut Incident) {
    if incident.log.as_ref().is_some_and(|log| log.file == NAME) {
        incident.log = None;
        incident.detected_by = DetectedBy::Hook;
    }
    incident.secondary.iter_mut().for_each(name_source);
}
