use std::fmt::Write as _;

use super::super::{RecordedLine, read};
use super::*;

/// Returns a recorded line with one GPU and one process with a pool. Memory sizes are in GiB.
fn line(second: u64, watts: u64, sm: u64, allocated: (u64, u64), retries: u64) -> String {
    let gib = |gib: u64| gib << 30;
    let (last, max) = allocated;
    let mut line = format!(r#"{{"frame":{{"time":1000,"mono":{},"interval":1000,"#, second * 1_000);
    let _ = write!(
        line,
        r#""gpus":[{{"index":0,"uuid":"GPU-a","name":"H200","health":{{"state":"answering"}},"memory":{{"total":{},"free":{}}},
            "sm":{sm},"power":{},"throttle":["sw_power_cap"],"processes":[{{"pid":7,"process":{{"pid":7,"start":1}},"vram":{},"sm":{sm}}}]}}],"#,
        gib(80),
        gib(60),
        watts * 1_000,
        gib(20),
    );
    let _ = write!(
        line,
        r#""processes":{{"list":[{{"key":{{"pid":7,"start":1}},"name":"python","command":"python train.py"}}]}},
            "pools":{{"list":[{{"process":{{"pid":7,"start":1}},"gpu":"GPU-a","stats":{{"allocated":[{},{},{}],"reserved":[{r},{r},{r}],"num_alloc_retries":{retries}}}}}]}}}}}}"#,
        gib(last),
        gib(max),
        gib(last),
        r = gib(18),
    );
    line.replace('\n', "")
}

fn push(totals: &mut Totals, line: &str) {
    match read(line.as_bytes(), &mut Vec::new()).expect("a line") {
        RecordedLine::Frame(frame) => totals.push(&frame),
        other => panic!("{other:?}"),
    }
}

fn summary(totals: Totals) -> RunSummary {
    totals.finish("run", &Hello::default(), 0, &[])
}

#[test]
fn sums_one_gpu_and_one_process() {
    let mut totals = Totals::default();
    for second in 0..=100 {
        let sm = if second <= 25 { 0 } else { 90 };
        push(&mut totals, &line(second, 300, sm, (10, 16), second / 50));
    }
    let summary = summary(totals);
    assert_eq!((summary.samples, summary.gaps), (101, 0));
    assert_eq!(summary.covered, Millis(100_000));
    let gpu = &summary.gpus[0];
    assert_eq!(gpu.unused, Some(Bytes::gib(60)));
    assert_eq!(gpu.idle_percent, Some(Percent(0.0)));
    assert_eq!(gpu.waiting_percent, Some(Percent(25.0)));
    assert_eq!(gpu.throttled_percent, Some(Percent(100.0)));
    assert_eq!(gpu.energy.map(|energy| energy.joules), Some(30_000.0));
    let process = &summary.processes[0];
    assert_eq!(process.command.as_deref(), Some("python train.py"));
    assert_eq!(process.gpus, [0]);
    assert_eq!(process.outside_peak, Some(Bytes::gib(2)));
    let pool = &process.pools[0];
    let allocated = pool.allocated.expect("samples");
    assert_eq!((allocated.peak, allocated.p50), (Bytes::gib(16), Bytes::gib(10)));
    assert_eq!(pool.unused, Some(Bytes::gib(2)));
    assert_eq!(process.warnings[0].kind, "flushing");
    assert_eq!(process.warnings[0].after, Millis(50_000));
}

#[test]
fn a_gap_is_no_time_and_costs_no_energy() {
    let mut totals = Totals::default();
    for second in (0..=10).chain(1_000..=1_010) {
        push(&mut totals, &line(second, 300, 90, (1, 1), 0));
    }
    let summary = summary(totals);
    assert_eq!(summary.gaps, 1);
    assert_eq!(summary.duration, Millis(1_010_000));
    assert_eq!(summary.covered, Millis(20_000));
    let energy = summary.gpus[0].energy.expect("power");
    assert_eq!((energy.joules, energy.covered), (6_000.0, Millis(20_000)));
}

#[test]
fn damage_is_one_gap_wherever_it_is() {
    let gaps = |damaged: &[u64]| {
        let mut totals = Totals::default();
        for second in 0..=10 {
            (0..2).filter(|_| damaged.contains(&second)).for_each(|_| totals.push_damage());
            push(&mut totals, &line(second, 300, 90, (1, 1), 0));
        }
        if damaged.contains(&11) {
            totals.push_damage();
        }
        let summary = summary(totals);
        (summary.gaps, summary.covered.0)
    };
    assert_eq!(gaps(&[]), (0, 10_000));
    assert_eq!(gaps(&[0]), (1, 10_000));
    assert_eq!(gaps(&[4, 7]), (2, 8_000));
    assert_eq!(gaps(&[11]), (1, 10_000));
}

#[test]
fn parts_add_up_to_the_whole() {
    let lines: Vec<String> = (0..400)
        .map(|second| {
            let gap = if second > 300 { 500 } else { 0 };
            let size = 1 + second % 9;
            line(second + gap, 100 + second, second % 3, (size, size + 1), second / 150)
        })
        .collect();
    let mut whole = Totals::default();
    lines.iter().for_each(|line| push(&mut whole, line));
    let mut parts = Totals::default();
    lines[..200].iter().for_each(|line| push(&mut parts, line));
    let mut later = Totals::default();
    lines[..200].iter().for_each(|line| push(&mut later, line));
    let mut later = later.continued();
    lines[200..].iter().for_each(|line| push(&mut later, line));
    parts.append(later);
    assert_eq!(summary(whole), summary(parts));
}

#[test]
fn the_time_of_a_slow_gpu_is_split_by_phase() {
    let window = |end: u64, waits: u32, computes: u32| {
        let line = format!(
            r#"{{"phase_window":{{"process":{{"pid":7,"start":1}},"at":{},"length":10000,
            "phases":[{{"phase":"loader_wait","count":{waits}}},{{"phase":"forward","count":{computes}}}]}}}}"#,
            end * 1_000
        );
        line.replace('\n', "")
    };
    let push_window = |totals: &mut Totals, line: &str| match read(line.as_bytes(), &mut Vec::new())
        .expect("a line")
    {
        RecordedLine::Phases(window) => totals.push_phases(&window),
        other => panic!("{other:?}"),
    };
    let phases = |windows: &[String]| {
        let mut totals = Totals::default();
        for second in 0..=100 {
            push(&mut totals, &line(second, 300, 20, (10, 16), 0));
        }
        windows.iter().for_each(|line| push_window(&mut totals, line));
        summary(totals).processes[0].phases.clone()
    };
    assert_eq!(phases(&[]), None);
    assert_eq!(phases(&[window(20, 0, 0)]), None, "no stack was readable");
    let share = |phase, percent| PhaseShare { phase, percent: Percent(percent) };
    let expected = |waits, computes| {
        Some(PhaseSummary {
            sampled_percent: Percent(waits + computes),
            phases: vec![share(Phase::LoaderWait, waits), share(Phase::Forward, computes)],
        })
    };
    assert_eq!(phases(&[window(20, 80, 20), window(30, 40, 0)]), expected(18.0, 2.0));
    // Each second counts once, also where windows overlap.
    assert_eq!(phases(&[window(20, 80, 20), window(25, 80, 20)]), expected(12.0, 3.0));
}
