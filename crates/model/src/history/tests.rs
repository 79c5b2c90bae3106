//! Tests of the complete history: effects of frames, summaries and removal of old data.

use super::*;
use crate::gpu::{Gpu, GpuProcess, Health, HealthState};
use crate::pool::{Pool, Pools, Sampled};
use crate::process::ProcessKey;
use crate::reading::{Reading, Reason};
use crate::units::{Bytes, GpuUuid, Percent, Pid};

const GPU: &str = "GPU-1";

fn gpu(sm: f64) -> Gpu {
    Gpu {
        uuid: GpuUuid(GPU.into()),
        health: Health { state: HealthState::Answering, ..Health::default() },
        sm: Percent(sm).into(),
        ..Gpu::default()
    }
}

fn frame(second: u64, gpu: Gpu) -> Frame {
    Frame {
        mono: Mono(second * 1_000),
        interval: Millis(1_000),
        gpus: vec![gpu],
        ..Frame::default()
    }
}

fn process(number: u32) -> ProcessKey {
    ProcessKey::new(number, 9)
}

fn used_by(number: u32, mib: u64) -> Gpu {
    let process = GpuProcess {
        pid: Pid(number),
        process: Some(process(number)),
        vram: Bytes::mib(mib).into(),
        ..GpuProcess::default()
    };
    Gpu { processes: vec![process].into(), ..gpu(1.0) }
}

fn vram(history: &History, number: u32) -> Option<&Series> {
    history.series(&SeriesKey::Vram(process(number), GpuUuid(GPU.into())))
}

fn shown(history: &History, end: u64, seconds: u64) -> Vec<Option<Span>> {
    let key = SeriesKey::Gpu(GpuUuid(GPU.into()), GpuMetric::Sm);
    let series = history.series(&key).expect("a series");
    let columns = usize::try_from(seconds).expect("small");
    series.window(Mono(end * 1_000), Millis(seconds * 1_000), columns)
}

#[test]
fn series_keys_survive_a_round_trip() {
    let key = ProcessKey::new(418, 9);
    let gpu = GpuUuid("GPU-1".into());
    for series in [
        SeriesKey::Host(HostMetric::Cpu),
        SeriesKey::Gpu(gpu.clone(), GpuMetric::Used),
        SeriesKey::Process(key, ProcessMetric::Rss),
        SeriesKey::Vram(key, gpu),
        SeriesKey::Pool(key, 3, PoolMetric::Reserved),
    ] {
        assert_eq!(series.to_string().parse(), Ok(series));
    }
    assert_eq!("process/1@2/unknown".parse::<SeriesKey>(), Err(UnknownSeries));
    assert_eq!("".parse::<SeriesKey>(), Err(UnknownSeries));
}

#[test]
fn a_peak_between_two_frames_is_in_the_pool_series() {
    let mut frame = Frame { mono: Mono(5_000), ..Frame::default() };
    let mut pool = Pool::default();
    pool.stats.allocated = Sampled::new(Bytes(10)).and(Bytes(90)).and(Bytes(20));
    frame.pools = Some(Pools { list: vec![pool].into(), ..Default::default() });
    let mut history = History::default();
    history.push(&frame);
    let key = SeriesKey::Pool(ProcessKey::default(), 0, PoolMetric::Allocated);
    let series = history.series(&key).expect("a series");
    let window = series.window(Mono(5_000), Millis(1_000), 1);
    assert_eq!(window, [Some(Span(10.0, 90.0))]);
}

#[test]
fn a_summary_fills_the_past_of_a_chart() {
    let mut frame = Frame::default();
    frame.gpus.push(Gpu {
        uuid: GpuUuid("GPU-1".into()),
        health: Health { state: HealthState::Answering, ..Default::default() },
        sm: Percent(70.0).into(),
        ..Default::default()
    });
    let mut collect = Summarize::default();
    for second in 600..660 {
        frame.mono = Mono(second * 1_000);
        collect.push(&frame);
    }
    let summary: Summary =
        serde_json::from_str(&serde_json::to_string(&collect.take()).expect("serializes"))
            .expect("reads back");
    let mut history = History::default();
    history.push_summary(&summary);
    let series =
        history.series(&SeriesKey::Gpu(GpuUuid("GPU-1".into()), GpuMetric::Sm)).expect("a series");
    let minute = series.window(Mono(659_000), Millis(60_000), 30);
    assert!(minute.iter().all(|s| *s == Some(Span(70.0, 70.0))), "{minute:?}");
}

