//! What the replay of a failure says of the fixes: each of them that is another setting of PyTorch's allocator says
//! whether the request would have succeeded.

use std::cmp::Reverse;

use crate::model::incident::{Fix, FixKind, Incident};
use crate::model::replay_result::{Fate, Replayed, SettingResult};

/// How a fix's command sets it; PyTorch takes both names.
const VARIABLES: &[&str] = &["PYTORCH_CUDA_ALLOC_CONF=", "PYTORCH_ALLOC_CONF="];

/// Some fix is a setting that may have been played.
#[must_use]
pub fn has_settings(incident: &Incident) -> bool {
    incident.is_gpu_oom() && incident.fixes.iter().any(|fix| conf_of(fix).is_some())
}

/// Puts into the effect of each fix what came of it in the replay. Those that save the program come first, those that
/// do not last. Where the replay tells nothing, the incident says why.
pub fn foretell(incident: &mut Incident, replayed: &Replayed) {
    if !has_settings(incident) {
        return;
    }
    if let Some(why) = &replayed.missing {
        // Whoever asked for a trace wants to know first.
        incident.needs.insert(0, why.clone());
        return;
    }
    for fix in &mut incident.fixes {
        let conf = conf_of(fix);
        let tried = replayed.tried.iter().find(|one| Some(&*one.conf) == conf);
        let Some(said) = tried.and_then(|one| words(one, replayed)) else {
            continue;
        };
        fix.replayed = tried.cloned();
        let before = fix.effect.take();
        fix.effect = Some(before.map_or(said.clone(), |before| format!("{said}; {before}")));
    }
    incident.fixes.sort_by_key(|fix| {
        Reverse(match fix.replayed.as_ref().map(|one| one.fate) {
            Some(Fate::Fits) => 2,
            // What is not known stands between.
            None | Some(Fate::Unknown) => 1,
            Some(Fate::Same | Fate::Earlier) => 0,
        })
    });
    if let Some(last) = replayed.last_operations {
        incident.needs.insert(
            0,
            format!(
                "What the fixes are said to do is of the last {last} operations, all that PyTorch kept: what was cached \
                 before them is not known."
            ),
        );
    }
}

/// `expandable_segments:True` of `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py`.
fn conf_of(fix: &Fix) -> Option<&str> {
    if fix.kind != FixKind::Env {
        return None;
    }
    let mut after = VARIABLES
        .iter()
        .filter_map(|name| fix.change.split_once(name));
    after.next()?.1.split_whitespace().next()
}

/// `None` where a later version's fate is not known.
fn words(tried: &SettingResult, replayed: &Replayed) -> Option<String> {
    let (then, now) = (tried.peak_reserved_bytes, replayed.peak_reserved_bytes);
    Some(match tried.fate {
        Fate::Fits if then < now => {
            format!("replayed: peak reserved {then} instead of {now}, fits")
        }
        Fate::Fits => format!("replayed: fits, with a peak of {then} reserved"),
        Fate::Same => "replayed: fails at the same request".to_owned(),
        Fate::Earlier => match tried.fails_at_bytes {
            Some(wanted) => format!("replayed: fails even earlier, at a request for {wanted}"),
            None => "replayed: fails even earlier".to_owned(),
        },
        Fate::Unknown => return None,
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

    fn tried(conf: &str, fate: Fate, mib: u64) -> SettingResult {
        SettingResult {
            conf: conf.to_owned(),
            fate,
            peak_reserved_bytes: Bytes::mib(mib),
            fails_at_bytes: (fate == Fate::Earlier).then_some(Bytes::mib(7)),
        }
    }

    #[test]
    fn a_setting_that_would_have_saved_the_program_comes_first_with_its_figures() {
        let mut incident = incident();
        foretell(
            &mut incident,
            &Replayed {
                peak_reserved_bytes: Bytes::mib(700),
                tried: vec![
                    tried("roundup_power2_divisions:8", Fate::Earlier, 900),
                    tried("max_split_size_mb:256", Fate::Fits, 760),
                    tried("expandable_segments:True", Fate::Fits, 680),
                ],
                ..Replayed::default()
            },
        );
        let effects: Vec<_> = incident
            .fixes
            .iter()
            .map(|fix| fix.effect.as_deref())
            .collect();
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
    fn a_replay_that_tells_nothing_says_why_and_changes_no_fix() {
        let replayed = Replayed {
            missing: Some("It is of an earlier failure.".to_owned()),
            ..Replayed::default()
        };
        let mut told = incident();
        foretell(&mut told, &replayed);
        assert_eq!(told.needs, ["It is of an earlier failure."]);
        assert_eq!(told.fixes, incident().fixes);
        // Nobody's failure of memory.
        let mut other = Incident {
            family: "xid".to_owned(),
            ..incident()
        };
        foretell(&mut other, &replayed);
        assert_eq!(other.needs, Vec::<String>::new());
        other.family = "oom".to_owned();
        other.fixes.truncate(2);
        other.fixes.remove(0);
        assert!(!has_settings(&other));
    }

    /// A card that names a new setting must have it tried.
    #[test]
    fn every_setting_that_a_card_names_is_tried() {
        let cards = Catalogue::embedded().cards.iter();
        for card in cards.filter(|card| card.family.starts_with("oom")) {
            for fix in &card.fixes {
                let fix = Fix {
                    change: fix.change.clone(),
                    kind: fix.kind,
                    ..Fix::default()
                };
                let Some(conf) = conf_of(&fix) else { continue };
                let says_something =
                    Config::read(conf, NEWEST).is_ok_and(|c| c != Config::default());
                assert!(
                    !says_something || REMEDIES.contains(&conf),
                    "{}: {conf} is missing in allocator::remedies::REMEDIES",
                    card.id
                );
            }
        }
    }
}
