//! Adds replay results to fixes, so that a fix that changes a PyTorch allocator setting states whether it would have
//! prevented the failure.

use std::cmp::Reverse;

use crate::model::incident::{Fix, FixKind, Incident};
use crate::model::trace_replay::{ReplayOutcome, SettingResult, TraceReplay};

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
mod tests {
    use super::*;
    use crate::allocator::config::Config;
    use crate::allocator::remedies::REMEDIES;
    use crate::allocator::rules::NEWEST;
    use crate::diagnose::Catalogue;
    use crate::model::units::Bytes;

    fn fix(change: &str, effect: Option<&str>) -> Fix {
        Fix {
            change: change.to_owned(),
            kind: FixKind::Env,
            effect: effect.map(str::to_owned),
            ..Fix::default()
        }
    }

    fn incident() -> Incident {
        let set = |conf: &str| format!("PYTORCH_CUDA_ALLOC_CONF={conf} python train.py");
        Incident {
            family: "oom".to_owned(),
            fixes: vec![
                fix(&set("max_split_size_mb:256"), None),
                fix("export OMP_NUM_THREADS=1", Some("less")),
                fix(&set("backend:cudaMallocAsync"), None),
                fix(&set("roundup_power2_divisions:8"), None),
                fix(&set("expandable_segments:True"), Some("torch 2.1 or later")),
            ],
            ..Incident::default()
        }
    }

    fn tried(conf: &str, outcome: ReplayOutcome, mib: u64) -> SettingResult {
        SettingResult {
            conf: conf.to_owned(),
            outcome,
            peak_reserved_bytes: Bytes::mib(mib),
            fails_at_bytes: (outcome == ReplayOutcome::Earlier).then_some(Bytes::mib(7)),
        }
    }

    #[test]
    fn working_settings_come_first_with_their_figures() {
        let mut incident = incident();
        add_predictions(
            &mut incident,
            &TraceReplay {
                peak_reserved_bytes: Bytes::mib(700),
                tried: vec![
                    tried("roundup_power2_divisions:8", ReplayOutcome::Earlier, 900),
                    tried("max_split_size_mb:256", ReplayOutcome::Fits, 760),
                    tried("expandable_segments:True", ReplayOutcome::Fits, 680),
                ],
                ..TraceReplay::default()
            },
        );
        let effects: Vec<_> = incident.fixes.iter().map(|fix| fix.effect.as_deref()).collect();
        assert_eq!(
            effects,
            [
                Some("replayed: fits, with a peak of 760.00 MiB reserved"),
                Some(
                    "replayed: peak reserved 680.00 MiB instead of 700.00 MiB, fits; torch 2.1 or later"
                ),
                Some("less"),
                None,
                Some("replayed: fails even earlier, at a request for 7.00 MiB"),
            ]
        );
        assert_eq!(incident.needs, Vec::<String>::new());
    }

    #[test]
    fn a_missing_replay_adds_its_reason_and_changes_no_fix() {
        let replayed = TraceReplay {
            missing: Some("The replay is of an earlier failure.".to_owned()),
            ..TraceReplay::default()
        };
        let mut changed = incident();
        add_predictions(&mut changed, &replayed);
        assert_eq!(changed.needs, ["The replay is of an earlier failure."]);
        assert_eq!(changed.fixes, incident().fixes);
        // Incidents other than out-of-memory errors remain unchanged.
        let mut other = Incident { family: "xid".to_owned(), ..incident() };
        add_predictions(&mut other, &replayed);
        assert_eq!(other.needs, Vec::<String>::new());
        other.family = "oom".to_owned();
        other.fixes.truncate(2);
        other.fixes.remove(0);
        assert!(!has_settings(&other));
    }

    /// Checks that replays cover every allocator setting in a card.
    #[test]
    fn replays_every_setting_in_a_card() {
        let cards = Catalogue::embedded().cards.iter();
        for card in cards.filter(|card| card.family.starts_with("oom")) {
            for fix in &card.fixes {
                let fix = Fix { change: fix.change.clone(), kind: fix.kind, ..Fix::default() };
                let Some(conf) = conf_of(&fix) else { continue };
                let changes_something =
                    Config::read(conf, NEWEST).is_ok_and(|c| c != Config::default());
                assert!(
                    !changes_something || REMEDIES.contains(&conf),
                    "{}: {conf} is missing from allocator::remedies::REMEDIES",
                    card.id
                );
            }
        }
    }
}
