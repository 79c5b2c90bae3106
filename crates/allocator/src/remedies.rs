//! Replays of a failure under settings that could have prevented it.

use gputop_model::trace_replay::{ReplayOutcome, SettingResult};
use gputop_model::{Bytes, TraceReplay};

use super::config::Config;
use super::rules::NEWEST;
use super::trace::{Op, Trace};
use super::whatif::{Room, WhatifResult, replay};

/// Settings to replay: every setting that an explanation recommends and that can be replayed (a test in `diagnose`
/// finds missing ones). Each failure is replayed only once, on the host that has its trace, and everyone who watches
/// that host gets the same result.
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

/// Truncates the trace after the request that failed while the GPU had `free` bytes free. Returns `None` if the trace
/// has no such request.
pub fn until(mut trace: Trace, free: Bytes) -> Option<Trace> {
    let is_failure =
        |op: &Op| matches!(op, Op::Refused { driver_free, .. } if *driver_free == Some(free));
    let at = trace.ops.iter().rposition(is_failure)?;
    trace.ops.truncate(at + 1);
    Some(trace)
}

/// Replays `trace`, whose last operation is the failed request, under each of [`REMEDIES`] that its torch release
/// supports. The caller sets the fields that identify the failure. Returns an error if the replay under the program's
/// own settings does not fail where the program did. In that case, the program did something that the model does not
/// know about, such as changing a setting in its code.
pub fn try_all(trace: &Trace, room: Room) -> Result<TraceReplay, String> {
    let torch = trace.recorded.torch.unwrap_or(NEWEST);
    let present = Config::parse(trace.recorded.conf.as_deref().unwrap_or_default());
    let own = replay(trace, &present.rules(torch), room);
    if outcome(&own, trace) != ReplayOutcome::Same {
        return Err(
            "The replayed allocation trace does not fail where the program did, so the effect of other settings is unknown."
                .to_owned(),
        );
    }
    let tried = REMEDIES.iter().filter_map(|conf| {
        let mut config = Config::read(conf, torch).ok()?;
        // Keep the user's memory limit: the user chose it, and a fix should not depend on raising it.
        config.memory_fraction = config.memory_fraction.or(present.memory_fraction);
        let result = replay(trace, &config.rules(torch), room);
        let outcome = outcome(&result, trace);
        Some(SettingResult {
            conf: (*conf).to_owned(),
            outcome,
            peak_reserved_bytes: result.peak_reserved,
            fails_at_bytes: (outcome == ReplayOutcome::Earlier)
                .then(|| result.last_oom.map(|oom| oom.requested))
                .flatten(),
        })
    });
    Ok(TraceReplay {
        ordinal: trace.device,
        peak_reserved_bytes: own.peak_reserved,
        last_operations: trace.cut.then_some(trace.ops.len() as u64),
        tried: tried.collect(),
        ..TraceReplay::default()
    })
}

fn outcome(result: &WhatifResult, trace: &Trace) -> ReplayOutcome {
    match result.last_oom {
        Some(oom) if oom.operation < trace.ops.len() && !oom.recorded => ReplayOutcome::Earlier,
        Some(oom) if oom.operation == trace.ops.len() => ReplayOutcome::Same,
        _ => ReplayOutcome::Fits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{PoolId, Recorded, RecordedAction};

    /// A trace in which a live tensor lies at the start of an otherwise free large block, and the last request does not
    /// fit into the rest of that block.
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
            recorded: Recorded { torch: Some((2, 8)), ..Recorded::default() },
            ..Trace::default()
        }
    }

    fn room(mib: u64) -> Room {
        Room { card: Bytes::mib(1000), outside: Bytes::mib(1000 - mib) }
    }

    fn tried(wanted: u64) -> Vec<SettingResult> {
        let trace = until(pinned(wanted), Bytes::mib(300)).expect("the failure");
        try_all(&trace, room(900)).expect("results").tried
    }

    #[test]
    fn successful_settings_have_their_figures() {
        let tried = tried(650);
        let result_of = |conf: &str| {
            let one = tried.iter().find(|one| one.conf == conf);
            one.map(|one| (one.outcome, one.peak_reserved_bytes))
        };
        let fits = Some((ReplayOutcome::Fits, Bytes::mib(680)));
        assert_eq!(result_of("expandable_segments:True"), fits);
        // Large blocks are not split, so the small tensor gets its own segment.
        assert_eq!(result_of("max_split_size_mb:256"), fits);
        let fails = result_of("roundup_power2_divisions:8").map(|(outcome, _)| outcome);
        assert_eq!(fails, Some(ReplayOutcome::Same));
        // torch 2.8 does not support this setting.
        assert_eq!(result_of("expandable_segments:True,expandable_segments_reserve:0.5"), None);
    }

    #[test]
    fn reports_requests_that_fit_under_no_setting() {
        assert!(tried(890).iter().all(|one| one.outcome == ReplayOutcome::Same));
        let trace = until(pinned(650), Bytes::mib(300)).expect("the failure");
        let why = try_all(&trace, Room::UNLIMITED).expect_err("no results");
        assert!(why.contains("does not fail where the program did"), "{why}");
    }

    #[test]
    fn does_not_replay_a_different_failure() {
        assert_eq!(until(pinned(650), Bytes::mib(299)), None);
        assert_eq!(until(Trace::default(), Bytes(0)), None);
    }
}
