//! A process's memory pool on one device: PyTorch's caching allocator. Other frameworks report fewer values, in
//! [`reported_pool`](super::reported_pool).
//!
//! A pool has statistics, which are cheap enough to read 20 times a second, and a map of segments and blocks, which is
//! read only while a user views it. The terms are PyTorch's: allocated, reserved, active, segment, block, inactive
//! split.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_with::apply;

use super::process::ProcessKey;
use super::reading::Reading;
use super::reported_pool::{PoolSource, ReportedPool};
use super::units::{Bytes, GpuUuid, Mono};

/// A memory pool of one allocator on one device of one process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pool {
    pub process: ProcessKey,
    pub allocator: Allocator,
    /// Recognized library layout: `torch 2.13 to 2.15`.
    pub library: String,
    /// Device index as seen by the process, which differs from NVML's index.
    pub ordinal: u32,
    /// GPU with device index `ordinal`, if known.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub gpu: Reading<GpuUuid>,
    pub at: Mono,
    /// Maximum size of the pool. Set for pools of JAX and TensorFlow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Bytes>,
    pub stats: PoolStats,
}

crate::named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Allocator {
        /// PyTorch's own caching allocator, which is fully readable.
        Native = "PyTorch's caching allocator",
        /// PyTorch with the CUDA driver's own pool (cudaMallocAsync), whose state cannot be read from the process.
        CudaMallocAsync = "cudaMallocAsync",
        /// An allocator library supplied by the user.
        Pluggable = "pluggable allocator",
        /// XLA's best-fit allocator with coalescing: JAX's default.
        XlaBfc = "XLA BFC",
        TensorflowBfc = "TensorFlow BFC",
        CupyMemoryPool = "CuPy memory pool",
        #[default]
        #[serde(other)]
        Unknown = "unknown allocator",
    }
    /// Returns the allocator's usual name: `XLA BFC`.
    fn words;
}

impl Allocator {
    /// Returns true for the best-fit allocator with coalescing that JAX and TensorFlow share.
    pub fn is_bfc(self) -> bool {
        matches!(self, Self::XlaBfc | Self::TensorflowBfc)
    }

    fn is_unknown(&self) -> bool {
        *self == Self::Unknown
    }
}

/// Minimum, maximum and last value of a sampled size since the previous frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sampled(pub Bytes, pub Bytes, pub Bytes);

impl Sampled {
    pub fn new(value: Bytes) -> Self {
        Self(value, value, value)
    }

    pub fn min(self) -> Bytes {
        self.0
    }

    pub fn max(self) -> Bytes {
        self.1
    }

    pub fn last(self) -> Bytes {
        self.2
    }

    /// Adds a sample.
    #[must_use]
    pub fn and(self, value: Bytes) -> Self {
        Self(self.0.min(value), self.1.max(value), value)
    }
}

/// PyTorch's DeviceStats for one pool. Each value is the sum for small and large blocks.
///
/// Fields ending in `_peak` are PyTorch's own peaks since the program started or last called `reset_peak_memory_stats`.
/// Counters restart at 0 after `reset_accumulated_memory_stats`.
#[apply(Reading => #[serde(skip_serializing_if = "Reading::is_not_read")])]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolStats {
    pub allocated: Sampled,
    pub allocated_peak: Bytes,
    pub reserved: Sampled,
    pub reserved_peak: Bytes,
    /// Bytes in allocated blocks, and in freed blocks that wait for another stream.
    pub active: Sampled,
    pub active_peak: Bytes,
    /// Bytes in free blocks of segments that also contain a live block. Always 0 with expandable segments.
    pub inactive_split: Bytes,
    pub inactive_split_peak: Bytes,
    /// Bytes requested by the program, before rounding. Available in torch 2.0 and later.
    pub requested: Reading<Bytes>,
    pub segments: u64,
    pub segments_peak: u64,
    pub num_alloc_retries: u64,
    pub num_ooms: u64,
    /// Size of the largest free block in any stream, read from the last node of each tree of free blocks. Only the pool
    /// map has the exact value.
    pub largest_free_block: Reading<Bytes>,
}

/// All segments and blocks of a pool at one point in time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolMap {
    pub process: ProcessKey,
    pub ordinal: u32,
    /// Unknown for PyTorch's allocator, as in maps of earlier versions.
    #[serde(skip_serializing_if = "Allocator::is_unknown")]
    pub allocator: Allocator,
    pub at: Mono,
    /// True if the pool statistics were equal before and after the map was read, and all sums agree.
    pub exact: bool,
    /// Segments sorted by address.
    pub segments: Vec<Segment>,
}

impl PoolMap {
    /// Returns the allocated blocks, each with the index of its segment.
    pub fn allocated(&self) -> impl Iterator<Item = (usize, &Block)> {
        self.segments.iter().enumerate().flat_map(|(at, segment)| {
            let is_allocated = |block: &&Block| block.state == BlockState::Allocated;
            segment.blocks.iter().filter(is_allocated).map(move |block| (at, block))
        })
    }

    pub fn largest_allocated(&self) -> Option<&Block> {
        self.allocated().map(|(_, block)| block).max_by_key(|block| block.size)
    }
}

/// A pool map read because an allocation failed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FailureMap {
    /// Time of the last sample before the failure.
    pub since: Mono,
    pub map: PoolMap,
}

