//! GPUs through NVML: one worker thread per GPU, so that a GPU whose driver hangs makes only itself stale.
//!
//! The datum's way: `worker` wakes on the tick and calls `device` for what `schedule` says is due; the readings land
//! in one [`Gpu`](crate::model::gpu::Gpu), which goes to the agent as a section. `library` owns the loaded library
//! and its re-loading, `raw` the few calls that the wrapper makes twice or not at all, `reason` turns an NVML error
//! into the reason a screen shows. `xid` waits for what the driver reports by itself.
//!
//! Nothing outside this folder names NVML.

mod device;
pub mod library;
mod raw;
mod reason;
pub mod schedule;
pub mod worker;
pub mod xid;

pub use reason::missing;

/// What each group of the schedule costs here: microseconds, the median over the GPUs.
pub fn measure(nvml: &nvml_wrapper::Nvml) -> Vec<(&'static str, u64)> {
    let count = nvml.device_count().unwrap_or(0);
    let devices: Vec<_> = (0..count)
        .filter_map(|index| nvml.device_by_index(index).ok())
        .collect();
    schedule::GROUPS
        .iter()
        .filter_map(|group| {
            let mut costs: Vec<u64> = devices
                .iter()
                .zip(0..)
                .map(|(d, index)| cost(d, index, *group))
                .collect();
            costs.sort_unstable();
            Some((group.name, *costs.get(costs.len() / 2)?))
        })
        .collect()
}

fn cost(device: &nvml_wrapper::Device<'_>, index: u32, group: schedule::Group) -> u64 {
    let mut buffers = raw::Buffers::default();
    let mut gpu = device::open(device, index).unwrap_or_default();
    let started = std::time::Instant::now();
    match group.name {
        name if name == schedule::TICK.name => drop(device::tick(device, &mut gpu)),
        name if name == schedule::PROCESSES.name => {
            device::processes(device, &mut gpu, true, &mut buffers);
        }
        name if name == schedule::PROCESS_UTILIZATION.name => {
            device::utilization(device, &mut gpu, 0, &mut buffers);
        }
        name if name == schedule::SLOW.name => device::slow(device, &mut gpu),
        name if name == schedule::TRAFFIC.name => {
            device::traffic(device, crate::collect::clock::now_mono(), &mut None);
        }
        _ => {
            let mut gpu = device::open(device, index).unwrap_or_default();
            device::describe(device, &mut gpu);
        }
    }
    u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX)
}
