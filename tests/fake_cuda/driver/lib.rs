//! A fake `libcuda.so` for the probe: the driver's memory calls on simulated VRAM, without a GPU.
//!
//! It simulates what the probe tests for, as observed on an H200: pages of 2 MiB, small blocks that share a page, a
//! largest possible allocation when the free pages are scattered, a context that cannot be created, and calls that are
//! slow or never return. Addresses are not backed by memory.
//!
//! | environment | |
//! |---|---|
//! | `FAKE_CUDA_SCENARIO` | the card (TOML, `scenario.rs`) |
//! | `FAKE_CUDA_STATE` | a file in which every process writes what it holds, so that a test sees it, and a leak |
//! | `CUDA_VISIBLE_DEVICES` | as CUDA takes it: by UUID or its beginning |
//!
//! To simulate a driver without a call, tests copy this library and overwrite the name of the symbol.
#![cfg(target_os = "linux")]
// The C ABI requires unsafe code. Callers are responsible for every pointer, as with the real library.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, clippy::not_unsafe_ptr_arg_deref)]
// CUDA's names.
#![allow(non_snake_case)]

mod card;
mod scenario;
mod shared;

use std::ffi::{c_char, c_int, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use card::Card;
use scenario::Scenario;

/// Makes the library nearly as large as the real one, because gputop looks for CUDA in a process whose libraries grow.
#[used]
static PADDING: [u8; 20 << 20] = [1; 20 << 20];

const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const NO_DEVICE: c_int = 100;
const INVALID_DEVICE: c_int = 101;
const COMPUTE_MODE: c_int = 20;
const VIRTUAL_MEMORY: c_int = 102;
const MEMORY_POOLS: c_int = 115;

static CARD: LazyLock<Mutex<Card>> = LazyLock::new(|| Mutex::new(Card::new(Scenario::read())));

/// Returns the card after applying the scenario's effect on this call: a delay, a hang or an error.
fn card(call: &str) -> Result<MutexGuard<'static, Card>, c_int> {
    let card = CARD.lock().unwrap_or_else(PoisonError::into_inner);
    card.scenario.meet(call)?;
    Ok(card)
}

fn code(done: Result<(), c_int>) -> c_int {
    done.err().unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: u32) -> c_int {
    code(card("cuInit").map(drop))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    code(card("cuDriverGetVersion").map(|card| unsafe { *version = card.scenario.version }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(error: c_int, text: *mut *const c_char) -> c_int {
    let name = match error {
        OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        801 => c"CUDA_ERROR_NOT_SUPPORTED",
        _ => return INVALID_VALUE,
    };
    unsafe { *text = name.as_ptr() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    code(card("cuDeviceGetCount").and_then(|card| {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
        if !card.scenario.uuid.starts_with(&visible) {
            return Err(NO_DEVICE);
        }
        unsafe { *count = 1 };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    if ordinal != 0 {
        return INVALID_DEVICE;
    }
    unsafe { *device = 0 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], _device: c_int) -> c_int {
    code(card("cuDeviceGetUuid_v2").map(|card| unsafe { *uuid = card.scenario.uuid_bytes() }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(value: *mut c_int, which: c_int, _device: c_int) -> c_int {
    code(card("cuDeviceGetAttribute").and_then(|card| {
        let known = match which {
            COMPUTE_MODE => card.scenario.compute_mode,
            VIRTUAL_MEMORY | MEMORY_POOLS => c_int::from(!card.scenario.lacks.contains(&which)),
            _ => return Err(INVALID_VALUE),
        };
        unsafe { *value = known };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, _device: c_int) -> c_int {
    code(card("cuDevicePrimaryCtxRetain").and_then(|mut card| {
        card.create_context()?;
        unsafe { *context = std::ptr::without_provenance_mut(1) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> c_int {
    code(card("cuDevicePrimaryCtxRelease_v2").map(|mut card| card.destroy_context()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(_context: *mut c_void) -> c_int {
    code(card("cuCtxSetCurrent").map(drop))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int {
    code(card("cuMemGetInfo_v2").map(|card| unsafe {
        *free = card.free() as usize;
        *total = card.scenario.total() as usize;
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(address: *mut u64, size: usize) -> c_int {
    code(card("cuMemAlloc_v2").and_then(|mut card| {
        unsafe { *address = card.alloc(size as u64)? };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    code(card("cuMemFree_v2").and_then(|mut card| card.free_block(address)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressReserve(
    address: *mut u64,
    size: usize,
    _alignment: usize,
    _wanted: u64,
    _flags: u64,
) -> c_int {
    code(card("cuMemAddressReserve").map(|mut card| unsafe {
        *address = card.addresses(size as u64);
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressFree(_address: u64, _size: usize) -> c_int {
    code(card("cuMemAddressFree").map(drop))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemCreate(
    handle: *mut u64,
    size: usize,
    _wanted: *const c_void,
    _flags: u64,
) -> c_int {
    code(card("cuMemCreate").and_then(|mut card| {
        unsafe { *handle = card.create(size as u64)? };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(handle: u64) -> c_int {
    code(card("cuMemRelease").and_then(|mut card| card.release(handle)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemMap(
    address: u64,
    size: usize,
    _offset: usize,
    handle: u64,
    _flags: u64,
) -> c_int {
    code(card("cuMemMap").and_then(|mut card| card.map(address, size as u64, handle)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemUnmap(address: u64, _size: usize) -> c_int {
    code(card("cuMemUnmap").and_then(|mut card| card.unmap(address)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemSetAccess(
    _address: u64,
    _size: usize,
    _access: *const c_void,
    _count: usize,
) -> c_int {
    code(card("cuMemSetAccess").map(drop))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolCreate(pool: *mut *mut c_void, _wanted: *const c_void) -> c_int {
    code(card("cuMemPoolCreate").map(|_| unsafe {
        *pool = std::ptr::without_provenance_mut(2);
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolDestroy(_pool: *mut c_void) -> c_int {
    code(card("cuMemPoolDestroy").map(|mut card| card.empty_pool()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolSetAttribute(
    _pool: *mut c_void,
    _which: c_int,
    _value: *mut c_void,
) -> c_int {
    code(card("cuMemPoolSetAttribute").map(drop))
}

/// Returns the pool's reserved memory, the only attribute that the probe reads.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolGetAttribute(
    _pool: *mut c_void,
    _which: c_int,
    value: *mut c_void,
) -> c_int {
    code(card("cuMemPoolGetAttribute").map(|card| unsafe {
        *value.cast::<u64>() = card.pool_reserved();
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocFromPoolAsync(
    address: *mut u64,
    size: usize,
    _pool: *mut c_void,
    _stream: *mut c_void,
) -> c_int {
    code(card("cuMemAllocFromPoolAsync").and_then(|mut card| {
        unsafe { *address = card.pool_alloc(size as u64)? };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(address: u64, _stream: *mut c_void) -> c_int {
    code(card("cuMemFreeAsync").and_then(|mut card| card.pool_free(address)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(_stream: *mut c_void) -> c_int {
    code(card("cuStreamSynchronize").map(drop))
}
