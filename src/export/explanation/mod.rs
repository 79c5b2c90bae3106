//! Incidents as a person reads them, in one order everywhere: what happened, what to do, what not, why, what was said,
//! where. `explain`, `run` and the dashboard print the same.

mod lines;
mod markdown;
mod quote;
mod scene;
mod text;

pub use lines::wrapped;
pub use markdown::{fenced, markdown};
pub use quote::{Row, rows};
pub use scene::{Others, scene, versions};
pub use text::{Style, StyledLine, Tone, lines, text};

use serde::Serialize;

use crate::model::incident::{Incident, Severity, Verdict};

/// The version of the JSON's shape.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    incidents: &'a [Incident],
}

/// `explain --json`: the first incident is the one to look at.
///
/// # Errors
/// None that an incident can cause: it is plain data.
pub fn json(incidents: &[Incident]) -> serde_json::Result<String> {
    let document = Document {
        schema: SCHEMA,
        incidents,
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// A verdict as it is printed.
#[must_use]
pub fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Likely => "likely",
        Verdict::Possible => "possible",
        Verdict::RuledOut => "ruled out",
        Verdict::Unknown => "unknown",
    }
}

/// A severity as it is printed.
#[must_use]
pub fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Note => "note",
        Severity::Caught => "caught",
        Severity::Fatal => "fatal",
        Severity::Unknown => "unknown",
    }
}

/// The program and its number, as much as is known: `train.py 418`, `PID 418`.
#[must_use]
pub fn program(incident: &Incident) -> Option<String> {
    let fields = &incident.fields;
    match (&fields.python_file, fields.pid) {
        (Some(file), Some(pid)) => Some(format!("{file} {}", pid.0)),
        (Some(file), None) => Some(file.clone()),
        (None, Some(pid)) => Some(format!("PID {}", pid.0)),
        (None, None) => None,
    }
}

/// Who and where, for the first line: `GPU 0  rank 3  train.py 418`.
fn subject(incident: &Incident) -> Vec<String> {
    let fields = &incident.fields;
    let mut parts = Vec::new();
    parts.extend(fields.xid.map(|xid| format!("Xid {xid}")));
    parts.extend(fields.gpu_index.map(|gpu| format!("GPU {gpu}")));
    if fields.gpu_index.is_none() {
        parts.extend(fields.pci_bus.clone());
    }
    parts.extend(fields.rank.map(|rank| format!("rank {rank}")));
    parts.extend(program(incident));
    parts.extend(incident.time.clone());
    parts
}

/// Where it stands in the log: `train.log:812`.
fn place(incident: &Incident) -> Option<String> {
    let log = incident.log.as_ref()?;
    Some(match log.first_line {
        0 => log.file.clone(),
        line => format!("{}:{line}", log.file),
    })
}

/// `3 times`, from the second on.
fn times(incident: &Incident) -> Option<String> {
    (incident.count > 1).then(|| format!("{} times", incident.count))
}
