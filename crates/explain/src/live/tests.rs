//! Tests the observer: feeds it streams like those of the agent, and checks the resulting incidents.

use std::sync::Arc;
use std::time::Duration;

use gputop_model::event::{
    Event, Exit, GpuAtOom, HookEvent, HookOom, LogExcerpt, Observation, OomCountIncreased,
    OomEvidence, OomVerdict, Xid,
};
use gputop_model::frame::{Frame, ProcessList};
use gputop_model::gpu::{Board, Gpu, GpuProcess, Memory};
use gputop_model::holders::summary::HolderSummary;
use gputop_model::holders::{HolderClass, HolderGroup, Holders};
use gputop_model::host::{Hello, Host};
use gputop_model::incident::{DetectedBy, Severity, Verdict};
use gputop_model::pool::{
    Allocator, Block, BlockState, FailureMap, Pool, PoolKind, PoolMap, PoolStats, Pools, Sampled,
    Segment,
};
use gputop_model::process::{Parent, Process, ProcessKey};
use gputop_model::reading::{Reading, Reason};
use gputop_model::stack::{PythonStack, StackFrame, StackThread, StackTrigger};
use gputop_model::trace_replay::{ReplayOutcome, SettingResult, TraceReplay};
use gputop_model::units::{Bytes, GpuUuid, Mono, Percent, Pid, StartTicks, UnixMillis};

mod pools;

use super::{IncidentKey, Observer, Record};

const START: u64 = 1_000_000;
const TICKS: u64 = 1_000;

fn gib(n: f64) -> Bytes {
    Bytes((n * f64::from(1_u32 << 30)) as u64)
}

fn key(pid: u32) -> ProcessKey {
    ProcessKey {
        pid: Pid(pid),
        // All processes start when the log stream starts.
        start: StartTicks(START / 1_000 * TICKS + u64::from(pid)),
    }
}

/// Simulates a process with one pool on a GPU with 24 GiB, in steps of one second.
struct SimulatedRun {
    observer: Observer,
    now: u64,
    pids: Vec<u32>,
    others: Bytes,
    /// Page cache of a host that shares its memory with the GPU.
    page_cache: Option<Bytes>,
    launcher: Option<u32>,
    /// State of the pool: minimum allocated, maximum allocated and reserved memory in GiB.
    pool: (f64, f64, f64),
    retries: u64,
    /// SM utilization of each watched process.
    sm: Reading<Percent>,
    revisions: Vec<Record>,
    /// Offset of the wall clock in milliseconds.
    clock_offset: i64,
}

impl SimulatedRun {
    fn new() -> Self {
        let mut observer = Observer::default();
        observer.hello(Arc::new(Hello { ticks_per_second: TICKS, ..Hello::default() }));
        Self {
            observer,
            now: START,
            pids: vec![418],
            others: Bytes(0),
            page_cache: None,
            launcher: None,
            pool: (6.0, 14.0, 16.0),
            retries: 0,
            sm: Reading::default(),
            revisions: Vec::new(),
            clock_offset: 0,
        }
    }

    fn clock(&self) -> UnixMillis {
        UnixMillis(i64::try_from(self.now - START).expect("a short test") + self.clock_offset)
    }

    fn process(&self, pid: u32) -> Process {
        Process {
            key: key(pid),
            command: "python train.py".to_owned().into(),
            rank: match self.launcher {
                Some(_) => Reading::Value(pid - 418),
                None => Reading::missing(Reason::Unsupported, "no rank"),
            },
            parent: self.launcher.map(|pid| Parent { pid: Pid(pid), name: "torchrun".into() }),
            ..Process::default()
        }
    }

    fn stats(&self, ooms: u64) -> PoolStats {
        let (low, high, reserved) = self.pool;
        PoolStats {
            allocated: Sampled(gib(low), gib(high), gib(high)),
            reserved: Sampled::new(gib(reserved)),
            num_alloc_retries: self.retries,
            num_ooms: ooms,
            largest_free_block: gib(0.6).into(),
            ..PoolStats::default()
        }
    }

    fn frame(&self) -> Frame {
        let uuid = GpuUuid("GPU-1".into());
        let held = gib(self.pool.2 + 0.5);
        let mut listed: Vec<GpuProcess> = self
            .pids
            .iter()
            .map(|&pid| GpuProcess {
                pid: Pid(pid),
                process: Some(key(pid)),
                vram: held.into(),
                sm: self.sm.clone(),
                ..GpuProcess::default()
            })
            .collect();
        if self.others.0 > 0 {
            listed.push(GpuProcess {
                pid: Pid(1771),
                vram: self.others.into(),
                ..GpuProcess::default()
            });
        }
        let free = 24.0 - (self.pool.2 + 0.5);
        Frame {
            mono: Mono(self.now),
            time: self.clock(),
            host: self
                .page_cache
                .map(|cached| Host { page_cache: cached.into(), ..Host::default() }),
            gpus: vec![Gpu {
                uuid: uuid.clone(),
                memory: match self.page_cache {
                    Some(_) => Memory::shared_with_host(),
                    None => Memory {
                        total: gib(24.0).into(),
                        free: Bytes(gib(free).0.saturating_sub(self.others.0)).into(),
                        ..Memory::default()
                    },
                },
                processes: listed.into(),
                ..Gpu::default()
            }],
            processes: Some(ProcessList {
                at: Mono(self.now),
                list: Arc::new(self.pids.iter().map(|&pid| self.process(pid)).collect()),
            }),
            pools: Some(Pools {
                at: Mono(self.now),
                list: Arc::new(
                    self.pids
                        .iter()
                        .map(|&pid| Pool {
                            process: key(pid),
                            allocator: Allocator::Native,
                            gpu: uuid.clone().into(),
                            stats: self.stats(0),
                            ..Pool::default()
                        })
                        .collect(),
                ),
                ..Pools::default()
            }),
            ..Frame::default()
        }
    }

