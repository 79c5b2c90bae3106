//! Sources of GPU memory for the allocator [`model`](super::model). A replay uses [`Simulated`], which only counts
//! memory and assigns addresses; the probe uses a real GPU.
//!
//! Addresses matter only for the choice between free blocks of the same size (up to torch 2.11, see `TieBreak`), but
//! that choice can change the result. In the script `growing` of benches/hardware/whatif/scripts.py under
//! `roundup_power2_divisions`, many blocks have the same size. The real allocator then reserves between 296 and 336
//! MiB, depending only on the addresses of its segments. The addresses that the driver would return under other
//! settings are unknown, but its behaviour can be imitated. NVIDIA's addresses descend: in the built-in recording, each
//! of eighty segments of 1200 MiB lies directly below the previous one. [`Simulated`] does the same, and reuses a freed
//! segment for a request of equal size, highest address first. tests/fake_cuda/runtime.cpp behaves identically, so that
//! the real allocator's choices can be compared.

use std::collections::BTreeSet;

use super::GRANULE;

/// End of the address range from which the simulated `cudaMalloc` allocates, and start of the range from which address
/// space is reserved.
const END_OF_ALLOCATIONS: u64 = 0x7a20_0000_0000;
const FIRST_RESERVATION: u64 = 0x6000_0000_0000;

/// Source of GPU memory for the allocator model.
pub trait MemorySource {
    fn free(&self) -> u64;
    /// Equivalent of `cudaMalloc`: returns an address, or `None` if too little memory is free.
    fn alloc(&mut self, size: u64) -> Option<u64>;
    fn free_segment(&mut self, address: u64, size: u64);
    /// Reserves an address range that is slightly larger than the total GPU memory and a multiple of the page size.
    /// Returns its start and size.
    fn reserve(&mut self, page: u64) -> Option<(u64, u64)>;
    /// Maps memory to all given pages of a reserved address range, or to none if too little memory is free.
    fn map(&mut self, address: u64, size: u64, page: u64) -> bool;
    fn unmap(&mut self, address: u64, size: u64, page: u64);
}

/// A simulated driver that only counts memory and assigns addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Simulated {
    /// Total GPU memory in bytes. Each reserved address range is larger than this by 1/8.
    card: u64,
    available: u64,
    used: u64,
    /// Lowest address allocated so far.
    end: u64,
    next_reservation: u64,
    /// Sizes and addresses of freed segments.
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

impl MemorySource for Simulated {
    fn free(&self) -> u64 {
        self.available.saturating_sub(self.used)
    }

    fn alloc(&mut self, size: u64) -> Option<u64> {
        if !self.take(size) {
            return None;
        }
        let reusable = self.returned.range(..=(size, u64::MAX)).next_back().copied();
        if let Some((found, address)) = reusable
            && found == size
        {
            self.returned.remove(&(found, address));
            return Some(address);
        }
        // In a replay without a memory limit, the addresses may run out.
        self.end = self.end.checked_sub(size)? / GRANULE.0 * GRANULE.0;
        Some(self.end)
    }

    fn free_segment(&mut self, address: u64, size: u64) {
        self.put_back(size);
        self.returned.insert((size, address));
    }

    fn reserve(&mut self, page: u64) -> Option<(u64, u64)> {
        let size = self.card.checked_add(self.card / 8)?.checked_next_multiple_of(page)?;
        let address = self.next_reservation;
        self.next_reservation = address.checked_add(size)?.checked_next_multiple_of(GRANULE.0)?;
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
    fn addresses_descend_and_the_highest_freed_one_is_reused_first() {
        let mut driver = Simulated::new(100 * MIB, 100 * MIB);
        let mut alloc = |size| driver.alloc(size * MIB).expect("room");
        let (first, small, last) = (alloc(20), alloc(3), alloc(20));
        assert_eq!(first + 20 * MIB, END_OF_ALLOCATIONS);
        // Segment addresses are multiples of the driver's allocation granularity.
        assert_eq!((small, last), (first - 4 * MIB, first - 24 * MIB));
        driver.free_segment(last, 20 * MIB);
        driver.free_segment(first, 20 * MIB);
        assert_eq!(driver.alloc(20 * MIB), Some(first));
        assert_eq!(driver.alloc(20 * MIB), Some(last));
        assert_eq!(driver.alloc(60 * MIB), None);
        assert_eq!(driver.free(), 57 * MIB);
    }
}
