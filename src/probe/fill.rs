//! Greedy descending fill: the largest power of two that is still to be had, again and again, down to the granule.
//!
//! Not a bisection for the largest block: that frees tens of GiB at every step, which takes seconds on a large card,
//! while this takes each byte once. What comes out is the binary form of what is free, in as many pieces as the driver
//! wants; one size refused while there is room for it is what a scattered card looks like.

use super::bins;
use super::device::{Device, DeviceError, GRANULE};
use crate::allocator::fragmentation::histogram;
use crate::model::probe::{Fill, Latency};
use crate::model::units::Bytes;

/// Far more pieces than any card gives in powers of two, unless it is filled with dust.
const MAX_PIECES: usize = 65_536;

/// Takes all but `headroom` until `deadline_us`, and gives everything back.
///
/// # Errors
/// When the driver fails with anything but want of memory; what was taken is given back all the same.
pub fn fill(
    device: &mut impl Device,
    headroom: u64,
    deadline_us: u64,
) -> Result<Fill, DeviceError> {
    let mut taken = Vec::new();
    let mut fill = Fill {
        granule_bytes: Bytes(GRANULE),
        ..Fill::default()
    };
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
        let mut latency = Latency {
            bytes: Bytes(size),
            ..Latency::default()
        };
        // Others may take memory meanwhile: the headroom is theirs at every step.
        while room(device)? >= size && fill.held_bytes.0 + size <= wanted {
            if device.now_us() >= deadline_us || taken.len() >= MAX_PIECES {
                fill.cut_short = true;
                break;
            }
            let begun = device.now_us();
            let got = device.alloc(size);
            let us = device.now_us().saturating_sub(begun);
            latency.total_us += us;
            latency.longest_us = latency.longest_us.max(us);
            match got {
                Ok(address) => {
                    latency.count += 1;
                    taken.push((address, size));
                    fill.held_bytes.0 += size;
                }
                Err(DeviceError::OutOfMemory) => {
                    latency.failed += 1;
                    break;
                }
                Err(other) => return Err(other),
            }
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
