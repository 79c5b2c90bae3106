//! What follows from a pool's statistics and map by the rules of PyTorch's CUDA caching allocator: how its free
//! memory is scattered, what the largest request is that succeeds now, and what is about to go wrong. And the whole
//! allocator as a [`model`], in which a program's history ([`trace`]) is played under other settings ([`whatif`]).
//!
//! Pure functions over [`model::pool`](crate::model::pool), run on the reader's side, so an old recording is judged
//! by today's rules. The rules are those of c10/cuda/CUDACachingAllocator.cpp, read in torch 1.8, 2.0, 2.2, 2.4, 2.5
//! and 2.12; where versions differ the place says so.

pub mod config;
pub mod driver;
pub mod fits;
pub mod fragmentation;
pub mod model;
pub mod remedies;
pub mod rules;
pub mod trace;
pub mod warnings;
pub mod whatif;

use crate::model::units::Bytes;

/// `kMinBlockSize`: every request is rounded up to a multiple of it.
pub const MIN_BLOCK: Bytes = Bytes(512);
/// `kSmallSize`: up to here a request is served by the small pool.
pub const SMALL_REQUEST: Bytes = Bytes::mib(1);
/// `kSmallBuffer`: the size of a segment, or of a page, of the small pool.
pub const SMALL_SEGMENT: Bytes = Bytes::mib(2);
/// `kMinLargeAlloc`: from here on a request gets a segment of its own size.
pub const OWN_SEGMENT: Bytes = Bytes::mib(10);
/// `kLargeBuffer`: the segment for requests between; a page of an expandable segment of the large pool. From torch
/// 2.11 on `large_segment_size_mb` changes it.
pub const LARGE_SEGMENT: Bytes = Bytes::mib(20);
/// `kRoundLarge`: segments of their own are a multiple of it; also the driver's granule.
pub const GRANULE: Bytes = Bytes::mib(2);

/// A size of a block as the allocator makes it from a request (without `roundup_power2_divisions`).
pub fn rounded(request: Bytes) -> Bytes {
    let size = request.0.max(MIN_BLOCK.0);
    Bytes(size.saturating_add(MIN_BLOCK.0 - 1) / MIN_BLOCK.0 * MIN_BLOCK.0)
}

/// The largest multiple of `step` that is not above `size`.
fn whole(size: u64, step: u64) -> u64 {
    size / step.max(1) * step.max(1)
}

/// Two decimals in GiB without the unit, as notes and headlines print sizes.
pub fn gib(bytes: Bytes) -> String {
    format!("{:.2}", bytes.as_gib())
}
