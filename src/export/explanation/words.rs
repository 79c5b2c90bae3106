//! Words about an incident that all forms of an explanation share.

use gputop_model::Incident;

/// Returns the incident's program and PID, if known: `train.py 418`, `PID 418`.
pub fn program(incident: &Incident) -> Option<String> {
    let fields = &incident.fields;
    match (fields.program.as_ref().or(fields.python_file.as_ref()), fields.pid) {
        (Some(name), Some(pid)) => Some(format!("{name} {}", pid.0)),
        (Some(name), None) => Some(name.clone()),
        (None, Some(pid)) => Some(format!("PID {}", pid.0)),
        (None, None) => None,
    }
}

/// Returns the parts of an explanation's first line: `GPU 0`, `rank 3`, `train.py 418`.
pub(super) fn subject(incident: &Incident) -> Vec<String> {
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

/// Returns the incident's position in the log: `train.log:812`.
pub(super) fn log_position(incident: &Incident) -> Option<String> {
    let log = incident.log.as_ref()?;
    let file = if log.file == "-" { "stdin" } else { &log.file };
    Some(match log.first_line {
        0 => file.to_owned(),
        line => format!("{file}:{line}"),
    })
}

/// Returns how often the incident occurred: `3 times`, or `None` if it occurred once.
pub(super) fn times(incident: &Incident) -> Option<String> {
    (incident.count > 1).then(|| format!("{} times", incident.count))
}

/// Returns the headline, or the ID of an incident that was recorded without one.
pub(super) fn name(incident: &Incident) -> &str {
    if incident.headline.is_empty() { &incident.id } else { &incident.headline }
}
