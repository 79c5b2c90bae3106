//! PyTorch's `expandable_segments:True`, through the driver's virtual memory calls: each pool is one range of addresses,
//! pages of memory come and go behind it, so that what is free at its end can always grow into what is wanted.

use std::collections::HashMap;

use super::Allocator;
use super::blocks::Blocks;
use crate::allocator::{LARGE_SEGMENT, MIN_BLOCK, SMALL_REQUEST, SMALL_SEGMENT, rounded};
use crate::model::pool::{BlockState, PoolKind, Segment};
use crate::model::units::Bytes;
use crate::probe::device::{Device, DeviceError};

/// One pool: its addresses, and the pages that are mapped behind them.
struct Range {
    start: u64,
    size: u64,
    page: u64,
    blocks: Blocks,
}

pub struct Expandable {
    arena: u64,
    mapped: u64,
    ranges: [Range; 2],
    /// Which range a live block is in.
    of: HashMap<u64, usize>,
}

const SMALL: usize = 0;
const LARGE: usize = 1;

impl Expandable {
    /// Addresses for each pool, twice as many as the arena is large, so that what moves on never runs out of them
    /// (PyTorch takes 1 1/8 of the card for each); no memory yet.
    pub fn open<D: Device>(device: &mut D, arena: u64) -> Result<Self, DeviceError> {
        let mut range = |page: u64| {
            let size = arena.div_ceil(page) * page * 2;
            let start = device.reserve(size)?;
            let mut blocks = Blocks::default();
            blocks.add(start, size, BlockState::Unmapped);
            Ok(Range {
                start,
                size,
                page,
                blocks,
            })
        };
        let small = range(SMALL_SEGMENT.0)?;
        match range(LARGE_SEGMENT.0) {
            Ok(large) => Ok(Self {
                arena,
                mapped: 0,
                ranges: [small, large],
                of: HashMap::new(),
            }),
            Err(error) => {
                device.unreserve(small.start, small.size);
                Err(error)
            }
        }
    }

    /// Maps pages behind the first free end that can grow far enough; where the free block begins.
    fn grow<D: Device>(
        &mut self,
        device: &mut D,
        at: usize,
        size: u64,
    ) -> Result<u64, DeviceError> {
        let room = self.arena.saturating_sub(self.mapped);
        let range = &mut self.ranges[at];
        let page = range.page;
        let unmapped: Vec<(u64, u64)> = range.blocks.of_state(BlockState::Unmapped).collect();
        for (address, len) in unmapped {
            let (start, before) = range.blocks.free_before(address).unwrap_or((address, 0));
            let need = size.saturating_sub(before).div_ceil(page) * page;
            if need > len || need > room {
                continue;
            }
            for page_at in (address..address + need).step_by(page as usize) {
                device.map(page_at, page)?;
                self.mapped += page;
                range.blocks.turn(page_at, page, BlockState::Free);
            }
            return Ok(start);
        }
        Err(DeviceError::OutOfMemory)
    }

    /// Unmaps every page in which nothing is live.
    fn shrink<D: Device>(&mut self, device: &mut D) {
        for range in &mut self.ranges {
            let free: Vec<(u64, u64)> = range.blocks.of_state(BlockState::Free).collect();
            for (address, size) in free {
                for page_at in range.pages_in(address, size) {
                    device.unmap(page_at, range.page);
                    self.mapped -= range.page;
                    range.blocks.turn(page_at, range.page, BlockState::Unmapped);
                }
            }
        }
    }
}

impl Range {
    /// The whole pages within a stretch.
    fn pages_in(&self, address: u64, size: u64) -> Vec<u64> {
        let from = (address - self.start).div_ceil(self.page);
        let to = (address + size - self.start) / self.page;
        (from..to).map(|n| self.start + n * self.page).collect()
    }
}

impl<D: Device> Allocator<D> for Expandable {
    fn take(&mut self, device: &mut D, size: u64) -> Result<u64, DeviceError> {
        let size = rounded(Bytes(size)).0;
        let at = if size <= SMALL_REQUEST.0 {
            SMALL
        } else {
            LARGE
        };
        let address = match self.ranges[at].blocks.best_fit(size) {
            Some(address) => address,
            None => self.grow(device, at, size).or_else(|error| match error {
                DeviceError::OutOfMemory => {
                    self.shrink(device);
                    self.grow(device, at, size)
                }
                other => Err(other),
            })?,
        };
        self.ranges[at].blocks.take(address, size, MIN_BLOCK.0);
        self.of.insert(address, at);
        Ok(address)
    }

    fn give(&mut self, _device: &mut D, address: u64) {
        if let Some(at) = self.of.remove(&address) {
            self.ranges[at].blocks.give(address);
        }
    }

    fn reserved(&self) -> u64 {
        self.mapped
    }

    fn segments(&mut self, _device: &mut D) -> Vec<Segment> {
        let [small, large] = &self.ranges;
        let mut segments = small.blocks.segments(PoolKind::Small, true);
        segments.extend(large.blocks.segments(PoolKind::Large, true));
        segments
    }

    fn close(&mut self, device: &mut D) {
        for (address, at) in std::mem::take(&mut self.of) {
            self.ranges[at].blocks.give(address);
        }
        self.shrink(device);
        for range in &self.ranges {
            device.unreserve(range.start, range.size);
        }
    }
}
