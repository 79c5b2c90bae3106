//! Stacks of every phase, and the decisions of the table.

use gputop_model::gpu::Throttle;
use gputop_model::phases::{
    CallCount, GilHolder, Phase, PhaseCount, PhasePlace, PhaseWindow, WorkerLoad,
};
use gputop_model::reading::{Missing, Reading, Reason};
use gputop_model::units::{Bytes, BytesPerSecond, Millis, Percent};

use super::decision::Cores;
use super::*;

const PACKAGES: &str = "/venv/lib/python3.12/site-packages/";
const PYTHON: &str = "/usr/lib/python3.12/";
const USERS: &[(&str, &str)] = &[("<module>", "/home/ana/train.py")];

/// Frames, innermost first. A path that begins with `+` is in a package, and one with `%` in Python's own library.
fn phase(frames: &[(&str, &str)], line: &str) -> Phase {
    let table = PhaseTable::get();
    let path = |path: &str| match path.split_at(1) {
        ("+", rest) => format!("{PACKAGES}{rest}"),
        ("%", rest) => format!("{PYTHON}{rest}"),
        _ => path.to_owned(),
    };
    let frames = frames.iter().chain(USERS);
    let matches: Vec<FrameMatches> =
        frames.map(|(function, file)| table.frame(&path(file), function)).collect();
    table.phase(&matches, table.line(line))
}

/// Function and path of a frame.
type Frame = (&'static str, &'static str);

const LOADER: &str = "+torch/utils/data/dataloader.py";
const IMPORT: (&str, &str) = ("_find_and_load", "<frozen importlib._bootstrap>");
const BACKWARD: [(&str, &str); 2] = [
    ("_engine_run_backward", "+torch/autograd/graph.py"),
    ("Tensor.backward", "+torch/_tensor.py"),
];
const WAITS_FOR_WORKER: [(&str, &str); 5] = [
    ("_PollLikeSelector.select", "%selectors.py"),
    ("wait", "%multiprocessing/connection.py"),
    ("Connection._poll", "%multiprocessing/connection.py"),
    ("Queue.get", "%multiprocessing/queues.py"),
    ("_MultiProcessingDataLoaderIter._try_get_data", LOADER),
];

