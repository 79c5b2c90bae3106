//! Reads GPUs through NVML, with one worker thread per GPU: if the driver hangs for one GPU, data for the other GPUs
//! stays up to date.
//!
//! Data flow: `worker` wakes on each tick and calls `device` for the groups that are due according to `schedule`. It
//! stores the readings in one [`Gpu`](gputop_model::gpu::Gpu) and sends that to the agent as a section. `library` loads
//! and reloads the NVML library, `raw` contains the few calls that the `nvml-wrapper` crate makes twice or does not
//! support, and `reason` converts an NVML error to the reason shown on screen. `xid` waits for errors that the driver
//! reports asynchronously. `sleep` finds GPUs that are suspended, without NVML, which would wake them.

mod device;
pub mod library;
mod raw;
mod reason;
pub mod schedule;
pub mod sleep;
pub mod worker;
pub mod xid;

use gputop_model::gpu::{Board, Period};
use nvml_wrapper::{Device, Nvml};
pub use reason::{error_text, missing};

use self::schedule::Group;

pub struct ReceiverClosed;

/// Returns the PCI addresses of the first `count` GPUs, without those that report none.
pub fn buses(nvml: &Nvml, count: u32) -> Vec<String> {
    let bus = |index| {
        let info = nvml.device_by_index(index).and_then(|device| device.pci_info());
        Some(Board::bus_of(&info.ok()?.bus_id))
    };
    (0..count).filter_map(bus).collect()
}

/// Measures the cost of a group of NVML calls on this host. Returns the median over the GPUs, in microseconds.
pub fn measure(nvml: &Nvml, group: Group) -> Option<u64> {
    let devices = (0..nvml.device_count().unwrap_or(0)).filter_map(|index| {
        let device = nvml.device_by_index(index).ok()?;
        Some(cost(nvml, &device, index, group))
    });
    let mut costs: Vec<u64> = devices.collect();
    costs.sort_unstable();
    costs.get(costs.len() / 2).copied()
}

fn cost<'n>(nvml: &'n Nvml, device: &Device<'n>, index: u32, group: Group) -> u64 {
    let mut buffers = raw::Buffers::default();
    let mut gpu = device::open(device, index).unwrap_or_default();
    let started = std::time::Instant::now();
    match group {
        Group::Figures(Period::Tick) => drop(device::tick(device, &mut gpu)),
        Group::Figures(Period::Slow) => device::slow(device, &mut gpu),
        Group::Figures(Period::WhileShown) => {
            device::traffic(device, gputop_peek::clock::now_mono(), &mut None);
        }
        Group::Performance => {
            drop(device::performance(nvml, device, gputop_peek::clock::now_mono(), &mut None));
        }
        Group::Figures(Period::Once) => device::describe(device, &mut gpu),
        Group::Processes => {
            device::processes(device, &mut gpu, &[raw::ProcessList::Graphics], &mut buffers);
        }
        Group::ProcessUtilization => {
            device::utilization(device, &mut gpu, 0, &mut buffers);
        }
    }
    u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX)
}
