//! Streams as the agent sends them, and what is concluded from them.

use std::sync::Arc;

use super::{CaseKey, Observer, Revision};
use crate::model::event::{
    Event, Exit, GpuAtOom, HookEvent, HookOom, LogExcerpt, Observation, OomsRose, Xid,
};
use crate::model::frame::{Frame, ProcessList};
use crate::model::gpu::{Gpu, GpuProcess, Memory};
use crate::model::host::Hello;
use crate::model::incident::{DetectedBy, Severity, Verdict};
use crate::model::pool::{
    Allocator, Block, BlockState, FailureMap, Pool, PoolKind, PoolMap, PoolStats, Pools, Sampled,
    Segment,
};
use crate::model::process::{Parent, Process, ProcessKey};
use crate::model::reading::{Reading, Reason};
use crate::model::replay_result::{Fate, Replayed, SettingResult};
use crate::model::stack::{PythonStack, StackFrame, StackThread, StackWhy};
use crate::model::units::{Bytes, GpuUuid, Mono, Pid, StartTicks, UnixMillis};

const START: u64 = 1_000_000;
const TICKS: u64 = 1_000;

fn gib(n: f64) -> Bytes {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Bytes((n * f64::from(1_u32 << 30)) as u64)
}

fn key(pid: u32) -> ProcessKey {
    ProcessKey {
        pid: Pid(pid),
        // As old as the stream is.
        start: StartTicks(START / 1_000 * TICKS + u64::from(pid)),
    }
}

/// One process with one pool on one card of 24 GiB, second by second.
struct SimulatedRun {
    observer: Observer,
    now: u64,
    pids: Vec<u32>,
    others: Bytes,
    launcher: Option<u32>,
    /// The last state of the pool: allocated from, to, reserved.
    pool: (f64, f64, f64),
    retries: u64,
    told: Vec<Revision>,
    /// By how much the wall clock was set, in milliseconds.
    set: i64,
}

impl SimulatedRun {
    fn new() -> Self {
        let mut observer = Observer::default();
        observer.hello(Arc::new(Hello {
            ticks_per_second: TICKS,
            ..Hello::default()
        }));
        Self {
            observer,
            now: START,
            pids: vec![418],
            others: Bytes(0),
            launcher: None,
            pool: (6.0, 14.0, 16.0),
            retries: 0,
            told: Vec::new(),
            set: 0,
        }
    }

    fn clock(&self) -> UnixMillis {
        UnixMillis(i64::try_from(self.now - START).expect("a short test") + self.set)
    }