#[test]
fn recognizes_the_phase_of_each_kind_of_stack() {
    let in_backward = |inner: &[(&'static str, &'static str)]| [inner, &BACKWARD].concat();
    #[rustfmt::skip]
    let cases: &[(&str, Phase, Vec<Frame>)] = &[
        ("worker", Phase::LoaderWait, WAITS_FOR_WORKER.to_vec()),
        ("worker, pinned", Phase::LoaderWait, vec![("Condition.wait", "%threading.py"), ("Queue.get", "%queue.py"),
            ("_MultiProcessingDataLoaderIter._try_get_data", LOADER)]),
        ("worker, Python 3.8", Phase::LoaderWait, vec![("select", "/usr/lib/python3.8/selectors.py"),
            ("get", "/usr/lib/python3.8/multiprocessing/queues.py"), ("_try_get_data", LOADER)]),
        ("inline", Phase::LoaderInline, vec![("Image.resize", "+PIL/Image.py"),
            ("_MapDatasetFetcher.fetch", "+torch/utils/data/_utils/fetch.py"),
            ("_SingleProcessDataLoaderIter._next_data", LOADER), ("_BaseDataLoaderIter.__next__", LOADER)]),
        ("datasets", Phase::LoaderInline, vec![("format_table", "+datasets/formatting/formatting.py"),
            ("Dataset.__getitems__", "+datasets/arrow_dataset.py"), ("fetch", "+torch/utils/data/_utils/fetch.py")]),
        ("start of workers", Phase::LoaderStart, vec![("Popen._launch", "%multiprocessing/popen_fork.py"),
            ("_MultiProcessingDataLoaderIter.__init__", LOADER), ("DataLoader._get_iterator", LOADER)]),
        ("end of workers", Phase::LoaderStart, vec![("Popen.wait", "%multiprocessing/popen_fork.py"),
            ("_MultiProcessingDataLoaderIter._shutdown_workers", LOADER)]),
        ("forward", Phase::Forward, vec![("Linear.forward", "+torch/nn/modules/linear.py"),
            ("Module._call_impl", "+torch/nn/modules/module.py")]),
        ("compiled forward", Phase::Forward, vec![("call", "/tmp/torchinductor_ana/ab/cabc.py"),
            ("_TorchDynamoContext._fn", "+torch/_dynamo/eval_frame.py")]),
        ("backward", Phase::Backward, BACKWARD.to_vec()),
        ("backward of a function", Phase::Backward, in_backward(&[("BackwardCFunction.apply", "+torch/autograd/function.py")])),
        ("recomputation", Phase::Backward, in_backward(&[("Linear.forward", "+torch/nn/modules/linear.py"),
            ("recompute_fn", "+torch/utils/checkpoint.py")])),
        ("optimizer", Phase::Optimizer, vec![("_multi_tensor_adam", "+torch/optim/adam.py"), ("Adam.step", "+torch/optim/adam.py")]),
        ("optimizer wrapper", Phase::Optimizer, vec![("record_function.__enter__", "+torch/autograd/profiler.py"),
            ("Optimizer.profile_hook_step.<locals>.wrapper", "+torch/optim/optimizer.py")]),
        ("clipping", Phase::Optimizer, vec![("_get_total_norm", "+torch/nn/utils/clip_grad.py"),
            ("clip_grad_norm_", "+torch/nn/utils/clip_grad.py")]),
        ("collective", Phase::Collective, vec![("all_reduce", "+torch/distributed/distributed_c10d.py"),
            ("wrapper", "+torch/distributed/c10d_logger.py")]),
        ("FSDP2", Phase::Collective, vec![("all_gather_into_tensor", "+torch/distributed/distributed_c10d.py"),
            ("FSDPParamGroup.unshard", "+torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py"),
            ("Module._call_impl", "+torch/nn/modules/module.py")]),
        ("checkpoint", Phase::Checkpoint, vec![("_save", "+torch/serialization.py"), ("save", "+torch/serialization.py")]),
        ("distributed checkpoint", Phase::Checkpoint,
            vec![("_write_files_from_queue", "+torch/distributed/checkpoint/filesystem.py")]),
        ("safetensors", Phase::Checkpoint, vec![("save_file", "+safetensors/torch.py"),
            ("Trainer._save_checkpoint", "+transformers/trainer.py")]),
        ("checkpoint that imports", Phase::Checkpoint, vec![IMPORT, ("save", "+torch/serialization.py")]),
        ("load", Phase::Load, vec![("load_tensor", "+torch/serialization.py"), ("_load", "+torch/serialization.py")]),
        ("from_pretrained", Phase::Load, vec![("PreTrainedModel.from_pretrained", "+transformers/modeling_utils.py")]),
        ("evaluation", Phase::Evaluation, vec![("Linear.forward", "+torch/nn/modules/linear.py"),
            ("_EvaluationLoop.run", "+lightning/pytorch/loops/evaluation_loop.py")]),
        ("evaluation function", Phase::Evaluation, vec![("evaluate", "/home/ana/train.py")]),
        ("loader in evaluation", Phase::LoaderWait, [&WAITS_FOR_WORKER[..], &[("_EvaluationLoop.run",
            "+pytorch_lightning/loops/evaluation_loop.py")]].concat()),
        ("tqdm", Phase::Log, vec![("tqdm.refresh", "+tqdm/std.py")]),
        ("printed tensor", Phase::Log, vec![("_str", "+torch/_tensor_str.py"), ("Tensor.__repr__", "+torch/_tensor.py")]),
        ("child in a logger", Phase::Log, vec![("Popen.communicate", "%subprocess.py"), ("log", "+wandb/sdk/wandb_run.py")]),
        ("child process", Phase::ChildProcess, vec![("Popen.communicate", "%subprocess.py"), ("run", "%subprocess.py")]),
        ("dynamo", Phase::Compile, vec![("InstructionTranslator.run", "+torch/_dynamo/symbolic_convert.py"),
            ("_TorchDynamoContext._fn", "+torch/_dynamo/eval_frame.py")]),
        ("compiler in a child", Phase::Compile, vec![("Popen._wait", "%subprocess.py"),
            ("CppBuilder.build", "+torch/_inductor/cpp_builder.py")]),
        ("CUDA graph", Phase::Compile, vec![("CUDAGraphNode._record", "+torch/_inductor/cudagraph_trees.py")]),
        ("compilation that imports", Phase::Compile, vec![IMPORT, ("compile_fx", "+torch/_inductor/compile_fx.py"),
            ("_compile", "+torch/_dynamo/convert_frame.py")]),
        ("import", Phase::Import, vec![("_call_with_frames_removed", "<frozen importlib._bootstrap>"), IMPORT]),
        ("import of inductor", Phase::Import, vec![("register_lowering", "+torch/_inductor/lowering.py"),
            ("<module>", "+torch/_inductor/lowering.py"), IMPORT]),
        ("training in an import", Phase::Backward, [&BACKWARD[..], &[IMPORT]].concat()),
        ("event loop", Phase::EventLoop, vec![("EpollSelector.select", "%selectors.py"),
            ("BaseEventLoop._run_once", "%asyncio/base_events.py"), ("BaseEventLoop.run_forever", "%asyncio/base_events.py")]),
        ("join", Phase::QueueWait, vec![("Thread._wait_for_tstate_lock", "%threading.py"), ("Thread.join", "%threading.py")]),
        ("other", Phase::Python, vec![("collate", "/home/ana/data.py")]),
    ];
    for (name, expected, frames) in cases {
        assert_eq!(phase(frames, ""), *expected, "{name}");
    }
    assert_eq!(PhaseTable::get().phase(&[], None), Phase::Native);
}

