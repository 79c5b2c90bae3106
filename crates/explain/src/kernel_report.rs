//! Converts the kernel's reports of Xids and out-of-memory kills to findings.
//!
//! A line of the kernel log is read like the line of any log. If the log is not readable, the driver still reports the
//! numbers of Xids, and counters show kills. The sightings of such reports consist of these values. Their text is only
//! quoted, and shows the cards' evidence rules which other reports there are.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::ops::Range;
use std::sync::Arc;

use gputop_model::incident::{Label, Quote};
use gputop_model::text::{slice, visible};
use gputop_model::units::Pid;
use serde_json::Value;

use super::catalogue::Catalogue;
use super::fields::FieldMap;
use super::log::{CONTEXT, LogFindings, LogReader, Sighting, TextSource};

const XID_CARD: &str = "xid-other";
const GPU_LOST_CARD: &str = "xid-79-off-bus";
const REMAP_FAILED_CARD: &str = "row-remap-63-64-92";
const OOM_KILL_CARD: &str = "host-oom-killer";
const MAX_NAME: usize = 64;

#[derive(Debug, Default)]
pub struct KernelReport<'a> {
    /// One or more lines.
    text: Cow<'a, str>,
    /// ID of the report's card, or `None` for a line of the kernel log.
    card: Option<&'static str>,
    found: FieldMap,
    /// Byte range of each value in the text.
    places: Vec<(&'static str, Range<usize>)>,
}

impl<'a> KernelReport<'a> {
    pub fn line(line: &'a str) -> Self {
        Self { text: line.into(), ..Self::default() }
    }

    /// Returns the driver's report of an Xid without its line in the kernel log.
    pub fn xid(number: u64, pci_bus: Option<&str>, pid: Option<Pid>) -> Self {
        let mut report = Self { card: Some(XID_CARD), ..Self::default() };
        match pci_bus {
            Some(bus) => report.value("NVRM: Xid (PCI:", "pci_bus", bus),
            None => report.text.to_mut().push_str("NVRM: Xid (unknown GPU"),
        }
        report.value("): ", "xid", number);
        if let Some(pid) = pid {
            report.value(", pid=", "pid", pid.0);
        }
        report
    }

    /// Returns the report of a GPU that the driver has lost without an Xid.
    pub fn gpu_lost(pci_bus: Option<&str>) -> Self {
        let mut report = Self { card: Some(GPU_LOST_CARD), ..Self::default() };
        match pci_bus {
            Some(bus) => report.value("NVML reports that GPU ", "pci_bus", bus),
            None => report.text.to_mut().push_str("NVML reports that a GPU"),
        }
        report.text.to_mut().push_str(" is lost");
        report
    }

    /// Returns the report of a GPU that could not replace a defective memory row.
    pub fn remap_failed(pci_bus: Option<&str>) -> Self {
        let mut report = Self { card: Some(REMAP_FAILED_CARD), ..Self::default() };
        report.text.to_mut().push_str("NVML reports that a row remap failed");
        if let Some(bus) = pci_bus {
            report.value(" on GPU ", "pci_bus", bus);
        }
        report
    }

    /// Returns the report of a killed process that the kernel log does not show.
    pub fn oom_kill(pid: Pid, name: Option<&str>) -> Self {
        let mut report = Self { card: Some(OOM_KILL_CARD), ..Self::default() };
        report.value("", "oom_report", "Out of memory: Killed");
        report.value(" process ", "pid", pid.0);
        let name = visible(name.unwrap_or("?").as_bytes(), MAX_NAME);
        let _ = write!(report.text.to_mut(), " ({name})");
        report
    }

    /// Returns the report of a kill of the process `name` that an increased counter shows.
    pub fn oom_count(name: &str, counter: &str) -> Self {
        let mut report = Self { card: Some(OOM_KILL_CARD), ..Self::default() };
        report.text = format!("{name} exited on signal 9 (Killed)\n{counter}").into();
        report.found.insert("oom_report".into(), "oom_kill".into());
        report
    }

    /// Adds a value and the text before it.
    fn value(&mut self, before: &str, field: &'static str, value: impl Display + Into<Value>) {
        let text = self.text.to_mut();
        text.push_str(before);
        let start = text.len();
        let _ = write!(text, "{value}");
        self.places.push((field, start..text.len()));
        self.found.insert(field.to_owned(), value.into());
    }

    /// Returns the report as a sighting, or `None` if it is a line of the kernel log.
    fn sighting(&self, catalogue: &Catalogue, line: u64) -> Option<Sighting> {
        let card = catalogue.cards.iter().position(|card| Some(card.id.as_str()) == self.card)?;
        let labels = &catalogue.cards[card].labels;
        let label = |(field, range): &(&str, Range<usize>)| {
            let says = labels.get(*field)?.as_str()?.to_owned();
            Some(Label { start: range.start, end: range.end, says })
        };
        let labels = self.places.iter().filter_map(label).collect();
        let mut found = self.found.clone();
        Some(Sighting {
            card,
            count: 1,
            table: catalogue.tables.look_up(&mut found).map(Arc::from),
            found,
            first_line: line,
            last_line: line,
            quote: Quote { text: self.text.clone().into_owned(), labels },
            ..Sighting::default()
        })
    }
}

/// Returns the findings of the reports, which are in the order in which the kernel made them.
pub fn findings(catalogue: &Catalogue, reports: &[KernelReport<'_>]) -> LogFindings {
    let mut reader = LogReader::of(catalogue, TextSource::KernelLog);
    let (mut text, mut starts, mut sightings) = (String::new(), Vec::new(), Vec::<Sighting>::new());
    for report in reports {
        let sighting = report.sighting(catalogue, starts.len() as u64 + 1);
        for line in report.text.lines() {
            starts.push(text.len());
            text.push_str(line);
            text.push('\n');
            // The reader counts the lines of all reports, but reads only those of the kernel log.
            reader.push(if sighting.is_none() { line.as_bytes() } else { b"" });
            reader.push(b"\n");
        }
        // Each sighting has its own context, so hundreds of equal ones would take megabytes.
        let Some(new) = sighting else { continue };
        match sightings.iter_mut().find(|old| old.card == new.card && old.found == new.found) {
            Some(same) => (same.count, same.last_line) = (same.count + 1, new.last_line),
            None => sightings.push(new),
        }
    }
    let mut findings = reader.finish();
    if sightings.is_empty() {
        return findings;
    }
    findings.sightings.extend(sightings);
    findings.sightings.sort_by_key(|sighting| sighting.first_line);
    for sighting in &mut findings.sightings {
        let offset = |line: u64| starts.get(line as usize).copied().unwrap_or(text.len());
        let from = offset(sighting.first_line - 1).saturating_sub(CONTEXT);
        sighting.context = slice(&text, from, offset(sighting.last_line) + CONTEXT).into();
        sighting.own_context = sighting.context.len();
    }
    findings.start = text;
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_equal_reports_instead_of_repeating_them() {
        let xid = |number| KernelReport::xid(number, Some("0000:3b:00"), None);
        let findings = findings(Catalogue::embedded(), &[xid(79), xid(31), xid(79), xid(79)]);
        let lines = |one: &Sighting| (one.count, one.first_line, one.last_line);
        let sightings: Vec<_> = findings.sightings.iter().map(lines).collect();
        assert_eq!(sightings, [(3, 1, 4), (1, 2, 2)]);
    }
}
