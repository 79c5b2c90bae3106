//! Measures how often the first incident of each labelled log is correct.

use std::collections::BTreeMap;
use std::path::Path;

use gputop_explain::{Catalogue, explain};
use serde_json::Value;

use super::Figure;

/// Fields that are compared: the name in the labels, and gputop's name.
const FIELDS: &[(&str, &str)] = &[
    ("requested_bytes", "requested_bytes"),
    ("gpu_index", "gpu_index"),
    ("total_bytes", "total_bytes"),
    ("free_bytes", "free_bytes"),
    ("allocated_bytes", "allocated_bytes"),
    ("reserved_bytes", "reserved_bytes"),
    ("unallocated_reserved_bytes", "reserved_unallocated_bytes"),
    ("process_bytes", "process_bytes"),
    ("limit_bytes", "allowed_bytes"),
    ("assertion", "assertion"),
    ("kernel_file", "kernel_file"),
    ("kernel_line", "kernel_line"),
    ("block", "block"),
    ("thread", "thread"),
    ("cuda_error", "cuda_error"),
    ("cuda_error_code", "cuda_error_code"),
    ("status", "status"),
    ("source_file", "source_file"),
    ("source_line", "source_line"),
    ("rank", "rank"),
    ("pid", "pid"),
    ("worker_pid", "pid"),
    ("pci_bus", "pci_bus"),
    ("xid", "xid"),
    ("exit_code", "exit_code"),
];

/// Relative tolerance, because logs print sizes with two decimals.
const RELATIVE_TOLERANCE: f64 = 0.005;

#[derive(Default)]
struct Tally {
    right: u32,
    of: u32,
}

impl Tally {
    fn add(&mut self, right: bool) {
        self.of += 1;
        self.right += u32::from(right);
    }

    fn figure(&self, what: &str, wanted: f64) -> Figure {
        let share = f64::from(self.right) / f64::from(self.of.max(1));
        Figure {
            what: format!("{what} ({} of {})", self.right, self.of),
            reached: format!("{share:.3}"),
            wanted: format!(">= {wanted}"),
            met: share >= wanted,
        }
    }
}

/// Prints every mistake and returns the four scores.
pub fn score(folder: &Path) -> Vec<Figure> {
    let labels = std::fs::read_to_string(folder.join("labels.tsv")).unwrap();
    let kinds = std::fs::read_to_string(folder.join("kinds.tsv")).unwrap();
    let kinds = by_kind(&kinds);
    let (mut detected, mut named, mut fields, mut quiet) = Default::default();
    for line in labels.lines().skip(1) {
        let cells: Vec<&str> = line.split('\t').collect();
        let (file, kind, labelled) = (cells[0], cells[2], cells[5]);
        let text = std::fs::read(folder.join(file)).unwrap();
        let first = explain(Catalogue::embedded(), file, &text).into_iter().next();
        if kind == "none" {
            Tally::add(&mut quiet, first.is_none());
            if let Some(incident) = first {
                println!("{file}: alarm {} where nothing is wrong", incident.id);
            }
            continue;
        }
        Tally::add(&mut detected, first.is_some());
        let Some(incident) = first else {
            println!("{file}: {kind} is not seen");
            Tally::add(&mut named, false);
            continue;
        };
        let right = kinds
            .get(kind)
            .is_some_and(|ids| ids.iter().any(|id| *id == "*" || *id == incident.id));
        Tally::add(&mut named, right);
        if !right {
            println!("{file}: {kind} is taken for {}", incident.id);
        }
        let found = serde_json::to_value(&incident.fields).unwrap();
        for (name, wanted) in labelled.split(';').filter_map(|f| f.split_once('=')) {
            let Some((_, ours)) = FIELDS.iter().find(|(label, _)| *label == name) else {
                continue;
            };
            let ours = found.get(*ours).cloned().unwrap_or(Value::Null);
            let right = is_right(name, wanted, &ours);
            Tally::add(&mut fields, right);
            if !right {
                println!("{file}: {name} is {ours}, not {wanted} ({})", incident.id);
            }
        }
    }
    vec![
        detected.figure("incidents detected", 0.98),
        named.figure("named right", 0.95),
        fields.figure("fields right", 0.97),
        quiet.figure("quiet logs without an alarm", 0.97),
    ]
}

fn by_kind(table: &str) -> BTreeMap<&str, Vec<&str>> {
    let rows = table.lines().skip(1).filter_map(|line| line.split_once('\t'));
    rows.map(|(kind, ids)| (kind, ids.split(' ').collect())).collect()
}

fn is_right(name: &str, wanted: &str, ours: &Value) -> bool {
    if name.ends_with("_bytes") {
        let (Ok(wanted), Some(ours)) = (wanted.parse::<f64>(), ours.as_f64()) else {
            return false;
        };
        return (ours - wanted).abs() <= (wanted * RELATIVE_TOLERANCE).max(1.0);
    }
    let ours = match ours {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let bare = |text: &str| text.split_whitespace().collect::<String>();
    match name {
        "kernel_file" | "source_file" => base_name(&ours) == base_name(wanted),
        "pci_bus" => {
            let (a, b) = (ours.to_lowercase(), wanted.to_lowercase());
            !a.is_empty() && (a.starts_with(&b) || b.starts_with(&a))
        }
        _ => bare(&ours) == bare(wanted),
    }
}

fn base_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}
