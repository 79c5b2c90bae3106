//! Evidence from the process groups of ranks that wait for each other (`live::stall`).

use crate::evidence::case::{Case, EvidenceRule, Finding};

pub(super) const EVIDENCE: &[EvidenceRule] = &[
    ("stall-loader", |c| is_kind(c, "loader")),
    ("stall-saves", |c| is_kind(c, "saves")),
    ("stall-busy", |c| is_kind(c, "busy")),
    ("stall-diverged", |c| is_kind(c, "diverged")),
    ("stall-inside-nccl", |c| is_kind(c, "inside-nccl")),
    ("stall-exited", |c| is_kind(c, "exited")),
    ("stall-not-completed", |c| is_kind(c, "not-completed")),
    ("stall-stopped", |c| is_kind(c, "stopped")),
];

fn is_kind(case: &Case<'_>, kind: &str) -> Option<Finding> {
    let text = |name: &str| case.found.get(name).and_then(serde_json::Value::as_str);
    let evidence = text("stall_evidence").unwrap_or_default();
    (text("stall_kind") == Some(kind)).then(|| Finding::For(evidence.to_owned()))
}