    /// Simulates `seconds` seconds with the pool state returned by `pool_at`.
    fn run(&mut self, seconds: u64, pool_at: impl Fn(f64) -> (f64, f64, f64)) {
        for second in 0..seconds {
            let at = second as f64;
            self.pool = pool_at(at);
            self.now += 1_000;
            let frame = self.frame();
            let revisions = self.observer.frame(&Arc::new(frame));
            self.revisions.extend(revisions);
        }
    }

    fn train(&mut self, seconds: u64) {
        self.run(seconds, |_| (6.0, 14.0, 16.0));
    }

    fn event(&mut self, pid: Option<u32>, observation: Observation) -> Vec<Record> {
        self.now += 100;
        let event = Event {
            mono: Mono(self.now),
            time: self.clock(),
            process: pid.map(key),
            gpu: Some(GpuUuid("GPU-1".into())),
            observation,
            ..Event::default()
        };
        let revisions = self.observer.event(&event);
        self.revisions.extend(revisions.clone());
        revisions
    }

    fn oom(&mut self, pid: u32, ooms: u64) -> Vec<Record> {
        let rose = OomCountIncreased {
            before: ooms - 1,
            after: ooms,
            since: Mono(self.now),
            stats: self.stats(ooms),
            ..OomCountIncreased::default()
        };
        self.event(Some(pid), Observation::Ooms(Box::new(rose)))
    }

    fn writes(&mut self, pid: u32, text: &str) -> Vec<Record> {
        let excerpt = LogExcerpt {
            file: String::from("/home/ana/train.log").into(),
            first_line: 812.into(),
            text: text.into(),
            ..LogExcerpt::default()
        };
        self.event(Some(pid), Observation::Log(Box::new(excerpt)))
    }

    fn exits(&mut self, pid: u32) -> Vec<Record> {
        self.event(Some(pid), Observation::Exit(Box::default()))
    }

    fn stack(&mut self, pid: u32, frames: &[(&str, &str)]) -> Vec<Record> {
        let frame = |(file, function): &(&str, &str)| StackFrame {
            file: (*file).into(),
            function: (*function).into(),
            line: 57,
        };
        let stack = PythonStack {
            process: key(pid),
            why: StackTrigger::Oom,
            threads: vec![StackThread {
                is_main: true,
                frames: frames.iter().map(frame).collect(),
                ..StackThread::default()
            }],
            ..PythonStack::default()
        };
        let revisions = self.observer.stack(&stack);
        self.revisions.extend(revisions.clone());
        revisions
    }

    fn last(&self) -> &Record {
        self.revisions.last().expect("a revision")
    }

    fn keys(&self) -> Vec<IncidentKey> {
        let mut keys: Vec<IncidentKey> = self.revisions.iter().map(|r| r.key.clone()).collect();
        keys.dedup();
        keys
    }
}

fn message(requested: &str, free: &str, idle: &str) -> String {
    format!(
        "Traceback (most recent call last):\n  File \"train.py\", line 57, in <module>\n    loss.backward()\n\
         torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {requested}. GPU 0 has a total capacity of \
         24.00 GiB of which {free} is free. Process 418 has 22.60 GiB memory in use. Of the allocated memory \
         14.10 GiB is allocated by PyTorch, and {idle} is reserved by PyTorch but unallocated.\n"
    )
}

#[test]
fn reports_an_oom_without_text_at_once_and_as_caught_later() {
    let mut sim = SimulatedRun::new();
    sim.run(60, |_| (18.0, 22.0, 22.5));
    let revisions = sim.oom(418, 1);
    assert_eq!(revisions.len(), 1);
    let incident = &revisions[0].incident;
    assert_eq!(incident.id, "oom-capacity");
    assert_eq!(incident.detected_by, DetectedBy::Allocator);
    assert!(incident.log.is_none() && incident.quote.is_empty());
    assert_eq!(incident.fields.allocated_bytes, Some(gib(22.0).0));
    assert_eq!(incident.fields.free_bytes, Some(gib(1.0).0));
    assert_eq!(incident.fields.requested_bytes, None);
    sim.run(7, |_| (18.0, 22.0, 22.5));
    assert_eq!(sim.last().incident.severity, Severity::Caught);
    assert_eq!(sim.keys().len(), 1);
}

#[test]
fn ranks_that_fail_before_the_driver_lists_them_are_one_incident() {
    let mut sim = SimulatedRun { launcher: Some(400), pids: Vec::new(), ..SimulatedRun::new() };
    sim.train(3);
    for pid in [418, 419] {
        let candidate = sim.process(pid);
        sim.event(Some(pid), Observation::Candidate(Box::new(candidate)));
        sim.writes(pid, &message("2.00 GiB", "1.06 GiB", "8.02 GiB"));
    }
    assert_eq!(sim.keys().len(), 1);
    assert_eq!(sim.last().command.as_deref(), Some("python train.py"));
}

