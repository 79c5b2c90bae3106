//! NVLink: which links are up, and how much data they transferred.

use std::ffi::c_uint;
use std::time::Duration;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEnableState_t, nvmlReturn_t};

use crate::call::{Outcome, on_gpu, put};
use crate::scenario::{Call, Code, Gpu};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkState(
    device: nvmlDevice_t,
    link: c_uint,
    out: *mut nvmlEnableState_t,
) -> nvmlReturn_t {
    on_gpu(Call::NvlinkState, device, |target| {
        let gpu = target.gpu();
        if gpu.nvlinks == 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        if link >= gpu.nvlinks {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: NVML's contract.
        unsafe { put(out, u32::from(!gpu.nvlinks_down.contains(&link))) }
    })
}

/// Returns true for the four throughput counters (data and raw, sent and received).
pub fn is_counter(field: u32) -> bool {
    (138..=141).contains(&field)
}

/// The scope that stands for all links.
const ALL_LINKS: u32 = u32::MAX;

/// Returns the KiB transferred over one link or all since the library was loaded. Raw counters include the protocol
/// overhead, an additional eighth.
pub fn counter(gpu: &Gpu, field: u32, scope: u32, elapsed: Duration) -> Outcome<u64> {
    if gpu.nvlinks == 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    if scope != ALL_LINKS && scope >= gpu.nvlinks {
        return Err(Code::INVALID_ARGUMENT);
    }
    let rate = if field.is_multiple_of(2) { gpu.nvlink_tx } else { gpu.nvlink_rx };
    let all = (u128::from(rate) * elapsed.as_millis() / 1000) as u64;
    let all = if field >= 140 { all + all / 8 } else { all };
    match scope {
        ALL_LINKS => Ok(all),
        _ => Ok(all / u64::from(gpu.nvlinks)),
    }
}
