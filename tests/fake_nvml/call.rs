//! The steps of every call: count it, apply the scenario's latency, hang while the scenario says so, then return its
//! error or value. Also macros for the many symbols that return one value.

use std::ffi::{c_char, c_uint};
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use crate::handle::Device;
use crate::scenario::{Call, Code, Gpu, Mig, Scenario};
use crate::{log, spin, state, wobble};

pub type Outcome<T = ()> = Result<T, Code>;

/// The scenario and device of a call.
pub struct Target {
    pub scenario: Arc<Scenario>,
    pub device: Device,
    call: Call,
    /// Number of earlier calls of this kind on this GPU.
    before: u64,
}

impl Target {
    pub fn gpu(&self) -> &Gpu {
        // `on_device` has checked the index.
        &self.scenario.gpu[self.device.gpu]
    }

    pub fn mig(&self) -> Option<&Mig> {
        self.device.mig_in(&self.scenario).ok().flatten()
    }

    /// Returns `value`, varied by up to `percent` on each call if the scenario enables it.
    pub fn wobbled(&self, value: u32, percent: u64) -> u32 {
        if !self.gpu().wobble.unwrap_or(self.scenario.wobble) {
            return value;
        }
        let place = (self.call as u64) << 8 | self.device.gpu as u64;
        let seed = wobble::seed(place, self.before);
        wobble::around(u64::from(value), percent, seed).min(u64::from(u32::MAX)) as u32
    }

    /// Like `wobbled`, for a percentage: at most 100, unless the scenario's value is higher.
    pub fn share(&self, percent: u32) -> u32 {
        self.wobbled(percent, 20).min(percent.max(100))
    }
}

/// Runs a call that is not about a device.
pub fn on_driver(call: Call, body: impl FnOnce(&Scenario) -> Outcome) -> nvmlReturn_t {
    code(live(call, None).and_then(|(scenario, _)| body(&scenario)))
}

/// Runs a call that looks up a device. `find` resolves the caller's argument, and the call is then counted for that
/// GPU.
pub fn on_found(
    find: impl FnOnce(&Scenario) -> Outcome<usize>,
    body: impl FnOnce(usize) -> Outcome,
) -> nvmlReturn_t {
    let found = state::check_session(&state::scenario(), false).and_then(|()| {
        let gpu = find(&state::scenario())?;
        live(Call::Handle, Some(gpu))?;
        body(gpu)
    });
    code(found)
}

/// Runs a call about a GPU or a MIG device.
pub fn on_device(
    call: Call,
    device: nvmlDevice_t,
    body: impl FnOnce(&Target) -> Outcome,
) -> nvmlReturn_t {
    let outcome = Device::of(device).and_then(|device| {
        let (scenario, before) = live(call, Some(device.gpu))?;
        device.gpu_in(&scenario)?;
        let mig = device.mig_in(&scenario)?;
        let error = mig.and_then(|mig| call.lookup(|name| mig.errors.get(&name).copied()));
        if let Some(error) = error.filter(|error| *error != Code::OK) {
            return Err(error);
        }
        body(&Target { scenario, device, call, before })
    });
    code(outcome)
}

/// Runs a call that is supported only for a whole GPU.
pub fn on_gpu(
    call: Call,
    device: nvmlDevice_t,
    body: impl FnOnce(&Target) -> Outcome,
) -> nvmlReturn_t {
    on_device(call, device, |target| match target.device.mig {
        None => body(target),
        Some(_) => Err(Code::NOT_SUPPORTED),
    })
}

/// Runs the steps before the value. Returns the scenario to use, and the number of earlier calls of this kind.
fn live(call: Call, gpu: Option<usize>) -> Outcome<(Arc<Scenario>, u64)> {
    let before = log::count(call, gpu);
    let mut scenario = state::scenario();
    spin::burn(scenario.cost(call, gpu));
    thread::sleep(match (call, gpu) {
        (Call::Init, _) => state::init_delay(&scenario),
        (_, Some(gpu)) => state::wake_delay(&scenario, gpu),
        _ => Duration::ZERO,
    });
    while scenario.hangs(call, gpu) {
        thread::sleep(Duration::from_millis(2));
        scenario = state::scenario();
    }
    if call != Call::Init {
        state::check_session(&scenario, gpu.is_some())?;
    }
    match scenario.error(call, gpu) {
        // `ok` lifts the error of the call's group, such as that of `memory` for `memory_v1`.
        Some(error) if error != Code::OK => Err(error),
        _ => Ok((scenario, before)),
    }
}

fn code(outcome: Outcome) -> nvmlReturn_t {
    match outcome {
        Ok(()) => Code::OK.0,
        Err(code) => code.0,
    }
}

/// # Safety
///
/// `out` is null or valid for writing a value, as NVML requires of every output argument.
pub unsafe fn put<T>(out: *mut T, value: T) -> Outcome {
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: as this function's.
    unsafe { out.write(value) };
    Ok(())
}

/// Copies a text with its terminating NUL. After `bytes:`, each character is one byte, so that a name need not be UTF-8.
///
/// # Safety
///
/// `out` is null or valid for writing `length` bytes.
pub unsafe fn put_text(out: *mut c_char, length: c_uint, text: &str) -> Outcome {
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    let bytes: Vec<u8> = match text.strip_prefix("bytes:") {
        Some(latin) => latin.chars().map(|c| c as u8).collect(),
        None => text.into(),
    };
    if bytes.len() >= length as usize {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    // SAFETY: the text and its NUL fit into `length`.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr().cast(), out, bytes.len());
        out.add(bytes.len()).write(0);
    }
    Ok(())
}

/// Defines symbols with the arguments `(device, out)`: `symbol: Call -> type = value for a target;`
macro_rules! values {
    ($($symbol:ident: $call:ident -> $type:ty = $value:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol(
            device: ::nvml_wrapper_sys::bindings::nvmlDevice_t,
            out: *mut $type,
        ) -> ::nvml_wrapper_sys::bindings::nvmlReturn_t {
            let value: fn(&$crate::call::Target) -> $crate::call::Outcome<$type> = $value;
            $crate::call::on_gpu($crate::scenario::Call::$call, device, |target| {
                // SAFETY: NVML's contract.
                unsafe { $crate::call::put(out, value(target)?) }
            })
        }
    )*};
}

/// Defines symbols with the arguments `(device, text, length)`, which also support MIG devices.
macro_rules! texts {
    ($($symbol:ident: $call:ident = $text:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol(
            device: ::nvml_wrapper_sys::bindings::nvmlDevice_t,
            out: *mut ::std::ffi::c_char,
            length: ::std::ffi::c_uint,
        ) -> ::nvml_wrapper_sys::bindings::nvmlReturn_t {
            let text: fn(&$crate::call::Target) -> $crate::call::Outcome<String> = $text;
            $crate::call::on_device($crate::scenario::Call::$call, device, |target| {
                // SAFETY: NVML's contract.
                unsafe { $crate::call::put_text(out, length, &text(target)?) }
            })
        }
    )*};
}
