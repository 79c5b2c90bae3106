//! Pools of JAX, TensorFlow and CuPy explain failed allocations in their own process and in others.

use gputop_model::event::HookException;
use gputop_model::incident::Incident;
use gputop_model::reported_pool::{Framework, PoolSource, ReportedPool};

use super::*;

/// PID of the process that fails, and of another one on the same GPU.
const OWN: u32 = 418;
const OTHER: u32 = 4_711;

const JAX_ERROR: &str = "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4.00GiB \
    with allocator GPU_0_bfc on device 0. [tf-allocator-allocation-error=''] [executable_name='jit_add']\n";

/// A pool with allocated, reserved, largest free and maximum memory in GiB.
fn pool(pid: u32, framework: Framework, sizes: (f64, f64, f64, f64)) -> ReportedPool {
    let (allocated, reserved, largest, limit) = sizes;
    ReportedPool {
        process: key(pid),
        framework,
        source: PoolSource::Memory,
        gpu: GpuUuid("GPU-1".into()).into(),
        at: Mono(START),
        allocated: gib(allocated).into(),
        reserved: gib(reserved).into(),
        limit: gib(limit).into(),
        largest_free_block: gib(largest).into(),
        ..ReportedPool::default()
    }
}

/// An observer that has seen the pools on a GPU with 140 GiB, of which `free` is free.
struct Scenario {
    observer: Observer,
    now: u64,
    free: f64,
    conf: Option<&'static str>,
}

impl Scenario {
    fn new(free: f64) -> Self {
        let mut observer = Observer::default();
        observer.hello(Arc::new(Hello { ticks_per_second: TICKS, ..Hello::default() }));
        Self { observer, now: START, free, conf: None }
    }

    fn frame(&mut self, pools: &[ReportedPool]) {
        self.now += 1_000;
        let at = Mono(self.now);
        let listed = [OWN, OTHER].map(|pid| GpuProcess {
            pid: Pid(pid),
            process: Some(key(pid)),
            vram: gib(60.0).into(),
            ..GpuProcess::default()
        });
        let memory =
            Memory { total: gib(140.0).into(), free: gib(self.free).into(), ..Memory::default() };
        let process = |pid| Process {
            key: key(pid),
            pool_conf: self.conf.map(str::to_owned),
            ..Process::default()
        };
        let frame = Frame {
            mono: at,
            gpus: vec![Gpu {
                uuid: GpuUuid("GPU-1".into()),
                memory,
                processes: listed.to_vec().into(),
                ..Gpu::default()
            }],
            processes: Some(ProcessList { at, list: Arc::new([OWN, OTHER].map(process).to_vec()) }),
            pools: Some(Pools {
                at,
                reported: Arc::new(
                    pools.iter().map(|pool| ReportedPool { at, ..pool.clone() }).collect(),
                ),
                ..Pools::default()
            }),
            ..Frame::default()
        };
        self.observer.frame(&Arc::new(frame));
    }

    fn event(&mut self, observation: Observation) -> Incident {
        self.now += 400;
        let event = Event {
            mono: Mono(self.now),
            process: Some(key(OWN)),
            observation,
            ..Event::default()
        };
        self.observer.event(&event).pop().expect("an incident").incident
    }

    fn prints(&mut self, text: &str) -> Incident {
        let text = text.to_owned();
        self.event(Observation::Log(Box::new(LogExcerpt { text, ..LogExcerpt::default() })))
    }
}

