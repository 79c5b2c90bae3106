//! NVML calls that the `nvml-wrapper` crate does not support, or makes twice: once only to get the count, which takes
//! another 1 ms.
//!
//! All unsafe code of collect/nvml is in this file. Each call passes a handle that the wrapper created for a library
//! that is still loaded (the `Device` borrows it), and buffers together with their length.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::sync::OnceLock;

use gputop_model::text::visible;
use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper_sys::bindings as nvml;

type NumberCall = unsafe extern "C" fn(nvml::nvmlDevice_t, *mut u32) -> nvml::nvmlReturn_t;

/// Maximum number of processes per GPU, to prevent unbounded allocation if the driver is broken or hostile.
const MAX_PROCESSES: u32 = 65_536;

fn symbol<T: Copy, E>(symbol: &Result<T, E>) -> Result<T, NvmlError> {
    symbol.as_ref().copied().map_err(|_| NvmlError::FunctionNotFound)
}

/// Buffers for lists from the driver, reused so that a tick does not allocate.
#[derive(Debug, Default)]
pub struct Buffers {
    processes: Vec<nvml::nvmlProcessInfo_t>,
    samples: Vec<nvml::nvmlProcessUtilizationSample_t>,
}

pub struct DriverProcess {
    pub pid: u32,
    pub used: Option<u64>,
    pub gpu_instance: Option<u32>,
    pub compute_instance: Option<u32>,
}

/// A list of processes that the driver keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessList {
    Compute,
    Graphics,
    /// Clients of an MPS server.
    Mps,
}

pub fn processes(
    device: &Device<'_>,
    list: ProcessList,
    buffers: &mut Buffers,
) -> Result<Vec<DriverProcess>, NvmlError> {
    let lib = device.nvml().lib();
    let [newest, older] = match list {
        ProcessList::Compute => [
            &lib.nvmlDeviceGetComputeRunningProcesses_v3,
            &lib.nvmlDeviceGetComputeRunningProcesses_v2,
        ],
        ProcessList::Graphics => [
            &lib.nvmlDeviceGetGraphicsRunningProcesses_v3,
            &lib.nvmlDeviceGetGraphicsRunningProcesses_v2,
        ],
        ProcessList::Mps => [
            &lib.nvmlDeviceGetMPSComputeRunningProcesses_v3,
            &lib.nvmlDeviceGetMPSComputeRunningProcesses_v2,
        ],
    };
    let call = symbol(newest).or_else(|_| symbol(older))?;
    let empty = nvml::nvmlProcessInfo_t {
        pid: 0,
        usedGpuMemory: 0,
        gpuInstanceId: 0,
        computeInstanceId: 0,
    };
    // SAFETY: the handle is valid while `device` lives, and the buffer holds `count` entries.
    let call = |count, buffer| unsafe { call(device.handle(), count, buffer) };
    let list = self::list(&mut buffers.processes, empty, 32, call)?;
    // Entries without a process have a PID of 0 or with all bits set (seen on Jetson and WSL).
    let processes = list.iter().filter(|info| info.pid != 0 && info.pid != u32::MAX);
    Ok(processes.map(driver_process).collect())
}

/// Reads a list from the driver into a buffer, which grows until the complete list fits. `call` receives the capacity,
/// and replaces it with the number of entries.
fn list<T: Copy>(
    buffer: &mut Vec<T>,
    empty: T,
    min_capacity: u32,
    call: impl Fn(*mut u32, *mut T) -> nvml::nvmlReturn_t,
) -> Result<&[T], NvmlError> {
    let mut capacity = u32::try_from(buffer.len()).unwrap_or(0).max(min_capacity);
    loop {
        buffer.resize(capacity as usize, empty);
        let mut count = capacity;
        let code = call(&raw mut count, buffer.as_mut_ptr());
        if code == nvml::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE && capacity < MAX_PROCESSES {
            capacity = count.saturating_add(8).clamp(capacity * 2, MAX_PROCESSES);
            continue;
        }
        nvml_try(code)?;
        let count = (count as usize).min(buffer.len());
        return Ok(&buffer[..count]);
    }
}

fn driver_process(info: &nvml::nvmlProcessInfo_t) -> DriverProcess {
    // NVML_VALUE_NOT_AVAILABLE has all bits set, in 32-bit and 64-bit fields.
    let id = |id: u32| Some(id).filter(|&id| id != u32::MAX);
    DriverProcess {
        pid: info.pid,
        used: Some(info.usedGpuMemory).filter(|&used| used != u64::MAX),
        gpu_instance: id(info.gpuInstanceId),
        compute_instance: id(info.computeInstanceId),
    }
}

/// Returns the utilization samples newer than `since`. An empty list is not an error.
pub fn process_utilization<'b>(
    device: &Device<'_>,
    since: u64,
    buffers: &'b mut Buffers,
) -> Result<&'b [nvml::nvmlProcessUtilizationSample_t], NvmlError> {
    let call = symbol(&device.nvml().lib().nvmlDeviceGetProcessUtilization)?;
    let empty = nvml::nvmlProcessUtilizationSample_t {
        pid: 0,
        timeStamp: 0,
        smUtil: 0,
        memUtil: 0,
        encUtil: 0,
        decUtil: 0,
    };
    // SAFETY: as above, the handle is valid, and the buffer holds `count` entries.
    let call = |count, buffer| unsafe { call(device.handle(), buffer, count, since) };
    match list(&mut buffers.samples, empty, 128, call) {
        Err(NvmlError::NotFound) => Ok(&[]),
        samples => samples,
    }
}