#[test]
fn recognizes_calls_without_a_frame_by_their_line() {
    let adam =
        [("_single_tensor_adam", "+torch/optim/adam.py"), ("Adam.step", "+torch/optim/adam.py")];
    let forward = [("Linear.forward", "+torch/nn/modules/linear.py")];
    #[rustfmt::skip]
    let cases: &[(Phase, &[Frame], &str)] = &[
        (Phase::Sync, &[], "loss.item()"),
        (Phase::Sync, &[], "total += float(loss)"),
        (Phase::Sync, &[], "torch.cuda.synchronize()"),
        (Phase::Sync, &[], "rows = mask.nonzero()"),
        (Phase::Sync, &adam, "step = x.item()"),
        (Phase::Sync, &forward, "if torch.isnan(x).any():"),
        (Phase::Copy, &[], "x = batch.to(device, non_blocking=True)"),
        (Phase::Copy, &[], "x.cuda()"),
        (Phase::Sleep, &[], "time.sleep(1)"),
        (Phase::Sleep, &[], "time.sleep(float(seconds))"),
        (Phase::Disk, &[], "data = file.read(1 << 20)"),
        (Phase::Disk, &[], "x = np.load(path)"),
        (Phase::Log, &[], "print(loss)"),
        (Phase::ChildProcess, &[("Popen.communicate", "%subprocess.py")], "stdout = self.stdout.read()"),
        (Phase::Backward, &[], "loss.backward()"),
        (Phase::Optimizer, &[], "optimizer.step()"),
        (Phase::Optimizer, &adam, "param.copy_(new)"),
        (Phase::Checkpoint, &[("_save", "+torch/serialization.py")], "storage.cpu()"),
        (Phase::Python, &[], "names = [reopen(x) for x in files]"),
        (Phase::Python, &[], "items = stored_item(x)"),
        (Phase::Python, &[], "pprint(x)"),
    ];
    for (expected, frames, line) in cases {
        assert_eq!(phase(frames, line), *expected, "{line}");
    }
}

/// Returns a window of 10 s with these shares of 100 samples.
fn window(shares: &[(Phase, u32)]) -> PhaseWindow {
    let place = |(phase, count): &(Phase, u32)| PhasePlace {
        phase: *phase,
        count: *count,
        function: "step".into(),
        file: "/home/ana/train.py".into(),
        line: 57,
        text: Some("loss.item()".into()),
    };
    let mut window = PhaseWindow {
        length: Millis(10_000),
        age: Millis(120_000),
        phases: shares
            .iter()
            .map(|(phase, count)| PhaseCount { phase: *phase, count: *count })
            .collect(),
        places: shares.iter().map(place).collect(),
        autograd_cpu: percent(0.0),
        other_cpu: percent(0.0),
        read: Reading::Value(BytesPerSecond(0)),
        written: Reading::Value(BytesPerSecond(0)),
        quota_stopped: percent(0.0),
        major_faults: Reading::Value(0),
        ..PhaseWindow::default()
    };
    window.thread.is_main = true;
    window.thread.cpu = percent(95.0);
    window.thread.run_delay = percent(0.0);
    window.thread.blocked = percent(0.0);
    window
}

