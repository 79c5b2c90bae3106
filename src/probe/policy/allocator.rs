//! The interface of the allocators that a probe imitates.

use gputop_model::Segment;

use crate::probe::device::{Device, DeviceError};

pub(super) trait ProbeAllocator<D: Device> {
    fn device(&mut self) -> &mut D;
    fn take(&mut self, size: u64) -> Result<u64, DeviceError>;
    fn give(&mut self, address: u64);
    fn reserved(&self) -> u64;
    /// Returns the memory held by the allocator, block by block.
    fn segments(&self) -> Vec<Segment>;
    /// Returns all memory to the driver, including live blocks.
    fn close(&mut self);
}