#[test]
fn figures_alone_do_not_tell_what_the_live_tensors_are() {
    let mut sim = SimulatedRun::new();
    sim.run(60, |_| (22.0, 22.6, 22.8));
    let incident = &sim.oom(418, 1)[0].incident;
    assert!(incident.causes.iter().all(|cause| cause.verdict != Verdict::Likely), "{incident:#?}");
    assert_eq!(incident.fixes[0].change, "gputop run python train.py");
    // The stack of the failed allocation identifies the tensors.
    sim.stack(418, &[("_tensor.py", "backward"), ("train.py", "<module>")]);
    let incident = &sim.last().incident;
    let first = &incident.causes[0];
    assert_eq!((first.id.as_str(), first.verdict), ("activations", Verdict::Likely));
    assert_ne!(incident.fixes[0].change, "gputop run python train.py");
}

#[test]
fn cached_files_count_if_the_gpu_shares_the_memory_of_the_host() {
    for (cached, is_first) in [(9.0, true), (0.5, false)] {
        let mut sim = SimulatedRun { page_cache: Some(gib(cached)), ..SimulatedRun::new() };
        sim.run(60, |_| (8.0, 8.0, 8.0));
        sim.oom(418, 1);
        sim.writes(418, &message("2.00 GiB", "1.06 GiB", "0.10 GiB"));
        let fix = &sim.last().incident.fixes[0].change;
        assert_eq!(fix == "sync; echo 3 | sudo tee /proc/sys/vm/drop_caches", is_first, "{fix}");
    }
}

#[test]
fn an_oom_before_a_successful_exit_is_caught() {
    let mut sim = SimulatedRun::new();
    sim.train(30);
    sim.oom(418, 1);
    let ended = Exit { status: 0.into(), ..Exit::default() };
    sim.event(Some(418), Observation::Exit(Box::new(ended)));
    sim.pids.clear();
    sim.train(8);
    assert_eq!(sim.last().incident.severity, Severity::Caught);
}

#[test]
fn an_oom_before_a_failed_exit_is_fatal_and_the_same_incident() {
    let mut sim = SimulatedRun::new();
    sim.train(60);
    sim.oom(418, 1);
    sim.exits(418);
    assert_eq!(sim.last().incident.severity, Severity::Fatal);
    assert_eq!(sim.keys().len(), 1);
}

