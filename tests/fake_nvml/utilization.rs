//! Utilization of a GPU. With MIG enabled, NVML reports it neither for the GPU nor for its instances.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t, nvmlUtilization_t};

use crate::call::{Outcome, Target, on_gpu, put};
use crate::scenario::{Call, Code};

/// The sampling period that an H200 reports, in microseconds.
const PERIOD: c_uint = 167_000;

values! {
    nvmlDeviceGetUtilizationRates: Utilization -> nvmlUtilization_t = |target| {
        without_mig(target)?;
        Ok(nvmlUtilization_t {
            gpu: target.share(target.gpu().sm),
            memory: target.share(target.gpu().memory_bandwidth),
        })
    };
}

fn without_mig(target: &Target) -> Outcome {
    match target.gpu().mig_enabled() {
        true => Err(Code::NOT_SUPPORTED),
        false => Ok(()),
    }
}

macro_rules! engines {
    ($($symbol:ident: $call:ident = $field:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol(
            device: nvmlDevice_t,
            utilization: *mut c_uint,
            period: *mut c_uint,
        ) -> nvmlReturn_t {
            on_gpu(Call::$call, device, |target| {
                without_mig(target)?;
                // SAFETY: NVML's contract.
                unsafe {
                    put(utilization, target.share(target.gpu().$field))?;
                    put(period, PERIOD)
                }
            })
        }
    )*};
}

engines! {
    nvmlDeviceGetEncoderUtilization: Encoder = encoder;
    nvmlDeviceGetDecoderUtilization: Decoder = decoder;
}
