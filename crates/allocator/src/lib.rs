#![doc = include_str!("../README.md")]

pub mod config;
pub mod driver;
pub mod fits;
pub mod fragmentation;
pub mod model;
pub mod pool_history;
pub mod remedies;
pub mod rules;
pub mod snapshot;
pub mod trace;
pub mod warnings;
pub mod whatif;

#[cfg(test)]
#[path = "../tests/support/pool_maps.rs"]
mod pool_maps;

use gputop_model::units::Bytes;

/// `kMinBlockSize`: every request is rounded up to a multiple of this size.
pub const MIN_BLOCK: Bytes = Bytes(512);
/// `kSmallSize`: requests up to this size are served by the small pool.
pub const SMALL_REQUEST: Bytes = Bytes::mib(1);
/// `kSmallBuffer`: the segment size of the small pool, and its page size if segments are expandable.
pub const SMALL_SEGMENT: Bytes = Bytes::mib(2);
/// `kMinLargeAlloc`: requests of at least this size get their own segment.
pub const OWN_SEGMENT: Bytes = Bytes::mib(10);
/// `kLargeBuffer`: the segment size for large requests below [`OWN_SEGMENT`], and the page size of expandable segments
/// of the large pool. Configurable with `large_segment_size_mb` from torch 2.11 on.
pub const LARGE_SEGMENT: Bytes = Bytes::mib(20);
/// `kRoundLarge`: a segment allocated for a single large request is rounded up to a multiple of this. Also the driver's
/// allocation granularity.
pub const GRANULE: Bytes = Bytes::mib(2);

/// `kMinAllocationSize` of JAX's and TensorFlow's allocator: every request is rounded up to a multiple of this size.
pub const BFC_GRANULE: Bytes = Bytes(256);

/// Returns the size of the block that the allocator creates for a request (without `roundup_power2_divisions`).
pub fn rounded(request: Bytes) -> Bytes {
    let size = request.0.max(MIN_BLOCK.0);
    Bytes(size.saturating_add(MIN_BLOCK.0 - 1) / MIN_BLOCK.0 * MIN_BLOCK.0)
}

/// Returns the largest multiple of `step` that does not exceed `size`.
fn whole(size: u64, step: u64) -> u64 {
    size / step.max(1) * step.max(1)
}

/// Formats a size in GiB with two decimals and without the unit, for notes and headlines.
pub fn gib(bytes: Bytes) -> String {
    format!("{:.2}", bytes.as_gib())
}
