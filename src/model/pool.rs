//! A memory pool that a process keeps on one device: PyTorch's caching allocator. What other frameworks tell of theirs
//! is less, and in [`told`](super::reported_pool).
//!
//! A pool has statistics, cheap enough for twenty reads a second, and a map of segments and blocks, read only while
//! someone looks. Names are the field's: allocated, reserved, active, segment, block, inactive split.

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
    /// What the layout of the library was recognised as: `torch 2.13 to 2.15`.
    pub library: String,
    /// The device's number inside the process, which is not NVML's.
    pub ordinal: u32,
    /// Which GPU that is, when it could be told.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub gpu: Reading<GpuUuid>,
    /// When the last statistics were read.
    pub at: Mono,
    pub stats: PoolStats,
}

/// Who hands the memory out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Allocator {
    /// PyTorch's own caching allocator: everything can be read.
    Native,
    /// PyTorch on the driver's pool: nothing of it is in the process.
    CudaMallocAsync,
    /// The user's own library.
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
    /// As the field calls it: `XLA BFC`.
    #[must_use]
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

/// A number over the time between two frames: its least, its greatest and its last value.
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

    /// Takes in one more sample.
    #[must_use]
    pub fn and(self, value: Bytes) -> Self {
        Self(self.0.min(value), self.1.max(value), value)
    }
}

/// PyTorch's DeviceStats, the aggregate of small and large blocks.
///
/// `peak` is PyTorch's own: since the program began, or since it last called `reset_peak_memory_stats`. Counters go
/// back to 0 on `reset_accumulated_memory_stats`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolStats {
    pub allocated: Sampled,
    pub allocated_peak: Bytes,
    pub reserved: Sampled,
    pub reserved_peak: Bytes,
    /// Allocated, and freed blocks that wait for another stream.
    pub active: Sampled,
    pub active_peak: Bytes,
    /// Free blocks in segments that hold a live block too. Always 0 with expandable segments.
    pub inactive_split: Bytes,
    pub inactive_split_peak: Bytes,
    /// What the program asked for, before rounding; from torch 2.0 on.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub requested: Reading<Bytes>,
    pub segments: u64,
    pub segments_peak: u64,
    pub num_alloc_retries: u64,
    pub num_ooms: u64,
    /// The largest free block of any stream, from the last node of each free tree; the map knows it exactly.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub largest_free_block: Reading<Bytes>,
}

/// Every segment and block of a pool at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolMap {
    pub process: ProcessKey,
    pub ordinal: u32,
    pub at: Mono,
    /// The statistics were the same before and after the walk and all sums agree.
    pub exact: bool,
    /// By address.
    pub segments: Vec<Segment>,
}

/// A map that was read because an allocation failed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FailureMap {
    /// The last sample before: it had not failed then.
    pub since: Mono,
    pub map: PoolMap,
}

/// Memory got from the driver in one piece; with expandable segments, one mapped stretch.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Segment {
    pub address: u64,
    pub size: Bytes,
    pub pool: PoolKind,
    /// Which private pool it is of, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_id: Option<PoolId>,
    /// The stream's handle; 0 is the default stream.
    pub stream: u64,
    pub expandable: bool,
    /// By address, without gaps.
    pub blocks: Vec<Block>,
}

/// A private pool, as PyTorch numbers it (`segment_pool_id`); `(0, 0)` is the pools that everything without one shares.
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
    /// A MemPool or a CUDA graph's own.
    Private,
    #[default]
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Block {
    /// Left out of JSON when 0, which no block's is: a recording's blocks lie each behind the one before.
    #[serde(skip_serializing_if = "is_zero")]
    pub address: u64,
    pub size: Bytes,
    /// What the program asked for; only an allocated block has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested: Option<Bytes>,
    pub state: BlockState,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(address: &u64) -> bool {
    *address == 0
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockState {
    /// In a live tensor.
    Allocated,
    /// Freed, but another stream may still use it.
    Active,
    Free,
    /// Address space of an expandable segment without memory behind it: not reserved.
    Unmapped,
    #[default]
    #[serde(other)]
    Unknown,
}

/// A process whose allocator could not be read, or is of a kind that holds nothing to read.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Unread {
    pub process: ProcessKey,
    pub allocator: Allocator,
    /// Why, and the way out that this user has.
    pub why: super::reading::Missing,
}

/// The pools of all processes, as one reading.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pools {
    pub at: Mono,
    pub list: Arc<Vec<Pool>>,
    pub unread: Arc<Vec<Unread>>,
    /// What other frameworks tell of their own.
    #[serde(
        rename = "reported_pools",
        alias = "told",
        skip_serializing_if = "is_empty"
    )]
    pub told: Arc<Vec<ReportedPool>>,
}

fn is_empty(list: &Arc<Vec<ReportedPool>>) -> bool {
    list.is_empty()
}

impl Segment {
    /// Of blocks that lie each behind the one before: 0 stands for that, which is no block's address.
    pub fn leave_out_addresses(&mut self) {
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
    /// The pools of a process, by ordinal as a reader lists them.
    pub fn of(&self, process: ProcessKey) -> impl Iterator<Item = &Pool> {
        self.list.iter().filter(move |pool| pool.process == process)
    }

    /// What the frameworks of a process tell of their own pools.
    pub fn told_of(&self, process: ProcessKey) -> impl Iterator<Item = &ReportedPool> {
        self.told.iter().filter(move |told| told.process == process)
    }

    /// Why the allocator of a process could not be read, if that was tried.
    pub fn why_unread(&self, process: ProcessKey) -> Option<&Unread> {
        self.unread.iter().find(|unread| unread.process == process)
    }
}

impl PoolStats {
    /// Reserved, in no tensor: what the screen calls IDLE.
    pub fn idle(&self) -> Bytes {
        Bytes(
            self.reserved
                .last()
                .0
                .saturating_sub(self.allocated.last().0),
        )
    }

    /// Freed, but another stream may still use it: a part of [`idle`](Self::idle).
    pub fn waiting(&self) -> Bytes {
        let waiting = self.active.last().0.saturating_sub(self.allocated.last().0);
        Bytes(waiting.min(self.idle().0))
    }
}
