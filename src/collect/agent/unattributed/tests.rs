use super::*;
use gputop_model::gpu::Memory;
use gputop_model::reading::Reading;
use gputop_model::units::GpuUuid;
use std::collections::HashMap;
use std::sync::Arc;

/// Returns a GPU of 100 GiB with `used` GiB in use, of which process 418 has 20 GiB.
fn gpu(used: u64) -> Gpu {
    let entry = GpuProcess {
        pid: Pid(418),
        process: Some(key(418)),
        vram: Bytes::gib(20).into(),
        ..GpuProcess::default()
    };
    let mut gpu = Gpu {
        uuid: GpuUuid("GPU-a".into()),
        memory: Memory {
            total: Bytes::gib(100).into(),
            free: Bytes::gib(100 - used).into(),
            reserved: Bytes(0).into(),
            ..Memory::default()
        },
        processes: vec![entry].into(),
        ..Gpu::default()
    };
    Arc::make_mut(&mut gpu.board).minor = 1.into();
    gpu
}

fn key(pid: u32) -> ProcessKey {
    ProcessKey::new(pid, 7)
}

fn process() -> Process {
    Process {
        key: key(418),
        name: "python".into(),
        command: "train.py".to_owned().into(),
        ..Process::default()
    }
}

fn leftover(pid: u32, what: LeftoverKind, minors: &[u32]) -> Leftover {
    Leftover { pid: Pid(pid), parent: Pid(1), name: "python".into(), what, minors: minors.to_vec() }
}

/// Returns the cause and the size in GiB of each unattributed part of a GPU's memory.
fn causes(
    (namespace, kernel): (PidNamespace, &str),
    gpu: &Gpu,
    process: &Process,
    leftovers: &[Leftover],
) -> Vec<(UnattributedCause, u64)> {
    let peak = Peak { gpus: vec![gpu.uuid.clone()], ..Peak::default() };
    let context = GpuContext {
        hello: &Hello { namespace, kernel: kernel.to_owned().into(), ..Hello::default() },
        processes: std::slice::from_ref(process),
        pools: &Pools::default(),
        leftovers: Some(leftovers),
        peaks: &HashMap::from([(key(77), peak)]),
    };
    let parts = explain(gpu, &context);
    assert!(parts.iter().all(|part| part.sentence.ends_with('.')));
    parts.iter().map(|part| (part.cause, part.bytes.0 >> 30)).collect()
}

fn on_host(leftovers: &[Leftover]) -> Vec<(UnattributedCause, u64)> {
    causes((PidNamespace::Host, "6.8.0-60-generic"), &gpu(25), &process(), leftovers)
}

#[test]
fn names_a_cause_only_with_evidence() {
    use UnattributedCause as Cause;
    let zombie =
        |pid, threads, minors: &[u32]| leftover(pid, LeftoverKind::Zombie { threads }, minors);
    let open = leftover(500, LeftoverKind::HoldsOpen, &[1]);
    let mps = leftover(600, LeftoverKind::MpsServer, &[]);
    assert_eq!(on_host(&[]), [(Cause::Unknown, 5)]);
    assert_eq!(on_host(std::slice::from_ref(&mps)), [(Cause::MpsServer, 5)]);
    assert_eq!(on_host(&[mps.clone(), open.clone()]), [(Cause::HeldOpen, 5)]);
    let held = zombie(20, 2, &[1]);
    assert_eq!(on_host(&[mps, open, held]), [(Cause::Zombie, 5)]);
    // The first process was seen on this GPU before it exited, the second was never seen, and the third has a
    // different GPU open.
    assert_eq!(on_host(&[zombie(77, 0, &[])]), [(Cause::Zombie, 5)]);
    assert_eq!(on_host(&[zombie(78, 0, &[])]), [(Cause::Unknown, 5)]);
    assert_eq!(on_host(&[zombie(78, 1, &[0])]), [(Cause::Unknown, 5)]);
    assert_eq!(on_host(&[leftover(500, LeftoverKind::HoldsOpen, &[0])]), [(Cause::Unknown, 5)]);
}

#[test]
fn distinguishes_hidden_exited_and_zombie_processes() {
    use UnattributedCause as Cause;
    let unseen = |reason| {
        let mut process = process();
        process.key.start = StartTicks(0);
        process.command = Reading::missing(reason, "");
        let mut gpu = gpu(20);
        if let Reading::Value(list) = &mut gpu.processes {
            list[0].process = Some(process.key);
        }
        causes((PidNamespace::Host, "6.8.0-60-generic"), &gpu, &process, &[])
    };
    assert_eq!(unseen(Reason::Denied), [(Cause::Hidden, 20)]);
    assert_eq!(unseen(Reason::Gone), [(Cause::Gone, 20)]);
    let mut zombie = process();
    zombie.state = RunState::Zombie;
    let causes_of =
        |process| causes((PidNamespace::Host, "6.8.0-60-generic"), &gpu(20), process, &[]);
    assert_eq!(causes_of(&zombie), [(Cause::Zombie, 20)]);
    assert_eq!(causes_of(&process()), []);
}

#[test]
fn attributes_unaccounted_memory_to_outside_the_container() {
    let mut gpu = gpu(25);
    if let Reading::Value(list) = &mut gpu.processes {
        list[0].process = None;
    }
    for (kernel, cause) in [
        ("6.8.0-60-generic", UnattributedCause::OutsideContainer),
        ("5.15.153.1-microsoft-standard-WSL2", UnattributedCause::OutsideWsl),
    ] {
        let parts = causes((PidNamespace::Container, kernel), &gpu, &process(), &[]);
        assert_eq!(parts, [(cause, 25)]);
    }
}
