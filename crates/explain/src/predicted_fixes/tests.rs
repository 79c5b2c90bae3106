use gputop_allocator::config::Config;
use gputop_allocator::remedies::REMEDIES;
use gputop_allocator::rules::NEWEST;
use gputop_model::units::Bytes;

use super::*;
use crate::Catalogue;

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
