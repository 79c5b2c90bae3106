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

use gputop_model::pool_location::listed;
use gputop_model::{
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
mod tests;