fn percent(value: f64) -> Reading<Percent> {
    Reading::Value(Percent(value))
}

fn workers(count: u32, cpu: f64, run_delay: f64, cpu_count: u32) -> WorkerLoad {
    WorkerLoad {
        count,
        cpu: percent(cpu),
        run_delay: percent(run_delay),
        cpu_count: Reading::Value(cpu_count),
        ..WorkerLoad::default()
    }
}

/// Returns an H200 that is little used.
fn gpu() -> GpuLoad {
    GpuLoad {
        utilization: Some(50.0),
        sm_active: Some(10.0),
        tensor_active: Some(5.0),
        memory_rate: Some(3.0),
        watts: Some(150.0),
        watts_limit: Some(700.0),
        sm_clock: Some(1_980.0),
        max_sm_clock: Some(1_980.0),
        temperature: Some(50.0),
        pcie_rx: Some(1e7),
        processes: 1,
        ..GpuLoad::default()
    }
}

fn answer(window: &PhaseWindow, gpu: &GpuLoad) -> Answer {
    let cores = Some(Cores { total: 16, idle: 13 });
    conclude(&Signals { window, gpu: Some(gpu), waits_for: None, holds_up: None, cores })
}

fn changed<T>(mut value: T, change: impl FnOnce(&mut T)) -> T {
    change(&mut value);
    value
}

