use super::*;
use crate::config::Config;
use crate::rules::NEWEST;

fn rules(conf: &str) -> Rules {
    Config::read(conf, NEWEST).expect("a setting").rules(NEWEST)
}

fn alloc(block: u64, mib: u64) -> Op {
    Op::Alloc { block, requested: Bytes::mib(mib), stream: 0, pool: PoolId::SHARED }
}

fn free(block: u64) -> [Op; 2] {
    [Op::Free { block }, Op::FreeCompleted { block }]
}

fn room(mib: u64) -> Room {
    Room { card: Bytes::mib(mib), outside: Bytes(0) }
}

/// Trace of a program with growing sequence lengths: no freed buffer is large enough for the next one.
fn growing() -> Trace {
    let mut ops = Vec::new();
    for step in 0..40_u64 {
        ops.push(alloc(step, 40 + step * 4));
        if step >= 2 {
            ops.extend(free(step - 2));
        }
    }
    Trace { ops, ..Trace::default() }
}

#[test]
fn expandable_segments_help_a_program_whose_buffers_grow() {
    let trace = growing();
    let native = replay(&trace, &rules(""), Room::UNLIMITED);
    let expandable = replay(&trace, &rules("expandable_segments:True"), Room::UNLIMITED);
    assert!(native.fits() && expandable.fits());
    assert_eq!(native.peak_allocated, expandable.peak_allocated);
    // The last three buffers.
    assert_eq!(native.allocated_at_peak(), Bytes::mib(196 + 192 + 188));
    assert!(native.peak_reserved.0 > 2 * expandable.peak_reserved.0);
    // The cache consists of small blocks that are released only when memory runs short, as on a small GPU.
    let tight = replay(&trace, &rules(""), room(700));
    assert!(tight.fits() && tight.num_alloc_retries > 0);
}

#[test]
fn a_new_failure_stops_the_replay_but_a_recorded_one_does_not() {
    let refused = Op::Refused {
        requested: Bytes::mib(900),
        stream: 0,
        pool: PoolId::SHARED,
        driver_free: Some(Bytes::mib(300)),
    };
    let mut trace = Trace {
        ops: vec![
            alloc(1, 600),
            Op::Recorded(RecordedAction::Reserved(Bytes::mib(600))),
            refused,
            alloc(2, 100),
            alloc(3, 400),
            alloc(4, 1),
        ],
        ..Trace::default()
    };
    let result = replay(&trace, &rules(""), room(1000));
    let first = result.oom.expect("an OOM");
    assert_eq!((first.operation, first.recorded), (3, true));
    assert_eq!((result.played, result.num_ooms), (5, 2));
    assert_eq!(available(&trace), None);
    trace.recorded.reserved_end = Some(Bytes::mib(700));
    trace.ops.push(Op::Recorded(RecordedAction::Reserved(Bytes::mib(100))));
    assert_eq!(available(&trace), Some(Bytes::mib(900)));
    let larger = replay(&trace, &rules(""), room(2000));
    assert!(larger.fits() && larger.played == 7);
    // The driver had plenty of memory, so the request failed because of a memory fraction. The limit is therefore
    // at least the memory reserved before the failure.
    if let Op::Refused { driver_free, .. } = &mut trace.ops[2] {
        *driver_free = Some(Bytes::gib(100));
    }
    assert_eq!(available(&trace), Some(Bytes::mib(700)));
    trace.recorded.reserved_peak = Some(Bytes::mib(850));
    assert_eq!(available(&trace), Some(Bytes::mib(850)));
}

#[test]
fn largest_fit_is_exact_to_the_block() {
    let mut trace = Trace::default();
    trace.ops.push(alloc(1, 100));
    let result = replay(&trace, &rules(""), room(1000));
    assert_eq!(largest_fit(&result.end), Bytes::mib(900));
    assert!(succeeds(&result.end, Bytes::mib(900)));
    assert!(!succeeds(&result.end, Bytes(Bytes::mib(900).0 + 1)));
    trace.ops.extend(free(1));
    let result = replay(&trace, &rules(""), room(1001));
    assert_eq!(largest_fit(&result.end), Bytes::mib(1000));
    trace.ops = vec![alloc(1, 2000)];
    let result = replay(&trace, &rules(""), room(1000));
    assert_eq!(result.oom.map(|oom| oom.operation), Some(1));
}

#[test]
fn a_long_history_has_a_short_curve() {
    let ops = (0..5000).flat_map(|n| [vec![alloc(n, 3)], free(n).to_vec()].concat());
    let trace = Trace { ops: ops.collect(), ..Trace::default() };
    let curve = replay(&trace, &rules(""), Room::UNLIMITED).curve;
    assert!(curve.points.len() <= MAX_POINTS && curve.points.len() > MAX_POINTS / 2);
    assert!(curve.points.iter().all(|point| point.reserved == Bytes::mib(20)));
}
