//! Calls to the CUDA driver. In `probe/child`, only `cuda.rs` contains unsafe code.
//!
//! cudarc finds and loads the library and provides the types. `cuda.rs` looks up each call by name, because cudarc's
//! own wrappers panic if the driver lacks a call. They also read error codes as a Rust enum, which is undefined
//! behaviour for unknown codes. A missing call is reported as a sentence and affects only the policy that needs it.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::time::Instant;

use cudarc::driver::sys::{
    self, CUcontext, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationProp, CUmemAllocationType,
    CUmemLocation, CUmemLocationType, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUuuid,
};
use gputop_model::{Bytes, GpuUuid};

use super::cost::Ledger;
use super::driver_error::{ContextError, context_error, missing};
use crate::probe::device::{Device, DeviceError};

/// A `CUdevice`: the CUDA device number in the probe process.
type Ordinal = c_int;

const COMPUTE_MODE: c_int = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE as c_int;
const VIRTUAL_MEMORY: c_int =
    sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED as c_int;
const MEMORY_POOLS: c_int =
    sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED as c_int;
const PROHIBITED: c_int = 2;
const EXCLUSIVE_PROCESS: c_int = 3;
const SUCCESS: c_int = 0;
const OUT_OF_MEMORY: c_int = 2;

