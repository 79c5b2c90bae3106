//! A failure played under the settings that may have prevented it.

use super::config::Config;
use super::rules::{NEWEST, Rules};
use super::trace::{Op, Trace};
use super::whatif::{Room, WhatifResult, replay};
use crate::model::replay_result::{Fate, Replayed, SettingResult};
use crate::model::units::Bytes;

/// What is tried: every setting that a card names as a fix and that can be played (a test of `diagnose` says which is
/// missing), so that a failure is played once, where its trace lies, whoever explains it.
pub const REMEDIES: &[&str] = &[
    "expandable_segments:True",
    "expandable_segments:False",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:128,garbage_collection_threshold:0.8",
    "garbage_collection_threshold:0.8",
    "roundup_power2_divisions:8",
    "expandable_segments:True,expandable_segments_reserve:0.5",
];

/// The trace up to the request that failed with so much free on the card; `None` where it holds no such one.
#[must_use]
pub fn until(mut trace: Trace, free: Bytes) -> Option<Trace> {
    let is_it =
        |op: &Op| matches!(op, Op::Refused { driver_free, .. } if *driver_free == Some(free));
    let at = trace.ops.iter().rposition(is_it)?;
    trace.ops.truncate(at + 1);
    Some(trace)
}

/// Plays `trace`, whose last operation is the request that failed, under each of [`REMEDIES`] that its release of torch
/// knows. Which failure it was is for the caller to add.
///
/// # Errors
/// Why nothing can be said, a sentence: where the program's own setting, played, does not fail where the program did,
/// the model does not know something that the program did, such as a setting made in its code.
pub fn try_all(trace: &Trace, room: Room) -> Result<Replayed, String> {
    let torch = trace.recorded.torch.unwrap_or(NEWEST);
    let present = Config::parse(trace.recorded.conf.as_deref().unwrap_or_default());
    let own = replay(trace, &Rules::new(torch, &present), room);
    if fate(&own, trace) != Fate::Same {
        return Err(
            "The allocation trace, played again, does not fail where the program did: which settings help is not known."
                .to_owned(),
        );
    }
    let tried = REMEDIES.iter().filter_map(|conf| {
        let mut config = Config::read(conf, torch).ok()?;
        // A limit that somebody set is none of the allocator's habits: it stays.
        config.memory_fraction = config.memory_fraction.or(present.memory_fraction);
        let outlook = replay(trace, &Rules::new(torch, &config), room);
        let fate = fate(&outlook, trace);
        Some(SettingResult {
            conf: (*conf).to_owned(),
            fate,
            peak_reserved_bytes: outlook.peak_reserved,
            fails_at_bytes: (fate == Fate::Earlier)
                .then(|| outlook.last_oom.map(|oom| oom.requested))
                .flatten(),
        })
    });
    Ok(Replayed {
        ordinal: trace.device,
        peak_reserved_bytes: own.peak_reserved,
        last_operations: trace.cut.then_some(trace.ops.len() as u64),
        tried: tried.collect(),
        ..Replayed::default()
    })
}

fn fate(outlook: &WhatifResult, trace: &Trace) -> Fate {
    match outlook.last_oom {
        Some(oom) if oom.operation < trace.ops.len() && !oom.recorded => Fate::Earlier,
        Some(oom) if oom.operation == trace.ops.len() => Fate::Same,
        _ => Fate::Fits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::trace::{PoolId, Recorded, RecordedAction};

    /// A live tensor at the beginning of a large hole, and a request larger than the hole.
    fn pinned(wanted: u64) -> Trace {
        let alloc = |block, mib| Op::Alloc {
            block,
            requested: Bytes::mib(mib),
            stream: 0,
            pool: PoolId::SHARED,
        };
        Trace {
            ops: vec![
                Op::Recorded(RecordedAction::Reserved(Bytes::mib(600))),
                alloc(1, 600),
                Op::Free { block: 1 },
                Op::FreeCompleted { block: 1 },
                alloc(2, 30),
                Op::Refused {
                    requested: Bytes::mib(wanted),
                    stream: 0,
                    pool: PoolId::SHARED,
                    driver_free: Some(Bytes::mib(300)),
                },
                alloc(3, 1),
            ],
            recorded: Recorded {
                torch: Some((2, 8)),
                ..Recorded::default()
            },
            ..Trace::default()
        }
    }

    fn room(mib: u64) -> Room {
        Room {
            card: Bytes::mib(1000),
            outside: Bytes::mib(1000 - mib),
        }
    }

    fn tried(wanted: u64) -> Vec<SettingResult> {
        let trace = until(pinned(wanted), Bytes::mib(300)).expect("the failure");
        try_all(&trace, room(900)).expect("something to tell").tried
    }

    #[test]
    fn what_saves_the_program_has_its_figures() {
        let tried = tried(650);
        let of = |conf: &str| {
            let one = tried.iter().find(|one| one.conf == conf);
            one.map(|one| (one.fate, one.peak_reserved_bytes))
        };
        let fits = Some((Fate::Fits, Bytes::mib(680)));
        assert_eq!(of("expandable_segments:True"), fits);
        // Large blocks stay whole: the small tensor gets a segment of its own.
        assert_eq!(of("max_split_size_mb:256"), fits);
        let fails = of("roundup_power2_divisions:8").map(|(fate, _)| fate);
        assert_eq!(fails, Some(Fate::Same));
        // That release does not know it.
        assert_eq!(
            of("expandable_segments:True,expandable_segments_reserve:0.5"),
            None
        );
    }

    #[test]
    fn what_fits_under_no_setting_is_said_to() {
        assert!(tried(890).iter().all(|one| one.fate == Fate::Same));
        let trace = until(pinned(650), Bytes::mib(300)).expect("the failure");
        let why = try_all(&trace, Room::ENDLESS).expect_err("nothing to tell");
        assert!(why.contains("does not fail where the program did"), "{why}");
    }

    #[test]
    fn another_failure_than_the_one_that_is_explained_is_not_played() {
        assert_eq!(until(pinned(650), Bytes::mib(299)), None);
        assert_eq!(until(Trace::default(), Bytes(0)), None);
    }
}
