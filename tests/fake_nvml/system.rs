//! Calls about the library and the driver: sessions, versions, error messages, process names.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::nvmlReturn_t;

use crate::call::{on_driver, put, put_text};
use crate::scenario::{Call, Code};
use crate::state;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    on_driver(Call::Init, state::begin_session)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    on_driver(Call::Init, state::begin_session)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    // Shutdown works even after the driver was reloaded, when no other call does.
    crate::log::count(Call::Shutdown, None);
    match state::end_session() {
        Ok(()) => Code::OK.0,
        Err(code) => code.0,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    Code(result).text().as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(
    version: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    on_driver(Call::DriverVersion, |scenario| {
        // SAFETY: NVML's contract.
        unsafe { put_text(version, length, &scenario.driver.version) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetNVMLVersion(
    version: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    on_driver(Call::NvmlVersion, |scenario| {
        // SAFETY: NVML's contract.
        unsafe { put_text(version, length, &scenario.driver.nvml_version) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) -> nvmlReturn_t {
    on_driver(Call::CudaVersion, |scenario| {
        // SAFETY: NVML's contract.
        unsafe { put(version, scenario.driver.cuda) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> nvmlReturn_t {
    // SAFETY: the same contract.
    unsafe { nvmlSystemGetCudaDriverVersion(version) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetProcessName(
    pid: c_uint,
    name: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    on_driver(Call::ProcessName, |scenario| {
        let process = scenario.process.iter().find(|p| p.pid == pid);
        // SAFETY: NVML's contract.
        unsafe { put_text(name, length, &process.ok_or(Code::NOT_FOUND)?.name) }
    })
}
