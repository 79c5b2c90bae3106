//! Which GPU is device N of a process: CUDA numbers them inside the process, NVML outside.
//!
//! CUDA_VISIBLE_DEVICES of the process's start tells, but a program may change it before it first uses CUDA, so the
//! answer must agree with the driver: the process has a context there. Where it does not, a process with memory on
//! just one GPU is still clear; everything else is said to be unsure.
//!
//! Without the variable CUDA orders the fastest first; among equal GPUs that is the order of the PCI bus, which is
//! NVML's.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::gpu::Gpu;
use crate::model::pool::{Pool, Pools};
use crate::model::process::{Process, ProcessKey};
use crate::model::reading::{Reading, Reason};
use crate::model::reported_pool::ReportedPool;
use crate::model::units::{Bytes, GpuUuid};

/// The pools, each with its GPU.
pub fn placed(pools: Pools, gpus: &BTreeMap<u32, Gpu>, processes: &[Process]) -> Pools {
    let read = pools.list.iter().map(Device::of);
    let devices: Vec<Device> = read
        .chain(pools.reported.iter().map(Device::of_told))
        .collect();
    let gpu_of = |device: Device| gpu_of(device, &devices, gpus, processes);
    let list = pools.list.iter().map(|pool| Pool {
        gpu: gpu_of(Device::of(pool)),
        ..pool.clone()
    });
    let told = pools.reported.iter().map(|told| ReportedPool {
        gpu: gpu_of(Device::of_told(told)),
        ..told.clone()
    });
    Pools {
        list: Arc::new(list.collect()),
        reported: Arc::new(told.collect()),
        ..pools
    }
}

/// One device as a process counts it.
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

    /// What tells no figure may be in use.
    fn of_told(told: &ReportedPool) -> Self {
        let held = told.reserved.get().or(told.allocated.get());
        Self {
            process: told.process,
            ordinal: told.ordinal,
            is_in_use: held != Some(Bytes(0)),
        }
    }
}

fn gpu_of(
    device: Device,
    all: &[Device],
    gpus: &BTreeMap<u32, Gpu>,
    processes: &[Process],
) -> Reading<GpuUuid> {
    let Device {
        process: key,
        ordinal,
        ..
    } = device;
    let process = processes.iter().find(|p| p.key == key);
    let contexts = contexts_of(key, process, gpus);
    let visible = process
        .and_then(|p| p.visible_devices.value())
        .map(Vec::as_slice);
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
            format!("which GPU is device {ordinal} of this process could not be told"),
        ),
    }
}

/// The GPUs on which the driver lists the process; in a container, those it holds open.
fn contexts_of<'g>(
    key: ProcessKey,
    process: Option<&Process>,
    gpus: &'g BTreeMap<u32, Gpu>,
) -> Vec<&'g GpuUuid> {
    let has_it = |gpu: &&Gpu| {
        let listed = gpu.processes.value().into_iter().flatten();
        let mut listed = listed.filter(|entry| entry.process == Some(key));
        listed.next().is_some() || process.is_some_and(|p| p.open_gpus.contains(&gpu.uuid))
    };
    gpus.values().filter(has_it).map(|gpu| &gpu.uuid).collect()
}