/// A segment: memory allocated by one driver call or, with expandable segments, one mapped range.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Segment {
    pub address: u64,
    pub size: Bytes,
    pub pool: PoolKind,
    /// Private pool that contains the segment, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_id: Option<PoolId>,
    /// CUDA stream handle. 0 is the default stream.
    pub stream: u64,
    pub expandable: bool,
    /// Blocks sorted by address, without gaps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<Block>,
}

/// ID of a private pool, as numbered by PyTorch (`segment_pool_id`). `(0, 0)` stands for the shared pools.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct PoolId(pub u64, pub u64);

impl PoolId {
    pub const SHARED: Self = Self(0, 0);

    pub fn is_private(self) -> bool {
        self != Self::SHARED
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    Large,
    Small,
    /// Private pool of a MemPool or CUDA graph.
    Private,
    /// Region of JAX's or TensorFlow's allocator, which has one pool for requests of all sizes and streams.
    Region,
    #[default]
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Block {
    /// Block address, omitted from JSON if 0, which is never a valid address. Blocks in a recording are contiguous, so
    /// most addresses are omitted.
    #[serde(skip_serializing_if = "is_zero")]
    pub address: u64,
    pub size: Bytes,
    /// Bytes requested by the program. Set for allocated blocks only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested: Option<Bytes>,
    pub state: BlockState,
}

fn is_zero(address: &u64) -> bool {
    *address == 0
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockState {
    /// A block used by a live tensor.
    Allocated,
    /// A freed block that another stream may still use.
    Active,
    Free,
    /// Address space of an expandable segment without physical memory. Not part of reserved memory.
    Unmapped,
    #[default]
    #[serde(other)]
    Unknown,
}

/// A process whose allocator could not be read or has no readable state.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Unread {
    pub process: ProcessKey,
    pub allocator: Allocator,
    /// Reason why the allocator could not be read, and what this user can do about it.
    pub why: super::reading::Missing,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pools {
    pub at: Mono,
    pub list: Arc<Vec<Pool>>,
    pub unread: Arc<Vec<Unread>>,
    /// Pools of frameworks other than PyTorch.
    #[serde(rename = "reported_pools", alias = "told", skip_serializing_if = "is_empty")]
    pub reported: Arc<Vec<ReportedPool>>,
    /// Pools of pinned host memory, which frameworks use for copies from and to the GPU. They are not in `reported`,
    /// because they are not GPU memory.
    #[serde(skip_serializing_if = "is_empty")]
    pub pinned_host: Arc<Vec<ReportedPool>>,
}

fn is_empty(list: &Arc<Vec<ReportedPool>>) -> bool {
    list.is_empty()
}

impl Segment {
    /// Sets the address of each block that directly follows the previous one to 0, which is never a valid address.
    pub fn omit_implied_addresses(&mut self) {
        let mut next = self.address;
        for block in &mut self.blocks {
            let is_behind = block.address == next;
            next = block.address.saturating_add(block.size.0);
            if is_behind {
                block.address = 0;
            }
        }
    }
}

impl Pools {
    /// Returns the pools with statistics: those of PyTorch, and those of other frameworks on devices of processes without
    /// a pool of PyTorch, in the same form.
    pub fn with_statistics(&self) -> impl Iterator<Item = Cow<'_, Pool>> {
        self.and_reported(|_| true)
    }

    /// Returns the pools with a map: those of PyTorch, and those of JAX and TensorFlow that gputop reads itself.
    pub fn with_map(&self) -> impl Iterator<Item = Cow<'_, Pool>> {
        self.and_reported(|pool| pool.source == PoolSource::Memory && pool.allocator.is_bfc())
    }

    fn and_reported(
        &self,
        is_wanted: impl Fn(&ReportedPool) -> bool,
    ) -> impl Iterator<Item = Cow<'_, Pool>> {
        let key = |pool: &ReportedPool| (pool.process, pool.ordinal);
        let others = self.reported.iter().enumerate().filter(move |(at, pool)| {
            let is_same = |other: &Pool| (other.process, other.ordinal) == key(pool);
            let mut earlier = self.reported.iter().take(*at);
            is_wanted(pool)
                && !self.list.iter().any(is_same)
                && !earlier.any(|other| is_wanted(other) && key(other) == key(pool))
        });
        let others = others.filter_map(|(_, pool)| pool.to_pool()).map(Cow::Owned);
        self.list.iter().map(Cow::Borrowed).chain(others)
    }

    /// Returns a process's pools, ordered by device index.
    pub fn of(&self, process: ProcessKey) -> impl Iterator<Item = &Pool> {
        self.list.iter().filter(move |pool| pool.process == process)
    }

    /// Returns a process's pools of frameworks other than PyTorch.
    pub fn reported_of(&self, process: ProcessKey) -> impl Iterator<Item = &ReportedPool> {
        self.reported.iter().filter(move |pool| pool.process == process)
    }

    /// Returns the reason why a process's allocator could not be read, if gputop tried to read it.
    pub fn why_unread(&self, process: ProcessKey) -> Option<&Unread> {
        self.unread.iter().find(|unread| unread.process == process)
    }
}

impl PoolStats {
    /// Returns the reserved bytes not used by any tensor. Screens call them CACHED.
    pub fn cached(&self) -> Bytes {
        Bytes(self.reserved.last().0.saturating_sub(self.allocated.last().0))
    }

    /// Returns freed bytes that another stream may still use, a part of [`cached`](Self::cached).
    pub fn waiting(&self) -> Bytes {
        let waiting = self.active.last().0.saturating_sub(self.allocated.last().0);
        Bytes(waiting.min(self.cached().0))
    }
}