#[test]
fn decides_for_the_cause_of_each_row() {
    use Phase::*;
    let idle_thread = |w: &mut PhaseWindow| w.thread.cpu = percent(2.0);
    let loader = || changed(window(&[(LoaderWait, 82), (Forward, 18)]), idle_thread);
    let with_workers = |w| changed(loader(), |window| window.workers = w);
    let no_gpm = |gpu: &mut GpuLoad| {
        (gpu.sm_active, gpu.tensor_active, gpu.memory_rate) = (None, None, None);
    };
    let full = |gpu: &mut GpuLoad| gpu.utilization = Some(100.0);
    let training = || window(&[(Backward, 50), (Forward, 50)]);
    #[rustfmt::skip]
    let cases: &[(&str, Cause, PhaseWindow, GpuLoad)] = &[
        ("too hot", Cause::SlowedDown(Throttle::SwThermal), training(),
            changed(gpu(), |g| { g.sm_active = Some(95.0); g.slowed = Some((Throttle::SwThermal, 0.8)); })),
        ("hot, but idle", Cause::PythonOrLaunches, training(),
            changed(gpu(), |g| g.slowed = Some((Throttle::SwThermal, 0.8)))),
        ("busy", Cause::Busy, training(), changed(gpu(), |g| g.sm_active = Some(95.0))),
        ("busy, and waits for it", Cause::Busy, window(&[(Sync, 90), (Forward, 10)]),
            changed(gpu(), |g| g.sm_active = Some(90.0))),
        ("busy, before Hopper", Cause::Busy, window(&[(Sync, 90)]),
            changed(gpu(), |g| { no_gpm(g); full(g); g.watts = Some(500.0); })),
        ("few samples", Cause::NotEnoughSamples, window(&[(Sync, 19)]), gpu()),
        ("quota", Cause::CpuQuota, changed(training(), |w| w.quota_stopped = percent(40.0)), gpu()),
        ("GIL", Cause::GlobalLock, changed(training(), |w| {
            w.gil = Some(GilHolder { samples: 100, others: 92, ..GilHolder::default() });
            w.other_cpu = percent(99.0);
        }), gpu()),
        ("GIL held by an idle thread", Cause::PythonOrLaunches, changed(training(), |w| {
            w.gil = Some(GilHolder { samples: 100, others: 92, ..GilHolder::default() });
        }), gpu()),
        ("no core", Cause::NoFreeCore, changed(training(), |w| w.thread.run_delay = percent(42.0)), gpu()),
        ("compiles", Cause::Compiles, window(&[(Compile, 94), (Sync, 6)]), gpu()),
        ("starts", Cause::Starts, window(&[(Import, 40), (Load, 30), (Python, 30)]), gpu()),
        ("notebook", Cause::NothingRuns, changed(window(&[(EventLoop, 100)]), |w| w.thread.cpu = percent(0.0)),
            changed(gpu(), |g| g.utilization = Some(0.0))),
        ("server that works", Cause::NoSingleCause, changed(window(&[(EventLoop, 100)]), |w| w.thread.cpu = percent(3.0)), gpu()),
        ("checkpoint", Cause::Checkpoint, window(&[(Checkpoint, 50), (Backward, 50)]), gpu()),
        ("loader", Cause::DataLoader(LoaderLimit::Workers), with_workers(workers(2, 97.0, 1.0, 16)), gpu()),
        ("loader without cores", Cause::DataLoader(LoaderLimit::Cores), with_workers(workers(8, 20.0, 70.0, 4)), gpu()),
        ("loader on one core", Cause::DataLoader(LoaderLimit::OneCore), with_workers(workers(8, 12.0, 80.0, 1)), gpu()),
        ("loader and storage", Cause::DataLoader(LoaderLimit::Storage), with_workers(workers(8, 4.0, 1.0, 16)), gpu()),
        ("loader without workers", Cause::DataLoader(LoaderLimit::Unknown), loader(), gpu()),
        ("inline", Cause::LoadsInline, window(&[(LoaderInline, 97), (Forward, 3)]), gpu()),
        ("disk", Cause::Disk, window(&[(Disk, 60), (Forward, 40)]), gpu()),
        ("disk behind a copy", Cause::Disk, changed(window(&[(Copy, 41), (Disk, 26), (Forward, 33)]), |w| {
            w.thread.blocked = percent(19.0);
            w.read = Reading::Value(BytesPerSecond(71_000_000));
        }), gpu()),
        ("swap", Cause::Disk, changed(training(), |w| {
            w.swapped = Reading::Value(Bytes(1 << 30));
            w.major_faults = Reading::Value(900);
        }), gpu()),
        ("evaluation", Cause::Evaluation, window(&[(Evaluation, 46), (Backward, 30), (Sync, 24)]), gpu()),
        ("child process", Cause::ChildProcess, window(&[(ChildProcess, 40), (Backward, 60)]), gpu()),
        ("log", Cause::Logging, window(&[(Log, 30), (Backward, 70)]), gpu()),
        ("NCCL", Cause::OtherRank, changed(window(&[(Sync, 100)]), |w| w.has_nccl = true),
            changed(gpu(), |g| { full(g); g.sm_active = Some(18.9); g.tensor_active = Some(0.0); g.memory_rate = Some(1.0); })),
        ("NCCL, before Hopper", Cause::OtherRank, changed(window(&[(Sync, 100)]), |w| w.has_nccl = true),
            changed(gpu(), |g| { no_gpm(g); full(g); g.watts = Some(150.0); })),
        ("gloo", Cause::OtherRank, changed(window(&[(Backward, 98), (Forward, 2)]), idle_thread), gpu()),
        ("copies", Cause::CopiesToGpu, window(&[(Copy, 100)]), gpu()),
        ("fast copies", Cause::CopiesToGpu, window(&[(Copy, 25), (Forward, 75)]),
            changed(gpu(), |g| g.pcie_rx = Some(9e9))),
        ("slow copies", Cause::PythonOrLaunches, window(&[(Copy, 25), (Forward, 75)]), gpu()),
        ("waits for the GPU", Cause::WaitsForGpu, window(&[(Sync, 60), (Forward, 40)]), gpu()),
        ("many short waits", Cause::PythonOrLaunches, changed(window(&[(Backward, 40), (Sync, 28), (Optimizer, 22), (Forward, 10)]), |w| {
            w.thread.cpu = percent(65.0);
            w.autograd_cpu = percent(30.0);
        }), changed(gpu(), |g| { g.utilization = Some(14.0); g.sm_active = Some(1.2); })),
        ("idle beside others", Cause::NothingRuns, changed(window(&[(Sleep, 100)]), |w| w.thread.cpu = percent(0.0)),
            changed(gpu(), |g| g.is_unused = true)),
        ("wait without use of the GPU", Cause::NothingRuns, changed(window(&[(Sync, 100)]), |w| w.thread.cpu = percent(0.0)),
            changed(gpu(), |g| g.is_unused = true)),
        ("wait without work", Cause::NoSingleCause, changed(window(&[(Sync, 100)]), |w| w.thread.cpu = percent(0.0)), gpu()),
        ("small kernels", Cause::SmallKernels, window(&[(Forward, 95), (Sync, 5)]),
            changed(gpu(), |g| { full(g); g.sm_active = Some(1.0); })),
        ("few SMs", Cause::FewSms, window(&[(Sync, 100)]),
            changed(gpu(), |g| { full(g); g.sm_active = Some(0.8); })),
        ("inline, and checkpoints", Cause::LoadsInline, window(&[(LoaderInline, 68), (Checkpoint, 32)]), gpu()),
        ("Python, and loads inline", Cause::PythonOrLaunches, window(&[(Python, 70), (LoaderInline, 30)]), gpu()),
        ("Python, and as much inline", Cause::LoadsInline, window(&[(Python, 52), (LoaderInline, 48)]), gpu()),
        ("evaluation of a slow training", Cause::Evaluation, window(&[(Backward, 34), (Evaluation, 32), (Optimizer, 24), (Forward, 10)]), gpu()),
        ("Python", Cause::PythonOrLaunches, window(&[(Python, 80), (Forward, 20)]), gpu()),
        ("unreadable", Cause::PythonOrLaunches, window(&[(Unreadable, 70), (Forward, 30)]), gpu()),
        ("mixed", Cause::NoSingleCause, changed(window(&[(LoaderWait, 28), (Copy, 22), (Backward, 32), (Log, 18)]), |w| {
            w.thread.cpu = percent(50.0);
            w.other_cpu = percent(40.0);
        }), gpu()),
    ];
    for (name, cause, window, gpu) in cases {
        assert_eq!(answer(window, gpu).cause, *cause, "{name}");
    }
}