enum CallError {
    /// The CUDA library does not provide the call.
    Missing(&'static str),
    Code(&'static str, c_int),
}

/// Calls a CUDA driver function: `call!("cuInit", 0 => u32)`. Every function returns a `CUresult`, which is read as a
/// plain number.
macro_rules! call {
    ($name:literal $(, $value:expr => $type:ty)* $(,)?) => {{
        type Call = unsafe extern "C" fn($($type),*) -> c_int;
        // SAFETY: a `CudaDriver` exists only after the library was found, so `culib` does not panic; the library is never
        // unloaded. The arguments match cuda.h for this name, and every pointer among them points to a local value
        // that outlives the call.
        let code = unsafe {
            sys::culib()
                .get::<Call>($name.as_bytes())
                .map(|call| call($($value),*))
        };
        match code {
            Ok(SUCCESS) => Ok(()),
            Ok(code) => Err(CallError::Code($name, code)),
            Err(_) => Err(CallError::Missing($name)),
        }
    }};
}

/// The CUDA driver, loaded and initialized.
pub struct CudaDriver {
    /// CUDA's version number: 12080 means 12.8.
    version: c_int,
}

pub struct CudaDevice {
    driver: CudaDriver,
    ordinal: Ordinal,
}

/// A GPU on which the probe process has a CUDA context, and all memory that the process holds there.
pub struct Card {
    found: CudaDevice,
    begun: Instant,
    ledger: Ledger,
    /// Sizes of all allocated blocks, by address.
    blocks: HashMap<u64, u64>,
    /// Handles of mapped memory, by address.
    mapped: HashMap<u64, u64>,
    pool: Option<CUmemoryPool>,
}

impl CudaDriver {
    pub fn load() -> Result<Self, ContextError> {
        // SAFETY: this call looks up the library by name, opens it and closes it again. Anyone who can replace that
        // library can control this process anyway.
        if !unsafe { sys::is_culib_present() } {
            return Err(ContextError::Refused(
                "no CUDA driver found: libcuda.so.1 is missing".into(),
            ));
        }
        let mut driver = Self { version: 0 };
        call!("cuDriverGetVersion", &mut driver.version => *mut c_int)
            .map_err(|error| driver.context_error(&error))?;
        call!("cuInit", 0 => u32).map_err(|error| driver.context_error(&error))?;
        Ok(driver)
    }

    /// Finds the CUDA device with UUID `gpu`. The parent process has made this device the only visible one.
    pub fn find(self, gpu: &GpuUuid) -> Result<CudaDevice, ContextError> {
        let mut count = 0;
        call!("cuDeviceGetCount", &mut count => *mut c_int)
            .map_err(|error| self.context_error(&error))?;
        let wanted = digits(&gpu.0);
        for at in 0..count {
            let mut ordinal = 0;
            call!("cuDeviceGet", &mut ordinal => *mut Ordinal, at => c_int)
                .map_err(|error| self.context_error(&error))?;
            // Before driver 470, MIG names contain no UUID. The device then counts as found because it is the only
            // visible one.
            if wanted.is_empty() || self.uuid(ordinal)? == wanted {
                return Ok(CudaDevice { driver: self, ordinal });
            }
        }
        Err(ContextError::Refused(format!(
            "CUDA does not see {gpu}: it is not assigned to this container or job"
        )))
    }

    /// Returns the CUDA device's UUID in hexadecimal. A MIG device has its own UUID.
    fn uuid(&self, ordinal: Ordinal) -> Result<String, ContextError> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        call!("cuDeviceGetUuid_v2", &mut uuid => *mut CUuuid, ordinal => Ordinal)
            .or_else(|_| call!("cuDeviceGetUuid", &mut uuid => *mut CUuuid, ordinal => Ordinal))
            .map_err(|error| self.context_error(&error))?;
        Ok(uuid
            .bytes
            .iter()
            .map(|byte| format!("{:02x}", u8::from_ne_bytes(byte.to_ne_bytes())))
            .collect())
    }

    fn context_error(&self, error: &CallError) -> ContextError {
        match error {
            CallError::Missing(call) => ContextError::Refused(missing(call, self.version)),
            CallError::Code(call, code) => context_error(call, *code, &name(*code)),
        }
    }

    fn error(&self, error: &CallError) -> DeviceError {
        match error {
            CallError::Code(_, OUT_OF_MEMORY) => DeviceError::OutOfMemory,
            CallError::Code(call, code) => {
                DeviceError::Failed(format!("{call} failed with {} ({code})", name(*code)))
            }
            CallError::Missing(call) => DeviceError::Failed(missing(call, self.version)),
        }
    }
}

/// Returns the 32 hexadecimal digits of a UUID, or an empty string if `uuid` does not have this format.
fn digits(uuid: &str) -> String {
    let bare = uuid.trim_start_matches("GPU-").trim_start_matches("MIG-");
    let digits: String = bare.chars().filter(|c| *c != '-').collect();
    if digits.len() == 32 && digits.chars().all(|c| c.is_ascii_hexdigit()) {
        digits.to_ascii_lowercase()
    } else {
        String::new()
    }
}

/// Returns the name of a CUDA error code: `CUDA_ERROR_OUT_OF_MEMORY`.
fn name(code: c_int) -> String {
    let mut text: *const c_char = ptr::null();
    let known = call!("cuGetErrorName", code => c_int, &mut text => *mut *const c_char);
    if known.is_err() || text.is_null() {
        return "an unknown error".into();
    }
    // SAFETY: `text` points to a constant, NUL-terminated string in the driver.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().chars().take(80).collect()
}

impl CudaDevice {
    /// Checks the GPU's compute mode. Fails if the mode prohibits CUDA contexts. Unless `force` is set, also fails if
    /// the probe's context would block other processes.
    pub fn check_mode(&self, force: bool) -> Result<(), ContextError> {
        let mut mode = 0;
        call!("cuDeviceGetAttribute", &mut mode => *mut c_int, COMPUTE_MODE => c_int, self.ordinal => Ordinal)
            .map_err(|error| self.driver.context_error(&error))?;
        match mode {
            PROHIBITED => Err(ContextError::Refused(
                "the GPU's compute mode is prohibited: no process may use it".into(),
            )),
            EXCLUSIVE_PROCESS if !force => Err(ContextError::Refused(
                "the GPU is in exclusive mode: while the probe runs, no other program can start on it; use --force to probe anyway".into(),
            )),
            _ => Ok(()),
        }
    }

    /// Returns true if the driver supports `cuMemCreate` and related calls.
    pub fn has_virtual_memory(&self) -> bool {
        self.has(VIRTUAL_MEMORY)
    }

