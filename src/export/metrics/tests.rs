use gputop_explain::ranks::{Cause, JobKey};
use gputop_model::gpu::{Field, GpuProcess, Health, RecoveryAction};
use gputop_model::phases::Phase;
use gputop_model::pool::{Pool, PoolStats, Pools, Sampled};
use gputop_model::process::ProcessKey;
use gputop_model::process_group::Work;
use gputop_model::units::{Celsius, GpuUuid, MegaHertz, MilliWatts, Percent};

use super::*;

const OPTIONS: Options = Options { labels: Vec::new(), max_processes: 200 };

fn gpu(index: u32, processes: Vec<GpuProcess>) -> Gpu {
    let mut gpu = Gpu {
        index,
        uuid: GpuUuid(format!("GPU-fa4e0000-0000-4000-8000-00000000000{index}").into()),
        name: "NVIDIA H200".into(),
        health: Health { state: HealthState::Answering, ..Health::default() },
        processes: processes.into(),
        ..Gpu::default()
    };
    for figure in GPU_FIGURES.iter().filter(|figure| figure.dcgm.is_some()) {
        match figure.field {
            Field::Bytes(_, field) => *field(&mut gpu) = Bytes(143_771 << 20).into(),
            Field::Percent(_, field) => *field(&mut gpu) = Percent(97.0).into(),
            Field::Power(_, field) => *field(&mut gpu) = MilliWatts(131_512).into(),
            Field::Temperature(_, field) => *field(&mut gpu) = Celsius(61).into(),
            Field::Clock(_, field) => *field(&mut gpu) = MegaHertz(1_980).into(),
            Field::Count(_, field) | Field::Lanes(_, field) => *field(&mut gpu) = 16.into(),
            Field::LongCount(_, field) => *field(&mut gpu) = 100.into(),
            Field::PState(_, field) => *field(&mut gpu) = 0.into(),
            Field::Recovery(_, field) => *field(&mut gpu) = RecoveryAction(1).into(),
            Field::Flag(_, field) | Field::Switch(_, field) => *field(&mut gpu) = true.into(),
            _ => panic!("no value for {}", figure.name),
        }
    }
    gpu.memory.free = Bytes::gib(9).into();
    gpu
}

fn frame(gpus: u32, processes: u32) -> Frame {
    let key = |n| ProcessKey::new(1_000_000 + n, 7);
    let on = |index| {
        let listed = (0..processes).filter(|n| n % gpus == index).map(|n| GpuProcess {
            pid: key(n).pid,
            process: Some(key(n)),
            vram: Bytes::gib(12).into(),
            sm: Percent(12.5).into(),
            ..GpuProcess::default()
        });
        gpu(index, listed.collect())
    };
    let size = |gib| Sampled::new(Bytes(Bytes::gib(gib).0 + 1_536));
    let pool = |n: u32| Pool {
        process: key(n),
        gpu: gpu(n % gpus, Vec::new()).uuid.into(),
        stats: PoolStats {
            allocated: size(7),
            reserved: size(11),
            active: size(8),
            inactive_split: Bytes::gib(1),
            largest_free_block: Bytes::gib(1).into(),
            num_alloc_retries: 12,
            ..PoolStats::default()
        },
        ..Pool::default()
    };
    let described = |n| Process {
        key: key(n),
        user: "alice".to_owned().into(),
        command: format!("python train.py --rank {n}").into(),
        rank: n.into(),
        job: "81234".to_owned().into(),
        container: "train".to_owned().into(),
        ..Process::default()
    };
    Frame {
        interval: Millis(1_000),
        gpus: (0..gpus).map(on).collect(),
        processes: Some(gputop_model::frame::ProcessList {
            list: Arc::new((0..processes).map(described).collect()),
            ..Default::default()
        }),
        pools: Some(Pools {
            list: Arc::new((0..processes).map(pool).collect()),
            ..Pools::default()
        }),
        ..Frame::default()
    }
}

fn written(frame: Frame, options: &Options) -> String {
    let host = HostMetrics {
        name: None,
        state: HostState::Up,
        frame: Some(Arc::new(frame)),
        jobs: Vec::new(),
        arrivals: Arc::default(),
        phases: Vec::new(),
        incidents: Vec::new(),
    };
    text(vec![host], options, Format::OpenMetrics)
}

#[test]
fn scrape_of_8_gpus_and_64_pools_is_small() {
    const MAX_BYTES: usize = 64 << 10;
    let options = Options { labels: PROCESS_LABELS.iter().collect(), ..OPTIONS };
    let text = written(frame(8, 64), &options);
    assert_eq!(text.matches("gputop_pool_fragmented_bytes{").count(), 64);
    assert!(text.len() <= MAX_BYTES, "{} bytes", text.len());
}

