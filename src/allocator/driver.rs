//! The driver's side of the [`model`](super::model): so much memory, and addresses.
//!
//! Addresses decide only between free blocks of the same size. They go up, and one that came back is handed out again
//! for the same size, as real drivers tend to do, the lowest first; tests/fake_cuda/runtime.cpp does exactly the same, so that the real
//! allocator's choices can be compared.

use std::collections::BTreeSet;

use super::GRANULE;

/// Where `cudaMalloc` begins, and where address space is reserved.
const FIRST_ALLOCATION: u64 = 0x7a00_0000_0000;
const FIRST_RESERVATION: u64 = 0x6000_0000_0000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Driver {
    /// Of the whole card: address space is reserved for so much and an eighth more.
    card: u64,
    available: u64,
    used: u64,
    next: u64,
    next_reservation: u64,
    /// Sizes and addresses that came back.
    returned: BTreeSet<(u64, u64)>,
}

impl Driver {
    pub(super) fn new(card: u64, available: u64) -> Self {
        Self {
            card,
            available,
            used: 0,
            next: FIRST_ALLOCATION,
            next_reservation: FIRST_RESERVATION,
            returned: BTreeSet::new(),
        }
    }

    pub(super) fn free(&self) -> u64 {
        self.available.saturating_sub(self.used)
    }

    /// `cudaMalloc`.
    pub(super) fn alloc(&mut self, size: u64) -> Option<u64> {
        if !self.map(size) {
            return None;
        }
        let again = self.returned.range((size, 0)..).next().copied();
        if let Some((found, address)) = again
            && found == size
        {
            self.returned.remove(&(found, address));
            return Some(address);
        }
        let address = self.next.next_multiple_of(GRANULE.0);
        self.next = address + size;
        Some(address)
    }

    /// `cudaFree`.
    pub(super) fn free_segment(&mut self, address: u64, size: u64) {
        self.unmap(size);
        self.returned.insert((size, address));
    }

    /// Address space in whole pages; its start and size.
    pub(super) fn reserve(&mut self, page: u64) -> Option<(u64, u64)> {
        let size = self
            .card
            .checked_add(self.card / 8)?
            .checked_next_multiple_of(page)?;
        let address = self.next_reservation;
        self.next_reservation = address
            .checked_add(size)?
            .checked_next_multiple_of(GRANULE.0)?;
        Some((address, size))
    }

    /// Memory for pages: all of it or none.
    pub(super) fn map(&mut self, size: u64) -> bool {
        let fits = size <= self.free();
        if fits {
            self.used += size;
        }
        fits
    }

    pub(super) fn unmap(&mut self, size: u64) {
        self.used -= size;
    }
}
