use gputop_model::gpu::GpuProcess;
use gputop_model::pool::{PoolStats, Sampled};

use super::*;

const KEY: ProcessKey = ProcessKey::new(418, 7);

fn gpus(with_context: &[u32]) -> BTreeMap<u32, Gpu> {
    let gpu = |index: u32| {
        let listed = GpuProcess { pid: KEY.pid, process: Some(KEY), ..GpuProcess::default() };
        let list = if with_context.contains(&index) { vec![listed] } else { Vec::new() };
        Gpu { index, uuid: uuid(index), processes: list.into(), ..Gpu::default() }
    };
    (0..4).map(|index| (index, gpu(index))).collect()
}

fn uuid(index: u32) -> GpuUuid {
    GpuUuid(format!("GPU-{index}aaa-bbbb").into())
}

fn pool(ordinal: u32, reserved: u64) -> Pool {
    let stats = PoolStats { reserved: Sampled::new(Bytes(reserved)), ..PoolStats::default() };
    Pool { process: KEY, ordinal, stats, ..Pool::default() }
}

fn assign(visible: Option<&[&str]>, contexts: &[u32], pools: Vec<Pool>) -> Vec<Option<GpuUuid>> {
    let visible_devices = match visible {
        Some(entries) => Reading::Value(entries.iter().map(|&e| e.to_owned()).collect()),
        None => Reading::default(),
    };
    let process = Process { key: KEY, visible_devices, ..Process::default() };
    let pools = Pools { list: Arc::new(pools), ..Pools::default() };
    let assigned = assign_gpus(pools, &gpus(contexts), &[process]);
    assigned.list.iter().map(|pool| pool.gpu.value().cloned()).collect()
}

#[test]
fn counts_visible_devices_in_the_order_given() {
    assert_eq!(
        assign(Some(&["3", "1"]), &[1, 3], vec![pool(0, 1), pool(1, 1)]),
        [Some(uuid(3)), Some(uuid(1))]
    );
    assert_eq!(assign(Some(&["GPU-2"]), &[2], vec![pool(0, 1)]), [Some(uuid(2))]);
    assert_eq!(assign(None, &[0, 1], vec![pool(0, 1), pool(1, 1)]), [Some(uuid(0)), Some(uuid(1))]);
}

#[test]
fn assigns_gpus_to_reported_pools_as_to_read_ones() {
    let process = Process { key: KEY, ..Process::default() };
    let reported = |ordinal, allocated: u64| ReportedPool {
        process: KEY,
        ordinal,
        allocated: Bytes(allocated).into(),
        ..ReportedPool::default()
    };
    let assign = |list: Vec<Pool>, reported: Vec<ReportedPool>| {
        let pools =
            Pools { list: Arc::new(list), reported: Arc::new(reported), ..Pools::default() };
        let assigned = assign_gpus(pools, &gpus(&[2]), std::slice::from_ref(&process));
        let gpus = assigned.reported.iter().map(|pool| pool.gpu.value().cloned());
        gpus.collect::<Vec<_>>()
    };
    // Two frameworks that use the same device of a process use the same GPU.
    assert_eq!(assign(vec![pool(0, 1)], vec![reported(0, 1)]), [Some(uuid(2))]);
    assert_eq!(assign(vec![pool(1, 1)], vec![reported(0, 1)]), [None]);
    assert_eq!(assign(vec![], vec![reported(0, 0)]), [None]);
}

#[test]
fn a_pool_that_grows_beyond_90_percent_of_its_gpu_is_nearly_full() {
    let mut gpus = gpus(&[]);
    gpus.get_mut(&0).expect("a GPU").memory.total = Bytes(1_000).into();
    let pools = |reserved, gpu| {
        let gpu = Reading::Value(uuid(gpu));
        let pool = Pool { allocator: Allocator::Native, gpu, ..pool(0, reserved) };
        Pools { list: Arc::new(vec![pool]), ..Pools::default() }
    };
    let is_full = |before: &Pools, now: &Pools| nearly_full(before, now, &gpus).count() == 1;
    assert!(is_full(&pools(800, 0), &pools(901, 0)));
    assert!(is_full(&pools(901, 0), &pools(902, 0)));
    assert!(!is_full(&pools(901, 0), &pools(901, 0)), "it did not grow");
    assert!(!is_full(&pools(800, 0), &pools(900, 0)), "it is not beyond the limit");
    assert!(!is_full(&Pools::default(), &pools(901, 0)), "it was not known before");
    assert!(!is_full(&pools(800, 1), &pools(901, 1)), "the size of its GPU is not known");
}

#[test]
fn ignores_visible_devices_that_the_driver_contradicts() {
    // The program set CUDA_VISIBLE_DEVICES itself: its only context is on GPU 2.
    assert_eq!(assign(None, &[2], vec![pool(0, 1)]), [Some(uuid(2))]);
    assert_eq!(assign(None, &[2, 3], vec![pool(0, 1), pool(1, 1)]), [None, None]);
}