#[test]
fn outdated_pools_and_the_room_on_a_silent_gpu_are_missing() {
    let mut frame = frame(1, 2);
    let fits = "gputop_pool_fits_bytes{gpu=\"0\",pid=\"1000000\"}";
    let reserved = "gputop_pool_reserved_bytes{gpu=\"0\",pid=\"1000000\"}";
    assert!(written(frame.clone(), &OPTIONS).contains(fits));
    frame.gpus[0].health.state = HealthState::Silent;
    let silent = written(frame.clone(), &OPTIONS);
    assert!(!silent.contains(fits) && silent.contains(reserved), "{silent}");
    frame.mono = Mono(60_000);
    let outdated = written(frame, &OPTIONS);
    assert!(!outdated.contains("pid="), "{outdated}");
}

#[test]
fn label_values_are_escaped_and_limited() {
    let mut frame = frame(1, 1);
    frame.gpus[0].name = "a\"} 1\nevil\\\u{202e}".to_owned() + &"x".repeat(100);
    let text = written(frame, &OPTIONS);
    let line = text.lines().find(|line| line.contains("model=")).unwrap_or_default();
    assert!(line.contains(r#"model="a\"} 1^Jevil\\\\u{202e}xxx"#), "{line}");
    assert!(line.contains("x…\"}"), "{line}");
}

#[test]
fn ranks_have_waits_and_lateness_as_far_as_known() {
    let arrivals = |size, collectives| GroupArrivals {
        group: format!("group of {size}"),
        size,
        ranks: (0..2).collect(),
        collectives,
        last: vec![LastArrivals { rank: 1, count: 150, lateness: Millis(52) }],
        ..GroupArrivals::default()
    };
    let row = |rank, state| RankRow {
        rank,
        host: "".into(),
        process: ProcessKey::new(400 + rank, 7),
        gpu: None,
        state,
        last: None,
        place: None,
    };
    let waits =
        RankState::Waits { ranks: vec![3], group: "0".into(), waited: Some(Millis(41_000)) };
    let verdict = Verdict {
        cause: Cause::Behind,
        culprits: vec![3],
        culprit_host: None,
        waiting: vec![0],
        group: "0".into(),
        work: Work::default(),
        since: Mono(0),
        host: "".into(),
        waited: Millis(41_000),
        place: None,
    };
    let job = JobReport {
        job: JobKey { store: None, host: None },
        world_size: Some(4),
        verdicts: vec![verdict],
        offsets: Vec::new(),
        ranks: vec![
            row(0, waits),
            row(1, RankState::Runs),
            row(2, RankState::NotReadYet),
            row(3, RankState::HoldsUp),
        ],
        stacks: Vec::new(),
    };
    let host = HostMetrics {
        name: None,
        state: HostState::Up,
        frame: Some(Arc::new(frame(1, 0))),
        jobs: vec![job],
        arrivals: Arc::new(vec![arrivals(4, 200), arrivals(2, 200), arrivals(8, MIN_ARRIVALS - 1)]),
        phases: Vec::new(),
        incidents: Vec::new(),
    };
    let text = text(vec![host], &OPTIONS, Format::OpenMetrics);
    let samples = |name: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix(name));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        samples("gputop_rank_wait_seconds"),
        [r#"{pid="400",rank="0"} 41"#, r#"{pid="401",rank="1"} 0"#, r#"{pid="403",rank="3"} 0"#]
    );
    assert_eq!(
        samples("gputop_rank_holds_up_seconds"),
        [r#"{pid="400",rank="0"} 0"#, r#"{pid="401",rank="1"} 0"#, r#"{pid="403",rank="3"} 41"#]
    );
    assert_eq!(
        samples("gputop_rank_last_ratio"),
        [
            r#"{pid="400",rank="0",group="group of 4"} 0"#,
            r#"{pid="401",rank="1",group="group of 4"} 0.75"#
        ]
    );
    assert_eq!(
        samples("gputop_rank_lateness_seconds"),
        [r#"{pid="401",rank="1",group="group of 4"} 0.052"#]
    );
}

#[test]
fn phases_have_a_share_of_the_samples() {
    let count = |phase, count| PhaseCount { phase, count };
    let window = PhaseWindow {
        process: ProcessKey::new(400, 7),
        phases: vec![count(Phase::LoaderWait, 24), count(Phase::Backward, 6)],
        ..PhaseWindow::default()
    };
    let host = HostMetrics {
        name: None,
        state: HostState::Up,
        frame: Some(Arc::new(frame(1, 0))),
        jobs: Vec::new(),
        arrivals: Arc::default(),
        phases: vec![Arc::new(window)],
        incidents: Vec::new(),
    };
    let text = text(vec![host], &OPTIONS, Format::OpenMetrics);
    for (phase, share) in [("loader_wait", "0.8"), ("backward", "0.2")] {
        let line = format!("gputop_phase_ratio{{pid=\"400\",phase=\"{phase}\"}} {share}\n");
        assert!(text.contains(&line), "{line}{text}");
    }
}
