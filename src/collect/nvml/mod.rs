//! Reads GPUs through NVML, with one worker thread per GPU: if the driver hangs for one GPU, the others stay up to date.
//!
//! Data flow: `worker` wakes on each tick and calls `device` for the groups that `schedule` says are due. The readings
//! go into one [`Gpu`](crate::model::gpu::Gpu), which is sent to the agent as a section. `library` loads and reloads
//! the NVML library, `raw` contains the few calls that the wrapper makes twice or lacks, and `reason` converts an NVML
//! error to the reason that a screen shows. `xid` waits for errors that the driver reports asynchronously.

mod device;
pub mod library;
mod raw;
mod reason;
pub mod schedule;
pub mod worker;
pub mod xid;

pub use reason::missing;

/// Measures the cost of each group of the schedule on this host: microseconds, median over the GPUs.
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