fn nth_visible<'a>(
    ordinal: u32,
    visible: Option<&[String]>,
    gpus: &'a BTreeMap<u32, Gpu>,
) -> Option<&'a GpuUuid> {
    let in_order = || gpus.values().map(|gpu| &gpu.uuid);
    let Some(visible) = visible else {
        return in_order().nth(usize::try_from(ordinal).ok()?);
    };
    let entry = visible.get(usize::try_from(ordinal).ok()?)?;
    match entry.parse::<usize>() {
        Ok(index) => in_order().nth(index),
        // A UUID may be cut short as long as it is unique.
        Err(_) => in_order().find(|uuid| !entry.is_empty() && uuid.0.starts_with(entry.as_str())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::gpu::GpuProcess;
    use crate::model::pool::{PoolStats, Sampled};
    use crate::model::units::{Pid, StartTicks};

    const KEY: ProcessKey = ProcessKey {
        pid: Pid(418),
        start: StartTicks(7),
    };

    fn gpus(with_context: &[u32]) -> BTreeMap<u32, Gpu> {
        let gpu = |index: u32| {
            let listed = GpuProcess {
                pid: KEY.pid,
                process: Some(KEY),
                ..GpuProcess::default()
            };
            let list = if with_context.contains(&index) {
                vec![listed]
            } else {
                Vec::new()
            };
            Gpu {
                index,
                uuid: uuid(index),
                processes: list.into(),
                ..Gpu::default()
            }
        };
        (0..4).map(|index| (index, gpu(index))).collect()
    }

    fn uuid(index: u32) -> GpuUuid {
        GpuUuid(format!("GPU-{index}aaa-bbbb").into())
    }

    fn pool(ordinal: u32, reserved: u64) -> Pool {
        let stats = PoolStats {
            reserved: Sampled::new(Bytes(reserved)),
            ..PoolStats::default()
        };
        Pool {
            process: KEY,
            ordinal,
            stats,
            ..Pool::default()
        }
    }

    fn place(visible: Option<&[&str]>, contexts: &[u32], pools: Vec<Pool>) -> Vec<Option<GpuUuid>> {
        let visible_devices = match visible {
            Some(entries) => Reading::Value(entries.iter().map(|&e| e.to_owned()).collect()),
            None => Reading::default(),
        };
        let process = Process {
            key: KEY,
            visible_devices,
            ..Process::default()
        };
        let pools = Pools {
            list: Arc::new(pools),
            ..Pools::default()
        };
        let placed = placed(pools, &gpus(contexts), &[process]);
        placed
            .list
            .iter()
            .map(|pool| pool.gpu.value().cloned())
            .collect()
    }

    #[test]
    fn visible_devices_are_counted_in_the_order_given() {
        assert_eq!(
            place(Some(&["3", "1"]), &[1, 3], vec![pool(0, 1), pool(1, 1)]),
            [Some(uuid(3)), Some(uuid(1))]
        );
        assert_eq!(
            place(Some(&["GPU-2"]), &[2], vec![pool(0, 1)]),
            [Some(uuid(2))]
        );
        assert_eq!(
            place(None, &[0, 1], vec![pool(0, 1), pool(1, 1)]),
            [Some(uuid(0)), Some(uuid(1))]
        );
    }

    #[test]
    fn a_pool_that_is_told_of_is_placed_as_one_that_is_read() {
        let process = Process {
            key: KEY,
            ..Process::default()
        };
        let told = |ordinal, allocated: u64| ReportedPool {
            process: KEY,
            ordinal,
            allocated: Bytes(allocated).into(),
            ..ReportedPool::default()
        };
        let place = |list: Vec<Pool>, told: Vec<ReportedPool>| {
            let pools = Pools {
                list: Arc::new(list),
                reported: Arc::new(told),
                ..Pools::default()
            };
            let placed = placed(pools, &gpus(&[2]), std::slice::from_ref(&process));
            let told = placed.reported.iter().map(|told| told.gpu.value().cloned());
            told.collect::<Vec<_>>()
        };
        // Two frameworks on the same device are on the same GPU.
        assert_eq!(place(vec![pool(0, 1)], vec![told(0, 1)]), [Some(uuid(2))]);
        assert_eq!(place(vec![pool(1, 1)], vec![told(0, 1)]), [None]);
        assert_eq!(place(vec![], vec![told(0, 0)]), [None]);
    }

    #[test]
    fn what_the_driver_contradicts_is_not_believed() {
        // The program set the variable itself: it has its one context on GPU 2.
        assert_eq!(place(None, &[2], vec![pool(0, 1)]), [Some(uuid(2))]);
        assert_eq!(
            place(None, &[2, 3], vec![pool(0, 1), pool(1, 1)]),
            [None, None]
        );
    }
}
