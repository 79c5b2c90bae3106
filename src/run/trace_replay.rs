//! What the allocation trace of the command's failure says of the fixes, if one was kept.

use std::time::Duration;

use super::hook_evidence::HookEvidence;
use crate::collect::hook::Traced;
use crate::diagnose::predicted_fixes;
use crate::incidents::with_timeout;
use crate::model::incident::Incident;
use crate::model::replay_result::Replayed;

/// Whoever waits for the explanation waits no longer: a second is enough for the largest trace.
const PATIENCE: Duration = Duration::from_secs(5);

/// Puts into the fixes of `incident` what they would have done, where there is a trace of it; and where there is one that
/// tells nothing, why.
pub(super) fn foretell(incident: &mut Incident, found: HookEvidence) {
    if !predicted_fixes::has_settings(incident) {
        return;
    }
    let traced = Traced {
        process: found.process,
        torch: found.torch,
        oom: found.heard.oom,
    };
    let replayed = match with_timeout(PATIENCE, move || traced.replay()) {
        Some(None) => return,
        Some(Some(replayed)) => replayed,
        None => Replayed {
            missing: Some(format!(
                "The allocation trace takes longer than {} s to replay: `gputop whatif` on it says which settings help.",
                PATIENCE.as_secs()
            )),
            ..Replayed::default()
        },
    };
    predicted_fixes::add_predictions(incident, &replayed);
}