    /// Returns true if the driver supports `cuMemAllocAsync` and related calls.
    pub fn has_pools(&self) -> bool {
        self.has(MEMORY_POOLS)
    }

    /// Returns true if the CUDA device has the attribute. An attribute unknown to the driver counts as missing.
    fn has(&self, attribute: c_int) -> bool {
        let mut has = 0;
        call!("cuDeviceGetAttribute", &mut has => *mut c_int, attribute => c_int, self.ordinal => Ordinal)
            .is_ok_and(|()| has != 0)
    }

    /// Creates a CUDA context. The most likely error is [`ContextError::NoContext`].
    pub fn create_context(self) -> Result<Card, ContextError> {
        let mut context: CUcontext = ptr::null_mut();
        call!("cuDevicePrimaryCtxRetain", &mut context => *mut CUcontext, self.ordinal => Ordinal)
            .and_then(|()| call!("cuCtxSetCurrent", context => CUcontext))
            .map_err(|error| self.driver.context_error(&error))?;
        Ok(Card {
            found: self,
            begun: Instant::now(),
            ledger: Ledger::default(),
            blocks: HashMap::new(),
            mapped: HashMap::new(),
            pool: None,
        })
    }
}

impl Card {
    /// Returns the GPU's free and total memory.
    pub fn memory(&self) -> Result<(Bytes, Bytes), DeviceError> {
        let (mut free, mut total) = (0_usize, 0_usize);
        call!("cuMemGetInfo_v2", &mut free => *mut usize, &mut total => *mut usize)
            .map_err(|error| self.error(&error))?;
        Ok((Bytes(free as u64), Bytes(total as u64)))
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn error(&self, error: &CallError) -> DeviceError {
        self.found.driver.error(error)
    }

    fn record_alloc(&mut self, address: u64, size: u64) -> u64 {
        self.blocks.insert(address, size);
        let now = self.now_us();
        self.ledger.allocated(size, now);
        address
    }

    fn record_free(&mut self, address: u64) {
        let size = self.blocks.remove(&address).unwrap_or_default();
        let now = self.now_us();
        self.ledger.freed(size, now);
    }

    fn location(&self) -> CUmemLocation {
        CUmemLocation {
            type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: self.found.ordinal,
        }
    }

    /// Maps memory created by `cuMemCreate` to reserved addresses, readable and writable.
    fn map_handle(&self, address: u64, size: u64, handle: u64) -> Result<(), CallError> {
        call!("cuMemMap", address => u64, size as usize => usize, 0 => usize, handle => u64, 0 => u64)?;
        let access = CUmemAccessDesc {
            location: self.location(),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let set = call!("cuMemSetAccess", address => u64, size as usize => usize, &access => *const CUmemAccessDesc, 1 => usize);
        if set.is_err() {
            let _ = call!("cuMemUnmap", address => u64, size as usize => usize);
        }
        set
    }
}

impl Device for Card {
    fn now_us(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn free_bytes(&mut self) -> Result<Bytes, DeviceError> {
        self.memory().map(|(free, _)| free)
    }

    fn alloc(&mut self, size: u64) -> Result<u64, DeviceError> {
        let mut address = 0_u64;
        call!("cuMemAlloc_v2", &mut address => *mut u64, size as usize => usize)
            .map_err(|error| self.error(&error))?;
        Ok(self.record_alloc(address, size))
    }

    fn free(&mut self, address: u64) {
        let _ = call!("cuMemFree_v2", address => u64);
        self.record_free(address);
    }

    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        let mut address = 0_u64;
        call!("cuMemAddressReserve", &mut address => *mut u64, size as usize => usize, 0 => usize, 0 => u64, 0 => u64)
            .map_err(|error| self.error(&error))?;
        Ok(address)
    }

    fn unreserve(&mut self, address: u64, size: u64) {
        let _ = call!("cuMemAddressFree", address => u64, size as usize => usize);
    }

    fn map(&mut self, address: u64, size: u64) -> Result<(), DeviceError> {
        // SAFETY: the struct contains only numbers and a pointer, so all zeros is a valid value. Zeros mean that no
        // handle type and no flags are set.
        let mut wanted: CUmemAllocationProp = unsafe { std::mem::zeroed() };
        wanted.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.location = self.location();
        let mut handle = 0_u64;
        call!("cuMemCreate", &mut handle => *mut u64, size as usize => usize, &wanted => *const CUmemAllocationProp, 0 => u64)
            .map_err(|error| self.error(&error))?;
        if let Err(error) = self.map_handle(address, size, handle) {
            let _ = call!("cuMemRelease", handle => u64);
            return Err(self.error(&error));
        }
        self.mapped.insert(address, handle);
        self.record_alloc(address, size);
        Ok(())
    }

    fn unmap(&mut self, address: u64, size: u64) {
        if let Some(handle) = self.mapped.remove(&address) {
            let _ = call!("cuMemUnmap", address => u64, size as usize => usize);
            let _ = call!("cuMemRelease", handle => u64);
            self.record_free(address);
        }
    }

    fn open_pool(&mut self) -> Result<(), DeviceError> {
        // SAFETY: as in `map`, all zeros is a valid value. The reserved bytes must be zero.
        let mut wanted: CUmemPoolProps = unsafe { std::mem::zeroed() };
        wanted.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.location = self.location();
        let mut pool: CUmemoryPool = ptr::null_mut();
        call!("cuMemPoolCreate", &mut pool => *mut CUmemoryPool, &wanted => *const CUmemPoolProps)
            .map_err(|error| self.error(&error))?;
        self.pool = Some(pool);
        // Freed memory is retained in the pool, as in PyTorch's cudaMallocAsync backend.
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD as c_int;
        let mut threshold = u64::MAX;
        let result = call!("cuMemPoolSetAttribute", pool => CUmemoryPool, attribute => c_int, ptr::from_mut(&mut threshold).cast() => *mut c_void);
        result.map_err(|error| {
            let error = self.error(&error);
            self.close_pool();
            error
        })
    }

    fn pool_alloc(&mut self, size: u64) -> Result<u64, DeviceError> {
        let pool = self.pool.unwrap_or(ptr::null_mut());
        let mut address = 0_u64;
        call!("cuMemAllocFromPoolAsync", &mut address => *mut u64, size as usize => usize, pool => CUmemoryPool, ptr::null_mut() => *mut c_void)
            .map_err(|error| self.error(&error))?;
        Ok(self.record_alloc(address, size))
    }

    fn pool_free(&mut self, address: u64) {
        let _ = call!("cuMemFreeAsync", address => u64, ptr::null_mut() => *mut c_void);
        self.record_free(address);
    }

    fn pool_reserved(&mut self) -> Result<u64, DeviceError> {
        let pool = self.pool.unwrap_or(ptr::null_mut());
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT as c_int;
        let mut reserved = 0_u64;
        call!("cuMemPoolGetAttribute", pool => CUmemoryPool, attribute => c_int, ptr::from_mut(&mut reserved).cast() => *mut c_void)
            .map_err(|error| self.error(&error))?;
        Ok(reserved)
    }

    fn close_pool(&mut self) {
        if let Some(pool) = self.pool.take() {
            let _ = call!("cuStreamSynchronize", ptr::null_mut() => *mut c_void);
            let _ = call!("cuMemPoolDestroy", pool => CUmemoryPool);
        }
    }
}

impl Drop for Card {
    /// Frees the memory that an aborted policy did not free. The CUDA context is released when the process exits, which
    /// happens next.
    fn drop(&mut self) {
        for (address, handle) in std::mem::take(&mut self.mapped) {
            let size = self.blocks.remove(&address).unwrap_or_default();
            let _ = call!("cuMemUnmap", address => u64, size as usize => usize);
            let _ = call!("cuMemRelease", handle => u64);
        }
        self.close_pool();
        for (address, _) in std::mem::take(&mut self.blocks) {
            let _ = call!("cuMemFree_v2", address => u64);
        }
        let _ = call!("cuDevicePrimaryCtxRelease_v2", self.found.ordinal => Ordinal);
    }
}