/// Returns the evidence for a cause, if that cause is likely.
fn evidence(incident: &Incident, cause: &str) -> Vec<String> {
    let found = incident.causes.iter().find(|found| found.id == cause);
    let likely = found.filter(|found| found.verdict == Verdict::Likely);
    likely.map(|found| found.r#for.clone()).unwrap_or_default()
}

#[test]
fn a_jax_error_says_how_much_of_the_pool_was_in_use() {
    let mut scenario = Scenario::new(2.0);
    // The exception frees arrays, and then the process exits.
    for in_use in [60.0, 103.5, 20.0] {
        scenario.frame(&[pool(OWN, Framework::Jax, (in_use, 104.875, 1.25, 104.875))]);
    }
    scenario.frame(&[]);
    let incident = scenario.prints(JAX_ERROR);
    assert_eq!(
        incident.title,
        "XLA could not allocate 4.00 GiB on GPU 0. Its pool had 104.88 GiB: 103.50 GiB in use, largest free chunk 1.25 GiB (within 2.4 s of the error)."
    );
    assert_eq!(incident.fields.more["pool_in_use_bytes"], gib(103.5).0);
    let wanted = "103.50 GiB of the 104.88 GiB in the pool was in use";
    assert!(evidence(&incident, "kept-arrays").contains(&wanted.to_owned()), "{incident:#?}");
    for cause in ["other-process", "pool", "fragmentation", "one-program"] {
        assert!(evidence(&incident, cause).is_empty(), "{cause}");
    }
}

#[test]
fn the_hook_reads_the_pool_when_the_error_is_raised() {
    let mut scenario = Scenario::new(2.0);
    scenario.frame(&[pool(OWN, Framework::Jax, (60.0, 104.0, 1.0, 104.0))]);
    let pools = vec![pool(OWN, Framework::Jax, (98.0, 104.0, 2.0, 104.0))];
    let traceback = format!("Traceback (most recent call last):\n{JAX_ERROR}");
    let exception = HookException { traceback, pools, ..HookException::default() };
    let exception = Some(Box::new(exception));
    let incident =
        scenario.event(Observation::Hook(HookEvent { exception, ..HookEvent::default() }));
    assert!(incident.title.contains("98.00 GiB in use"), "{}", incident.title);
    assert!(incident.title.ends_with("(when the error was raised)."), "{}", incident.title);
    let wanted = "6.00 GiB of the pool was free, but its largest free chunk had 2.00 GiB";
    assert_eq!(evidence(&incident, "fragmentation"), [wanted]);
    let fix = incident.fixes.iter().find(|fix| fix.change.contains("cuda_async"));
    assert!(fix.is_some(), "{:#?}", incident.fixes);
}

#[test]
fn a_fraction_of_the_gpu_that_is_too_small_is_the_cause() {
    let mut scenario = Scenario::new(80.0);
    scenario.frame(&[pool(OWN, Framework::Jax, (41.0, 42.0, 1.0, 42.0))]);
    let incident = scenario.prints(JAX_ERROR);
    let wanted = "the pool's limit is 42.00 GiB, while 80.00 GiB of the GPU was free outside it";
    assert_eq!(evidence(&incident, "pool"), [wanted]);
    let fix = incident.fixes.iter().find(|fix| fix.change.contains("MEM_FRACTION=.92"));
    assert!(fix.is_some(), "{:#?}", incident.fixes);
}

#[test]
fn a_pool_below_its_limit_shows_that_others_hold_the_memory() {
    for (free, is_cause) in [(0.5, true), (50.0, false)] {
        let mut scenario = Scenario::new(free);
        scenario.frame(&[
            pool(OWN, Framework::Jax, (29.0, 30.0, 0.5, 105.0)),
            pool(OTHER, Framework::Jax, (0.625, 104.0, 100.0, 105.0)),
        ]);
        let incident = scenario.prints(JAX_ERROR);
        let found = evidence(&incident, "other-process");
        let grow = "the pool had 30.00 GiB of its limit of 105.00 GiB, but the driver could not provide more";
        assert_eq!(found.contains(&grow.to_owned()), is_cause, "{found:#?}");
        let other = "process 4711 (JAX) reserves 104.00 GiB and uses 640.00 MiB of it";
        assert!(found.contains(&other.to_owned()), "{found:#?}");
    }
}

#[test]
fn an_error_of_pytorch_names_the_pool_that_another_process_preallocated() {
    const TORCH_ERROR: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total \
        capacity of 139.80 GiB of which 2.10 GiB is free. Process 4711 has 105.50 GiB memory in use. Process 418 has \
        32.20 GiB memory in use. Of the allocated memory 31.50 GiB is allocated by PyTorch, and 100.00 MiB is reserved \
        by PyTorch but unallocated.\n";
    let settings = [
        (None, true),
        (Some("XLA_PYTHON_CLIENT_MEM_FRACTION=.75"), true),
        // The pool has grown to this size, and the setting is there already.
        (Some("XLA_PYTHON_CLIENT_PREALLOCATE=false"), false),
    ];
    for (conf, has_fix) in settings {
        let mut scenario = Scenario { conf, ..Scenario::new(2.1) };
        scenario.frame(&[pool(OTHER, Framework::Jax, (0.625, 105.0, 104.0, 105.0))]);
        let incident = scenario.prints(TORCH_ERROR);
        assert_eq!(incident.id, "oom-other-process");
        let wanted = "process 4711 (JAX) reserves 105.00 GiB and uses 640.00 MiB of it";
        assert_eq!(evidence(&incident, "preallocation"), [wanted], "{incident:#?}");
        let fix = incident.fixes.iter().find(|fix| fix.title.contains("process 4711"));
        let change = fix.map(|fix| fix.change.as_str());
        let wanted = has_fix.then_some("export XLA_PYTHON_CLIENT_PREALLOCATE=false");
        assert_eq!(change, wanted, "{:#?}", incident.fixes);
        assert!(!incident.title.contains("Its pool"), "{}", incident.title);
    }
}

#[test]
fn free_blocks_of_cupy_in_another_process_can_be_returned() {
    let mut scenario = Scenario::new(0.5);
    scenario.frame(&[
        pool(OWN, Framework::Jax, (29.0, 30.0, 0.5, 30.0)),
        pool(OTHER, Framework::Cupy, (3.0, 20.0, 0.0, 0.0)),
    ]);
    let incident = scenario.prints(JAX_ERROR);
    let wanted = "process 4711 (CuPy) reserves 20.00 GiB and uses 3.00 GiB of it";
    assert_eq!(evidence(&incident, "other-process"), [wanted]);
    let fix = incident.fixes.iter().find(|fix| fix.title.contains("process 4711"));
    let change = "cupy.get_default_memory_pool().free_all_blocks()";
    assert_eq!(fix.map(|fix| fix.change.as_str()), Some(change), "{:#?}", incident.fixes);
}

#[test]
fn a_pool_on_another_gpu_or_of_an_exited_process_is_not_mentioned() {
    let elsewhere = ReportedPool {
        gpu: GpuUuid("GPU-2".into()).into(),
        ..pool(OTHER, Framework::Jax, (0.5, 104.0, 100.0, 105.0))
    };
    let exited = pool(7, Framework::Jax, (0.5, 104.0, 100.0, 105.0));
    let used = pool(OTHER, Framework::Cupy, (9.5, 10.0, 0.2, 0.0));
    for other in [elsewhere, exited, used] {
        let mut scenario = Scenario::new(0.5);
        scenario.frame(&[pool(OWN, Framework::Jax, (29.0, 30.0, 0.5, 30.0)), other]);
        let incident = scenario.prints(JAX_ERROR);
        assert_eq!(evidence(&incident, "other-process"), [""; 0], "{incident:#?}");
    }
}

#[test]
fn of_several_pools_of_a_process_the_message_decides() {
    let mut scenario = Scenario::new(0.5);
    let first = pool(OWN, Framework::Jax, (29.5, 30.0, 0.5, 30.0));
    let second = ReportedPool { ordinal: 1, ..pool(OWN, Framework::Jax, (1.0, 30.0, 29.0, 30.0)) };
    scenario.frame(&[second.clone(), first.clone()]);
    let incident = scenario.prints(JAX_ERROR);
    assert!(incident.title.contains("29.50 GiB in use"), "{}", incident.title);
    let mut scenario = Scenario::new(0.5);
    scenario.frame(&[second, first]);
    let incident = scenario.prints("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 21474836480 bytes.\n");
    assert!(!incident.title.contains("Its pool"), "{}", incident.title);
}
