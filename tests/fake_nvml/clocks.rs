//! Clocks, the performance state, and the reasons for reduced clocks.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{nvmlClockType_t, nvmlDevice_t, nvmlReturn_t};

use crate::call::{on_gpu, put};
use crate::scenario::{Call, Code};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetClockInfo(
    device: nvmlDevice_t,
    which: nvmlClockType_t,
    out: *mut c_uint,
) -> nvmlReturn_t {
    on_gpu(Call::Clock, device, |target| {
        let gpu = target.gpu();
        let clock = match which {
            0 => target.wobbled(gpu.graphics_clock, 3),
            1 => target.wobbled(gpu.sm_clock, 3),
            // The memory clock of a data-centre card is constant.
            2 => gpu.memory_clock,
            3 => target.wobbled(gpu.video_clock, 3),
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        // SAFETY: NVML's contract.
        unsafe { put(out, clock) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxClockInfo(
    device: nvmlDevice_t,
    which: nvmlClockType_t,
    out: *mut c_uint,
) -> nvmlReturn_t {
    on_gpu(Call::MaxClock, device, |target| {
        let gpu = target.gpu();
        let clock = match which {
            0 => gpu.max_graphics_clock,
            1 => gpu.max_sm_clock,
            2 => gpu.max_memory_clock,
            3 => gpu.max_video_clock,
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        // SAFETY: NVML's contract.
        unsafe { put(out, clock) }
    })
}

values! {
    nvmlDeviceGetCurrentClocksThrottleReasons: Throttle -> c_ulonglong = |target| Ok(target.gpu().throttle);
    // The name since driver 535. Drivers export both.
    nvmlDeviceGetCurrentClocksEventReasons: Throttle -> c_ulonglong = |target| Ok(target.gpu().throttle);
    nvmlDeviceGetSupportedClocksThrottleReasons: SupportedThrottle -> c_ulonglong =
        |target| Ok(target.gpu().supported_throttle);
    nvmlDeviceGetSupportedClocksEventReasons: SupportedThrottle -> c_ulonglong =
        |target| Ok(target.gpu().supported_throttle);
}
