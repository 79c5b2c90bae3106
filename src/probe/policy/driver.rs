//! Two policies in which the driver itself allocates every block: plain `cudaMalloc`, and the driver's stream-ordered
//! pool.
//!
//! The driver does not report the positions of its free memory, but the allocated addresses reveal them. With
//! `cudaMalloc`, memory is returned when the last block of a 2 MiB page is freed, so the free parts of pages with live
//! blocks are held but unused. A stream-ordered pool retains all allocated memory, so all memory outside live blocks is
//! free.

use std::collections::BTreeMap;

use gputop_allocator::rounded;
use gputop_model::{Block, BlockState, Bytes, PoolKind, Segment};

use crate::probe::device::{Device, DeviceError, GRANULE};
use crate::probe::policy::allocator::ProbeAllocator;

/// Sizes of live blocks, by address.
type Live = BTreeMap<u64, u64>;

/// Blocks allocated one by one by the driver.
pub struct DriverBlocks<'d, D> {
    device: &'d mut D,
    arena: u64,
    live: Live,
    /// The stream-ordered pool that provides the blocks, if any.
    pool: Option<StreamOrderedPool>,
}

#[derive(Default)]
struct StreamOrderedPool {
    /// Address ranges of all memory ever allocated from the pool.
    allocated: Vec<(u64, u64)>,
    reserved: u64,
}

impl<'d, D: Device> DriverBlocks<'d, D> {
    pub fn plain(device: &'d mut D, arena: u64) -> Self {
        Self { device, arena, live: Live::new(), pool: None }
    }

    pub fn stream_ordered(device: &'d mut D, arena: u64) -> Result<Self, DeviceError> {
        device.open_pool()?;
        Ok(Self { pool: Some(StreamOrderedPool::default()), ..Self::plain(device, arena) })
    }

    /// Returns the address ranges of pages that contain live blocks.
    fn pages(&self) -> Vec<(u64, u64)> {
        let pages = self.live.iter().map(|(address, size)| {
            (address / GRANULE * GRANULE, (address + size).div_ceil(GRANULE) * GRANULE)
        });
        merged(pages)
    }

    fn free(&mut self, address: u64) {
        match self.pool {
            Some(_) => self.device.pool_free(address),
            None => self.device.free(address),
        }
    }
}

impl<D: Device> ProbeAllocator<D> for DriverBlocks<'_, D> {
    fn device(&mut self) -> &mut D {
        self.device
    }

    fn take(&mut self, size: u64) -> Result<u64, DeviceError> {
        let size = rounded(Bytes(size)).0;
        let held: u64 = self.live.values().sum();
        if held + size > self.arena {
            return Err(DeviceError::OutOfMemory);
        }
        let Some(pool) = &mut self.pool else {
            let address = self.device.alloc(size)?;
            self.live.insert(address, size);
            return Ok(address);
        };
        let address = self.device.pool_alloc(size)?;
        self.live.insert(address, size);
        let allocated = std::mem::take(&mut pool.allocated).into_iter();
        pool.allocated = merged(allocated.chain([(address, address + size)]));
        pool.reserved = self.device.pool_reserved()?;
        Ok(address)
    }

    fn give(&mut self, address: u64) {
        if self.live.remove(&address).is_some() {
            self.free(address);
        }
    }

    fn reserved(&self) -> u64 {
        match &self.pool {
            Some(pool) => pool.reserved,
            None => self.pages().iter().map(|(from, to)| to - from).sum(),
        }
    }

    fn segments(&self) -> Vec<Segment> {
        match &self.pool {
            Some(pool) => segments_of(&pool.allocated, &self.live),
            None => segments_of(&self.pages(), &self.live),
        }
    }

    fn close(&mut self) {
        for (address, _) in std::mem::take(&mut self.live) {
            self.free(address);
        }
        if self.pool.is_some() {
            self.device.close_pool();
        }
    }
}

fn merged(ranges: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut sorted: Vec<(u64, u64)> = ranges.collect();
    sorted.sort_unstable();
    let mut all: Vec<(u64, u64)> = Vec::new();
    for (from, to) in sorted {
        match all.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => all.push((from, to)),
        }
    }
    all
}

/// Converts each address range to a segment that contains the live blocks in the range and the free blocks between
/// them.
fn segments_of(ranges: &[(u64, u64)], live: &Live) -> Vec<Segment> {
    let segment = |&(from, to): &(u64, u64)| {
        let mut blocks = Vec::new();
        let mut at = from;
        let mut add = |address: u64, end: u64, state| {
            if end > address {
                blocks.push(Block { address, size: Bytes(end - address), requested: None, state });
            }
        };
        for (&address, &size) in live.range(from..to) {
            add(at, address, BlockState::Free);
            add(address, address + size, BlockState::Allocated);
            at = address + size;
        }
        add(at, to, BlockState::Free);
        let (size, pool) = (Bytes(to - from), PoolKind::Large);
        Segment { address: from, size, pool, blocks, ..Segment::default() }
    };
    ranges.iter().map(segment).collect()
}
