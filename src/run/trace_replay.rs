//! Predicted effect of the fixes, from the allocation trace of the failed command.

use std::time::Duration;

use super::hook_evidence::HookEvidence;
use crate::collect::hook::Traced;
use crate::diagnose::predicted_fixes;
use crate::incident::with_timeout;
use crate::model::incident::Incident;
use crate::model::replay_result::Replayed;

/// Maximum time to replay a trace while the user waits for the explanation. The largest trace takes about a second.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(5);

/// Adds the predicted effect to the fixes of `incident` if there is a trace, or the reason why the trace gives no
/// prediction.
pub(super) fn add_predictions(incident: &mut Incident, found: HookEvidence) {
    if !predicted_fixes::has_settings(incident) {
        return;
    }
    let traced = Traced {
        process: found.process,
        torch: found.torch,
        oom: found.report.oom,
    };
    let replayed = match with_timeout(REPLAY_TIMEOUT, move || traced.replay()) {
        Some(None) => return,
        Some(Some(replayed)) => replayed,
        None => Replayed {
            missing: Some(format!(
                "Replaying the allocation trace takes longer than {} s. Run `gputop whatif` on it to see which settings help.",
                REPLAY_TIMEOUT.as_secs()
            )),
            ..Replayed::default()
        },
    };
    predicted_fixes::add_predictions(incident, &replayed);
}
