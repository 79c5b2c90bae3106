//! Performance metrics: always reported as unsupported.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlGpmSupport_t, nvmlReturn_t};

use crate::call::{on_device, put};
use crate::scenario::Call;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmQueryDeviceSupport(
    device: nvmlDevice_t,
    out: *mut nvmlGpmSupport_t,
) -> nvmlReturn_t {
    const VERSION: c_uint = 1;
    on_device(Call::GpmSupport, device, |_| {
        let answer = nvmlGpmSupport_t { version: VERSION, isSupportedDevice: 0 };
        // SAFETY: NVML's contract.
        unsafe { put(out, answer) }
    })
}
