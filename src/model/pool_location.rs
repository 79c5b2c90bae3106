//! Which GPU of a frame a pool is on, and what the driver lists there for its process.

use super::accounting::is_on;
use super::frame::Frame;
use super::gpu::{Gpu, GpuProcess};
use super::pool::Pool;
use super::process::ProcessKey;
use super::reading::Reading;
use super::reported_pool::ReportedPool;
use super::units::GpuUuid;

/// The GPU a pool is on. Where the reader could not tell, the only GPU that lists the process is it.
pub fn gpu_of<'f>(frame: &'f Frame, pool: &Pool) -> Option<&'f Gpu> {
    placed(frame, &pool.gpu, pool.process)
}

/// The same of a pool that its framework tells of.
pub fn gpu_of_told<'f>(frame: &'f Frame, told: &ReportedPool) -> Option<&'f Gpu> {
    placed(frame, &told.gpu, told.process)
}

fn placed<'f>(frame: &'f Frame, gpu: &Reading<GpuUuid>, process: ProcessKey) -> Option<&'f Gpu> {
    match gpu.value() {
        Some(uuid) => frame.gpus.iter().find(|gpu| is_on(gpu, uuid)),
        None => {
            let mut on = frame
                .gpus
                .iter()
                .filter(|gpu| listed(gpu, process).is_some());
            on.next().filter(|_| on.next().is_none())
        }
    }
}

/// The driver's entry of a process on a GPU.
pub fn listed(gpu: &Gpu, process: ProcessKey) -> Option<&GpuProcess> {
    gpu.processes
        .value()?
        .iter()
        .find(|listed| listed.process == Some(process))
}
