//! Evaluates evidence from an `nvidia-smi` table in the log.

use gputop_model::units::Bytes;

use crate::evidence::case::{Case, EvidenceRule, Finding, supports};

pub(super) const EVIDENCE: &[EvidenceRule] = &[
    ("nvidia-smi-lists-process", lists_process),
    ("nvidia-smi-shows-holder", shows_holder),
    ("nvidia-smi-shows-exclusive", shows_exclusive),
    ("nvidia-smi-shows-unnamed", shows_unnamed),
    ("table-shows-own-ranks", shows_own_ranks),
    ("native-process", native_process),
];

/// Checks whether another process holds memory of the GPU. A table that was printed while the failed program ran lists
/// that program as well, so without figures in the message this is only a hint.
fn shows_holder(case: &Case<'_>) -> Option<Finding> {
    let has_figures =
        ["total_bytes", "free_bytes"].iter().all(|name| case.found.contains_key(*name));
    match lists_process(case)? {
        Finding::For(clause) if !has_figures => Some(Finding::Hint(clause)),
        finding => Some(finding),
    }
}

/// Checks whether the table lists a process that computes on the GPU of the failure.
fn lists_process(case: &Case<'_>) -> Option<Finding> {
    let number = |name: &str| case.found.get(name)?.as_u64();
    let (gpu, pid) = (number("holder_gpu")?, number("holder_pid")?);
    let (bytes, name) = (number("holder_bytes")?, case.found.get("holder_name")?.as_str()?);
    Some(Finding::For(format!(
        "the nvidia-smi table in the log shows PID {pid} ({name}) with {} on GPU {gpu}",
        Bytes(bytes)
    )))
}

/// Checks whether the table shows the GPU in exclusive mode.
fn shows_exclusive(case: &Case<'_>) -> Option<Finding> {
    let gpu = case.found.get("exclusive_gpu")?;
    Some(Finding::For(format!(
        "the nvidia-smi table in the log shows GPU {gpu} in the mode E. Process"
    )))
}

/// Checks whether most of the GPU's memory is in use although the table lists no process.
fn shows_unnamed(case: &Case<'_>) -> Option<Finding> {
    let number = |name: &str| case.found.get(name)?.as_u64();
    Some(Finding::For(format!(
        "the nvidia-smi table in the log shows {} of {} in use on GPU {}, but no process",
        Bytes(number("unnamed_used_bytes")?),
        Bytes(number("unnamed_total_bytes")?),
        number("unnamed_gpu")?
    )))
}

/// Checks whether the processes in the table are the ranks of one job, not other users' programs.
fn shows_own_ranks(case: &Case<'_>) -> Option<Finding> {
    let ranks = case.found.get("smi_ranks")?;
    Some(Finding::For(format!(
        "the nvidia-smi table in the log shows one process of the same program on each of {ranks} GPUs"
    )))
}

/// Checks whether the kernel names a program that is not an interpreter.
fn native_process(case: &Case<'_>) -> Option<Finding> {
    let name = case.found.get("process")?.as_str()?;
    supports(is_native(name), || format!("the kernel names the program {name}"))
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
