//! Evaluates evidence from an `nvidia-smi` table in the log.

use gputop_model::units::Bytes;

use crate::evidence::case::{Case, EvidenceRule, Finding};

pub(super) const EVIDENCE: &[EvidenceRule] = &[
    EvidenceRule { name: "nvidia-smi-lists-process", evaluate: lists_process },
    EvidenceRule { name: "nvidia-smi-shows-holder", evaluate: shows_holder },
    EvidenceRule { name: "nvidia-smi-shows-exclusive", evaluate: shows_exclusive },
    EvidenceRule { name: "nvidia-smi-shows-unnamed", evaluate: shows_unnamed },
    EvidenceRule { name: "table-shows-own-ranks", evaluate: shows_own_ranks },
    EvidenceRule { name: "native-process", evaluate: native_process },
];

/// Checks whether another process holds memory of the GPU. A table that was printed while the failed program ran lists
/// that program as well, so without figures in the message this is only a hint.
fn shows_holder(case: &Case<'_>) -> Finding {
    let has_figures =
        ["total_bytes", "free_bytes"].iter().all(|name| case.found.contains_key(*name));
    match lists_process(case) {
        Finding::For(clause) if !has_figures => Finding::Hint(clause),
        finding => finding,
    }
}

/// Checks whether the table lists a process that computes on the GPU of the failure.
fn lists_process(case: &Case<'_>) -> Finding {
    let number = |name: &str| case.found.get(name).and_then(serde_json::Value::as_u64);
    let name = case.found.get("holder_name").and_then(serde_json::Value::as_str);
    match (number("holder_gpu"), number("holder_pid"), number("holder_bytes"), name) {
        (Some(gpu), Some(pid), Some(bytes), Some(name)) => Finding::For(format!(
            "the nvidia-smi table in the log shows PID {pid} ({name}) with {} on GPU {gpu}",
            Bytes(bytes)
        )),
        _ => Finding::Silent,
    }
}

/// Checks whether the table shows the GPU in exclusive mode.
fn shows_exclusive(case: &Case<'_>) -> Finding {
    match case.found.get("exclusive_gpu") {
        Some(gpu) => Finding::For(format!(
            "the nvidia-smi table in the log shows GPU {gpu} in the mode E. Process"
        )),
        None => Finding::Silent,
    }
}

/// Checks whether most of the GPU's memory is in use although the table lists no process.
fn shows_unnamed(case: &Case<'_>) -> Finding {
    let number = |name: &str| case.found.get(name).and_then(serde_json::Value::as_u64);
    let (gpu, used) = (number("unnamed_gpu"), number("unnamed_used_bytes"));
    match (gpu, used, number("unnamed_total_bytes")) {
        (Some(gpu), Some(used), Some(total)) => Finding::For(format!(
            "the nvidia-smi table in the log shows {} of {} in use on GPU {gpu}, but no process",
            Bytes(used),
            Bytes(total)
        )),
        _ => Finding::Silent,
    }
}

/// Checks whether the processes in the table are the ranks of one job, not other users' programs.
fn shows_own_ranks(case: &Case<'_>) -> Finding {
    match case.found.get("smi_ranks") {
        Some(ranks) => Finding::For(format!(
            "the nvidia-smi table in the log shows one process of the same program on each of {ranks} GPUs"
        )),
        None => Finding::Silent,
    }
}

/// Checks whether the kernel names a program that is not an interpreter.
fn native_process(case: &Case<'_>) -> Finding {
    let name = case.found.get("process").and_then(serde_json::Value::as_str);
    match name.filter(|name| is_native(name)) {
        Some(name) => Finding::For(format!("the kernel names the program {name}")),
        None => Finding::Silent,
    }
}

/// Returns true if a process name, as printed by the kernel, belongs to a compiled program. Ray, torch and vLLM rename
/// their Python processes.
pub(crate) fn is_native(name: &str) -> bool {
    const RENAMED: &[&str] =
        &["python", "ray:", "pt_", "vllm", "sglang", "ipykernel", "jupyter", "engine", "worker"];
    let name = name.trim_matches('\'').to_ascii_lowercase();
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name != "unknown"
        && !RENAMED.iter().any(|renamed| name.contains(renamed))
}