#[test]
fn text_and_counter_are_one_incident_with_measured_evidence() {
    let mut sim = SimulatedRun::new();
    sim.run(60, |_| (13.0, 14.1, 22.1));
    sim.oom(418, 1);
    sim.writes(418, &message("2.00 GiB", "1.06 GiB", "8.02 GiB"));
    let incident = &sim.last().incident;
    assert_eq!(incident.id, "oom-fragmentation");
    assert_eq!(incident.fields.requested_bytes, Some(2 << 30));
    assert_eq!(incident.detected_by, DetectedBy::Log);
    let log = incident.log.as_ref().expect("a log");
    assert_eq!((log.first_line, log.file.as_str()), (815, "/home/ana/train.log"));
    let says: Vec<&String> = incident.causes.iter().flat_map(|c| &c.r#for).collect();
    assert!(
        says.iter()
            .any(|s| *s
                == "the largest free block was 614.40 MiB, read up to 100 ms after the failure"),
        "{says:?}"
    );
    assert_eq!(sim.keys().len(), 1);
}

#[test]
fn detects_fragmentation_without_text() {
    let mut sim = SimulatedRun::new();
    sim.run(60, |_| (11.0, 12.0, 22.9));
    let revisions = sim.oom(418, 1);
    assert_eq!(revisions[0].incident.id, "oom-fragmentation");
}

#[test]
fn blocks_at_the_failure_are_evidence_and_later_ones_are_not() {
    let block = |size, state| Block { size: gib(size), state, ..Block::default() };
    let segment = |blocks: Vec<Block>| Segment {
        size: Bytes(blocks.iter().map(|block| block.size.0).sum()),
        pool: PoolKind::Large,
        blocks,
        ..Segment::default()
    };
    let evidence = |live: f64| {
        let mut sim = SimulatedRun::new();
        sim.run(60, |_| (13.0, 14.1, 22.1));
        sim.oom(418, 1);
        sim.writes(418, &message("2.50 GiB", "1.06 GiB", "8.00 GiB"));
        let pinned =
            || segment(vec![block(0.2, BlockState::Allocated), block(2.0, BlockState::Free)]);
        let mut segments = vec![segment(vec![block(live, BlockState::Allocated)])];
        segments.extend((0..4).map(|_| pinned()));
        let failed = FailureMap {
            since: Mono(sim.now - 20),
            map: PoolMap {
                process: key(418),
                at: Mono(sim.now + 10),
                exact: true,
                segments,
                ..PoolMap::default()
            },
        };
        let last = sim.observer.failure_map(&failed).pop();
        let last = last.expect("a revision").incident;
        assert_eq!(last.id, "oom-fragmentation");
        let causes = last.causes.into_iter();
        causes.flat_map(|cause| cause.r#for).collect::<Vec<_>>()
    };
    let says = evidence(13.3);
    for expected in [
        "the largest of 4 free blocks (8.00 GiB in total) was 2.00 GiB, read up to 30 ms after the failure",
        "819.20 MiB of live blocks keep 4 segments (8.80 GiB in total) from being freed",
    ] {
        assert!(says.iter().any(|one| one == expected), "{expected}: {says:?}");
    }
    // A third of the allocated memory was freed, so the blocks are no longer those at the failure.
    let says = evidence(9.0);
    let of_blocks = |text: &&String| text.contains("free blocks") || text.contains("segments");
    assert_eq!(says.iter().find(of_blocks), None);
}

#[test]
fn detects_a_leak_without_text_after_a_minute() {
    let mut sim = SimulatedRun::new();
    sim.run(70, |second| {
        let base = 4.0 + second * 0.2;
        (base, base + 3.0, base + 4.0)
    });
    let revisions = sim.oom(418, 1);
    assert_eq!(revisions[0].incident.id, "oom-leak-growth");
}

#[test]
fn a_jump_forward_in_a_recording_continues_the_history() {
    let leak = |second: f64| {
        let base = 1.0 + second * 0.18;
        let peak = if second == 2.0 { base + 2.0 } else { base + 0.18 };
        (base, peak, base + 2.0)
    };
    let mut sim = SimulatedRun::new();
    sim.run(60, leak);
    sim.observer.forget();
    sim.run(50, |second| leak(60.0 + second));
    assert_eq!(sim.oom(418, 1)[0].incident.id, "oom-leak-growth");
    // The jump goes back, so the last frames are repeated.
    let mut sim = SimulatedRun::new();
    sim.run(100, leak);
    sim.observer.forget();
    sim.now -= 30_000;
    sim.run(40, |second| leak(70.0 + second));
    assert_eq!(sim.oom(418, 1)[0].incident.id, "oom-leak-growth");
    // The frames in between are missing.
    let mut sim = SimulatedRun::new();
    sim.run(60, leak);
    sim.observer.forget();
    sim.now += 60_000;
    sim.run(50, |second| leak(60.0 + second));
    assert_eq!(sim.oom(418, 1)[0].incident.id, "oom-capacity");
}

#[test]
fn detects_a_leak_with_steps_too_short_to_see() {
    let mut sim = SimulatedRun::new();
    sim.run(110, |second| {
        let base = 1.0 + second * 0.18;
        // Only the first step was slow enough to be sampled.
        let peak = if second == 2.0 { base + 2.0 } else { base + 0.18 };
        (base, peak, base + 2.0)
    });
    let revisions = sim.oom(418, 1);
    let incident = &revisions[0].incident;
    assert_eq!(incident.id, "oom-leak-growth");
}

#[test]
fn a_request_larger_than_all_peaks_is_a_spike() {
    let mut sim = SimulatedRun::new();
    // The request was never allocated, so it is not part of any peak.
    sim.run(60, |_| (12.0, 14.1, 22.1));
    sim.oom(418, 1);
    sim.writes(418, &message("9.00 GiB", "1.06 GiB", "8.02 GiB"));
    let incident = &sim.last().incident;
    assert_eq!(incident.id, "oom-spike-step");
    let first = &incident.causes[0];
    assert_eq!((first.id.as_str(), first.verdict), ("large-sample", Verdict::Likely));
    let says =
        "with this request, allocated memory would reach 1.64 times the highest earlier peak";
    assert!(first.r#for.iter().any(|text| text == says), "{first:?}");
    // The request is not a spike if earlier steps had peaks of the same height.
    let mut sim = SimulatedRun::new();
    sim.run(60, |_| (12.0, 22.0, 22.1));
    sim.oom(418, 1);
    sim.writes(418, &message("9.00 GiB", "1.06 GiB", "8.02 GiB"));
    assert_ne!(sim.last().incident.id, "oom-spike-step");
}

#[test]
fn loading_that_fills_the_gpu_is_neither_leak_nor_spike() {
    let mut sim = SimulatedRun::new();
    sim.run(110, |second| {
        let base = 1.0 + second * 0.18;
        (base, base + 0.18, base + 1.0)
    });
    let revisions = sim.oom(418, 1);
    let incident = &revisions[0].incident;
    assert_eq!(incident.id, "oom-capacity");
    // The evidence must not claim that memory did not grow.
    let leak = incident.causes.iter().find(|cause| cause.id == "leak");
    assert!(leak.is_none_or(|leak| leak.against.is_empty()), "{leak:?}");
}

#[test]
fn memory_that_only_rises_is_a_leak_if_the_program_computes() {
    for (sm, id) in [(24.0, "oom-leak-growth"), (3.0, "oom-capacity")] {
        let mut sim = SimulatedRun::new();
        sim.sm = Percent(sm).into();
        sim.run(60, |second| {
            let base = 10.0 + second * 0.18;
            (base, base + 0.18, base + 1.0)
        });
        assert_eq!(sim.oom(418, 1)[0].incident.id, id, "{sm} %");
    }
}

#[test]
fn detects_another_process_without_text() {
    let mut sim = SimulatedRun::new();
    sim.others = gib(15.0);
    sim.run(60, |_| (5.0, 7.5, 8.0));
    let revisions = sim.oom(418, 1);
    assert_eq!(revisions[0].incident.id, "oom-other-process");
    assert_eq!(revisions[0].incident.fields.other_processes[0].pid, Pid(1771));
}

#[test]
fn detects_another_process_that_grew_since_the_last_frame() {
    let mut sim = SimulatedRun::new();
    sim.run(60, |_| (5.0, 7.5, 8.0));
    sim.oom(418, 1);
    assert_eq!(sim.last().incident.id, "oom-capacity");
    let listed = |pid, bytes: Bytes| GpuProcess {
        pid: Pid(pid),
        vram: bytes.into(),
        ..GpuProcess::default()
    };
    let gpu = GpuAtOom {
        memory: Memory { total: gib(24.0).into(), free: gib(0.5).into(), ..Memory::default() },
        processes: vec![listed(418, gib(8.5)), listed(1771, gib(15.0))].into(),
        ..GpuAtOom::default()
    };
    sim.event(Some(418), Observation::GpuAtOom(Box::new(gpu)));
    let incident = &sim.last().incident;
    assert_eq!(incident.id, "oom-other-process");
    assert_eq!(incident.fields.other_processes[0].pid, Pid(1771));
    assert_eq!(sim.keys().len(), 1);
}

#[test]
fn detects_the_first_optimizer_step_by_stack_and_memory_that_only_rose() {
    let mut sim = SimulatedRun::new();
    sim.run(20, |second| (second, second, second + 0.2));
    sim.pool = (22.5, 23.0, 23.2);
    sim.oom(418, 1);
    let frames = [
        ("/lib/python3.12/site-packages/torch/optim/adamw.py", "_init_group"),
        ("train.py", "main"),
    ];
    let revisions = sim.stack(418, &frames);
    let incident = &revisions[0].incident;
    assert_eq!(incident.id, "oom-first-step-states");
    assert_eq!(incident.at.as_deref(), Some("train.py:57  in main"));
    let states = &incident.causes[0];
    assert_eq!((states.id.as_str(), states.verdict), ("states-created", Verdict::Likely));
    assert!(states.r#for.iter().any(|s| s.contains("only risen")), "{states:?}");
}

#[test]
fn an_oom_during_an_algorithm_search_is_a_note() {
    let mut sim = SimulatedRun::new();
    sim.train(60);
    sim.oom(418, 1);
    let conv = [("/site-packages/torch/nn/modules/conv.py", "_conv_forward")];
    sim.stack(418, &conv);
    sim.train(8);
    assert_eq!(sim.last().incident.severity, Severity::Note);
}

#[test]
fn counts_an_oom_that_is_caught_at_every_step() {
    let mut sim = SimulatedRun::new();
    sim.train(60);
    for oom in 1..=5 {
        sim.oom(418, oom);
        sim.train(20);
    }
    assert_eq!(sim.keys().len(), 1);
    assert_eq!(sim.last().incident.count, 5);
}

#[test]
fn ranks_of_one_launcher_are_one_incident_that_names_the_first() {
    let mut sim = SimulatedRun::new();
    sim.pids = vec![418, 419, 420, 421];
    sim.launcher = Some(400);
    sim.train(60);
    sim.writes(421, &message("2.00 GiB", "1.06 GiB", "0.20 GiB"));
    sim.exits(421);
    sim.train(600);
    let timeout = "[rank0]:[E1120 12:03:58.123456789 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective \
                   operation timeout: WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, \
                   Timeout(ms)=600000) ran for 600051 milliseconds before timing out.\n";
    sim.writes(418, timeout);
    let last = sim.last();
    assert_eq!(sim.keys().len(), 1, "{:?}", sim.keys());
    assert_eq!(last.incident.family, "oom");
    assert_eq!(last.incident.fields.rank, Some(3));
    assert_eq!(last.processes(), [key(418), key(421)]);
    assert!(last.incident.secondary.iter().any(|i| i.id == "nccl-watchdog-timeout"));
}

#[test]
fn two_processes_without_a_launcher_are_two_incidents() {
    let mut sim = SimulatedRun::new();
    sim.pids = vec![418, 419];
    sim.train(60);
    sim.oom(418, 1);
    sim.oom(419, 1);
    assert_eq!(sim.keys().len(), 2);
}

#[test]
fn healthy_training_and_unexplained_exits_are_not_incidents() {
    let mut sim = SimulatedRun::new();
    sim.train(300);
    sim.exits(418);
    sim.writes(419, "epoch 3 done, loss 0.12\n");
    sim.train(60);
    assert_eq!(sim.revisions, []);
}

#[test]
fn text_of_a_process_is_about_that_process() {
    let mut sim = SimulatedRun::new();
    sim.train(60);
    sim.writes(
        418,
        &format!(
            "(Worker pid=9999) {}",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of \
             24.00 GiB of which 1.06 GiB is free.\n"
        ),
    );
    let last = sim.last();
    assert_eq!(last.incident.fields.pid, Some(Pid(418)));
    // The text has no stack, so the name is that of the command.
    assert_eq!(last.incident.fields.python_file.as_deref(), Some("train.py"));
    assert_eq!(last.processes(), [key(418)]);
}

#[test]
fn an_xid_is_explained_by_number_and_updated_by_the_kernel_log() {
    let mut sim = SimulatedRun::new();
    sim.train(10);
    let xid = |text| Observation::Xid(Xid { number: 79, text, ..Xid::default() });
    sim.event(None, xid(Reading::missing(Reason::Denied, "the kernel log")));
    assert_eq!(sim.last().incident.id, "xid-79-off-bus");
    assert_eq!(sim.last().incident.detected_by, DetectedBy::Xid);
    let line = "NVRM: Xid (PCI:0000:3b:00): 79, pid=418, name=python, GPU has fallen off the bus.";
    sim.event(None, xid(String::from(line).into()));
    let last = sim.last();
    assert_eq!(last.incident.fields.pci_bus.as_deref(), Some("0000:3b:00"));
    assert_eq!((sim.keys().len(), last.incident.count), (1, 1));
}

#[test]
fn an_xid_of_an_unknown_gpu_has_no_bus_address() {
    let mut sim = SimulatedRun::new();
    sim.train(10);
    let why = Reading::missing(Reason::Denied, "the kernel log");
    let xid = |number| Observation::Xid(Xid { number, text: why.clone(), ..Xid::default() });
    sim.event(None, xid(2));
    assert_eq!(sim.last().incident.title, "The driver reported Xid 2.");
    sim.event(None, xid(79));
    let later = &sim.last().incident.secondary[0];
    assert_eq!(later.title, "A GPU no longer answers on the PCIe bus.");
    assert_eq!(later.quote.text, "NVRM: Xid (unknown GPU): 79");
    assert_eq!((&sim.last().incident.fields.pci_bus, &later.fields.pci_bus), (&None, &None));
}

#[test]
fn the_name_of_a_killed_process_is_not_read_as_a_kernel_message() {
    let mut sim = SimulatedRun::new();
    sim.train(10);
    let counter = "oom_kill in /sys/fs/cgroup/a/memory.events increased from 2 to 3";
    let evidence: OomEvidence = serde_json::from_value(counter.into()).expect("evidence");
    assert_eq!(serde_json::to_value(&evidence).expect("JSON"), counter);
    let oom = OomVerdict { killed: true.into(), evidence: Some(evidence) };
    let last = Process { name: "x) total-vm".into(), ..sim.process(418) };
    let exit = Exit { last: Some(Box::new(last)), oom: Box::new(oom), ..Exit::default() };
    sim.event(Some(418), Observation::Exit(Box::new(exit)));
    let incident = &sim.last().incident;
    assert_eq!((incident.id.as_str(), incident.detected_by), ("host-oom-killer", DetectedBy::Exit));
    let shown = (incident.fields.pid, incident.fields.more.get("process"));
    assert_eq!(shown, (Some(Pid(418)), None));
}

#[test]
fn an_xid_names_the_gpu_by_its_index() {
    let board = Board { pci_bus: "0000:3b:00".to_owned().into(), ..Board::default() };
    let gpu = Gpu { index: 3, board: Arc::new(board), ..Gpu::default() };
    let log = b"NVRM: Xid (PCI:0000:3b:00): 79, pid=418, name=python, GPU has fallen off the bus.";
    let mut incident = crate::explain(crate::Catalogue::embedded(), "kernel log", log).remove(0);
    super::case::name_gpu(&mut incident, &[gpu]);
    assert_eq!(incident.fields.gpu_index, Some(3));
    assert_eq!(incident.title, "GPU 3 (0000:3b:00) no longer answers on the PCIe bus.");
}

fn kernel_line(words: &str) -> Observation {
    Observation::Xid(Xid {
        number: 13,
        text: format!("NVRM: Xid (PCI:0000:3b:00): 13, {words}").into(),
        ..Xid::default()
    })
}

const UNMATCHED_LINE: &str =
    "Graphics SM Warp Exception on (GPC 1, TPC 4, SM 0): Misaligned Address";
const OWN_LINE: &str = "pid=418, name=python3, Graphics Exception: channel 0x00000008";

#[test]
fn an_xid_line_without_a_process_belongs_to_the_process_of_the_next_line() {
    let mut sim = SimulatedRun::new();
    sim.train(10);
    assert_eq!(sim.event(None, kernel_line(UNMATCHED_LINE)), []);
    sim.event(Some(418), kernel_line(OWN_LINE));
    sim.train(10);
    assert_eq!(sim.keys().len(), 1);
    assert_eq!(sim.last().processes(), [key(418)]);
    let exception = sim.last().incident.fields.more.get("exception").cloned();
    assert_eq!(exception, Some("Misaligned Address".into()));
}

#[test]
fn an_xid_line_without_a_process_belongs_to_the_process_with_a_failed_kernel() {
    let fault = "torch.AcceleratorError: CUDA error: misaligned address\n";
    for is_first in [true, false] {
        let mut sim = SimulatedRun::new();
        sim.train(10);
        if is_first {
            sim.event(None, kernel_line(UNMATCHED_LINE));
        }
        sim.writes(418, fault);
        if !is_first {
            sim.event(None, kernel_line(UNMATCHED_LINE));
        }
        sim.train(10);
        assert_eq!(sim.keys().len(), 1, "{:?}", sim.revisions);
        assert_eq!(sim.last().incident.id, "cuda-misaligned-716");
    }
}

#[test]
fn an_unmatched_xid_is_reported_for_its_gpu() {
    let mut sim = SimulatedRun::new();
    sim.train(10);
    sim.event(None, kernel_line(UNMATCHED_LINE));
    sim.train(1);
    assert_eq!(sim.revisions, []);
    sim.train(3);
    assert_eq!(sim.keys().len(), 1);
    assert_eq!(sim.last().incident.id, "xid-13-sm-exception");
    assert_eq!(sim.last().processes(), []);
}

fn map_of(pid: u32, at: u64, blocks: u64) -> FailureMap {
    let block = |state| Block { size: Bytes(512), state, ..Block::default() };
    let blocks =
        (0..blocks).map(|n| block([BlockState::Allocated, BlockState::Free][n as usize % 2]));
    FailureMap {
        since: Mono(at - 40),
        map: PoolMap {
            process: key(pid),
            at: Mono(at),
            exact: true,
            segments: vec![Segment { blocks: blocks.collect(), ..Segment::default() }],
            ..PoolMap::default()
        },
    }
}

#[test]
fn the_scene_contains_nothing_older_or_newer_than_the_failure() {
    let mut sim = SimulatedRun::new();
    sim.others = gib(2.0);
    sim.train(60);
    // These observations precede the failure.
    assert_eq!(sim.observer.failure_map(&map_of(418, sim.now, 4)), []);
    assert_eq!(sim.stack(418, &[("early.py", "step")]), []);
    sim.oom(418, 1);
    let failed = sim.now;
    sim.others = gib(4.0);
    sim.train(2);
    sim.observer.failure_map(&map_of(418, failed + 40, 4));
    sim.observer.failure_map(&map_of(418, failed + 900, 6));
    sim.stack(418, &[("train.py", "step")]);
    let scene = sim.last().scene.clone().expect("a scene");
    assert_eq!(
        scene.frame.mono,
        Mono(failed - 100),
        "the frame is the last one before the failure"
    );
    let listed = scene.frame.gpus[0].processes.value().expect("a list");
    let held: Vec<_> = listed.iter().map(|p| (p.pid.0, p.vram.get())).collect();
    assert_eq!(held[1], (1771, Some(gib(2.0))));
    assert_eq!(scene.processes, [key(418)]);
    let pools = scene.frame.pools.as_ref().expect("its pools");
    assert_eq!(pools.list.len(), 1);
    let map = scene.map.as_ref().expect("a map");
    assert_eq!((map.lag.0, map.blocks), (40, 4), "the first map is nearest to the failure");
    let files: Vec<_> = scene.stacks.iter().map(|s| s.threads[0].frames[0].file.clone()).collect();
    assert_eq!(files, ["train.py"]);
    // A stack that was read one minute later does not explain the failure.
    sim.train(60);
    let late = PythonStack {
        process: key(418),
        at: Mono(sim.now),
        why: StackTrigger::Oom,
        threads: vec![StackThread::default()],
        ..PythonStack::default()
    };
    assert_eq!(sim.observer.stack(&late), []);
}

fn holders_of(pid: u32, at: u64, classes: &[(HolderClass, f64)]) -> Arc<HolderSummary> {
    let group = |&(class, size): &(HolderClass, f64)| HolderGroup {
        class,
        name: "trainer.history[*]".into(),
        count: 1,
        bytes: gib(size),
        ..HolderGroup::default()
    };
    let holders = Holders {
        process: key(pid),
        at: Mono(at),
        groups: classes.iter().map(group).collect(),
        ..Holders::default()
    };
    Arc::new(HolderSummary::of(&holders, 0))
}

#[test]
fn memory_holders_at_the_failure_decide_between_causes() {
    let mut sim = SimulatedRun::new();
    sim.run(20, |_| (13.0, 22.0, 22.9));
    let before = [(HolderClass::SavedForBackward, 16.0), (HolderClass::Parameter, 6.0)];
    assert_eq!(sim.observer.holders(&holders_of(418, sim.now, &before)), []);
    assert_eq!(sim.oom(418, 1)[0].incident.id, "oom-leak-growth");
    let scene = sim.last().scene.clone().expect("a scene");
    let held = scene.holders.as_ref().expect("the memory holders");
    assert_eq!((held.allocated, held.retained_graphs), (gib(22.0), gib(16.0)));
    let incident = &sim.last().incident;
    let clause = "autograd graphs stored in a list, dict or other container held 16.00 GiB of 22.00 GiB allocated";
    assert!(incident.causes[0].r#for.iter().any(|one| one == clause), "{incident:#?}");
    let said = serde_json::to_string(incident).expect("plain data");
    assert!(!said.contains("trainer."), "names are private: {said}");
    // By now, exception handling has freed most of the memory.
    let after = [(HolderClass::Parameter, 6.0)];
    assert_eq!(sim.observer.holders(&holders_of(418, sim.now + 600, &after)), []);
}

#[test]
fn memory_holders_read_after_the_failure_are_added() {
    let mut sim = SimulatedRun::new();
    sim.run(20, |_| (13.0, 22.0, 22.9));
    let states = [(HolderClass::OptimizerState, 12.0), (HolderClass::Parameter, 6.0)];
    let first = sim.oom(418, 1)[0].clone();
    assert_eq!(first.scene.expect("a scene").holders, None);
    let revision = sim.observer.holders(&holders_of(418, sim.now + 500, &states)).pop();
    let incident = revision.expect("a revision").incident;
    assert_eq!(incident.causes[0].id, "weights-and-states", "{incident:#?}");
}

#[test]
fn memory_without_names_decides_nothing() {
    let mut sim = SimulatedRun::new();
    sim.run(20, |_| (13.0, 22.0, 22.9));
    let first = sim.oom(418, 1)[0].clone();
    // The program has begun to end, so its variables are gone.
    let storage = [(HolderClass::CppStorage, 22.0)];
    let revision = sim.observer.holders(&holders_of(418, sim.now + 500, &storage)).pop();
    let incident = revision.expect("a revision").incident;
    assert_eq!(incident.causes, first.incident.causes);
}

#[test]
fn a_scene_is_bounded() {
    let mut sim = SimulatedRun::new();
    sim.pids = (418..918).collect();
    sim.train(5);
    sim.oom(900, 1);
    sim.observer.failure_map(&map_of(900, sim.now, 100_000));
    sim.stack(900, &[("train.py", "step")]);
    let scene = sim.last().scene.as_ref().expect("a scene");
    let listed = scene.frame.gpus[0].processes.value().expect("a list");
    assert_eq!(listed[0].process, Some(key(900)), "own process first");
    assert_eq!(listed.len() + scene.left_out as usize, 500);
    let map = scene.map.as_ref().expect("a map");
    assert!(map.whole.is_none());
    assert_eq!((map.blocks, map.free_histogram.len()), (100_000, 1));
    let bytes = serde_json::to_vec(&**scene).expect("plain data").len();
    assert!(bytes < 32 << 10, "{bytes} bytes");
}

#[test]
fn setting_the_wall_clock_changes_no_verdict_key_or_age() {
    let outcome = |steps: [i64; 3]| {
        let mut sim = SimulatedRun::new();
        sim.clock_offset = steps[0];
        sim.run(60, |at| (6.0 + at / 8.0, 14.0 + at / 8.0, 22.5));
        sim.train(3);
        sim.oom(418, 1);
        sim.clock_offset = steps[1];
        sim.writes(418, &message("2.00 GiB", "1.06 GiB", "0.5 GiB"));
        sim.clock_offset = steps[2];
        sim.exits(418);
        sim.train(10);
        let revisions = sim.revisions.iter();
        let shape = revisions.map(|r| {
            let incident = gputop_model::incident::Incident { time: None, ..r.incident.clone() };
            let key = IncidentKey { time: UnixMillis(0), ..r.key.clone() };
            (key, incident)
        });
        shape.collect::<Vec<_>>()
    };
    const DAY: i64 = 86_400_000;
    let steady = outcome([0, 0, 0]);
    assert!(!steady.is_empty());
    for steps in [[-DAY, -DAY, -DAY], [DAY, DAY, DAY], [0, -DAY, DAY]] {
        assert!(outcome(steps) == steady, "{steps:?}");
    }
}

/// Returns the CPU time of this thread, which does not depend on what else the machine runs.
#[expect(clippy::unwrap_used)]
fn thread_cpu_time() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(times.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn a_thousand_simultaneous_exits_are_distinguished_in_bounded_memory() {
    let mut sim = SimulatedRun::new();
    sim.pids = (1_000..2_000).collect();
    sim.train(3);
    let begun = thread_cpu_time();
    for pid in 1_000..2_000 {
        if pid % 10 == 0 {
            sim.writes(pid, &message("2.00 GiB", "1.06 GiB", "0.5 GiB"));
        }
        sim.exits(pid);
    }
    // A generous limit: at 0.1 s for each exit, the incident banner would be more than a minute late.
    let took = thread_cpu_time() - begun;
    assert!(took.as_secs() < 30, "{took:?}");
    let reported: Vec<u32> = sim.revisions.iter().map(|r| r.processes()[0].pid.0).collect();
    let mut pids = reported.clone();
    pids.dedup();
    assert_eq!(
        pids,
        (1_000..2_000).step_by(10).collect::<Vec<_>>(),
        "each failed process must be reported once"
    );
    assert!(sim.observer.cases.len() <= super::MAX_CASES);
}

#[test]
fn a_late_replay_is_added_to_its_failure() {
    let mut sim = SimulatedRun::new();
    sim.run(60, |_| (6.0, 14.0, 22.5));
    let oom = |free: f64| HookOom {
        requested_bytes: gib(2.0),
        limit_bytes: gib(24.0),
        free_bytes: gib(free),
        ..HookOom::default()
    };
    let hook =
        HookEvent { what: "oom".into(), oom: Some(Box::new(oom(1.0))), ..HookEvent::default() };
    sim.event(Some(418), Observation::Hook(hook));
    sim.writes(418, &message("2.00 GiB", "1.00 GiB", "8.00 GiB"));
    assert_eq!(sim.last().incident.id, "oom-fragmentation");
    let replayed = |free: f64| {
        Observation::TraceReplay(Box::new(TraceReplay {
            free_bytes: gib(free),
            peak_reserved_bytes: gib(22.5),
            tried: vec![SettingResult {
                conf: "expandable_segments:True".into(),
                outcome: ReplayOutcome::Fits,
                peak_reserved_bytes: gib(16.0),
                ..SettingResult::default()
            }],
            ..TraceReplay::default()
        }))
    };
    // The delay is longer than the time window of one failure, and shorter than a real replay.
    sim.run(8, |_| (6.0, 14.0, 22.5));
    let effect =
        |revisions: &[Record]| revisions[0].incident.fixes[0].effect.clone().unwrap_or_default();
    let revisions = sim.event(Some(418), replayed(3.0));
    assert!(!effect(&revisions).contains("replayed"), "{}", effect(&revisions));
    let revisions = sim.event(Some(418), replayed(1.0));
    assert!(
        effect(&revisions)
            .starts_with("replayed: peak reserved 16.00 GiB instead of 22.50 GiB, fits"),
        "{}",
        effect(&revisions)
    );
    assert_eq!(sim.keys().len(), 1);
    // The process is unknown.
    assert!(sim.event(Some(900), replayed(1.0)).is_empty());
}

#[test]
fn observations_beyond_the_limit_are_not_diagnosed() {
    let mut sim = SimulatedRun::new();
    sim.train(2);
    let noise = "step 1 loss 0.5 and more of that\n".repeat(300);
    let text = noise + &message("2.00 GiB", "1.00 GiB", "8.00 GiB");
    for _ in 0..40 {
        sim.writes(418, &text);
    }
    // At most one revision is published for each added text.
    assert!(sim.revisions.len() <= (256 << 10) / text.len() + 1, "{}", sim.revisions.len());
    sim.revisions.clear();
    for number in 1..400 {
        let xid = Xid { number, ..Xid::default() };
        sim.event(None, Observation::Xid(xid));
    }
    assert!(sim.revisions.len() <= 260, "{}", sim.revisions.len());
}
