//! What a snapshot consists of, each as the few numbers that are kept of it: of ten million events a gigabyte of
//! pickle becomes 320 MB.

use super::store::Value;
use super::text::TextId;
use crate::allocator::trace::PoolId;
use crate::model::pool::BlockState;

/// A stack of a snapshot, by its place in [`Stacks`](super::stacks::Stacks); 0 is none.
pub type StackId = u32;

/// What an entry of a device's trace says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    Snapshot,
    Oom,
    UserDefined,
    /// What a later version may add.
    #[default]
    Unknown,
}

impl Action {
    /// Its name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Snapshot => "snapshot",
            Self::Oom => "oom",
            Self::UserDefined => "user_defined",
            Self::Unknown => "unknown",
        }
    }
}

/// An entry of a device's trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Of an OOM what the driver had free, in bytes; else an address.
    pub addr: u64,
    /// In bytes; of an allocation what was asked for, before rounding.
    pub size: u64,
    /// Microseconds of the clock that PyTorch took (since 1970); [`NO_TIME`] before torch 2.1.
    pub time_us: i64,
    pub stack: StackId,
    /// Stream and pool, by their place in [`Snapshot::lanes`](super::Snapshot::lanes).
    pub lane: u16,
    pub action: Action,
}

pub const NO_TIME: i64 = i64::MIN;

impl Default for Event {
    fn default() -> Self {
        Self {
            addr: 0,
            size: 0,
            time_us: NO_TIME,
            stack: 0,
            lane: 0,
            action: Action::Unknown,
        }
    }
}

/// A stream and the pool that its memory is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Lane {
    pub stream: u64,
    pub pool: PoolId,
}

/// A block as the file has it.
#[derive(Debug, Clone, Copy, Default)]
pub struct BlockRecord {
    /// Not there before torch 2.1: the blocks of a segment lie behind each other.
    pub address: Option<u64>,
    pub size: u64,
    pub requested: Option<u64>,
    pub stack: StackId,
    pub state: BlockState,
}

/// A segment as the file has it.
#[derive(Debug, Clone, Default)]
pub struct SegmentRecord {
    pub device: u32,
    pub address: u64,
    pub total_size: u64,
    pub stream: u64,
    pub pool: PoolId,
    pub is_large: Option<bool>,
    pub is_expandable: bool,
    /// The list of its blocks. Resolved at the end, because many segments may name the same list.
    pub blocks: Option<Value>,
}

/// A line of a stack as the file has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FrameRecord {
    pub file: TextId,
    pub function: TextId,
    pub line: u32,
}
