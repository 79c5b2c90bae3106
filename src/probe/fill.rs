//! Greedy fill of the GPU's memory: repeatedly allocates the largest available power of two, down to the granule.
//!
//! Finding the largest block by bisection would free tens of GiB at every step, which takes seconds on a large GPU. The
//! fill allocates each byte only once. If memory is not fragmented, the block sizes correspond to the 1 bits of the
//! amount of free memory. If the driver refuses a size although enough memory is free, memory is fragmented.

use gputop_allocator::fragmentation::histogram;
use gputop_model::probe::{Fill, Latency};
use gputop_model::units::Bytes;

use super::bins;
use super::device::{Device, DeviceError, GRANULE};

/// Maximum number of blocks in a fill. Filling a GPU with powers of two takes far fewer blocks, unless only tiny blocks
/// are free.
const MAX_BLOCKS: usize = 65_536;

/// Allocates GPU memory until only `headroom` is left or `deadline_us` is reached, then frees it. Fails on any driver
/// error except out of memory, and also frees the memory in that case.
pub fn fill(
    device: &mut impl Device,
    headroom: u64,
    deadline_us: u64,
) -> Result<Fill, DeviceError> {
    let mut taken = Vec::new();
    let mut fill = Fill { granule_bytes: Bytes(GRANULE), ..Fill::default() };
    let result = take(device, headroom, deadline_us, &mut fill, &mut taken);
    for &(address, _) in &taken {
        device.free(address);
    }
    let sizes: Vec<u64> = taken.iter().map(|(_, size)| *size).collect();
    fill.largest_bytes = Bytes(sizes.iter().max().copied().unwrap_or_default());
    fill.histogram = bins(&histogram(&sizes));
    result.map(|()| fill)
}

fn take(
    device: &mut impl Device,
    headroom: u64,
    deadline_us: u64,
    fill: &mut Fill,
    taken: &mut Vec<(u64, u64)>,
) -> Result<(), DeviceError> {
    let room = |device: &mut _| {
        let free = Device::free_bytes(device)?.0;
        Ok(free.saturating_sub(headroom) / GRANULE * GRANULE)
    };
    let wanted = room(device)?;
    fill.wanted_bytes = Bytes(wanted);
    if wanted == 0 {
        return Ok(());
    }
    let mut size = 1 << wanted.ilog2();
    while size >= GRANULE {
        let mut latency = Latency { bytes: Bytes(size), ..Latency::default() };
        // Other processes may allocate memory during the fill, so every step checks the headroom.
        while room(device)? >= size && fill.held_bytes.0 + size <= wanted {
            if device.now_us() >= deadline_us || taken.len() >= MAX_BLOCKS {
                fill.cut_short = true;
                break;
            }
            let Some(address) = timed_alloc(device, size, &mut latency)? else { break };
            taken.push((address, size));
            fill.held_bytes.0 += size;
        }
        if latency.count + latency.failed > 0 {
            fill.latency.push(latency);
        }
        if fill.cut_short {
            break;
        }
        size /= 2;
    }
    Ok(())
}

/// Allocates `size` bytes and adds the time to `latency`. Returns `None` if the driver refuses.
fn timed_alloc(
    device: &mut impl Device,
    size: u64,
    latency: &mut Latency,
) -> Result<Option<u64>, DeviceError> {
    let start = device.now_us();
    let result = device.alloc(size);
    let us = device.now_us().saturating_sub(start);
    latency.total_us += us;
    latency.longest_us = latency.longest_us.max(us);
    match result {
        Ok(address) => {
            latency.count += 1;
            Ok(Some(address))
        }
        Err(DeviceError::OutOfMemory) => {
            latency.failed += 1;
            Ok(None)
        }
        Err(other) => Err(other),
    }
}
