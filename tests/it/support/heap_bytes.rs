//! Heap bytes that a thread has allocated and not freed. They show growth that resident pages hide.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

/// Returns the bytes allocated minus the bytes freed by this thread. The difference of two calls is the growth between
/// them.
pub fn allocated_bytes() -> usize {
    ALLOCATED.get()
}

fn count(more: usize, less: usize) {
    ALLOCATED.set(ALLOCATED.get().wrapping_add(more).wrapping_sub(less));
}

/// The system allocator, with counters.
struct CountingAllocator;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator;

// SAFETY: every call is the system allocator's, with the arguments it was made with; counting takes no memory, since the count
// is a plain number that needs no destructor.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}
