//! PyTorch's own allocation policy: the [`Model`] that `gputop whatif` uses to replay allocation traces. In a probe,
//! the model's segments and pages are real GPU memory, and their addresses decide which of several equally large blocks
//! is used.

use std::collections::{BTreeMap, HashMap};

use gputop_allocator::config::Config;
use gputop_allocator::driver::MemorySource;
use gputop_allocator::model::{AllocationOutcome, Model};
use gputop_allocator::rules::NEWEST;
use gputop_allocator::trace::{BlockId, Op, PoolId};
use gputop_model::{Bytes, Segment};

use crate::probe::device::{Device, DeviceError};
use crate::probe::policy::allocator::ProbeAllocator;

pub struct Torch<'d, D: Device> {
    model: Model<Arena<'d, D>>,
    /// IDs of live blocks, by address.
    names: HashMap<u64, BlockId>,
    next: BlockId,
}

impl<'d, D: Device> Torch<'d, D> {
    pub fn new(device: &'d mut D, arena: u64, expandable: bool) -> Self {
        let config = Config { expandable: Some(expandable), ..Config::default() };
        let arena = Arena {
            device,
            size: arena,
            held: 0,
            segments: BTreeMap::new(),
            pages: BTreeMap::new(),
            ranges: Vec::new(),
            error: None,
        };
        Self { model: Model::on(arena, config.rules(NEWEST)), names: HashMap::new(), next: 0 }
    }
}

impl<D: Device> ProbeAllocator<D> for Torch<'_, D> {
    fn device(&mut self) -> &mut D {
        self.model.driver().device
    }

    fn take(&mut self, size: u64) -> Result<u64, DeviceError> {
        self.next += 1;
        match self.model.alloc(self.next, Bytes(size), 0, PoolId::SHARED) {
            AllocationOutcome::Address(address) => {
                self.names.insert(address, self.next);
                Ok(address)
            }
            AllocationOutcome::OutOfMemory => match self.model.driver().error.take() {
                Some(why) => Err(DeviceError::Failed(why)),
                None => Err(DeviceError::OutOfMemory),
            },
        }
    }

    fn give(&mut self, address: u64) {
        if let Some(block) = self.names.remove(&address) {
            self.model.play(&Op::Free { block });
            self.model.play(&Op::FreeCompleted { block });
        }
    }

    fn reserved(&self) -> u64 {
        self.model.stats().reserved.current
    }

    fn segments(&self) -> Vec<Segment> {
        self.model.segments()
    }

    fn close(&mut self) {
        self.model.driver().close();
    }
}

/// GPU memory that the allocator model may use.
struct Arena<'d, D: Device> {
    device: &'d mut D,
    size: u64,
    held: u64,
    /// Sizes of the driver's segments, by address.
    segments: BTreeMap<u64, u64>,
    pages: BTreeMap<u64, u64>,
    ranges: Vec<(u64, u64)>,
    /// A driver error other than out of memory.
    error: Option<String>,
}

impl<D: Device> Arena<'_, D> {
    fn has_room(&self, size: u64) -> bool {
        self.size.saturating_sub(self.held) >= size
    }

    /// Returns the value if the call succeeded. Stores any error except out of memory.
    fn record_error<T>(&mut self, result: Result<T, DeviceError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(DeviceError::OutOfMemory) => None,
            Err(DeviceError::Failed(why)) => {
                self.error = Some(why);
                None
            }
        }
    }

    fn unmap_page(&mut self, address: u64) {
        if let Some(page) = self.pages.remove(&address) {
            self.device.unmap(address, page);
            self.held -= page;
        }
    }

    fn close(&mut self) {
        for (address, _) in std::mem::take(&mut self.segments) {
            self.device.free(address);
        }
        for (address, page) in std::mem::take(&mut self.pages) {
            self.device.unmap(address, page);
        }
        for (address, size) in std::mem::take(&mut self.ranges) {
            self.device.unreserve(address, size);
        }
        self.held = 0;
    }
}

impl<D: Device> MemorySource for Arena<'_, D> {
    fn free(&self) -> u64 {
        self.size.saturating_sub(self.held)
    }

    fn alloc(&mut self, size: u64) -> Option<u64> {
        if !self.has_room(size) {
            return None;
        }
        let result = self.device.alloc(size);
        let address = self.record_error(result)?;
        self.segments.insert(address, size);
        self.held += size;
        Some(address)
    }

    fn free_segment(&mut self, address: u64, _size: u64) {
        if let Some(size) = self.segments.remove(&address) {
            self.device.free(address);
            self.held -= size;
        }
    }

    fn reserve(&mut self, page: u64) -> Option<(u64, u64)> {
        // Like PyTorch, reserve an address range an eighth larger than the memory that the allocator may use.
        let size = (self.size + self.size / 8).checked_next_multiple_of(page)?;
        let result = self.device.reserve(size);
        let address = self.record_error(result)?;
        self.ranges.push((address, size));
        Some((address, size))
    }

    fn map(&mut self, address: u64, size: u64, page: u64) -> bool {
        if !self.has_room(size) {
            return false;
        }
        for at in pages(address, size, page) {
            let result = self.device.map(at, page);
            if self.record_error(result).is_none() {
                self.unmap(address, at - address, page);
                return false;
            }
            self.pages.insert(at, page);
            self.held += page;
        }
        true
    }

    fn unmap(&mut self, address: u64, size: u64, page: u64) {
        pages(address, size, page).for_each(|at| self.unmap_page(at));
    }
}

fn pages(address: u64, size: u64, page: u64) -> impl Iterator<Item = u64> {
    (0..size / page).map(move |n| address + n * page)
}