#[test]
fn the_sentence_names_share_evidence_and_what_to_try() {
    let mut window = window(&[(Phase::LoaderWait, 82), (Phase::Backward, 18)]);
    window.workers = workers(2, 97.0, 1.0, 16);
    assert_eq!(
        answer(&window, &gpu()).text(),
        "Waits for the data loader: 82 % (±11) of the last 10 s. 2 workers at 97 % CPU each; SM active 10 %. \
         Try num_workers=8: 16 cores, 13 idle."
    );
    let two = answer(&self::window(&[(Phase::LoaderInline, 68), (Phase::Checkpoint, 32)]), &gpu());
    assert_eq!(two.also, ["Most of the rest: 32 % (±13) checkpoint."]);
    let few = PhaseWindow {
        phases: vec![PhaseCount { phase: Phase::LoaderWait, count: 30 }],
        ..window.clone()
    };
    let few = answer(&few, &gpu());
    assert_eq!(few.sentence, "Waits for the data loader: nearly all of the last 10 s.");
    assert_eq!(few.note, "waits for data loader");
}

#[test]
fn names_two_groups_that_cannot_be_told_apart() {
    let close = answer(&window(&[(Phase::Copy, 52), (Phase::Sync, 48)]), &gpu());
    assert_eq!(close.cause, Cause::CopiesToGpu);
    let expected = [
        "Waits for the GPU: 48 % (±13), most often `loss.item()` at train.py:57.",
        "Close together: 52 % (±13) copies to the GPU, 48 % (±13) waits for the GPU.",
    ];
    assert_eq!(close.also, expected);
    assert!(answer(&window(&[(Phase::Copy, 90), (Phase::Forward, 10)]), &gpu()).also.is_empty());
}

#[test]
fn a_wait_for_another_rank_names_the_rank() {
    let window = window(&[(Phase::Backward, 90), (Phase::Sync, 10)]);
    let verdict = "rank 3 holds up 7 ranks for 41 s: it waits for its data loader (train.py:88)";
    let signals = Signals {
        window: &window,
        gpu: None,
        waits_for: Some(verdict),
        holds_up: None,
        cores: None,
    };
    let waits = conclude(&signals);
    assert_eq!(waits.cause, Cause::OtherRank);
    assert_eq!(waits.sentence, format!("Waits for another rank: {verdict}."));
    let signals = Signals { waits_for: None, holds_up: Some(verdict), ..signals };
    let holds_up = conclude(&signals);
    assert_eq!(holds_up.cause, Cause::PythonOrLaunches);
    assert!(holds_up.also.contains(&format!("Others wait for it: {verdict}.")), "{holds_up:?}");
}

#[test]
fn without_stacks_the_cpu_time_says_what_it_can() {
    let mut window = window(&[]);
    window.no_stacks = Some(Missing::new(Reason::Denied, "permission denied (ptrace_scope is 1)"));
    window.thread.cpu = percent(3.0);
    window.workers = workers(2, 97.0, 0.0, 16);
    let answer = answer(&window, &gpu());
    assert_eq!(answer.cause, Cause::NotEnoughSamples);
    assert_eq!(
        answer.text(),
        "The main thread uses 3 % of a core and its 2 children 97 % each: probably the data loader. \
         Main thread at 3 % CPU; SM active 10 %. Stacks: permission denied (ptrace_scope is 1)."
    );
}

