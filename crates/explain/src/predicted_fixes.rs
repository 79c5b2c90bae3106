//! Adds replay results to fixes, so that a fix that changes a PyTorch allocator setting states whether it would have
//! prevented the failure.

use std::cmp::Reverse;

use gputop_model::incident::{Fix, FixKind, Incident};
use gputop_model::trace_replay::{ReplayOutcome, SettingResult, TraceReplay};

/// Environment variables for PyTorch's allocator settings. PyTorch accepts both names.
const VARIABLES: &[&str] = &["PYTORCH_CUDA_ALLOC_CONF=", "PYTORCH_ALLOC_CONF="];

/// Returns true if a fix of the incident is an allocator setting whose effect can be replayed.
#[must_use]
pub fn has_settings(incident: &Incident) -> bool {
    incident.is_gpu_oom() && incident.fixes.iter().any(|fix| conf_of(fix).is_some())
}

/// Adds the replay result to the effect of each fix. Moves fixes that would have worked to the front, and those that
/// would have failed to the end. If there is no result, adds the reason to the incident.
pub fn add_predictions(incident: &mut Incident, replayed: &TraceReplay) {
    if !has_settings(incident) {
        return;
    }
    if let Some(why) = &replayed.missing {
        // Put the reason first, because the user asked for the trace and expects a prediction.
        incident.needs.insert(0, why.clone());
        return;
    }
    for fix in &mut incident.fixes {
        let conf = conf_of(fix);
        let tried = replayed.tried.iter().find(|one| Some(&*one.conf) == conf);
        let Some(result) = tried.and_then(|one| result_clause(one, replayed)) else {
            continue;
        };
        fix.replayed = tried.cloned();
        let before = fix.effect.take();
        fix.effect = Some(before.map_or(result.clone(), |before| format!("{result}; {before}")));
    }
    incident.fixes.sort_by_key(|fix| {
        Reverse(match fix.replayed.as_ref().map(|one| one.outcome) {
            Some(ReplayOutcome::Fits) => 2,
            // Put fixes whose replay result is unknown in the middle.
            None | Some(ReplayOutcome::Unknown) => 1,
            Some(ReplayOutcome::Same | ReplayOutcome::Earlier) => 0,
        })
    });
    if let Some(last) = replayed.last_operations {
        incident.needs.insert(
            0,
            format!(
                "The predictions use the last {last} operations, which is all that PyTorch recorded. Memory that was cached \
                 before them is unknown."
            ),
        );
    }
}

/// Returns the allocator setting in a fix: `expandable_segments:True` for
/// `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py`.
fn conf_of(fix: &Fix) -> Option<&str> {
    if fix.kind != FixKind::Env {
        return None;
    }
    let mut after = VARIABLES.iter().filter_map(|name| fix.change.split_once(name));
    after.next()?.1.split_whitespace().next()
}

/// Returns the result of a replay as a phrase, or `None` if the result is unknown.
fn result_clause(tried: &SettingResult, replayed: &TraceReplay) -> Option<String> {
    let (then, now) = (tried.peak_reserved_bytes, replayed.peak_reserved_bytes);
    Some(match tried.outcome {
        ReplayOutcome::Fits if then < now => {
            format!("replayed: peak reserved {then} instead of {now}, fits")
        }
        ReplayOutcome::Fits => format!("replayed: fits, with a peak of {then} reserved"),
        ReplayOutcome::Same => "replayed: fails at the same request".to_owned(),
        ReplayOutcome::Earlier => match tried.fails_at_bytes {
            Some(request) => format!("replayed: fails even earlier, at a request for {request}"),
            None => "replayed: fails even earlier".to_owned(),
        },
        ReplayOutcome::Unknown => return None,
    })
}

#[cfg(test)]
mod tests;
