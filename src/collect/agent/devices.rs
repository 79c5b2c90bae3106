//! Maps a process's device ordinals to GPUs: CUDA numbers devices per process, NVML per host.
//!
//! CUDA_VISIBLE_DEVICES is read from the process's initial environment. The program may change it before it first uses
//! CUDA, so a GPU derived from it is used only if the driver lists a context of the process on that GPU. If not, and
//! the process uses exactly one device and has a context on exactly one GPU, the device is that GPU. In all other
//! cases, the GPU is unknown.
//!
//! If CUDA_VISIBLE_DEVICES is not set, CUDA numbers the GPUs from the fastest to the slowest. Equally fast GPUs are in
//! PCI bus order, which is also NVML's order.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::pool_location::listed;
use crate::model::{
    Allocator, Bytes, Gpu, GpuUuid, Pool, Pools, Process, ProcessKey, Reading, Reason, ReportedPool,
};

pub fn assign_gpus(pools: Pools, gpus: &BTreeMap<u32, Gpu>, processes: &[Process]) -> Pools {
    let read = pools.list.iter().map(Device::of);
    let reported = pools.reported.iter().map(Device::of_reported);
    let devices: Vec<Device> = read.chain(reported).collect();
    let gpu_of = |device: Device| gpu_of(device, &devices, gpus, processes);
    let list = pools.list.iter().map(|pool| Pool { gpu: gpu_of(Device::of(pool)), ..pool.clone() });
    let reported = pools
        .reported
        .iter()
        .map(|pool| ReportedPool { gpu: gpu_of(Device::of_reported(pool)), ..pool.clone() });
    Pools { list: Arc::new(list.collect()), reported: Arc::new(reported.collect()), ..pools }
}

/// Percentage of a GPU's memory above which a growing allocator pool counts as nearly full. gputop then finds out what
/// holds the memory, because an allocation may soon fail.
const NEARLY_FULL_PERCENT: u64 = 90;

/// Returns PyTorch's pools that have grown since `before` and now reserve nearly all of their GPU's memory.
pub fn nearly_full<'a>(
    before: &Pools,
    now: &'a Pools,
    gpus: &BTreeMap<u32, Gpu>,
) -> impl Iterator<Item = &'a Pool> {
    now.list.iter().filter(|pool| {
        let reserved = pool.stats.reserved.last();
        let mut known = before.list.iter();
        let known = known.find(|p| (p.process, p.ordinal) == (pool.process, pool.ordinal));
        let has_grown = known.is_some_and(|known| known.stats.reserved.last() < reserved);
        let uuid = pool.gpu.value();
        let gpu = uuid.and_then(|uuid| gpus.values().find(|gpu| gpu.uuid == *uuid));
        let total = gpu.and_then(|gpu| gpu.memory.total.get());
        let is_full = total.is_some_and(|total| reserved.0 > total.0 / 100 * NEARLY_FULL_PERCENT);
        has_grown && is_full && pool.allocator == Allocator::Native
    })
}

/// Device of a process, identified by the process's own ordinal.
#[derive(Debug, Clone, Copy)]
struct Device {
    process: ProcessKey,
    ordinal: u32,
    is_in_use: bool,
}

impl Device {
    fn of(pool: &Pool) -> Self {
        Self {
            process: pool.process,
            ordinal: pool.ordinal,
            is_in_use: pool.stats.reserved.last() > Bytes(0),
        }
    }

    /// Returns the device of a pool reported by the hook. If the hook reported no sizes for the pool, the device is
    /// assumed to be in use.
    fn of_reported(pool: &ReportedPool) -> Self {
        let held = pool.reserved.get().or(pool.allocated.get());
        Self { process: pool.process, ordinal: pool.ordinal, is_in_use: held != Some(Bytes(0)) }
    }
}

fn gpu_of(
    device: Device,
    all: &[Device],
    gpus: &BTreeMap<u32, Gpu>,
    processes: &[Process],
) -> Reading<GpuUuid> {
    let Device { process: key, ordinal, .. } = device;
    let process = processes.iter().find(|p| p.key == key);
    let contexts = contexts_of(key, process, gpus);
    let visible = process.and_then(|p| p.visible_devices.value()).map(Vec::as_slice);
    let guess = nth_visible(ordinal, visible, gpus);
    if let Some(guess) = guess.filter(|uuid| contexts.contains(uuid)) {
        return Reading::Value(guess.clone());
    }
    let is_another =
        |other: &Device| other.process == key && other.is_in_use && other.ordinal != ordinal;
    match contexts.as_slice() {
        [only] if device.is_in_use && !all.iter().any(is_another) => {
            Reading::Value((*only).clone())
        }
        _ => Reading::missing(
            Reason::Unknown,
            format!("cannot determine which GPU is device {ordinal} of this process"),
        ),
    }
}

/// Returns the GPUs on which the driver lists the process or, in a container, those that the process has open.
fn contexts_of<'g>(
    key: ProcessKey,
    process: Option<&Process>,
    gpus: &'g BTreeMap<u32, Gpu>,
) -> Vec<&'g GpuUuid> {
    let has_it = |gpu: &&Gpu| {
        listed(gpu, key).is_some() || process.is_some_and(|p| p.open_gpus.contains(&gpu.uuid))
    };
    gpus.values().filter(has_it).map(|gpu| &gpu.uuid).collect()
}

fn nth_visible<'a>(
    ordinal: u32,
    visible: Option<&[String]>,
    gpus: &'a BTreeMap<u32, Gpu>,
) -> Option<&'a GpuUuid> {
    let in_order = || gpus.values().map(|gpu| &gpu.uuid);
    let Some(visible) = visible else { return in_order().nth(usize::try_from(ordinal).ok()?) };
    let entry = visible.get(usize::try_from(ordinal).ok()?)?;
    match entry.parse::<usize>() {
        Ok(index) => in_order().nth(index),
        // Accept an abbreviated UUID as long as it is unique.
        Err(_) => in_order().find(|uuid| !entry.is_empty() && uuid.0.starts_with(entry.as_str())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::gpu::GpuProcess;
    use crate::model::pool::{PoolStats, Sampled};

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

    fn assign(
        visible: Option<&[&str]>,
        contexts: &[u32],
        pools: Vec<Pool>,
    ) -> Vec<Option<GpuUuid>> {
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
        assert_eq!(
            assign(None, &[0, 1], vec![pool(0, 1), pool(1, 1)]),
            [Some(uuid(0)), Some(uuid(1))]
        );
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
}
