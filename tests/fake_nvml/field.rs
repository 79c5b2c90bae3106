//! Values requested by number, many in one call. Each value that this GPU does not support has its own error code.

use std::ffi::c_int;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlFieldValue_t, nvmlReturn_t, nvmlValue_t, nvmlValueType_t,
};

use crate::call::{Outcome, Target, on_gpu};
use crate::handle::Device;
use crate::scenario::{Call, Code, Number};
use crate::{nvlink, power, process, state};

/// A value in the type that the driver uses for it.
enum Value {
    U32(u32),
    U64(u64),
    I64(i64),
    F64(f64),
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: nvmlDevice_t,
    count: c_int,
    values: *mut nvmlFieldValue_t,
) -> nvmlReturn_t {
    let count = usize::try_from(count).unwrap_or(0);
    if values.is_null() || count == 0 {
        return Code::INVALID_ARGUMENT.0;
    }
    // SAFETY: NVML's contract: `values` is an array of `count` elements that no one else uses meanwhile.
    let values = unsafe { std::slice::from_raw_parts_mut(values, count) };
    // The NVLink counters make this call expensive.
    let nvlink = values.iter().any(|value| nvlink::is_counter(value.fieldId));
    let call = match nvlink {
        true => Call::NvlinkCounters,
        false => Call::FieldValues,
    };
    on_gpu(call, device, |target| {
        for value in values {
            fill(target, value);
        }
        Ok(())
    })
}

fn fill(target: &Target, out: &mut nvmlFieldValue_t) {
    out.timestamp = process::now().cast_signed();
    out.latencyUsec = 0;
    match read(target, out.fieldId, out.scopeId) {
        Ok(value) => {
            (out.valueType, out.value) = value.split();
            out.nvmlReturn = Code::OK.0;
        }
        Err(code) => out.nvmlReturn = code.0,
    }
}

fn read(target: &Target, id: u32, scope: u32) -> Outcome<Value> {
    let gpu = target.gpu();
    if let Some(number) = gpu.fields.get(&id.to_string()) {
        return Ok(Value::of(*number));
    }
    Ok(match id {
        1 => Value::U32(u32::from(gpu.ecc)),
        2 => Value::U32(u32::from(gpu.ecc_pending)),
        3 => Value::U64(gpu.ecc_corrected),
        4 => Value::U64(gpu.ecc_uncorrected),
        5 => Value::U64(gpu.ecc_corrected_lifetime),
        6 => Value::U64(gpu.ecc_uncorrected_lifetime),
        82 => Value::U32(memory_temperature(target)?),
        83 => Value::U64(power::energy(target)),
        91 => Value::U32(gpu.nvlinks),
        94 => Value::U32(gpu.pcie_replays),
        138..=141 => Value::U64(nvlink::counter(gpu, id, scope, state::elapsed())?),
        142 => Value::U32(gpu.remapped_correctable),
        143 => Value::U32(gpu.remapped_uncorrectable),
        144 => Value::U32(u32::from(gpu.remap_pending)),
        145 => Value::U32(u32::from(gpu.remap_failed)),
        185 | 186 => Value::U32(target.wobbled(gpu.power, 8)),
        187 => Value::U32(gpu.power_min_limit),
        188 => Value::U32(gpu.power_max_limit),
        189 => Value::U32(gpu.power_default_limit),
        190 => Value::U32(gpu.power_limit),
        230 => Value::U32(gpu.recovery_action),
        _ => return Err(Code::NOT_SUPPORTED),
    })
}

/// A separate call, so that a scenario can remove only this value.
fn memory_temperature(target: &Target) -> Outcome<u32> {
    let Device { gpu, .. } = target.device;
    match target.scenario.gpu[gpu].errors.get(&Call::MemoryTemperature) {
        Some(error) => Err(*error),
        None => Ok(target.wobbled(target.gpu().memory_temperature, 4)),
    }
}

impl Value {
    fn of(number: Number) -> Self {
        match number {
            Number::Whole(n) => u64::try_from(n).map_or(Self::I64(n), Self::U64),
            Number::Real(x) => Self::F64(x),
        }
    }

    /// Returns NVML's type tag and union.
    fn split(self) -> (nvmlValueType_t, nvmlValue_t) {
        // Zero the union, so that reading the wrong member gives zeros.
        let mut value = nvmlValue_t { ullVal: 0 };
        let tag = match self {
            Self::F64(x) => {
                value.dVal = x;
                0
            }
            Self::U32(n) => {
                value.uiVal = n;
                1
            }
            Self::U64(n) => {
                value.ullVal = n;
                3
            }
            Self::I64(n) => {
                value.sllVal = n;
                4
            }
        };
        (tag, value)
    }
}
