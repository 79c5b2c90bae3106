//! PCIe, the link to the host.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlPcieUtilCounter_t, nvmlReturn_t};

use crate::call::{on_gpu, put};
use crate::scenario::{Call, Code};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPcieThroughput(
    device: nvmlDevice_t,
    direction: nvmlPcieUtilCounter_t,
    out: *mut c_uint,
) -> nvmlReturn_t {
    on_gpu(Call::PcieThroughput, device, |target| {
        let rate = match direction {
            0 => target.gpu().pcie_tx,
            1 => target.gpu().pcie_rx,
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        // SAFETY: NVML's contract.
        unsafe { put(out, target.wobbled(rate, 20)) }
    })
}
