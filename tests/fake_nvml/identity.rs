//! The list of devices, their handles, and their constant properties.

use std::ffi::{CStr, c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEnableState_t, nvmlPciInfo_t, nvmlReturn_t};

use crate::call::{Outcome, Target, on_device, on_driver, on_found, put};
use crate::handle::Device;
use crate::scenario::{Call, Code, Scenario};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> nvmlReturn_t {
    on_driver(Call::DeviceCount, |scenario| {
        // SAFETY: NVML's contract.
        unsafe { put(count, scenario.driver.device_count.unwrap_or(scenario.gpu.len() as c_uint)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(
    index: c_uint,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    let find = |scenario: &Scenario| match scenario.gpu.get(index as usize) {
        Some(_) => Ok(index as usize),
        None => Err(Code::INVALID_ARGUMENT),
    };
    // SAFETY: NVML's contract.
    on_found(find, |gpu| unsafe { put(device, Device::gpu(gpu).handle()) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    // SAFETY: NVML's contract.
    let wanted = unsafe { text(uuid) };
    let mut found = None;
    let find = |scenario: &Scenario| {
        let device = by_uuid(scenario, &wanted?).ok_or(Code::NOT_FOUND)?;
        found = Some(device);
        Ok(device.gpu)
    };
    let outcome = on_found(find, |_| Ok(()));
    match found {
        // SAFETY: NVML's contract.
        Some(found) if outcome == Code::OK.0 => {
            unsafe { put(device, found.handle()) }.map_or_else(|code| code.0, |()| Code::OK.0)
        }
        _ => outcome,
    }
}

fn by_uuid(scenario: &Scenario, wanted: &str) -> Option<Device> {
    let gpus = scenario.gpu.iter().enumerate();
    gpus.flat_map(|(index, gpu)| {
        let whole = (gpu.uuid(index), Device::gpu(index));
        let parts = gpu.mig.iter().enumerate().map(move |(i, mig)| {
            let mut device = Device::gpu(index);
            device.mig = Some(i);
            (mig.uuid(index), device)
        });
        std::iter::once(whole).chain(parts)
    })
    .find(|(uuid, _)| uuid == wanted)
    .map(|(_, device)| device)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    bus: *const c_char,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    // SAFETY: NVML's contract.
    let wanted = unsafe { text(bus) };
    let find = |scenario: &Scenario| {
        let wanted = Bus::parse(&wanted?).ok_or(Code::INVALID_ARGUMENT)?;
        let mut gpus = scenario.gpu.iter().enumerate();
        gpus.position(|(i, gpu)| Bus::parse(&gpu.pci_bus(i)) == Some(wanted)).ok_or(Code::NOT_FOUND)
    };
    // SAFETY: NVML's contract.
    on_found(find, |gpu| unsafe { put(device, Device::gpu(gpu).handle()) })
}

/// # Safety
///
/// `text` is null or a C string.
unsafe fn text(text: *const c_char) -> Outcome<String> {
    if text.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: as this function's.
    let text = unsafe { CStr::from_ptr(text) };
    Ok(text.to_string_lossy().into_owned())
}

/// Parses `domain:bus:device.function` with any number of leading zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Bus {
    domain: u32,
    bus: u32,
    device: u32,
}

impl Bus {
    fn parse(text: &str) -> Option<Self> {
        let hex = |s: &str| u32::from_str_radix(s, 16).ok();
        let (rest, device) = text.rsplit_once(':')?;
        let (domain, bus) = rest.rsplit_once(':')?;
        let (device, _function) = device.split_once('.')?;
        Some(Self { domain: hex(domain)?, bus: hex(bus)?, device: hex(device)? })
    }
}

texts! {
    nvmlDeviceGetName: Name = |target| {
        let name = &target.gpu().name;
        Ok(match target.mig() {
            Some(mig) => format!("{name} MIG {}", mig.profile),
            None => name.clone(),
        })
    };
    nvmlDeviceGetUUID: Uuid = |target| {
        let index = target.device.gpu;
        Ok(match target.mig() {
            Some(mig) => mig.uuid(index),
            None => target.gpu().uuid(index),
        })
    };
    nvmlDeviceGetSerial: Serial = |target| {
        whole(target)?;
        let made = || format!("16523230{:05}", target.device.gpu);
        Ok(target.gpu().serial.clone().unwrap_or_else(made))
    };
    nvmlDeviceGetBoardPartNumber: BoardPartNumber = |target| {
        whole(target)?;
        Ok(target.gpu().board_part_number.clone())
    };
    nvmlDeviceGetVbiosVersion: Vbios = |target| {
        whole(target)?;
        Ok(target.gpu().vbios.clone())
    };
}

/// Returns an error for MIG devices, which have no board.
fn whole(target: &Target) -> Outcome {
    match target.device.mig {
        None => Ok(()),
        Some(_) => Err(Code::NOT_SUPPORTED),
    }
}

values! {
    nvmlDeviceGetMinorNumber: Minor -> c_uint =
        |target| Ok(target.gpu().minor.unwrap_or(target.device.gpu as c_uint));
    nvmlDeviceGetIndex: Index -> c_uint = |target| Ok(target.device.gpu as c_uint);
    nvmlDeviceGetPersistenceMode: Persistence -> nvmlEnableState_t =
        |target| Ok(u32::from(target.gpu().persistence));
    nvmlDeviceGetPciInfo_v3: PciInfo -> nvmlPciInfo_t = pci_info;
}

fn pci_info(target: &Target) -> Outcome<nvmlPciInfo_t> {
    let gpu = target.gpu();
    let text = gpu.pci_bus(target.device.gpu);
    let bus = Bus::parse(&text).ok_or(Code::UNKNOWN)?;
    let legacy = format!("{:04X}:{:02X}:{:02X}.0", bus.domain, bus.bus, bus.device);
    Ok(nvmlPciInfo_t {
        busIdLegacy: array(&legacy),
        domain: bus.domain,
        bus: bus.bus,
        device: bus.device,
        pciDeviceId: gpu.pci_device_id,
        pciSubSystemId: gpu.pci_subsystem_id,
        busId: array(&text),
    })
}

/// Copies a text to an array. Truncates it to leave room for a NUL.
#[allow(clippy::cast_possible_wrap)]
fn array<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, from) in array[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    array
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: nvmlDevice_t,
    major: *mut c_int,
    minor: *mut c_int,
) -> nvmlReturn_t {
    // A MIG device has its GPU's compute capability.
    on_device(Call::ComputeCapability, device, |target| {
        let [a, b] = target.gpu().compute_capability;
        // SAFETY: NVML's contract.
        unsafe {
            put(major, a)?;
            put(minor, b)
        }
    })
}
