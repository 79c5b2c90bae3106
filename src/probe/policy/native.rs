//! PyTorch's native rules, over real segments: two pools, segments of 2 MiB, 20 MiB or the request's own size, best
//! fit, split where enough is left, merged on free, whole free segments given back before a request fails.
//!
//! The least that shows what these rules leave behind: one stream, no settings. Rules and sizes are those of
//! [`allocator`](crate::allocator); `gputop whatif` has the whole model.

use super::Allocator;
use super::blocks::Blocks;
use crate::allocator::{
    GRANULE, LARGE_SEGMENT, MIN_BLOCK, OWN_SEGMENT, SMALL_REQUEST, SMALL_SEGMENT, rounded,
};
use crate::model::pool::{BlockState, PoolKind, Segment};
use crate::model::units::Bytes;
use crate::probe::device::{Device, DeviceError};

pub struct Native {
    arena: u64,
    reserved: u64,
    small: Blocks,
    large: Blocks,
    /// Which pool a live block is of.
    is_small: std::collections::HashMap<u64, bool>,
}

impl Native {
    pub fn new(arena: u64) -> Self {
        Self {
            arena,
            reserved: 0,
            small: Blocks::default(),
            large: Blocks::default(),
            is_small: Default::default(),
        }
    }

    fn pool(&mut self, is_small: bool) -> &mut Blocks {
        if is_small {
            &mut self.small
        } else {
            &mut self.large
        }
    }

    /// A segment from the driver, if the arena and the card have room for it.
    fn grow<D: Device>(&mut self, device: &mut D, segment: u64) -> Result<u64, DeviceError> {
        if self.reserved + segment > self.arena {
            return Err(DeviceError::OutOfMemory);
        }
        let address = device.alloc(segment)?;
        self.reserved += segment;
        Ok(address)
    }

    /// Gives whole free segments back (`release_cached_blocks`).
    fn release<D: Device>(&mut self, device: &mut D) {
        for pool in [&mut self.small, &mut self.large] {
            for (address, size) in pool.whole_free() {
                pool.remove(address);
                device.free(address);
                self.reserved -= size;
            }
        }
    }
}

/// The segment that a request of this size gets (`get_allocation_size`).
fn segment_for(size: u64) -> u64 {
    if size <= SMALL_REQUEST.0 {
        SMALL_SEGMENT.0
    } else if size < OWN_SEGMENT.0 {
        LARGE_SEGMENT.0
    } else {
        size.div_ceil(GRANULE.0) * GRANULE.0
    }
}

impl<D: Device> Allocator<D> for Native {
    fn take(&mut self, device: &mut D, size: u64) -> Result<u64, DeviceError> {
        let size = rounded(Bytes(size)).0;
        let is_small = size <= SMALL_REQUEST.0;
        let address = match self.pool(is_small).best_fit(size) {
            Some(address) => address,
            None => {
                let segment = segment_for(size);
                let address = self.grow(device, segment).or_else(|error| match error {
                    DeviceError::OutOfMemory => {
                        self.release(device);
                        self.grow(device, segment)
                    }
                    other => Err(other),
                })?;
                self.pool(is_small).add(address, segment, BlockState::Free);
                address
            }
        };
        // `should_split`: in the large pool a rest of 1 MiB or less stays with the block.
        let least_rest = if is_small {
            MIN_BLOCK.0
        } else {
            SMALL_REQUEST.0 + 1
        };
        self.pool(is_small).take(address, size, least_rest);
        self.is_small.insert(address, is_small);
        Ok(address)
    }

    fn give(&mut self, _device: &mut D, address: u64) {
        if let Some(is_small) = self.is_small.remove(&address) {
            self.pool(is_small).give(address);
        }
    }

    fn reserved(&self) -> u64 {
        self.reserved
    }

    fn segments(&mut self, _device: &mut D) -> Vec<Segment> {
        let mut segments = self.small.segments(PoolKind::Small, false);
        segments.extend(self.large.segments(PoolKind::Large, false));
        segments
    }

    fn close(&mut self, device: &mut D) {
        for pool in [&self.small, &self.large] {
            for (address, _) in pool.extents() {
                device.free(address);
            }
        }
    }
}
