//! Simulated VRAM: pages, blocks, mapped memory, and a pool.

use std::collections::BTreeMap;
use std::ffi::c_int;

use crate::scenario::Scenario;
use crate::shared::{self, Holding};
use crate::{INVALID_VALUE, OUT_OF_MEMORY};

pub const PAGE: u64 = 2 << 20;
/// The pool allocates memory from the driver in multiples of this size.
const POOL_PIECE: u64 = 32 << 20;

pub struct Card {
    pub scenario: Scenario,
    held: Holding,
    next: u64,
    /// Size of each block, by address.
    blocks: BTreeMap<u64, u64>,
    /// Pages shared by small blocks, with the used ranges of each.
    pages: BTreeMap<u64, Vec<(u64, u64)>>,
    /// Size of created memory, by handle; and the handle mapped at each address.
    created: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, u64>,
    /// Address and size of the pool's chunks, and its live blocks.
    pool: Vec<(u64, u64)>,
    pool_blocks: BTreeMap<u64, u64>,
}

impl Card {
    pub fn new(scenario: Scenario) -> Self {
        Self {
            scenario,
            held: Holding::default(),
            next: 0x7f00_0000_0000,
            blocks: BTreeMap::new(),
            pages: BTreeMap::new(),
            created: BTreeMap::new(),
            mapped: BTreeMap::new(),
            pool: Vec::new(),
            pool_blocks: BTreeMap::new(),
        }
    }

    pub fn free(&self) -> u64 {
        let used = (self.scenario.used_mib << 20) + shared::others();
        let own = self.held.context + self.held.bytes;
        self.scenario.total().saturating_sub(used + own)
    }

    pub fn create_context(&mut self) -> Result<(), c_int> {
        let context = self.scenario.context_mib << 20;
        if self.free() < context {
            return Err(OUT_OF_MEMORY);
        }
        self.held.context = context;
        shared::write(self.held);
        Ok(())
    }

    pub fn destroy_context(&mut self) {
        self.held.context = 0;
        shared::write(self.held);
    }

    /// Allocates whole pages of the GPU's memory.
    fn take(&mut self, bytes: u64) -> Result<(), c_int> {
        let scattered = self.scenario.largest_mib.is_some_and(|most| bytes > most << 20);
        if scattered || bytes > self.free() {
            return Err(OUT_OF_MEMORY);
        }
        self.held.bytes += bytes;
        self.held.peak = self.held.peak.max(self.held.bytes);
        self.held.pieces += 1;
        shared::write(self.held);
        Ok(())
    }

    fn give(&mut self, bytes: u64) {
        self.held.bytes -= bytes;
        self.held.pieces -= 1;
        shared::write(self.held);
    }

    pub fn addresses(&mut self, size: u64) -> u64 {
        let address = self.next;
        self.next += size.next_multiple_of(PAGE);
        address
    }

    pub fn alloc(&mut self, size: u64) -> Result<u64, c_int> {
        let size = size.next_multiple_of(512);
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        if size >= PAGE {
            let whole = size.next_multiple_of(PAGE);
            self.take(whole)?;
            let address = self.addresses(whole);
            self.blocks.insert(address, whole);
            return Ok(address);
        }
        let in_page = self.pages.iter().find_map(|(page, taken)| {
            let at = gap(taken, PAGE, size)?;
            Some((*page, at))
        });
        let (page, at) = match in_page {
            Some(place) => place,
            None => {
                self.take(PAGE)?;
                let page = self.addresses(PAGE);
                self.pages.insert(page, Vec::new());
                (page, 0)
            }
        };
        let taken = self.pages.get_mut(&page).expect("the page");
        taken.push((at, size));
        taken.sort_unstable();
        self.blocks.insert(page + at, size);
        Ok(page + at)
    }

    pub fn free_block(&mut self, address: u64) -> Result<(), c_int> {
        let size = self.blocks.remove(&address).ok_or(INVALID_VALUE)?;
        let page = address / PAGE * PAGE;
        let Some(taken) = self.pages.get_mut(&page) else {
            self.give(size);
            return Ok(());
        };
        taken.retain(|(at, _)| page + at != address);
        if taken.is_empty() {
            self.pages.remove(&page);
            self.give(PAGE);
        }
        Ok(())
    }

    pub fn create(&mut self, size: u64) -> Result<u64, c_int> {
        if size == 0 || !size.is_multiple_of(PAGE) {
            return Err(INVALID_VALUE);
        }
        self.take(size)?;
        let handle = self.created.keys().last().copied().unwrap_or(0) + 1;
        self.created.insert(handle, size);
        Ok(handle)
    }

    /// Frees created memory. Returns an error if it is still mapped; the real driver would free it after the unmap.
    pub fn release(&mut self, handle: u64) -> Result<(), c_int> {
        if self.mapped.values().any(|mapped| *mapped == handle) {
            return Err(INVALID_VALUE);
        }
        let size = self.created.remove(&handle).ok_or(INVALID_VALUE)?;
        self.give(size);
        Ok(())
    }

    pub fn map(&mut self, address: u64, size: u64, handle: u64) -> Result<(), c_int> {
        if self.created.get(&handle) != Some(&size) || self.mapped.contains_key(&address) {
            return Err(INVALID_VALUE);
        }
        self.mapped.insert(address, handle);
        Ok(())
    }

    pub fn unmap(&mut self, address: u64) -> Result<(), c_int> {
        self.mapped.remove(&address).map(drop).ok_or(INVALID_VALUE)
    }

    pub fn pool_reserved(&self) -> u64 {
        self.pool.iter().map(|(_, size)| size).sum()
    }

    pub fn pool_alloc(&mut self, size: u64) -> Result<u64, c_int> {
        let size = size.next_multiple_of(512);
        let blocks = &self.pool_blocks;
        let in_piece = self.pool.iter().find_map(|&(start, len)| {
            let taken = blocks.range(start..start + len);
            let taken: Vec<(u64, u64)> = taken.map(|(at, size)| (at - start, *size)).collect();
            gap(&taken, len, size).map(|at| start + at)
        });
        let address = match in_piece {
            Some(address) => address,
            None => {
                let piece = size.next_multiple_of(POOL_PIECE);
                self.take(piece)?;
                let start = self.addresses(piece);
                self.pool.push((start, piece));
                start
            }
        };
        self.pool_blocks.insert(address, size);
        Ok(address)
    }

    pub fn pool_free(&mut self, address: u64) -> Result<(), c_int> {
        self.pool_blocks.remove(&address).map(drop).ok_or(INVALID_VALUE)
    }

    pub fn empty_pool(&mut self) {
        for (_, size) in std::mem::take(&mut self.pool) {
            self.give(size);
        }
        self.pool_blocks.clear();
    }
}

/// Returns the offset of the first large enough gap between sorted blocks, within `len`.
fn gap(taken: &[(u64, u64)], len: u64, size: u64) -> Option<u64> {
    let mut at = 0;
    for &(start, taken) in taken {
        if start - at >= size {
            return Some(at);
        }
        at = start + taken;
    }
    (len - at >= size).then_some(at)
}
