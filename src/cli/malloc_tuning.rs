//! How the heap is shared when a hundred hosts are watched: each has threads that read, judge and complain.
//!
//! By itself glibc gives nearly each of a few hundred threads a heap of its own, eight for each core, which keeps what its threads
//! once had; and after a first buffer of an unpacker was given back it takes the next ones out of those heaps as well, where
//! the holes they leave are filled with what stays. Of 32 hosts whose links are cut each hour the heaps of the threads took
//! 37 MiB so, and 9 with what is set here.
#![allow(unsafe_code)]

/// Two who need memory in the same microsecond wait for one another; each host speaks once a second.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAX_HEAPS: i32 = 2;
/// What is larger is mapped by itself and given back to the kernel: glibc's own figure, which stays only where it is set.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_FROM: i32 = 128 << 10;

/// Before the threads are started. Elsewhere than in glibc nothing is to be done.
pub fn share_among_many_threads() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use nix::libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, mallopt};
        // SAFETY: mallopt(3) takes two numbers and touches nothing but the allocator's own settings, under its lock.
        let set = unsafe {
            mallopt(M_ARENA_MAX, MAX_HEAPS) == 1 && mallopt(M_MMAP_THRESHOLD, MAPPED_FROM) == 1
        };
        if !set {
            tracing::warn!("the heap is as glibc makes it");
        }
    }
}
