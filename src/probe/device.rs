//! What a fill and the policies need of a card. One implementation is the driver, in the child; the other a card made
//! of numbers, for tests.

use crate::model::units::Bytes;

/// The unit of device memory: pages of 2 MiB are mapped, and smaller pieces share one.
pub const GRANULE: u64 = 2 << 20;

/// Why the driver did not do it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceError {
    OutOfMemory,
    /// Anything else, as a clause: `cuMemCreate failed with CUDA_ERROR_NOT_SUPPORTED (801)`.
    Failed(String),
}

/// Addresses are the device's; everything that is handed out is given back through the same value.
pub trait Device {
    fn now_us(&self) -> u64;

    /// Free on the whole card.
    fn free_bytes(&mut self) -> Result<Bytes, DeviceError>;

    /// `cudaMalloc`.
    fn alloc(&mut self, size: u64) -> Result<u64, DeviceError>;
    fn free(&mut self, address: u64);

    /// Addresses without memory behind them.
    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError>;
    fn unreserve(&mut self, address: u64, size: u64);
    /// Memory behind reserved addresses: whole granules.
    fn map(&mut self, address: u64, size: u64) -> Result<(), DeviceError>;
    /// Exactly what was mapped there in one piece.
    fn unmap(&mut self, address: u64, size: u64);

    /// A stream-ordered pool that keeps what is freed; one at a time.
    fn open_pool(&mut self) -> Result<(), DeviceError>;
    fn pool_alloc(&mut self, size: u64) -> Result<u64, DeviceError>;
    fn pool_free(&mut self, address: u64);
    /// What the pool holds from the driver.
    fn pool_reserved(&mut self) -> Result<u64, DeviceError>;
    fn close_pool(&mut self);
}
