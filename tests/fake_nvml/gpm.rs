//! Performance metrics, which callers compute from two samples. A sample remembers its GPU.

use std::ffi::c_uint;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t, nvmlReturn_t,
};

use crate::call::{on_device, on_driver, on_gpu, put};
use crate::scenario::{Call, Code};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmQueryDeviceSupport(
    device: nvmlDevice_t,
    out: *mut nvmlGpmSupport_t,
) -> nvmlReturn_t {
    const VERSION: c_uint = 1;
    on_device(Call::GpmSupport, device, |target| {
        let is_supported = c_uint::from(!target.gpu().gpm.is_empty());
        let answer = nvmlGpmSupport_t { version: VERSION, isSupportedDevice: is_supported };
        // SAFETY: NVML's contract.
        unsafe { put(out, answer) }
    })
}

/// A thread in the performance monitor. NVML 580 crashes if there are two.
struct Alone;

static IS_IN_USE: AtomicBool = AtomicBool::new(false);

impl Alone {
    fn enter() -> Self {
        if IS_IN_USE.swap(true, SeqCst) {
            std::process::abort();
        }
        Self
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        IS_IN_USE.store(false, SeqCst);
    }
}

/// The index of a sample's GPU, once it was taken.
type Sample = Option<usize>;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmSampleAlloc(out: *mut nvmlGpmSample_t) -> nvmlReturn_t {
    let sample: Box<Sample> = Box::new(None);
    // SAFETY: NVML's contract.
    match unsafe { put(out, Box::into_raw(sample).cast()) } {
        Ok(()) => Code::OK.0,
        Err(code) => code.0,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmSampleFree(sample: nvmlGpmSample_t) -> nvmlReturn_t {
    if sample.is_null() {
        return Code::INVALID_ARGUMENT.0;
    }
    // SAFETY: NVML's contract: the sample was allocated above and is freed once.
    drop(unsafe { Box::from_raw(sample.cast::<Sample>()) });
    Code::OK.0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmSampleGet(
    device: nvmlDevice_t,
    sample: nvmlGpmSample_t,
) -> nvmlReturn_t {
    let _alone = Alone::enter();
    on_gpu(Call::GpmSample, device, |target| {
        if target.gpu().gpm.is_empty() {
            return Err(Code::NOT_SUPPORTED);
        }
        // SAFETY: NVML's contract: the sample was allocated above.
        unsafe { put(sample.cast::<Sample>(), Some(target.device.gpu)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmMetricsGet(request: *mut nvmlGpmMetricsGet_t) -> nvmlReturn_t {
    let _alone = Alone::enter();
    on_driver(Call::GpmMetrics, |scenario| {
        // SAFETY: NVML's contract: the request is valid, and so are its samples.
        let Some(request) = (unsafe { request.as_mut() }) else {
            return Err(Code::INVALID_ARGUMENT);
        };
        let samples = [request.sample1, request.sample2].map(|sample| {
            // SAFETY: as above.
            unsafe { sample.cast::<Sample>().as_ref() }.copied().flatten()
        });
        let [Some(gpu), Some(other)] = samples else { return Err(Code::INVALID_ARGUMENT) };
        let gpu = scenario.gpu.get(gpu).filter(|_| gpu == other).ok_or(Code::INVALID_ARGUMENT)?;
        let count = usize::try_from(request.numMetrics).unwrap_or(0);
        for metric in request.metrics.iter_mut().take(count) {
            match gpu.gpm.get(&metric.metricId.to_string()) {
                Some(value) => (metric.value, metric.nvmlReturn) = (*value, Code::OK.0),
                None => metric.nvmlReturn = Code::NOT_SUPPORTED.0,
            }
        }
        Ok(())
    })
}
