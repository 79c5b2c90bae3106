use std::sync::Arc;

use gputop_model::pool::{PoolStats, Pools, Sampled};

use super::*;

fn pool(pid: u32, reserved: u64, num_ooms: u64) -> Pool {
    Pool {
        process: ProcessKey::new(pid, 1),
        stats: PoolStats {
            reserved: Sampled::new(Bytes(reserved)),
            num_ooms,
            ..PoolStats::default()
        },
        ..Pool::default()
    }
}

fn frame(second: u64, list: Vec<Pool>) -> Frame {
    Frame {
        mono: Mono(second * 1_000),
        pools: Some(Pools { list: Arc::new(list), ..Pools::default() }),
        ..Frame::default()
    }
}

/// Returns the PIDs whose maps are requested for one frame. The reply to each request is a map of `bytes` bytes.
fn asked(rounds: &mut MapScheduler, frame: &Frame, bytes: u64) -> Vec<u32> {
    let mut pids = Vec::new();
    let mut request = rounds.frame(frame);
    while let Some(Request::Map(Some((process, ordinal)))) = request {
        pids.push(process.pid.0);
        assert!(rounds.takes(&PoolMap { process, ordinal, ..PoolMap::default() }));
        rounds.wrote(bytes);
        request = Some(rounds.ask_next());
    }
    pids
}

#[test]
fn requests_every_pool_once_per_round() {
    let mut rounds = MapScheduler::new(MapPeriod::Period(Millis(10_000)));
    let seconds = (0..31).filter(|&s| {
        asked(&mut rounds, &frame(s, vec![pool(1, 9, 0), pool(2, 9, 0)]), 1) == [1, 2]
    });
    assert_eq!(seconds.collect::<Vec<_>>(), [0, 10, 20, 30]);
    let mut never = MapScheduler::new(MapPeriod::Never);
    assert_eq!(never.frame(&frame(0, vec![pool(1, 9, 0)])), None);
}

#[test]
fn requests_changed_pools_out_of_turn_but_not_too_often() {
    let mut rounds = MapScheduler::new(MapPeriod::Sparing);
    let mut at = |second, list| asked(&mut rounds, &frame(second, list), 1);
    assert_eq!(at(0, vec![pool(1, 100, 0)]), [1]);
    assert_eq!(at(1, vec![pool(1, 100, 0), pool(2, 100, 0)]), [2]);
    assert_eq!(at(5, vec![pool(1, 100, 1), pool(2, 100, 0)]), [] as [u32; 0]);
    assert_eq!(at(10, vec![pool(1, 100, 1), pool(2, 102, 0)]), [1]);
    assert_eq!(at(11, vec![pool(1, 100, 1), pool(2, 103, 0)]), [2]);
    assert_eq!(at(59, vec![pool(1, 102, 1), pool(2, 103, 0)]), [] as [u32; 0]);
    assert_eq!(at(60, vec![pool(1, 102, 1), pool(2, 103, 0)]), [1, 2]);
}

#[test]
fn does_not_request_a_map_that_came_with_a_failure() {
    let failed = PoolMap { process: pool(1, 0, 0).process, ..PoolMap::default() };
    let mut rounds = MapScheduler::new(MapPeriod::Sparing);
    assert_eq!(asked(&mut rounds, &frame(0, vec![pool(1, 100, 0)]), 1), [1]);
    assert!(rounds.takes_failed(&failed));
    let none = [] as [u32; 0];
    assert_eq!(asked(&mut rounds, &frame(15, vec![pool(1, 100, 1)]), 1), none);
    assert_eq!(asked(&mut rounds, &frame(60, vec![pool(1, 100, 1)]), 1), [1]);
    assert_eq!(asked(&mut rounds, &frame(75, vec![pool(1, 100, 2)]), 1), [1]);
    rounds.wrote(MAX_BUDGET.0);
    assert!(!rounds.takes_failed(&failed), "the budget is used up");
    assert!(!MapScheduler::new(MapPeriod::Never).takes_failed(&failed));
}

#[test]
fn records_large_maps_less_often_unless_a_period_is_set() {
    let day = |every| {
        let mut rounds = MapScheduler::new(every);
        let list = vec![pool(1, 9, 0)];
        (0..86_400)
            .map(|s| asked(&mut rounds, &frame(s, list.clone()), 50_000).len())
            .sum::<usize>()
    };
    // The budget allows 1 MiB immediately and 3.5 kB per minute.
    let sparing = day(MapPeriod::Sparing);
    assert!((120..=125).contains(&sparing), "{sparing}");
    assert_eq!(day(MapPeriod::Period(DEFAULT_PERIOD)), 1_440);
}

#[test]
fn an_unanswered_request_does_not_block_the_next() {
    let mut rounds = MapScheduler::new(MapPeriod::Sparing);
    let list = vec![pool(1, 9, 0), pool(2, 9, 0)];
    let mut at = |second| rounds.frame(&frame(second, list.clone()));
    let of = |pid| Some(Request::Map(Some((pool(pid, 0, 0).process, 0))));
    assert_eq!([at(0), at(1), at(2), at(3)], [of(1), None, None, of(2)]);
    assert_eq!([at(4), at(5), at(6)], [None, None, Some(Request::Map(None))]);
    assert_eq!(at(7), None);
    assert!(!rounds.answered((pool(1, 0, 0).process, 0)));
}

#[test]
fn does_not_request_a_pool_that_disappeared() {
    let mut rounds = MapScheduler::new(MapPeriod::Sparing);
    rounds.frame(&frame(0, vec![pool(1, 9, 0), pool(2, 9, 0)]));
    rounds.frame(&frame(1, vec![pool(1, 9, 0)]));
    assert!(rounds.answered((pool(1, 0, 0).process, 0)));
    assert_eq!(rounds.ask_next(), Request::Map(None));
}
