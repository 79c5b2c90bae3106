use super::*;
use crate::gpu::{GpuProcess, Memory};
use crate::pool::{PoolStats, Sampled};
use crate::units::Pid;
use proptest::prelude::*;

fn gpu(total: u64, free: u64, reserved: u64, processes: &[u64]) -> Gpu {
    Gpu {
        memory: Memory {
            total: Bytes(total).into(),
            free: Bytes(free).into(),
            reserved: Bytes(reserved).into(),
            ..Memory::default()
        },
        processes: processes
            .iter()
            .map(|&vram| GpuProcess { vram: Bytes(vram).into(), ..GpuProcess::default() })
            .collect::<Vec<_>>()
            .into(),
        ..Gpu::default()
    }
}

#[test]
fn leaves_nothing_unattributed_if_processes_exceed_used_memory() {
    let split = account(&gpu(100, 40, 10, &[30, 25])).expect("a split");
    assert_eq!((split.processes, split.unattributed), (Bytes(50), Bytes(0)));
    assert!(split.approximate);
}

#[test]
fn returns_no_split_without_a_total() {
    assert_eq!(account(&Gpu::default()), None);
}

fn key(pid: u32) -> ProcessKey {
    ProcessKey { pid: Pid(pid), ..ProcessKey::default() }
}

fn pools(list: &[(u32, u64, u64)]) -> Pools {
    let pool = |&(pid, allocated, reserved): &(u32, u64, u64)| Pool {
        process: key(pid),
        gpu: GpuUuid::default().into(),
        stats: PoolStats {
            allocated: Sampled::new(Bytes(allocated)),
            reserved: Sampled::new(Bytes(reserved)),
            ..PoolStats::default()
        },
        ..Pool::default()
    };
    Pools { list: list.iter().map(pool).collect::<Vec<_>>().into(), ..Pools::default() }
}

fn with_keys(mut gpu: Gpu) -> Gpu {
    if let crate::reading::Reading::Value(list) = &mut gpu.processes {
        for (pid, process) in (1..).zip(list) {
            process.process = Some(key(pid));
        }
    }
    gpu
}

#[test]
fn splits_a_process_with_a_pool_and_keeps_others_whole() {
    let gpu = with_keys(gpu(100, 20, 10, &[40, 25]));
    let split = account_pools(&gpu, Some(&pools(&[(1, 15, 33)]))).expect("a split");
    let parts = [split.allocated, split.cached, split.other, split.processes];
    assert_eq!(parts, [Bytes(15), Bytes(18), Bytes(7), Bytes(25)]);
    assert_eq!(split.unattributed, Bytes(5));
    assert!(!split.approximate);
}

#[test]
fn marks_a_pool_that_grew_after_the_driver_read_as_approximate() {
    let gpu = with_keys(gpu(100, 20, 10, &[40]));
    let split = account_pools(&gpu, Some(&pools(&[(1, 15, 44)]))).expect("a split");
    assert_eq!((split.cached, split.other), (Bytes(25), Bytes(0)));
    assert!(split.approximate);
}

#[test]
fn splits_a_process_as_far_as_its_framework_reports() {
    let gpu = with_keys(gpu(100, 20, 10, &[40, 25]));
    let pool = |reserved: Reading<Bytes>| ReportedPool {
        process: key(1),
        gpu: GpuUuid::default().into(),
        allocated: Bytes(5).into(),
        reserved,
        ..ReportedPool::default()
    };
    let parts = |reported: Vec<ReportedPool>, list: &[(u32, u64, u64)]| {
        let pools = Pools { reported: reported.into(), ..pools(list) };
        let split = account_pools(&gpu, Some(&pools)).expect("a split");
        [split.allocated, split.cached, split.other, split.processes].map(|part| part.0)
    };
    assert_eq!(parts(vec![pool(Bytes(30).into())], &[]), [5, 25, 10, 25]);
    // The process's remaining memory cannot be split into cached memory and context.
    assert_eq!(parts(vec![pool(Reading::default())], &[]), [5, 0, 0, 60]);
    // The same process also has a PyTorch pool.
    assert_eq!(parts(vec![pool(Bytes(6).into())], &[(1, 7, 9)]), [12, 3, 25, 25]);
    let unreported = ReportedPool { allocated: Reading::default(), ..pool(Bytes(30).into()) };
    assert_eq!(parts(vec![unreported], &[]), [0, 0, 0, 65]);
}

#[test]
fn takes_a_pool_in_a_container_from_the_unmatched_entries() {
    let gpu = gpu(100, 20, 10, &[40, 25]);
    let split = account_pools(&gpu, Some(&pools(&[(7, 15, 33)]))).expect("a split");
    assert_eq!((split.allocated, split.cached), (Bytes(15), Bytes(18)));
    assert_eq!((split.other, split.processes), (Bytes(0), Bytes(32)));
}

proptest! {
    #[test]
    fn parts_with_pools_add_up_to_the_total(
        total in 0..u64::MAX / 2, free: u64, reserved: u64,
        processes in prop::collection::vec(any::<u64>(), 0..5),
        list in prop::collection::vec((1..8_u32, any::<u64>(), any::<u64>()), 0..6),
        named: bool,
    ) {
        let gpu = gpu(total, free, reserved, &processes);
        let gpu = if named { with_keys(gpu) } else { gpu };
        let split = account_pools(&gpu, Some(&pools(&list))).expect("a split");
        let parts = [
            split.driver, split.allocated, split.cached, split.other, split.processes,
            split.unattributed, split.free,
        ];
        prop_assert_eq!(parts.iter().map(|p| p.0).sum::<u64>(), total);
    }

    #[test]
    fn parts_add_up_to_the_total(
        total in 0..u64::MAX / 2, free in 0..u64::MAX / 2, reserved in any::<u64>(),
        processes in prop::collection::vec(any::<u64>(), 0..5),
    ) {
        let free = free.min(total);
        let split = account(&gpu(total, free, reserved, &processes)).expect("a split");
        let sum = split.driver.0 + split.processes.0 + split.unattributed.0 + split.free.0;
        prop_assert_eq!(sum, total);
    }
}

#[test]
fn memory_shared_with_the_host_is_split_by_that_of_the_host() {
    let shared = Gpu { memory: Memory::shared_with_host(), ..gpu(0, 0, 0, &[62]) };
    let host =
        Host { memory_total: Bytes(128).into(), memory_used: Bytes(80).into(), ..Host::default() };
    let split = account_shared(&shared, &host, None).expect("a split");
    let parts = [split.processes, split.unattributed, split.free, split.total].map(|part| part.0);
    assert_eq!(parts, [62, 18, 48, 128]);
    assert_eq!(account_shared(&gpu(100, 40, 0, &[30]), &host, None), None);
    assert_eq!(account_shared(&shared, &Host::default(), None), None);
}