#[test]
fn missing_values_are_gaps_but_one_late_frame_is_not() {
    let mut history = History::default();
    for second in 100..160_u64 {
        let mut now = frame(second, gpu(50.0));
        match second {
            110..113 => now.gpus[0].health.state = HealthState::Silent,
            120 => now.gpus[0].sm = Reading::Missing(Reason::Denied.into()),
            // The GPU collector hangs: the value is 40 s old.
            130..133 => now.gpus[0].at = Mono((second - 40) * 1_000),
            // Frames are lost: first one, then several.
            140 | 150..155 => continue,
            _ => {}
        }
        history.push(&now);
    }
    let minute = shown(&history, 159, 60);
    let gaps: Vec<usize> = (100..160).filter(|s| minute[s - 100].is_none()).collect();
    assert_eq!(gaps, [110, 111, 112, 120, 130, 131, 132, 150, 151, 152, 153, 154]);
}

#[test]
fn charts_at_a_slow_rate_have_no_gaps() {
    let mut history = History::default();
    for half in 0..20 {
        let mut now = frame(half * 30, gpu(half as f64));
        now.interval = Millis(30_000);
        history.push(&now);
    }
    assert!(shown(&history, 570, 500).iter().all(Option::is_some));
}

#[test]
fn charts_are_complete_after_a_seek() {
    let mut history = History::default();
    (0..300).for_each(|second| history.push(&frame(second, gpu(1.0))));
    // Jump to second 900: add notes for the earlier minutes, then the frames of the last minute.
    history.forget_from(Mono(240_000));
    let mut collect = Summarize::default();
    for second in (240..900).rev().step_by(7) {
        // The notes end before the minute that the frames cover.
        if second < 840 {
            collect.push(&frame(second, gpu(2.0)));
            history.push_summary(&collect.take());
        }
    }
    (840..901).for_each(|second| history.push(&frame(second, gpu(3.0))));
    let all = shown(&history, 899, 890);
    assert_eq!(all.iter().position(Option::is_none), None, "{all:?}");
    assert_eq!(all[0], Some(Span(1.0, 1.0)));
    assert_eq!(all[500], Some(Span(2.0, 2.0)));
    assert_eq!(all[880], Some(Span(3.0, 3.0)));
}

#[test]
fn retains_large_and_recent_processes_among_thousands() {
    let mut history = History::default();
    // Add one large process, then 20,000 small ones over five and a half hours.
    history.push(&frame(0, used_by(1, 90_000)));
    let mut max = 0;
    for number in 2..20_000_u32 {
        history.push(&frame(u64::from(number), used_by(number, 300)));
        max = max.max(history.bytes());
    }
    assert!(vram(&history, 1).is_some(), "a large process");
    assert!(vram(&history, 19_800).is_some(), "a recent process");
    assert!(vram(&history, 9_000).is_none(), "a small, old process");
    assert!(max < 4 << 20, "{max}");
    history.push(&frame(110_000, gpu(1.0)));
    assert!(vram(&history, 1).is_none() && vram(&history, 19_999).is_none());
}

#[test]
fn processes_beyond_the_limit_have_no_series() {
    let mut history = History::default();
    let list = (0..20_000).map(|number| GpuProcess {
        pid: Pid(number),
        process: Some(process(number)),
        vram: Bytes(1).into(),
        ..GpuProcess::default()
    });
    let crowded = Gpu { processes: list.collect::<Vec<_>>().into(), ..gpu(1.0) };
    history.push(&frame(1, crowded));
    assert_eq!(history.series.len(), MAX_SERIES);
    assert_eq!(shown(&history, 1, 1), [Some(Span(1.0, 1.0))]);
}
