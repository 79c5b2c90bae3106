//! glibc malloc settings for watching many hosts, each of which has several threads.
//!
//! By default glibc creates up to eight arenas for each core. With a few hundred threads nearly every thread gets its own
//! arena, and freed memory stays in it. Also, once a large decompression buffer was freed, glibc allocates the next ones
//! from the arenas, which fragments them. With 32 hosts that are disconnected once an hour, the arenas took 37 MiB with
//! the defaults and 9 MiB with these settings.
#![allow(unsafe_code)]

/// Few arenas are enough: threads rarely allocate at the same time, because each host sends once a second.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAX_ARENAS: i32 = 2;
/// Larger allocations use mmap and return to the kernel when freed. This is glibc's default; setting it disables glibc's
/// automatic increase.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MMAP_THRESHOLD: i32 = 128 << 10;

/// Applies the settings. Call it before the threads start. Does nothing with other C libraries.
pub fn share_among_many_threads() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use nix::libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, mallopt};
        // SAFETY: mallopt(3) takes two numbers and changes only the allocator's settings, under its lock.
        let is_set = unsafe {
            mallopt(M_ARENA_MAX, MAX_ARENAS) == 1 && mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD) == 1
        };
        if !is_set {
            tracing::warn!("cannot change the settings of glibc malloc");
        }
    }
}
