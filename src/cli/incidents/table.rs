//! Formats the list of incidents as a table.

use std::fmt::Write as _;

use gputop_model::incident::Incident;
use gputop_model::process::program_of;
use gputop_model::text::visible;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use unicode_width::UnicodeWidthStr;

use crate::incident::Entry;

const TITLES: [&str; 5] = ["TIME", "UID", "SEVERITY", "HOST", "PROCESS"];
const TITLE: &str = "INCIDENT";
/// Maximum width of the host and process columns in the incident table.
const MAX_COLUMN: usize = 24;

/// Returns the table of incidents, newest first, with lines truncated to `width` if given.
pub(super) fn text(entries: &[Entry], zone: &TimeZone, width: Option<usize>) -> String {
    let rows: Vec<[String; 5]> = entries.iter().rev().map(|entry| cells(entry, zone)).collect();
    let widths: Vec<usize> = (0..TITLES.len())
        .map(|at| {
            rows.iter().map(|row| row[at].width()).chain([TITLES[at].width()]).max().unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    let mut line = |mark: &str, row: [&str; 5], last: &str| {
        let mut line = mark.to_owned();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell}{}", " ".repeat(width - cell.width() + 2));
        }
        line.push_str(last);
        let max_width = width.unwrap_or(usize::MAX);
        out.push_str(visible(line.as_bytes(), max_width).trim_end());
        out.push('\n');
    };
    line("  ", TITLES, TITLE);
    for (entry, row) in entries.iter().rev().zip(&rows) {
        let mark = if entry.is_read { "  " } else { "* " };
        let row = [0, 1, 2, 3, 4].map(|at| row[at].as_str());
        line(mark, row, &summary(&entry.record.incident));
    }
    out
}

fn cells(entry: &Entry, zone: &TimeZone) -> [String; 5] {
    let incident = &entry.record.incident;
    let cut = |text: &str| visible(text.as_bytes(), MAX_COLUMN);
    [
        local_time(incident, zone, "%m-%d %H:%M"),
        entry.uid.to_string(),
        incident.severity.word().to_owned(),
        cut(incident.host.as_deref().unwrap_or("–")),
        cut(&process(entry)),
    ]
}

/// Returns the incident's ID and title: `oom-fragmentation: No free block is large enough for 8.0 GiB`.
fn summary(incident: &Incident) -> String {
    format!("{}: {}", incident.id, incident.title)
}

/// Returns the incident's process without unknown parts: `rank 3 train.py 418`.
fn process(entry: &Entry) -> String {
    let fields = &entry.record.incident.fields;
    let mut words = Vec::new();
    words.extend(fields.rank.map(|rank| format!("rank {rank}")));
    let program = || program_of(entry.record.command.as_deref()?);
    let file = fields.python_file.as_deref();
    let file = || file.map(|path| path.rsplit('/').next().unwrap_or(path).to_owned());
    words.extend(fields.program.clone().or_else(file).or_else(program));
    words.extend(fields.pid.map(|pid| pid.to_string()));
    if words.is_empty() {
        return "–".to_owned();
    }
    words.join(" ")
}

pub(super) fn local_time(incident: &Incident, zone: &TimeZone, format: &str) -> String {
    let time = incident.time.as_ref();
    let time = time.and_then(|time| time.parse::<Timestamp>().ok());
    time.map_or_else(
        || "–".to_owned(),
        |time| time.to_zoned(zone.clone()).strftime(format).to_string(),
    )
}
