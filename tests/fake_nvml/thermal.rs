//! Temperatures, their thresholds, and fans. The memory temperature is a field value (`field.rs`).

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_t, nvmlTemperatureSensors_t, nvmlTemperatureThresholds_t,
};

use crate::call::{Outcome, Target, on_gpu, put};
use crate::scenario::{Call, Code};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperature(
    device: nvmlDevice_t,
    sensor: nvmlTemperatureSensors_t,
    out: *mut c_uint,
) -> nvmlReturn_t {
    on_gpu(Call::Temperature, device, |target| {
        if sensor != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: NVML's contract.
        unsafe { put(out, target.wobbled(target.gpu().temperature, 4)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperatureThreshold(
    device: nvmlDevice_t,
    which: nvmlTemperatureThresholds_t,
    out: *mut c_uint,
) -> nvmlReturn_t {
    on_gpu(Call::TemperatureThreshold, device, |target| {
        let gpu = target.gpu();
        let value = match which {
            0 => gpu.shutdown_temperature,
            1 => gpu.slowdown_temperature,
            2 => gpu.memory_max_temperature,
            3 => gpu.gpu_max_temperature,
            _ => return Err(Code::NOT_SUPPORTED),
        };
        // SAFETY: NVML's contract.
        unsafe { put(out, value) }
    })
}

values! {
    nvmlDeviceGetNumFans: FanCount -> c_uint = |target| Ok(target.gpu().fans.len() as c_uint);
    nvmlDeviceGetFanSpeed: Fan -> c_uint = |target| fan(target, 0);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFanSpeed_v2(
    device: nvmlDevice_t,
    index: c_uint,
    out: *mut c_uint,
) -> nvmlReturn_t {
    on_gpu(Call::Fan, device, |target| {
        // SAFETY: NVML's contract.
        unsafe { put(out, fan(target, index as usize)?) }
    })
}

fn fan(target: &Target, index: usize) -> Outcome<c_uint> {
    let fans = &target.gpu().fans;
    match fans.get(index) {
        Some(percent) => Ok(target.wobbled(*percent, 5)),
        None if fans.is_empty() => Err(Code::NOT_SUPPORTED),
        None => Err(Code::INVALID_ARGUMENT),
    }
}
