//! The processes on a device, and their utilization.

use std::ffi::{c_uint, c_ulonglong};
use std::time::{SystemTime, UNIX_EPOCH};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t, nvmlProcessUtilizationSample_t,
    nvmlReturn_t,
};

use crate::call::{Outcome, Target, on_device, on_gpu, put};
use crate::scenario::{Call, Code, Kind, Process};
use crate::wobble;

const NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;
const NO_INSTANCE: c_uint = c_uint::MAX;

/// Returns all processes on the GPU, or those on the MIG device.
pub fn on(target: &Target) -> impl Iterator<Item = &Process> {
    let mig = target.mig();
    target.scenario.processes_on(target.device.gpu).filter(move |process| {
        mig.is_none_or(|mig| process.gi == Some(mig.gi) && process.ci.is_none_or(|ci| ci == mig.ci))
    })
}

/// Describes a process as versions 2 and 3 of the call do. Version 1 has no instance ids.
fn describe(target: &Target, process: &Process) -> nvmlProcessInfo_v2_t {
    let instance = |id: Option<u32>| match target.gpu().mig_enabled() {
        true => id.unwrap_or(NO_INSTANCE),
        false => NO_INSTANCE,
    };
    nvmlProcessInfo_v2_t {
        pid: process.pid,
        usedGpuMemory: wobble::used(&target.scenario, process).unwrap_or(NOT_AVAILABLE),
        gpuInstanceId: instance(process.gi),
        computeInstanceId: instance(process.ci),
    }
}

fn first_version(info: nvmlProcessInfo_v2_t) -> nvmlProcessInfo_v1_t {
    nvmlProcessInfo_v1_t { pid: info.pid, usedGpuMemory: info.usedGpuMemory }
}

/// Copies a list to a caller's array. `count` holds the capacity, and is set to the length of the list.
///
/// # Safety
///
/// `count` is null or valid; `out` is null or an array of `count` elements.
unsafe fn put_list<T>(count: *mut c_uint, out: *mut T, list: &[T], reported: Option<u32>) -> Outcome
where
    T: Copy,
{
    if count.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    let reported = reported.unwrap_or(list.len() as c_uint);
    // SAFETY: as this function's.
    let room = unsafe { count.replace(reported) } as usize;
    if room < list.len() {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    if list.is_empty() {
        return Ok(());
    }
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: `out` has room for `room` elements, of which this writes no more than there are.
    unsafe { std::ptr::copy_nonoverlapping(list.as_ptr(), out, list.len()) };
    Ok(())
}

macro_rules! lists {
    ($($symbol:ident: $call:ident -> $type:ty = $kinds:pat, $convert:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol(
            device: nvmlDevice_t,
            count: *mut c_uint,
            out: *mut $type,
        ) -> nvmlReturn_t {
            on_device(Call::$call, device, |target| {
                let convert: fn(nvmlProcessInfo_v2_t) -> $type = $convert;
                let list: Vec<$type> = on(target)
                    .filter(|process| matches!(process.kind, $kinds))
                    .map(|process| convert(describe(target, process)))
                    .collect();
                // SAFETY: NVML's contract.
                unsafe { put_list(count, out, &list, target.gpu().listed) }
            })
        }
    )*};
}

lists! {
    nvmlDeviceGetComputeRunningProcesses: ProcessList -> nvmlProcessInfo_v1_t =
        Kind::Compute | Kind::Both, first_version;
    nvmlDeviceGetComputeRunningProcesses_v2: ProcessList -> nvmlProcessInfo_v2_t =
        Kind::Compute | Kind::Both, |info| info;
    nvmlDeviceGetComputeRunningProcesses_v3: ProcessList -> nvmlProcessInfo_v2_t =
        Kind::Compute | Kind::Both, |info| info;
    nvmlDeviceGetGraphicsRunningProcesses: GraphicsProcessList -> nvmlProcessInfo_v1_t =
        Kind::Graphics | Kind::Both, first_version;
    nvmlDeviceGetGraphicsRunningProcesses_v2: GraphicsProcessList -> nvmlProcessInfo_v2_t =
        Kind::Graphics | Kind::Both, |info| info;
    nvmlDeviceGetGraphicsRunningProcesses_v3: GraphicsProcessList -> nvmlProcessInfo_v2_t =
        Kind::Graphics | Kind::Both, |info| info;
    nvmlDeviceGetMPSComputeRunningProcesses: MpsProcessList -> nvmlProcessInfo_v1_t =
        Kind::Mps, first_version;
    nvmlDeviceGetMPSComputeRunningProcesses_v2: MpsProcessList -> nvmlProcessInfo_v2_t =
        Kind::Mps, |info| info;
    nvmlDeviceGetMPSComputeRunningProcesses_v3: MpsProcessList -> nvmlProcessInfo_v2_t =
        Kind::Mps, |info| info;
}

/// Time between two samples of the driver, in microseconds.
const SAMPLE_PERIOD: u64 = 166_667;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetProcessUtilization(
    device: nvmlDevice_t,
    out: *mut nvmlProcessUtilizationSample_t,
    count: *mut c_uint,
    last_seen: c_ulonglong,
) -> nvmlReturn_t {
    on_gpu(Call::ProcessUtilization, device, |target| {
        if target.gpu().mig_enabled() {
            return Err(Code::NOT_SUPPORTED);
        }
        let samples = samples(target, last_seen);
        if samples.is_empty() {
            // SAFETY: NVML's contract.
            unsafe { put(count, 0) }?;
            return Err(Code::NOT_FOUND);
        }
        // With a null array, the call returns the length, whatever `count` is.
        if out.is_null() {
            // SAFETY: NVML's contract.
            unsafe { put(count, samples.len() as c_uint) }?;
            return Err(Code::INSUFFICIENT_SIZE);
        }
        // SAFETY: NVML's contract.
        unsafe { put_list(count, out, &samples, None) }
    })
}

/// Returns one sample for each busy process at the last multiple of the sample period; none if that is not after
/// `last_seen`.
fn samples(target: &Target, last_seen: u64) -> Vec<nvmlProcessUtilizationSample_t> {
    let now = now() / SAMPLE_PERIOD * SAMPLE_PERIOD;
    if let Some(samples) = &target.gpu().samples {
        let samples = samples.iter().map(|sample| nvmlProcessUtilizationSample_t {
            pid: sample.pid,
            timeStamp: sample.time.unwrap_or(now),
            smUtil: sample.sm,
            memUtil: sample.mem,
            encUtil: 0,
            decUtil: 0,
        });
        return samples.filter(|sample| sample.timeStamp > last_seen).collect();
    }
    if now <= last_seen {
        return Vec::new();
    }
    on(target)
        .filter(|process| process.is_busy())
        .map(|process| nvmlProcessUtilizationSample_t {
            pid: process.pid,
            timeStamp: now,
            smUtil: target.share(process.sm),
            memUtil: target.share(process.mem),
            encUtil: process.enc,
            decUtil: process.dec,
        })
        .collect()
}

/// Returns microseconds since 1970, the clock of NVML's samples.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}
