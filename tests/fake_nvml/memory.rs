//! Memory of a GPU or MIG device, and the BAR1 window that maps it.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_t, nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlReturn_t,
};

use crate::call::{Target, on_device, put};
use crate::scenario::{Call, Code};
use crate::{process, wobble};

/// NVML_STRUCT_VERSION(Memory, 2)
const VERSION_2: c_uint = size_of::<nvmlMemory_v2_t>() as c_uint | 2 << 24;

struct Memory {
    total: u64,
    reserved: u64,
    used: u64,
    free: u64,
}

impl Memory {
    fn of(target: &Target) -> Self {
        let gpu = target.gpu();
        let mig = target.mig();
        let total = mig.map_or(gpu.total, |mig| mig.total());
        let reserved = mig.map_or(gpu.reserved, |_| 0);
        let used = match mig {
            Some(mig) => mig.used.unwrap_or_else(|| listed(target)),
            None => gpu.used.unwrap_or_else(|| listed(target).saturating_add(gpu.context)),
        };
        let left = total.saturating_sub(reserved).saturating_sub(used);
        let free = if mig.is_some() { None } else { gpu.free };
        Self { total, reserved, used, free: free.unwrap_or(left) }
    }
}

/// Returns the memory of all listed processes. Processes with unavailable memory count as 0.
fn listed(target: &Target) -> u64 {
    process::on(target)
        .filter_map(|process| wobble::used(&target.scenario, process))
        .fold(0, u64::saturating_add)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(
    device: nvmlDevice_t,
    out: *mut nvmlMemory_t,
) -> nvmlReturn_t {
    on_device(Call::MemoryV1, device, |target| {
        let memory = Memory::of(target);
        let info = nvmlMemory_t {
            total: memory.total,
            free: memory.free,
            // Version 1 has no separate reserved part.
            used: memory.used.saturating_add(memory.reserved),
        };
        // SAFETY: NVML's contract.
        unsafe { put(out, info) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    out: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    on_device(Call::Memory, device, |target| {
        // SAFETY: NVML's contract; the caller has set the version.
        let version = unsafe { out.as_ref() }.map(|info| info.version);
        match version {
            None => return Err(Code::INVALID_ARGUMENT),
            Some(VERSION_2) => {}
            Some(_) => return Err(Code::ARGUMENT_VERSION_MISMATCH),
        }
        let memory = Memory::of(target);
        let info = nvmlMemory_v2_t {
            version: VERSION_2,
            total: memory.total,
            reserved: memory.reserved,
            free: memory.free,
            used: memory.used,
        };
        // SAFETY: NVML's contract.
        unsafe { put(out, info) }
    })
}

values! {
    nvmlDeviceGetBAR1MemoryInfo: Bar1 -> nvmlBAR1Memory_t = |target| {
        let gpu = target.gpu();
        Ok(nvmlBAR1Memory_t {
            bar1Total: gpu.bar1_total,
            bar1Free: gpu.bar1_total.saturating_sub(gpu.bar1_used),
            bar1Used: gpu.bar1_used,
        })
    };
}
