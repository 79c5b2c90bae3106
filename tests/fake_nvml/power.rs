//! Current power, power limits, and energy used since the driver was loaded.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use crate::call::{Target, on_gpu, put};
use crate::scenario::Call;
use crate::state;

values! {
    nvmlDeviceGetPowerUsage: Power -> c_uint = |target| Ok(target.wobbled(target.gpu().power, 8));
    nvmlDeviceGetPowerManagementLimit: PowerManagementLimit -> c_uint = |target| {
        let gpu = target.gpu();
        Ok(gpu.power_management_limit.unwrap_or(gpu.power_limit))
    };
    nvmlDeviceGetTotalEnergyConsumption: Energy -> c_ulonglong = |target| Ok(energy(target));
}

/// Returns the energy in millijoules: the scenario's initial value plus its power over the time since then.
pub fn energy(target: &Target) -> u64 {
    let gpu = target.gpu();
    let since = u128::from(gpu.power) * state::elapsed().as_millis() / 1000;
    gpu.energy.saturating_add(since as u64)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerManagementLimitConstraints(
    device: nvmlDevice_t,
    least: *mut c_uint,
    most: *mut c_uint,
) -> nvmlReturn_t {
    on_gpu(Call::PowerConstraints, device, |target| {
        // SAFETY: NVML's contract.
        unsafe {
            put(least, target.gpu().power_min_limit)?;
            put(most, target.gpu().power_max_limit)
        }
    })
}
