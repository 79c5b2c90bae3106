//! What the command's processes said of themselves, as evidence: the text of exceptions that reached no log, and what
//! the allocator held at an out-of-memory error.

use crate::collect::hook::Report;
use crate::diagnose::hook_report::{HookReport, NAME};
use crate::diagnose::{Catalogue, LogFindings, LogReader};
use crate::model::event::{HookEvent, HookException, HookOom};
use crate::model::incident::Incident;
use crate::model::process::ProcessKey;

/// What was measured at a failure, and by whom.
pub(super) struct HookEvidence {
    pub(super) heard: HookReport,
    pub(super) process: ProcessKey,
    /// `2.8.0+cu126`, as the process said it.
    pub(super) torch: String,
}

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
    pub(super) fn measured(&self, incident: &Incident) -> Option<HookEvidence> {
        if incident.family != "oom" {
            return None;
        }
        let wanted = incident.fields.requested_bytes;
        let rank = incident.fields.rank;
        let mut all = self.reports.iter().flat_map(|report| {
            let is_other = rank.is_some() && report.process.rank.is_some_and(|r| Some(r) != rank);
            let events = report.events.iter().filter(move |_| !is_other);
            events.filter_map(move |event| Some((report, event, event.oom.as_deref()?)))
        });
        let is_it = |(_, _, oom): &(&Report, &HookEvent, &HookOom)| match wanted {
            Some(wanted) => is_near(oom.requested_bytes.0, wanted),
            None => true,
        };
        // The last of them is the one that was not survived.
        let (report, event, oom) = all.by_ref().filter(is_it).last()?;
        Some(HookEvidence {
            heard: HookReport::of(event, oom),
            process: report.key,
            torch: report.process.torch.clone(),
        })
    }
}

/// The text has two decimals.
fn is_near(a: u64, b: u64) -> bool {
    a.abs_diff(b) <= a.max(b) / 100
}