    fn process(&self, pid: u32) -> Process {
        Process {
            key: key(pid),
            rank: match self.launcher {
                Some(_) => Reading::Value(pid - 418),
                None => Reading::missing(Reason::Unsupported, "no rank"),
            },
            parent: self.launcher.map(|pid| Parent {
                pid: Pid(pid),
                name: "torchrun".into(),
            }),
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
            gpus: vec![Gpu {
                uuid: uuid.clone(),
                memory: Memory {
                    total: gib(24.0).into(),
                    free: Bytes(gib(free).0.saturating_sub(self.others.0)).into(),
                    ..Memory::default()
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

    /// `seconds` of the pool as `of` says.
    fn run(&mut self, seconds: u64, of: impl Fn(f64) -> (f64, f64, f64)) {
        for second in 0..seconds {
            #[allow(clippy::cast_precision_loss)]
            let at = second as f64;
            self.pool = of(at);
            self.now += 1_000;
            let frame = self.frame();
            let told = self.observer.frame(&Arc::new(frame));
            self.told.extend(told);
        }
    }

    fn train(&mut self, seconds: u64) {
        self.run(seconds, |_| (6.0, 14.0, 16.0));
    }

    fn event(&mut self, pid: Option<u32>, observation: Observation) -> Vec<Revision> {
        self.now += 100;
        let event = Event {
            mono: Mono(self.now),
            time: self.clock(),
            process: pid.map(key),
            gpu: Some(GpuUuid("GPU-1".into())),
            observation,
            ..Event::default()
        };
        let told = self.observer.event(&event);
        self.told.extend(told.clone());
        told
    }

    fn oom(&mut self, pid: u32, ooms: u64) -> Vec<Revision> {
        let rose = OomsRose {
            before: ooms - 1,
            after: ooms,
            since: Mono(self.now),
            stats: self.stats(ooms),
            ..OomsRose::default()
        };
        self.event(Some(pid), Observation::Ooms(Box::new(rose)))
    }

    fn says(&mut self, pid: u32, text: &str) -> Vec<Revision> {
        let excerpt = LogExcerpt {
            file: String::from("/home/ana/train.log").into(),
            first_line: 812.into(),
            text: text.into(),
            ..LogExcerpt::default()
        };
        self.event(Some(pid), Observation::Log(Box::new(excerpt)))
    }

    fn ends(&mut self, pid: u32) -> Vec<Revision> {
        self.event(Some(pid), Observation::Exit(Exit::default()))
    }

    fn stack(&mut self, pid: u32, frames: &[(&str, &str)]) -> Vec<Revision> {
        let frame = |(file, function): &(&str, &str)| StackFrame {
            file: (*file).into(),
            function: (*function).into(),
            line: 57,
        };
        let stack = PythonStack {
            process: key(pid),
            why: StackWhy::Oom,
            threads: vec![StackThread {
                is_main: true,
                frames: frames.iter().map(frame).collect(),
                ..StackThread::default()
            }],
            ..PythonStack::default()
        };
        let told = self.observer.stack(&stack);
        self.told.extend(told.clone());
        told
    }

    fn last(&self) -> &Revision {
        self.told.last().expect("something was told")
    }

    fn keys(&self) -> Vec<CaseKey> {
        let mut keys: Vec<CaseKey> = self.told.iter().map(|r| r.key.clone()).collect();
        keys.dedup();
        keys
    }
}

fn message(wanted: &str, free: &str, idle: &str) -> String {
    format!(
        "Traceback (most recent call last):\n  File \"train.py\", line 57, in <module>\n    loss.backward()\n\
         torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {wanted}. GPU 0 has a total capacity of \
         24.00 GiB of which {free} is free. Process 418 has 22.60 GiB memory in use. Of the allocated memory \
         14.10 GiB is allocated by PyTorch, and {idle} is reserved by PyTorch but unallocated.\n"
    )
}

#[test]
fn an_oom_without_any_text_is_told_at_once_and_settles_as_caught() {
    let mut stage = SimulatedRun::new();
    stage.run(60, |_| (18.0, 22.0, 22.5));
    let told = stage.oom(418, 1);
    assert_eq!(told.len(), 1);
    let incident = &told[0].incident;
    assert_eq!(incident.id, "oom-capacity");
    assert_eq!(incident.detected_by, DetectedBy::Allocator);
    assert!(incident.log.is_none() && incident.quote.is_empty());
    assert_eq!(incident.fields.allocated_bytes, Some(gib(22.0).0));
    assert_eq!(incident.fields.free_bytes, Some(gib(1.0).0));
    assert_eq!(incident.fields.requested_bytes, None);
    stage.run(7, |_| (18.0, 22.0, 22.5));
    assert_eq!(stage.last().incident.severity, Severity::Caught);
    assert_eq!(stage.keys().len(), 1);
}

#[test]
fn one_that_the_program_swallowed_is_caught_though_it_ended_soon_after() {
    let mut stage = SimulatedRun::new();
    stage.train(30);
    stage.oom(418, 1);
    let ended = Exit {
        status: 0.into(),
        ..Exit::default()
    };
    stage.event(Some(418), Observation::Exit(ended));
    stage.pids.clear();
    stage.train(8);
    assert_eq!(stage.last().incident.severity, Severity::Caught);
}

#[test]
fn one_that_ends_the_process_is_fatal_and_the_same_incident() {
    let mut stage = SimulatedRun::new();
    stage.train(60);
    stage.oom(418, 1);
    stage.ends(418);
    assert_eq!(stage.last().incident.severity, Severity::Fatal);
    assert_eq!(stage.keys().len(), 1);
}

#[test]
fn text_and_counter_are_one_incident_and_what_was_measured_is_evidence() {
    let mut stage = SimulatedRun::new();
    stage.run(60, |_| (13.0, 14.1, 22.1));
    stage.oom(418, 1);
    stage.says(418, &message("2.00 GiB", "1.06 GiB", "8.02 GiB"));
    let incident = &stage.last().incident;
    assert_eq!(incident.id, "oom-fragmentation");
    assert_eq!(incident.fields.requested_bytes, Some(2 << 30));
    assert_eq!(incident.detected_by, DetectedBy::Log);
    let log = incident.log.as_ref().expect("a log");
    assert_eq!(
        (log.first_line, log.file.as_str()),
        (815, "/home/ana/train.log")
    );
    let says: Vec<&String> = incident.causes.iter().flat_map(|c| &c.r#for).collect();
    assert!(
        says.iter()
            .any(|s| *s
                == "the largest free block was 614.40 MiB, read up to 100 ms after the failure"),
        "{says:?}"
    );
    assert_eq!(stage.keys().len(), 1);
}

#[test]
fn fragmentation_is_told_by_measurement_alone() {
    let mut stage = SimulatedRun::new();
    stage.run(60, |_| (11.0, 12.0, 22.9));
    let told = stage.oom(418, 1);
    assert_eq!(told[0].incident.id, "oom-fragmentation");
}

#[test]
fn the_blocks_of_the_moment_are_evidence_and_those_of_a_later_one_are_not() {
    let block = |size, state| Block {
        size: gib(size),
        state,
        ..Block::default()
    };
    let segment = |blocks: Vec<Block>| Segment {
        size: Bytes(blocks.iter().map(|block| block.size.0).sum()),
        pool: PoolKind::Large,
        blocks,
        ..Segment::default()
    };
    let told = |live: f64| {
        let mut stage = SimulatedRun::new();
        stage.run(60, |_| (13.0, 14.1, 22.1));
        stage.oom(418, 1);
        stage.says(418, &message("2.50 GiB", "1.06 GiB", "8.00 GiB"));
        let pinned = || {
            segment(vec![
                block(0.2, BlockState::Allocated),
                block(2.0, BlockState::Free),
            ])
        };
        let mut segments = vec![segment(vec![block(live, BlockState::Allocated)])];
        segments.extend((0..4).map(|_| pinned()));
        let failed = FailureMap {
            since: Mono(stage.now - 20),
            map: PoolMap {
                process: key(418),
                at: Mono(stage.now + 10),
                exact: true,
                segments,
                ..PoolMap::default()
            },
        };
        let last = stage.observer.failure_map(&failed).pop();
        let last = last.expect("a revision").incident;
        assert_eq!(last.id, "oom-fragmentation");
        let causes = last.causes.into_iter();
        causes.flat_map(|cause| cause.r#for).collect::<Vec<_>>()
    };
    let says = told(13.3);
    for said in [
        "the largest of 4 free blocks (8.00 GiB in total) was 2.00 GiB, read up to 30 ms after the failure",
        "live blocks of 819.20 MiB keep 4 segments (8.80 GiB in total) from being freed",
    ] {
        assert!(says.iter().any(|one| one == said), "{said}: {says:?}");
    }
    // A third of what was allocated is gone: these are not the blocks that were there.
    let says = told(9.0);
    let of_blocks = |said: &&String| said.contains("free blocks") || said.contains("segments");
    assert_eq!(says.iter().find(of_blocks), None);
}

#[test]
fn a_leak_is_told_by_measurement_alone_also_after_a_minute() {
    let mut stage = SimulatedRun::new();
    stage.run(70, |second| {
        let kept = 4.0 + second * 0.2;
        (kept, kept + 3.0, kept + 4.0)
    });
    let told = stage.oom(418, 1);
    assert_eq!(told[0].incident.id, "oom-leak-growth");
}

#[test]
fn a_leak_is_told_where_its_steps_are_too_short_to_be_seen() {
    let mut stage = SimulatedRun::new();
    stage.run(110, |second| {
        let kept = 1.0 + second * 0.18;
        // The first step was slow: it was seen to end.
        let peak = if second == 2.0 {
            kept + 2.0
        } else {
            kept + 0.18
        };
        (kept, peak, kept + 2.0)
    });
    let told = stage.oom(418, 1);
    let incident = &told[0].incident;
    assert_eq!(incident.id, "oom-leak-growth");
}

#[test]
fn one_request_that_is_larger_than_all_before_is_a_step_too_large() {
    let mut stage = SimulatedRun::new();
    // None of it was ever allocated, so no peak has it.
    stage.run(60, |_| (12.0, 14.1, 22.1));
    stage.oom(418, 1);
    stage.says(418, &message("9.00 GiB", "1.06 GiB", "8.02 GiB"));
    let incident = &stage.last().incident;
    assert_eq!(incident.id, "oom-spike-step");
    let first = &incident.causes[0];
    assert_eq!(
        (first.id.as_str(), first.verdict),
        ("large-sample", Verdict::Likely)
    );
    let says =
        "with this request, allocated memory would reach 1.64 times the highest earlier peak";
    assert!(first.r#for.iter().any(|said| said == says), "{first:?}");
    // Where the steps before were as large, it is not.
    let mut stage = SimulatedRun::new();
    stage.run(60, |_| (12.0, 22.0, 22.1));
    stage.oom(418, 1);
    stage.says(418, &message("9.00 GiB", "1.06 GiB", "8.02 GiB"));
    assert_ne!(stage.last().incident.id, "oom-spike-step");
}

#[test]
fn loading_that_fills_the_card_is_no_leak_and_no_spike() {
    let mut stage = SimulatedRun::new();
    stage.run(110, |second| {
        let kept = 1.0 + second * 0.18;
        (kept, kept + 0.18, kept + 1.0)
    });
    let told = stage.oom(418, 1);
    let incident = &told[0].incident;
    assert_eq!(incident.id, "oom-capacity");
    // That memory did not grow would be wrong.
    let leak = incident.causes.iter().find(|cause| cause.id == "leak");
    assert!(leak.is_none_or(|leak| leak.against.is_empty()), "{leak:?}");
}

#[test]
fn another_process_is_told_by_measurement_alone() {
    let mut stage = SimulatedRun::new();
    stage.others = gib(15.0);
    stage.run(60, |_| (5.0, 7.5, 8.0));
    let told = stage.oom(418, 1);
    assert_eq!(told[0].incident.id, "oom-other-process");
    assert_eq!(told[0].incident.fields.other_processes[0].pid, Pid(1771));
}

#[test]
fn another_process_that_took_it_since_the_last_frame_is_seen() {
    let mut stage = SimulatedRun::new();
    stage.run(60, |_| (5.0, 7.5, 8.0));
    stage.oom(418, 1);
    assert_eq!(stage.last().incident.id, "oom-capacity");
    let listed = |pid, bytes: Bytes| GpuProcess {
        pid: Pid(pid),
        vram: bytes.into(),
        ..GpuProcess::default()
    };
    let there = GpuAtOom {
        memory: Memory {
            total: gib(24.0).into(),
            free: gib(0.5).into(),
            ..Memory::default()
        },
        processes: vec![listed(418, gib(8.5)), listed(1771, gib(15.0))].into(),
        ..GpuAtOom::default()
    };
    stage.event(Some(418), Observation::GpuAtOom(Box::new(there)));
    let incident = &stage.last().incident;
    assert_eq!(incident.id, "oom-other-process");
    assert_eq!(incident.fields.other_processes[0].pid, Pid(1771));
    assert_eq!(stage.keys().len(), 1);
}

#[test]
fn the_optimizers_first_step_is_told_by_stack_and_by_what_was_never_given_back() {
    let mut stage = SimulatedRun::new();
    stage.run(20, |second| (second, second, second + 0.2));
    stage.pool = (22.5, 23.0, 23.2);
    stage.oom(418, 1);
    let frames = [
        (
            "/lib/python3.12/site-packages/torch/optim/adamw.py",
            "_init_group",
        ),
        ("train.py", "main"),
    ];
    let told = stage.stack(418, &frames);
    let incident = &told[0].incident;
    assert_eq!(incident.id, "oom-first-step-states");
    assert_eq!(incident.at.as_deref(), Some("train.py:57  in main"));
    let states = &incident.causes[0];
    assert_eq!(
        (states.id.as_str(), states.verdict),
        ("states-created", Verdict::Likely)
    );
    assert!(
        states.r#for.iter().any(|s| s.contains("only risen")),
        "{states:?}"
    );
}

#[test]
fn an_algorithm_that_did_not_fit_while_a_library_looked_for_one_is_a_note() {
    let mut stage = SimulatedRun::new();
    stage.train(60);
    stage.oom(418, 1);
    let conv = [("/site-packages/torch/nn/modules/conv.py", "_conv_forward")];
    stage.stack(418, &conv);
    stage.train(8);
    assert_eq!(stage.last().incident.severity, Severity::Note);
}

#[test]
fn the_same_oom_caught_at_every_step_is_counted() {
    let mut stage = SimulatedRun::new();
    stage.train(60);
    for oom in 1..=5 {
        stage.oom(418, oom);
        stage.train(20);
    }
    assert_eq!(stage.keys().len(), 1);
    assert_eq!(stage.last().incident.count, 5);
}

#[test]
fn the_ranks_of_one_launcher_are_one_incident_and_the_first_is_named() {
    let mut stage = SimulatedRun::new();
    stage.pids = vec![418, 419, 420, 421];
    stage.launcher = Some(400);
    stage.train(60);
    stage.says(421, &message("2.00 GiB", "1.06 GiB", "0.20 GiB"));
    stage.ends(421);
    stage.train(600);
    let timeout = "[rank0]:[E1120 12:03:58.123456789 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective \
                   operation timeout: WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, \
                   Timeout(ms)=600000) ran for 600051 milliseconds before timing out.\n";
    stage.says(418, timeout);
    let last = stage.last();
    assert_eq!(stage.keys().len(), 1, "{:?}", stage.keys());
    assert_eq!(last.incident.family, "oom");
    assert_eq!(last.incident.fields.rank, Some(3));
    assert_eq!(last.processes, [key(418), key(421)]);
    assert!(
        last.incident
            .secondary
            .iter()
            .any(|i| i.id == "nccl-watchdog-timeout")
    );
}

#[test]
fn two_processes_without_a_launcher_are_two_incidents() {
    let mut stage = SimulatedRun::new();
    stage.pids = vec![418, 419];
    stage.train(60);
    stage.oom(418, 1);
    stage.oom(419, 1);
    assert_eq!(stage.keys().len(), 2);
}

#[test]
fn healthy_training_and_ends_that_nobody_explains_are_silent() {
    let mut stage = SimulatedRun::new();
    stage.train(300);
    stage.ends(418);
    stage.says(419, "epoch 3 done, loss 0.12\n");
    stage.train(60);
    assert_eq!(stage.told, []);
}

#[test]
fn what_a_process_writes_is_about_itself() {
    let mut stage = SimulatedRun::new();
    stage.train(60);
    stage.says(
        418,
        &format!(
            "(Worker pid=9999) {}",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of \
             24.00 GiB of which 1.06 GiB is free.\n"
        ),
    );
    let last = stage.last();
    assert_eq!(last.incident.fields.pid, Some(Pid(418)));
    assert_eq!(last.processes, [key(418)]);
}

#[test]
fn an_xid_is_explained_by_its_number_and_told_once_when_the_kernels_words_come() {
    let mut stage = SimulatedRun::new();
    stage.train(10);
    let xid = |text| {
        Observation::Xid(Xid {
            number: 79,
            text,
            ..Xid::default()
        })
    };
    stage.event(
        None,
        xid(Reading::missing(Reason::Denied, "the kernel log")),
    );
    assert_eq!(stage.last().incident.id, "xid-79-off-bus");
    assert_eq!(stage.last().incident.detected_by, DetectedBy::Xid);
    let words = "NVRM: Xid (PCI:0000:3b:00): 79, pid=418, name=python, GPU has fallen off the bus.";
    stage.event(None, xid(String::from(words).into()));
    let last = stage.last();
    assert_eq!(last.incident.fields.pci_bus.as_deref(), Some("0000:3b:00"));
    assert_eq!((stage.keys().len(), last.incident.count), (1, 1));
}

fn kernel_line(words: &str) -> Observation {
    Observation::Xid(Xid {
        number: 13,
        text: format!("NVRM: Xid (PCI:0000:3b:00): 13, {words}").into(),
        ..Xid::default()
    })
}

const STRAY_LINE: &str = "Graphics SM Warp Exception on (GPC 1, TPC 4, SM 0): Misaligned Address";
const OWN_LINE: &str = "pid=418, name=python3, Graphics Exception: channel 0x00000008";

#[test]
fn an_xids_line_without_a_process_is_of_whom_the_next_line_names() {
    let mut stage = SimulatedRun::new();
    stage.train(10);
    assert_eq!(stage.event(None, kernel_line(STRAY_LINE)), []);
    stage.event(Some(418), kernel_line(OWN_LINE));
    stage.train(10);
    assert_eq!(stage.keys().len(), 1);
    assert_eq!(stage.last().processes, [key(418)]);
    let exception = stage.last().incident.fields.more.get("exception").cloned();
    assert_eq!(exception, Some("Misaligned Address".into()));
}

#[test]
fn an_xids_line_without_a_process_is_of_whose_kernel_went_wrong_there() {
    let fault = "torch.AcceleratorError: CUDA error: misaligned address\n";
    for is_first in [true, false] {
        let mut stage = SimulatedRun::new();
        stage.train(10);
        if is_first {
            stage.event(None, kernel_line(STRAY_LINE));
        }
        stage.says(418, fault);
        if !is_first {
            stage.event(None, kernel_line(STRAY_LINE));
        }
        stage.train(10);
        assert_eq!(stage.keys().len(), 1, "{:?}", stage.told);
        assert_eq!(stage.last().incident.id, "cuda-misaligned-716");
    }
}

#[test]
fn an_xid_that_nobody_claims_is_told_of_its_gpu() {
    let mut stage = SimulatedRun::new();
    stage.train(10);
    stage.event(None, kernel_line(STRAY_LINE));
    stage.train(1);
    assert_eq!(stage.told, []);
    stage.train(3);
    assert_eq!(stage.keys().len(), 1);
    assert_eq!(stage.last().incident.id, "xid-13-sm-exception");
    assert_eq!(stage.last().processes, []);
}

fn map_of(pid: u32, at: u64, blocks: u64) -> FailureMap {
    let block = |state| Block {
        size: Bytes(512),
        state,
        ..Block::default()
    };
    let blocks =
        (0..blocks).map(|n| block([BlockState::Allocated, BlockState::Free][n as usize % 2]));
    FailureMap {
        since: Mono(at - 40),
        map: PoolMap {
            process: key(pid),
            at: Mono(at),
            exact: true,
            segments: vec![Segment {
                blocks: blocks.collect(),
                ..Segment::default()
            }],
            ..PoolMap::default()
        },
    }
}

#[test]
fn the_scene_is_of_the_moment_and_nothing_later_or_older_stands_in_it() {
    let mut stage = SimulatedRun::new();
    stage.others = gib(2.0);
    stage.train(60);
    // Of a moment at which nothing had failed.
    assert_eq!(stage.observer.failure_map(&map_of(418, stage.now, 4)), []);
    assert_eq!(stage.stack(418, &[("early.py", "step")]), []);
    stage.oom(418, 1);
    let failed = stage.now;
    stage.others = gib(4.0);
    stage.train(2);
    stage.observer.failure_map(&map_of(418, failed + 40, 4));
    stage.observer.failure_map(&map_of(418, failed + 900, 6));
    stage.stack(418, &[("train.py", "step")]);
    let scene = Arc::clone(&stage.last().scene);
    assert_eq!(
        scene.frame.mono,
        Mono(failed - 100),
        "the last frame before"
    );
    let listed = scene.frame.gpus[0].processes.value().expect("a list");
    let held: Vec<_> = listed.iter().map(|p| (p.pid.0, p.vram.get())).collect();
    assert_eq!(held[1], (1771, Some(gib(2.0))));
    assert_eq!(scene.processes, [key(418)]);
    let pools = scene.frame.pools.as_ref().expect("its pools");
    assert_eq!(pools.list.len(), 1);
    let map = scene.map.as_ref().expect("a map");
    assert_eq!((map.lag.0, map.blocks), (40, 4), "the first is the nearest");
    let files: Vec<_> = scene
        .stacks
        .iter()
        .map(|s| s.threads[0].frames[0].file.clone())
        .collect();
    assert_eq!(files, ["train.py"]);
    // A minute later the process stands elsewhere.
    stage.train(60);
    let late = PythonStack {
        process: key(418),
        at: Mono(stage.now),
        why: StackWhy::Oom,
        threads: vec![StackThread::default()],
        ..PythonStack::default()
    };
    assert_eq!(stage.observer.stack(&late), []);
}

#[test]
fn a_scene_is_bounded_whatever_is_on_the_gpu() {
    let mut stage = SimulatedRun::new();
    stage.pids = (418..918).collect();
    stage.train(5);
    stage.oom(900, 1);
    stage.observer.failure_map(&map_of(900, stage.now, 100_000));
    stage.stack(900, &[("train.py", "step")]);
    let scene = &stage.last().scene;
    let listed = scene.frame.gpus[0].processes.value().expect("a list");
    assert_eq!(listed[0].process, Some(key(900)), "its own first");
    assert_eq!(listed.len() + scene.left_out as usize, 500);
    let map = scene.map.as_ref().expect("a map");
    assert!(map.whole.is_none());
    assert_eq!((map.blocks, map.free_histogram.len()), (100_000, 1));
    let bytes = serde_json::to_vec(&**scene).expect("plain data").len();
    assert!(bytes < 32 << 10, "{bytes} bytes");
}

#[test]
fn a_wall_clock_that_is_set_changes_no_verdict_no_key_and_no_age() {
    let told = |steps: [i64; 3]| {
        let mut stage = SimulatedRun::new();
        stage.set = steps[0];
        stage.run(60, |at| (6.0 + at / 8.0, 14.0 + at / 8.0, 22.5));
        stage.train(3);
        stage.oom(418, 1);
        stage.set = steps[1];
        stage.says(418, &message("2.00 GiB", "1.06 GiB", "0.5 GiB"));
        stage.set = steps[2];
        stage.ends(418);
        stage.train(10);
        let told = stage.told.iter();
        let shape = told.map(|r| {
            let incident = crate::model::incident::Incident {
                time: None,
                ..r.incident.clone()
            };
            (r.key.clone(), r.at, incident)
        });
        shape.collect::<Vec<_>>()
    };
    const DAY: i64 = 86_400_000;
    let steady = told([0, 0, 0]);
    assert!(!steady.is_empty());
    for steps in [[-DAY, -DAY, -DAY], [DAY, DAY, DAY], [0, -DAY, DAY]] {
        assert!(told(steps) == steady, "{steps:?}");
    }
}

#[test]
fn a_thousand_ends_at_once_are_told_apart_and_what_is_kept_stays_bounded() {
    let mut stage = SimulatedRun::new();
    stage.pids = (1_000..2_000).collect();
    stage.train(3);
    let begun = std::time::Instant::now();
    for pid in 1_000..2_000 {
        if pid % 10 == 0 {
            stage.says(pid, &message("2.00 GiB", "1.06 GiB", "0.5 GiB"));
        }
        stage.ends(pid);
    }
    // A tenth of a second each would be a banner that comes a minute late.
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
    let about: Vec<u32> = stage.told.iter().map(|r| r.processes[0].pid.0).collect();
    let mut whom = about.clone();
    whom.dedup();
    assert_eq!(
        whom,
        (1_000..2_000).step_by(10).collect::<Vec<_>>(),
        "and no other"
    );
    assert!(stage.observer.cases.len() <= super::MAX_CASES);
}

#[test]
fn a_replay_that_comes_late_is_told_of_the_failure_that_it_is_of() {
    let mut stage = SimulatedRun::new();
    stage.run(60, |_| (6.0, 14.0, 22.5));
    let oom = |free: f64| HookOom {
        requested_bytes: gib(2.0),
        limit_bytes: gib(24.0),
        free_bytes: gib(free),
        ..HookOom::default()
    };
    let hook = HookEvent {
        what: "oom".into(),
        oom: Some(Box::new(oom(1.0))),
        ..HookEvent::default()
    };
    stage.event(Some(418), Observation::Hook(hook));
    stage.says(418, &message("2.00 GiB", "1.00 GiB", "8.00 GiB"));
    assert_eq!(stage.last().incident.id, "oom-fragmentation");
    let replayed = |free: f64| {
        Observation::Replayed(Box::new(Replayed {
            free_bytes: gib(free),
            peak_reserved_bytes: gib(22.5),
            tried: vec![SettingResult {
                conf: "expandable_segments:True".into(),
                fate: Fate::Fits,
                peak_reserved_bytes: gib(16.0),
                ..SettingResult::default()
            }],
            ..Replayed::default()
        }))
    };
    // More than what belongs together by itself, less than any trace takes.
    stage.run(8, |_| (6.0, 14.0, 22.5));
    let effect = |told: &[Revision]| told[0].incident.fixes[0].effect.clone().unwrap_or_default();
    let told = stage.event(Some(418), replayed(3.0));
    assert!(!effect(&told).contains("replayed"), "{}", effect(&told));
    let told = stage.event(Some(418), replayed(1.0));
    assert!(
        effect(&told).starts_with("replayed: peak reserved 16.00 GiB instead of 22.50 GiB, fits"),
        "{}",
        effect(&told)
    );
    assert_eq!(stage.keys().len(), 1);
    // Nobody's.
    assert!(stage.event(Some(900), replayed(1.0)).is_empty());
}

#[test]
fn what_floods_a_case_is_not_judged_again_and_again() {
    let mut stage = SimulatedRun::new();
    stage.train(2);
    let noise = "step 1 loss 0.5 and more of that\n".repeat(300);
    let text = noise + &message("2.00 GiB", "1.00 GiB", "8.00 GiB");
    for _ in 0..100 {
        stage.says(418, &text);
    }
    // As often as something was added.
    assert!(
        stage.told.len() <= (256 << 10) / text.len() + 1,
        "{}",
        stage.told.len()
    );
    stage.told.clear();
    for number in 1..1_000 {
        let xid = Xid {
            number,
            ..Xid::default()
        };
        stage.event(None, Observation::Xid(xid));
    }
    assert!(stage.told.len() <= 260, "{}", stage.told.len());
}
