//! MIG devices, written from NVML's documentation and not checked on hardware.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlDeviceAttributes_t, nvmlReturn_t};

use crate::call::{Target, on_device, on_gpu, put};
use crate::handle::Device;
use crate::scenario::{Call, Code, Mig};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: nvmlDevice_t,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> nvmlReturn_t {
    on_gpu(Call::MigMode, device, |target| {
        if !target.gpu().mig_supported {
            return Err(Code::NOT_SUPPORTED);
        }
        let mode = target.gpu().mig_enabled();
        // SAFETY: NVML's contract.
        unsafe {
            put(current, u32::from(mode))?;
            put(pending, u32::from(target.gpu().mig_pending.unwrap_or(mode)))
        }
    })
}

values! {
    nvmlDeviceGetMaxMigDeviceCount: MigCount -> c_uint = |target| {
        // NVML returns 0 if MIG is not supported.
        Ok(if target.gpu().mig_supported { target.gpu().max_mig } else { 0 })
    };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    index: c_uint,
    out: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    on_gpu(Call::MigHandle, device, |target| {
        let gpu = target.gpu();
        let index = index as usize;
        if !gpu.mig_enabled() {
            return Err(Code::NOT_SUPPORTED);
        }
        if index >= gpu.mig.len() {
            return Err(Code::NOT_FOUND);
        }
        let mig = Device { gpu: target.device.gpu, mig: Some(index) };
        // SAFETY: NVML's contract.
        unsafe { put(out, mig.handle()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceIsMigDeviceHandle(
    device: nvmlDevice_t,
    out: *mut c_uint,
) -> nvmlReturn_t {
    on_device(Call::IsMig, device, |target| {
        // SAFETY: NVML's contract.
        unsafe { put(out, u32::from(target.device.mig.is_some())) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    device: nvmlDevice_t,
    out: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    // SAFETY: NVML's contract.
    on_mig(Call::MigParent, device, |target, _| unsafe {
        put(out, Device::gpu(target.device.gpu).handle())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceId(
    device: nvmlDevice_t,
    out: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: NVML's contract.
    on_mig(Call::GpuInstance, device, |_, mig| unsafe { put(out, mig.gi) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeInstanceId(
    device: nvmlDevice_t,
    out: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: NVML's contract.
    on_mig(Call::ComputeInstance, device, |_, mig| unsafe { put(out, mig.ci) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetAttributes_v2(
    device: nvmlDevice_t,
    out: *mut nvmlDeviceAttributes_t,
) -> nvmlReturn_t {
    // SAFETY: NVML's contract.
    on_mig(Call::Attributes, device, |_, mig| unsafe { put(out, attributes(mig)) })
}

/// Multiprocessors of one slice of an H200.
const SLICE: u32 = 16;

fn attributes(mig: &Mig) -> nvmlDeviceAttributes_t {
    let slices = mig.slices();
    nvmlDeviceAttributes_t {
        multiprocessorCount: slices * SLICE,
        sharedCopyEngineCount: slices,
        sharedDecoderCount: slices,
        sharedEncoderCount: 0,
        sharedJpegCount: slices,
        sharedOfaCount: 0,
        gpuInstanceSliceCount: slices,
        computeInstanceSliceCount: slices,
        memorySizeMB: mig.total() >> 20,
    }
}

/// Runs a call that is supported only for a MIG device.
fn on_mig(
    call: Call,
    device: nvmlDevice_t,
    body: impl FnOnce(&Target, &Mig) -> Result<(), Code>,
) -> nvmlReturn_t {
    on_device(call, device, |target| match target.mig() {
        Some(mig) => body(target, mig),
        None => Err(Code::NOT_SUPPORTED),
    })
}
