//! Hook reports as evidence: exceptions that are in no log, and the allocator state at an out-of-memory error.

use crate::collect::hook::Report;
use crate::diagnose::hook_report::{HookReport, NAME};
use crate::diagnose::{Catalogue, LogFindings, LogReader};
use crate::model::event::{HookEvent, HookException, HookOom};
use crate::model::incident::Incident;
use crate::model::process::ProcessKey;

/// Measurements at an out-of-memory error, and their process.
pub(super) struct HookEvidence {
    pub(super) report: HookReport,
    pub(super) process: ProcessKey,
    /// Version of torch reported by the process: `2.8.0+cu126`.
    pub(super) torch: String,
}

#[derive(Debug, Default)]
pub(super) struct HookReports {
    reports: Vec<Report>,
}

impl HookReports {
    pub(super) fn new(reports: Vec<Report>) -> Self {
        Self { reports }
    }

    fn exceptions(&self) -> impl Iterator<Item = (&Report, &HookException)> {
        // A failing notebook cell does not end the process.
        self.reports.iter().flat_map(|report| {
            let exceptions = report.events.iter().filter_map(|e| e.exception.as_deref());
            exceptions
                .filter(|e| e.r#where != "cell")
                .map(move |e| (report, e))
        })
    }

    /// Returns a log for each process that exited with an exception.
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

    /// Returns the last exception: `KeyError: 'labels'`.
    pub(super) fn exception(&self) -> Option<String> {
        let (_, last) = self.exceptions().last()?;
        Some(format!("{}: {}", last.r#type, last.message))
    }

    /// Returns the measurements for the out-of-memory error in `incident`.
    pub(super) fn oom_measurement(&self, incident: &Incident) -> Option<HookEvidence> {
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
        let matches_request = |(_, _, oom): &(&Report, &HookEvent, &HookOom)| match wanted {
            Some(wanted) => is_near(oom.requested_bytes.0, wanted),
            None => true,
        };
        // Earlier errors were handled by the program; the last one was not.
        let (report, event, oom) = all.by_ref().filter(matches_request).last()?;
        Some(HookEvidence {
            report: HookReport::of(event, oom),
            process: report.key,
            torch: report.process.torch.clone(),
        })
    }
}

/// Compares with a tolerance of 1 %: sizes in log text have two decimals.
fn is_near(a: u64, b: u64) -> bool {
    a.abs_diff(b) <= a.max(b) / 100
}