/// NVML's descriptions of errors that the wrapper does not know, by return code. Filled when the library is loaded.
static ERROR_STRINGS: OnceLock<BTreeMap<u32, String>> = OnceLock::new();
/// Highest return code to ask for.
const MAX_ERROR_CODE: u32 = 127;

pub fn error_string(code: u32) -> Option<String> {
    ERROR_STRINGS.get()?.get(&code).cloned()
}

/// Reads NVML's descriptions of errors, which works before NVML is initialized.
pub fn read_error_strings(path: Option<&OsStr>) {
    ERROR_STRINGS.get_or_init(|| {
        let path = path.unwrap_or(OsStr::new("libnvidia-ml.so.1"));
        // SAFETY: loading the driver's library runs its constructors, as the wrapper does when it initializes NVML.
        let Ok(lib) = (unsafe { nvml::NvmlLib::new(path) }) else { return BTreeMap::new() };
        let Ok(call) = symbol(&lib.nvmlErrorString) else { return BTreeMap::new() };
        let text = |code| {
            // SAFETY: NVML returns a static string for each code, or null.
            let text = unsafe { call(code) };
            let is_null = text.is_null();
            // SAFETY: as above, the string is static while the library is loaded.
            let text = (!is_null).then(|| unsafe { CStr::from_ptr(text) })?;
            let text = visible(text.to_bytes(), 96);
            Some((code, text)).filter(|(_, text)| text != "Unknown Error")
        };
        (0..=MAX_ERROR_CODE).filter_map(text).collect()
    });
}

/// Returns the number of correctable and uncorrectable remapped rows, and the pending and failed flags.
pub fn remapped_rows(device: &Device<'_>) -> Result<(u32, u32, bool, bool), NvmlError> {
    let call = symbol(&device.nvml().lib().nvmlDeviceGetRemappedRows)?;
    let (mut correctable, mut uncorrectable, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: the four out-pointers refer to integers that live for the duration of the call.
    nvml_try(unsafe {
        call(
            device.handle(),
            &raw mut correctable,
            &raw mut uncorrectable,
            &raw mut pending,
            &raw mut failed,
        )
    })?;
    Ok((correctable, uncorrectable, pending != 0, failed != 0))
}

/// Returns total, free and used memory from version 1 of the NVML call, in which `used` includes the driver's reserved
/// memory. Needed for drivers before 510, which lack version 2.
pub fn memory_v1(device: &Device<'_>) -> Result<(u64, u64, u64), NvmlError> {
    let call = symbol(&device.nvml().lib().nvmlDeviceGetMemoryInfo)?;
    let mut info = nvml::nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: the out-pointer refers to a struct of the version that the symbol expects.
    nvml_try(unsafe { call(device.handle(), &raw mut info) })?;
    Ok((info.total, info.free, info.used))
}

/// Returns true if both devices have the same handle. Events identify a GPU by its handle, even if the GPU no longer
/// responds.
pub fn is_same(one: &Device<'_>, other: &Device<'_>) -> bool {
    // SAFETY: the handles are only compared.
    unsafe { one.handle() == other.handle() }
}

/// Returns the number from a call that the wrapper does not support, such as `|lib| &lib.nvmlDeviceGetGpuInstanceId`.
pub fn number<E>(
    device: &Device<'_>,
    call: impl FnOnce(&nvml::NvmlLib) -> &Result<NumberCall, E>,
) -> Result<u32, NvmlError> {
    let call = symbol(call(device.nvml().lib()))?;
    let mut number = 0;
    // SAFETY: the out-pointer refers to an integer.
    nvml_try(unsafe { call(device.handle(), &raw mut number) })?;
    Ok(number)
}

/// Returns the product name, which need not be UTF-8.
pub fn name(device: &Device<'_>) -> Result<Vec<u8>, NvmlError> {
    let call = symbol(&device.nvml().lib().nvmlDeviceGetName)?;
    let mut text = [0_u8; nvml::NVML_DEVICE_NAME_V2_BUFFER_SIZE as usize];
    let length = nvml::NVML_DEVICE_NAME_V2_BUFFER_SIZE;
    // SAFETY: the buffer has this length.
    nvml_try(unsafe { call(device.handle(), text.as_mut_ptr().cast(), length) })?;
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    Ok(text[..end].to_vec())
}

/// Returns the KiB sent and received over all NVLinks of a GPU since the driver was loaded.
pub fn nvlink_counters(device: &Device<'_>) -> Result<(u64, u64), NvmlError> {
    use nvml::field_id::{
        NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
    };
    let call = symbol(&device.nvml().lib().nvmlDeviceGetFieldValues)?;
    // Request the sum over all links with a scope that has all bits set (nvml.h, NVML_FI_DEV_NVLINK_THROUGHPUT_*).
    let field = |id| nvml::nvmlFieldValue_t {
        fieldId: id,
        scopeId: u32::MAX,
        timestamp: 0,
        latencyUsec: 0,
        valueType: 0,
        nvmlReturn: 0,
        value: nvml::nvmlValue_t { ullVal: 0 },
    };
    let mut fields = [
        field(NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX),
        field(NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX),
    ];
    // SAFETY: the array has two entries, and the call receives this length.
    nvml_try(unsafe { call(device.handle(), 2, fields.as_mut_ptr()) })?;
    let value = |field: &nvml::nvmlFieldValue_t| {
        // SAFETY: a u64 covers the entire union, which was zeroed; smaller types leave the upper bytes 0.
        nvml_try(field.nvmlReturn).map(|()| unsafe { field.value.ullVal })
    };
    Ok((value(&fields[0])?, value(&fields[1])?))
}
