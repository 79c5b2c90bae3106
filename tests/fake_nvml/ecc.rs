//! Memory errors: error counters and remapped rows.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEccCounterType_t, nvmlEnableState_t, nvmlMemoryErrorType_t,
    nvmlMemoryLocation_t, nvmlReturn_t,
};

use crate::call::{Outcome, on_gpu, put};
use crate::scenario::{Call, Code, Gpu};

/// NVML's number for device memory as the location of an error.
const DEVICE_MEMORY: nvmlMemoryLocation_t = 2;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetEccMode(
    device: nvmlDevice_t,
    current: *mut nvmlEnableState_t,
    pending: *mut nvmlEnableState_t,
) -> nvmlReturn_t {
    on_gpu(Call::EccMode, device, |target| {
        // SAFETY: NVML's contract.
        unsafe {
            put(current, u32::from(target.gpu().ecc))?;
            put(pending, u32::from(target.gpu().ecc_pending))
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: nvmlDevice_t,
    kind: nvmlMemoryErrorType_t,
    counter: nvmlEccCounterType_t,
    out: *mut c_ulonglong,
) -> nvmlReturn_t {
    on_gpu(Call::EccErrors, device, |target| {
        // SAFETY: NVML's contract.
        unsafe { put(out, errors(target.gpu(), kind, counter)?) }
    })
}

/// All errors in a scenario are in device memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryErrorCounter(
    device: nvmlDevice_t,
    kind: nvmlMemoryErrorType_t,
    counter: nvmlEccCounterType_t,
    place: nvmlMemoryLocation_t,
    out: *mut c_ulonglong,
) -> nvmlReturn_t {
    on_gpu(Call::MemoryErrorCounter, device, |target| {
        let all = errors(target.gpu(), kind, counter)?;
        let here = if place == DEVICE_MEMORY { all } else { 0 };
        // SAFETY: NVML's contract.
        unsafe { put(out, here) }
    })
}

fn errors(
    gpu: &Gpu,
    kind: nvmlMemoryErrorType_t,
    counter: nvmlEccCounterType_t,
) -> Outcome<c_ulonglong> {
    if !gpu.ecc {
        return Err(Code::NOT_SUPPORTED);
    }
    match (kind, counter) {
        (0, 0) => Ok(gpu.ecc_corrected),
        (1, 0) => Ok(gpu.ecc_uncorrected),
        (0, 1) => Ok(gpu.ecc_corrected_lifetime),
        (1, 1) => Ok(gpu.ecc_uncorrected_lifetime),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetRemappedRows(
    device: nvmlDevice_t,
    correctable: *mut c_uint,
    uncorrectable: *mut c_uint,
    pending: *mut c_uint,
    failed: *mut c_uint,
) -> nvmlReturn_t {
    on_gpu(Call::RemappedRows, device, |target| {
        let gpu = target.gpu();
        // SAFETY: NVML's contract.
        unsafe {
            put(correctable, gpu.remapped_correctable)?;
            put(uncorrectable, gpu.remapped_uncorrectable)?;
            put(pending, u32::from(gpu.remap_pending))?;
            put(failed, u32::from(gpu.remap_failed))
        }
    })
}