#[test]
fn a_process_without_python_is_judged_by_its_busiest_thread() {
    let native = |calls: &[(&str, u32)]| {
        let mut window = window(&[]);
        window.no_stacks = Some(Missing::new(Reason::Unsupported, "no Python interpreter found"));
        let count = |(call, count): &(&str, u32)| CallCount { call: (*call).into(), count: *count };
        window.thread.calls = calls.iter().map(count).collect();
        (window.thread.is_main, window.thread.name) = (false, "decode".into());
        (window.thread.cpu, window.other_cpu) = (percent(90.0), percent(0.0));
        window
    };
    let sentence = |window: &PhaseWindow| answer(window, &gpu()).sentence;
    assert_eq!(
        sentence(&native(&[("", 90), ("futex", 10)])),
        "Its thread decode runs: 90 % (±9) of the last 10 s. What it computes cannot be read without Python."
    );
    assert_eq!(
        sentence(&native(&[("epoll_wait", 80), ("", 20)])),
        "Its thread decode waits for input (epoll_wait): 80 % (±11) of the last 10 s."
    );
    assert_eq!(
        sentence(&native(&[("", 10)])),
        "Its thread decode uses 90 % of a core; what it does is unknown."
    );
    let cause = |change: fn(&mut PhaseWindow)| {
        answer(&changed(native(&[("", 90), ("futex", 10)]), change), &gpu()).cause
    };
    assert_eq!(cause(|_| ()), Cause::NotEnoughSamples);
    assert_eq!(cause(|window| window.quota_stopped = percent(40.0)), Cause::CpuQuota);
    assert_eq!(cause(|window| window.thread.run_delay = percent(50.0)), Cause::NoFreeCore);
    assert_eq!(cause(|window| window.thread.blocked = percent(50.0)), Cause::Disk);
    let idle = changed(native(&[("poll", 90)]), |window| window.thread.cpu = percent(1.0));
    let idle_gpu = changed(gpu(), |gpu| gpu.utilization = Some(0.0));
    assert_eq!(answer(&idle, &idle_gpu).cause, Cause::NothingRuns);
}

/// The note is a column of the overview.
#[test]
fn notes_are_short() {
    let mut windows: Vec<PhaseWindow> = vec![];
    let phases = [
        Phase::LoaderWait,
        Phase::LoaderInline,
        Phase::Checkpoint,
        Phase::Compile,
        Phase::Import,
        Phase::Disk,
        Phase::Evaluation,
        Phase::Log,
        Phase::Copy,
        Phase::Sync,
        Phase::Python,
        Phase::Collective,
        Phase::EventLoop,
    ];
    windows.extend(phases.map(|phase| window(&[(phase, 100)])));
    windows.push(changed(window(&[(Phase::Python, 100)]), |w| w.quota_stopped = percent(99.0)));
    windows.push(changed(window(&[(Phase::Python, 100)]), |w| w.thread.run_delay = percent(99.0)));
    let hot = changed(gpu(), |g| g.slowed = Some((Throttle::HwSlowdown, 1.0)));
    let few_sms = changed(gpu(), |g| g.utilization = Some(100.0));
    for window in &windows {
        for gpu in [&gpu(), &hot, &few_sms] {
            let note = answer(window, gpu).note;
            assert!(note.chars().count() <= 40, "{note}");
        }
    }
}

#[test]
fn one_phase_without_a_cause_of_its_own_is_named_as_what_the_program_mostly_does() {
    let idle = |phases: &[(Phase, u32)]| {
        let mut window = window(phases);
        window.thread.cpu = percent(1.0);
        answer(&window, &gpu()).sentence
    };
    let one = idle(&[(Phase::QueueWait, 98), (Phase::Backward, 2)]);
    assert!(one.starts_with("Most samples: 98 % waits for a thread or process"), "{one}");
    let many = idle(&[(Phase::QueueWait, 40), (Phase::Backward, 34), (Phase::EventLoop, 26)]);
    assert!(many.starts_with("No single cause: 40 % "), "{many}");
}
