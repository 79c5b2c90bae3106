//! A memory pool of a process on one device: PyTorch's caching allocator. Other frameworks report fewer values, which
//! are in [`reported_pool`](super::reported_pool).
//!
//! A pool has statistics, which are cheap enough to read 20 times a second, and a map of segments and blocks, which is
//! read only while a user views it. The names are PyTorch's: allocated, reserved, active, segment, block, inactive
//! split.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::process::ProcessKey;
use super::reading::Reading;
use super::reported_pool::ReportedPool;
use super::units::{Bytes, GpuUuid, Mono};

/// One pool: one process, one allocator, one device of that process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pool {
    pub process: ProcessKey,
    pub allocator: Allocator,
    /// The recognised layout of the library: `torch 2.13 to 2.15`.
    pub library: String,
    /// The device's number inside the process, which is not NVML's.
    pub ordinal: u32,
    /// The GPU with that number, if known.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub gpu: Reading<GpuUuid>,
    /// Time of the last read of the statistics.
    pub at: Mono,
    pub stats: PoolStats,
}

/// The allocator of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Allocator {
    /// PyTorch's own caching allocator, which is fully readable.
    Native,
    /// PyTorch with the driver's own pool, whose state is not in the process.
    CudaMallocAsync,
    /// A library supplied by the user.
    Pluggable,
    /// XLA's best-fit allocator with coalescing: JAX's default.
    XlaBfc,
    /// TensorFlow's best-fit allocator with coalescing.
    TensorflowBfc,
    /// CuPy's default memory pool.
    CupyMemoryPool,
    #[default]
    #[serde(other)]
    Unknown,
}

impl Allocator {
    /// Returns the usual name: `XLA BFC`.
    pub fn words(self) -> &'static str {
        match self {
            Self::Native => "PyTorch's caching allocator",
            Self::CudaMallocAsync => "cudaMallocAsync",
            Self::Pluggable => "pluggable allocator",
            Self::XlaBfc => "XLA BFC",
            Self::TensorflowBfc => "TensorFlow BFC",
            Self::CupyMemoryPool => "CuPy memory pool",
            Self::Unknown => "unknown allocator",
        }
    }
}

/// Minimum, maximum and last value of a number since the previous frame.
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

    /// Adds one more sample.
    #[must_use]
    pub fn and(self, value: Bytes) -> Self {
        Self(self.0.min(value), self.1.max(value), value)
    }
}

/// PyTorch's DeviceStats, aggregated over small and large blocks.
///
/// `peak` is PyTorch's own value since the program started or last called `reset_peak_memory_stats`. Counters restart
/// at 0 after `reset_accumulated_memory_stats`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolStats {
    pub allocated: Sampled,
    pub allocated_peak: Bytes,
    pub reserved: Sampled,
    pub reserved_peak: Bytes,
    /// Allocated blocks, and freed blocks that wait for another stream.
    pub active: Sampled,
    pub active_peak: Bytes,
    /// Free blocks in segments that also contain a live block. Always 0 with expandable segments.
    pub inactive_split: Bytes,
    pub inactive_split_peak: Bytes,
    /// Bytes that the program requested, before rounding. Available in torch 2.0 and later.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub requested: Reading<Bytes>,
    pub segments: u64,
    pub segments_peak: u64,
    pub num_alloc_retries: u64,
    pub num_ooms: u64,
    /// The largest free block of any stream, taken from the last node of each free tree. Only the map has the exact
    /// value.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub largest_free_block: Reading<Bytes>,
}

/// Every segment and block of a pool at one time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolMap {
    pub process: ProcessKey,
    pub ordinal: u32,
    pub at: Mono,
    /// True if the statistics were equal before and after the map was read, and all sums agree.
    pub exact: bool,
    /// Sorted by address.
    pub segments: Vec<Segment>,
}

/// A map that was read because an allocation failed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FailureMap {
    /// Time of the previous sample, before the failure.
    pub since: Mono,
    pub map: PoolMap,
}

/// Memory allocated by one driver call, or, with expandable segments, one mapped range.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Segment {
    pub address: u64,
    pub size: Bytes,
    pub pool: PoolKind,
    /// The private pool that the segment belongs to, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_id: Option<PoolId>,
    /// Handle of the CUDA stream; 0 is the default stream.
    pub stream: u64,
    pub expandable: bool,
    /// Sorted by address, without gaps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<Block>,
}

/// A private pool, as numbered by PyTorch (`segment_pool_id`); `(0, 0)` stands for the shared pools.
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
    /// The pool of a MemPool or of a CUDA graph.
    Private,
    #[default]
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Block {
    /// Omitted from JSON if 0, which is never the address of a block. Blocks in a recording are contiguous, so most
    /// addresses are omitted.
    #[serde(skip_serializing_if = "is_zero")]
    pub address: u64,
    pub size: Bytes,
    /// Bytes that the program requested. Set for allocated blocks only.
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
    /// Used by a live tensor.
    Allocated,
    /// Freed blocks that another stream may still use.
    Active,
    Free,
    /// Address space of an expandable segment without physical memory. It is not part of reserved memory.
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
    /// The reason, and a workaround that this user can apply.
    pub why: super::reading::Missing,
}

/// The pools of all processes, from one read.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pools {
    pub at: Mono,
    pub list: Arc<Vec<Pool>>,
    pub unread: Arc<Vec<Unread>>,
    /// Pools reported by other frameworks.
    #[serde(
        rename = "reported_pools",
        alias = "told",
        skip_serializing_if = "is_empty"
    )]
    pub reported: Arc<Vec<ReportedPool>>,
}

fn is_empty(list: &Arc<Vec<ReportedPool>>) -> bool {
    list.is_empty()
}

impl Segment {
    /// Sets the address of each block that directly follows the previous one to 0, which is never the address of a
    /// block.
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
    /// Returns the pools of a process in the order of their device numbers.
    pub fn of(&self, process: ProcessKey) -> impl Iterator<Item = &Pool> {
        self.list.iter().filter(move |pool| pool.process == process)
    }

    /// Returns the pools that other frameworks in a process report.
    pub fn reported_of(&self, process: ProcessKey) -> impl Iterator<Item = &ReportedPool> {
        let reported = self.reported.iter();
        reported.filter(move |pool| pool.process == process)
    }

    /// Returns the reason why the allocator of a process could not be read, if reading was tried.
    pub fn why_unread(&self, process: ProcessKey) -> Option<&Unread> {
        self.unread.iter().find(|unread| unread.process == process)
    }
}

impl PoolStats {
    /// Returns the reserved bytes that no tensor uses; the screen calls them IDLE.
    pub fn idle(&self) -> Bytes {
        Bytes(
            self.reserved
                .last()
                .0
                .saturating_sub(self.allocated.last().0),
        )
    }

    /// Returns freed bytes that another stream may still use. They are a part of [`idle`](Self::idle).
    pub fn waiting(&self) -> Bytes {
        let waiting = self.active.last().0.saturating_sub(self.allocated.last().0);
        Bytes(waiting.min(self.idle().0))
    }
}
