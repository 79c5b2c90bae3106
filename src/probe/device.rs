//! GPU operations that a probe needs to fill the GPU and to run allocation policies. The probe's child process
//! implements them with the driver, and tests with a simulated GPU.

use gputop_model::units::Bytes;

/// Unit of device memory. Memory is mapped in pages of 2 MiB, and smaller blocks share a page.
pub const GRANULE: u64 = 2 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceError {
    OutOfMemory,
    /// Any error except out of memory. Contains a phrase such as `cuMemCreate failed with CUDA_ERROR_NOT_SUPPORTED
    /// (801)`.
    Failed(String),
}

/// A GPU on which a probe allocates memory. Addresses are device addresses. All allocated memory must be freed through
/// the same `Device`.
pub trait Device {
    fn now_us(&self) -> u64;

    /// Returns the free memory of the whole GPU.
    fn free_bytes(&mut self) -> Result<Bytes, DeviceError>;

    /// Allocates memory like `cudaMalloc`.
    fn alloc(&mut self, size: u64) -> Result<u64, DeviceError>;
    fn free(&mut self, address: u64);

    /// Reserves device addresses without allocating memory.
    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError>;
    fn unreserve(&mut self, address: u64, size: u64);
    /// Maps memory to reserved addresses, in whole granules.
    fn map(&mut self, address: u64, size: u64) -> Result<(), DeviceError>;
    /// Unmaps a range that a single call to `map` has mapped.
    fn unmap(&mut self, address: u64, size: u64);

    /// Opens a stream-ordered pool that retains freed memory. Only one pool can be open at a time.
    fn open_pool(&mut self) -> Result<(), DeviceError>;
    fn pool_alloc(&mut self, size: u64) -> Result<u64, DeviceError>;
    fn pool_free(&mut self, address: u64);
    /// Returns the memory that the pool has reserved from the driver.
    fn pool_reserved(&mut self) -> Result<u64, DeviceError>;
    fn close_pool(&mut self);
}
