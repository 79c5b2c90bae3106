//! The driver's side of the [`model`](super::model): so much memory, and addresses.
//!
//! Addresses decide only between free blocks of the same size (up to torch 2.11: [`Ties`](super::rules::Ties)), and
//! there they do: `growing` of benches/hardware/whatif/scripts.py under `roundup_power2_divisions`, where many blocks
//! are equal, makes the real allocator reserve anything from 296 to 336 MiB, by nothing but the addresses that its
//! segments get. Where a driver puts them under settings that were not recorded cannot be known; it can be imitated.
//! NVIDIA's goes down: in the built-in recording each of eighty segments of 1200 MiB lies right below the one before.
//! So do these, and one that came back is handed out again for the same size, the highest first.
//! tests/fake_cuda/runtime.cpp does exactly the same, so that the real allocator's choices can be compared.

use std::collections::BTreeSet;

use super::GRANULE;

/// The end of what `cudaMalloc` hands out, and where address space is reserved.
const END_OF_ALLOCATIONS: u64 = 0x7a20_0000_0000;
const FIRST_RESERVATION: u64 = 0x6000_0000_0000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Driver {
    /// Of the whole card: address space is reserved for so much and an eighth more.
    card: u64,
    available: u64,
    used: u64,
    /// Below the lowest address that was handed out.
    end: u64,
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
            end: END_OF_ALLOCATIONS,
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
        let again = self
            .returned
            .range(..=(size, u64::MAX))
            .next_back()
            .copied();
        if let Some((found, address)) = again
            && found == size
        {
            self.returned.remove(&(found, address));
            return Some(address);
        }
        // In a replay without a limit even these may come to an end.
        self.end = self.end.checked_sub(size)? / GRANULE.0 * GRANULE.0;
        Some(self.end)
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

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn addresses_go_down_and_the_highest_that_came_back_is_handed_out_first() {
        let mut driver = Driver::new(100 * MIB, 100 * MIB);
        let mut alloc = |size| driver.alloc(size * MIB).expect("room");
        let (first, small, last) = (alloc(20), alloc(3), alloc(20));
        assert_eq!(first + 20 * MIB, END_OF_ALLOCATIONS);
        // In whole granules.
        assert_eq!((small, last), (first - 4 * MIB, first - 24 * MIB));
        driver.free_segment(last, 20 * MIB);
        driver.free_segment(first, 20 * MIB);
        assert_eq!(driver.alloc(20 * MIB), Some(first));
        assert_eq!(driver.alloc(20 * MIB), Some(last));
        assert_eq!(driver.alloc(60 * MIB), None);
        assert_eq!(driver.free(), 57 * MIB);
    }
}
