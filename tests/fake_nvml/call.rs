//! The way that every call goes: counted, as slow as the scenario says, stuck while it says so, then its error or
//! its value. And the macros for the many symbols that return one value.

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

/// What a call about a device works on.
pub struct Target {
    pub scenario: Arc<Scenario>,
    pub device: Device,
    call: Call,
    /// Calls of this kind on this GPU before this one.
    before: u64,
}

impl Target {
    pub fn gpu(&self) -> &Gpu {
        // `on_device` made sure of it.
        &self.scenario.gpu[self.device.gpu]
    }

    pub fn mig(&self) -> Option<&Mig> {
        self.device.mig_in(&self.scenario).ok().flatten()
    }

    /// `value`, moving by `percent` with every call where the scenario wants it.
    pub fn wobbled(&self, value: u32, percent: u64) -> u32 {
        if !self.gpu().wobble.unwrap_or(self.scenario.wobble) {
            return value;
        }
        let place = (self.call as u64) << 8 | self.device.gpu as u64;
        let seed = wobble::seed(place, self.before);
        wobble::around(u64::from(value), percent, seed).min(u64::from(u32::MAX)) as u32
    }

    /// As `wobbled`, for a share: at most 100, unless the scenario itself says more.
    pub fn share(&self, percent: u32) -> u32 {
        self.wobbled(percent, 20).min(percent.max(100))
    }
}

/// A call about no device.
pub fn on_driver(call: Call, body: impl FnOnce(&Scenario) -> Outcome) -> nvmlReturn_t {
    code(live(call, None).and_then(|(scenario, _)| body(&scenario)))
}

/// A call that finds a device: `find` says which by the caller's words, then the call counts as that GPU's.
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

/// A call about a GPU or a MIG device.
pub fn on_device(
    call: Call,
    device: nvmlDevice_t,
    body: impl FnOnce(&Target) -> Outcome,
) -> nvmlReturn_t {
    let outcome = Device::of(device).and_then(|device| {
        let (scenario, before) = live(call, Some(device.gpu))?;
        device.gpu_in(&scenario)?;
        device.mig_in(&scenario)?;
        body(&Target {
            scenario,
            device,
            call,
            before,
        })
    });
    code(outcome)
}

/// A call that only a whole GPU answers.
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

/// Everything that happens before the value: the scenario to answer from, and how many such calls came before.
fn live(call: Call, gpu: Option<usize>) -> Outcome<(Arc<Scenario>, u64)> {
    let before = log::count(call, gpu);
    let mut scenario = state::scenario();
    spin::burn(scenario.cost(call, gpu));
    while scenario.hangs(call, gpu) {
        thread::sleep(Duration::from_millis(2));
        scenario = state::scenario();
    }
    if call != Call::Init {
        state::check_session(&scenario, gpu.is_some())?;
    }
    match scenario.error(call, gpu) {
        Some(error) => Err(error),
        None => Ok((scenario, before)),
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
/// `out` is null or points to a value that the caller lets NVML write, as NVML demands of every output argument.
pub unsafe fn put<T>(out: *mut T, value: T) -> Outcome {
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: as this function's.
    unsafe { out.write(value) };
    Ok(())
}

/// Copies a text and its NUL.
///
/// # Safety
///
/// `out` is null or points to `length` bytes that the caller lets NVML write.
pub unsafe fn put_text(out: *mut c_char, length: c_uint, text: &str) -> Outcome {
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    // SAFETY: the text and its NUL fit into `length`.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast(), out, text.len());
        out.add(text.len()).write(0);
    }
    Ok(())
}

/// Symbols of the form `(device, out)`: `symbol: Call -> type = how a target answers;`
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

/// Symbols of the form `(device, text, length)`, answered for MIG devices too.
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
