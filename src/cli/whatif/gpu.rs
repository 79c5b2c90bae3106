//! Reads the size of a process's GPU, and the GPU memory used outside the process's allocator, from one sample of this
//! host.

use gputop_allocator::trace::Trace;
use gputop_model::pool_location::{gpu_of, listed};
use gputop_model::{Bytes, Frame, Memory, Missing, Pid, Pool, Reason};

use crate::cli::once::{DRIVER_TIMEOUT, RATE_INTERVAL};
use crate::cli::settings::agent_options;
use crate::cli::{dashboard, once};

/// Maximum number of samples to wait for the process's memory pools, and for the GPU of a pool.
const MAX_FRAMES: u32 = 6;
const MAX_FRAMES_WITH_POOLS: u32 = 25;

/// Adds the memory size of its device to each trace. Returns the reason if the size is unknown for any device.
pub(super) fn add_device_memory(pid: Pid, traces: &mut [Trace]) -> Option<Missing> {
    let knows_gpu = |frame: &Frame| pools(frame, pid).any(|pool| memory(frame, pool).is_some());
    let is_enough = |frame: &Frame, frames: u32| {
        let has_pools = pools(frame, pid).next().is_some();
        let max = if has_pools { MAX_FRAMES_WITH_POOLS } else { MAX_FRAMES };
        dashboard::why_no_gpus(frame).is_some() || knows_gpu(frame) || frames >= max
    };
    let frame = match once::frame(agent_options(RATE_INTERVAL), DRIVER_TIMEOUT, is_enough) {
        Ok((_, frame)) => frame,
        Err(why) => return Some(Missing::new(Reason::Unknown, why.to_string())),
    };
    if let Some(why) = dashboard::why_no_gpus(&frame) {
        return Some(Missing::new(Reason::Unsupported, why));
    }
    let mut missing = None;
    for trace in traces {
        let pool = pools(&frame, pid).find(|pool| pool.ordinal == trace.device);
        let Some(memory) = pool.and_then(|pool| memory(&frame, pool)) else {
            missing = Some(Missing::new(Reason::Unknown, "the GPU of the process is unknown"));
            continue;
        };
        let (Some(total), Some(free)) = (memory.total.get(), memory.free.get()) else {
            let why = memory.total.why().or(memory.free.why()).cloned();
            missing = Some(why.unwrap_or_default());
            continue;
        };
        // CUDA's total excludes memory reserved by the driver.
        let card = total.0.saturating_sub(memory.reserved.get().unwrap_or_default().0);
        let own = trace.recorded.reserved_peak.unwrap_or_default();
        let outside = card.saturating_sub(free.0).saturating_sub(own.0);
        trace.recorded.card = Some(Bytes(card));
        trace.recorded.outside = Some(Bytes(outside));
    }
    missing
}

fn pools(frame: &Frame, pid: Pid) -> impl Iterator<Item = &Pool> {
    frame.pools.iter().flat_map(|pools| &*pools.list).filter(move |pool| pool.process.pid == pid)
}

/// Returns the memory of the GPU or MIG instance that the process uses.
fn memory<'f>(frame: &'f Frame, pool: &Pool) -> Option<&'f Memory> {
    let gpu = gpu_of(frame, pool)?;
    let instance = listed(gpu, pool.process).and_then(|listed| listed.gpu_instance);
    let part = gpu.mig.iter().find(|part| {
        pool.gpu.value() == Some(&part.uuid)
            || instance.is_some() && part.gpu_instance.get() == instance
    });
    Some(part.map_or(&gpu.memory, |part| &part.memory))
}
