//! The driver's side of the [`model`](super::model): a [`Driver`], which for a replay is [`Simulated`], so much memory and
//! addresses, and for the probe a real card.
//!
//! Addresses decide only between free blocks of the same size (up to torch 2.11: `Ties` of the rules), and
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

/// Where the model's memory comes from.
pub trait Driver {
    /// Bytes that it could still give.
    fn free(&self) -> u64;
    /// `cudaMalloc`: an address, or `None` where it has not so much.
    fn alloc(&mut self, size: u64) -> Option<u64>;
    /// `cudaFree`.
    fn free_segment(&mut self, address: u64, size: u64);
    /// Address space in whole pages, somewhat more than there is memory; its start and size.
    fn reserve(&mut self, page: u64) -> Option<(u64, u64)>;
    /// Memory for whole pages of reserved addresses: all of it or none.
    fn map(&mut self, address: u64, size: u64, page: u64) -> bool;
    fn unmap(&mut self, address: u64, size: u64, page: u64);
}

/// A driver made of numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Simulated {
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

impl Simulated {
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

    fn take(&mut self, size: u64) -> bool {
        let fits = size <= self.free();
        if fits {
            self.used += size;
        }
        fits
    }

    fn put_back(&mut self, size: u64) {
        self.used -= size;
    }
}

impl Driver for Simulated {
    fn free(&self) -> u64 {
        self.available.saturating_sub(self.used)
    }

    fn alloc(&mut self, size: u64) -> Option<u64> {
        if !self.take(size) {
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

    fn free_segment(&mut self, address: u64, size: u64) {
        self.put_back(size);
        self.returned.insert((size, address));
    }

    fn reserve(&mut self, page: u64) -> Option<(u64, u64)> {
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

    fn map(&mut self, _address: u64, size: u64, _page: u64) -> bool {
        self.take(size)
    }

    fn unmap(&mut self, _address: u64, size: u64, _page: u64) {
        self.put_back(size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn addresses_go_down_and_the_highest_that_came_back_is_handed_out_first() {
        let mut driver = Simulated::new(100 * MIB, 100 * MIB);
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
