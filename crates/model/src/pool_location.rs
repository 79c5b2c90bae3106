//! Finds a pool's GPU in a frame, and the driver's entry for the owning process.

use super::accounting::is_on;
use super::frame::Frame;
use super::gpu::{Gpu, GpuProcess};
use super::pool::Pool;
use super::process::ProcessKey;
use super::reading::Reading;
use super::reported_pool::ReportedPool;
use super::units::GpuUuid;

/// Returns a pool's GPU. If the pool's reader did not identify the GPU, returns the only GPU that lists the process.
pub fn gpu_of<'f>(frame: &'f Frame, pool: &Pool) -> Option<&'f Gpu> {
    find_gpu(frame, &pool.gpu, pool.process)
}

pub fn gpu_of_reported<'f>(frame: &'f Frame, pool: &ReportedPool) -> Option<&'f Gpu> {
    find_gpu(frame, &pool.gpu, pool.process)
}

fn find_gpu<'f>(frame: &'f Frame, gpu: &Reading<GpuUuid>, process: ProcessKey) -> Option<&'f Gpu> {
    match gpu.value() {
        Some(uuid) => frame.gpus.iter().find(|gpu| is_on(gpu, uuid)),
        None => {
            let mut on = frame.gpus.iter().filter(|gpu| listed(gpu, process).is_some());
            on.next().filter(|_| on.next().is_none())
        }
    }
}

/// Returns the driver's entry for a process in a GPU's process list.
pub fn listed(gpu: &Gpu, process: ProcessKey) -> Option<&GpuProcess> {
    gpu.processes.value()?.iter().find(|listed| listed.process == Some(process))
}
