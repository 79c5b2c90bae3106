//! The records of a snapshot, reduced to the necessary fields. A 1 GB pickle with ten million events shrinks to 320 MB.

use gputop_model::pool::BlockState;

use super::text::TextId;
use crate::trace::PoolId;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PickleValue {
    None,
    Bool(bool),
    Int(i64),
    /// An integer above the range of `Int`.
    Large(u64),
    /// An integer too large to be a size or an address.
    Huge,
    Float(f64),
    Text(TextId),
    Object(ObjectId),
}

pub type ObjectId = u32;

/// A stack in a snapshot, as an index into [`Stacks`](super::stacks::Stacks); 0 is the empty stack.
pub type StackId = u32;

gputop_model::named! {
    /// The type of an entry in a device's trace.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum TraceAction {
        Alloc = "alloc",
        FreeRequested = "free_requested",
        FreeCompleted = "free_completed",
        SegmentAlloc = "segment_alloc",
        SegmentFree = "segment_free",
        SegmentMap = "segment_map",
        SegmentUnmap = "segment_unmap",
        Snapshot = "snapshot",
        Oom = "oom",
        UserDefined = "user_defined",
        /// An event type added by a later PyTorch version.
        #[default]
        Unknown = "unknown",
    }
    /// Returns the name of the action in snapshot files.
    fn name;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEvent {
    /// Address of the memory. For an OOM event, the free memory that the driver reported, in bytes.
    pub addr: u64,
    /// Size in bytes. For an allocation, the requested size before rounding.
    pub size: u64,
    /// Microseconds since 1970, from PyTorch's clock; [`NO_TIME`] in files from torch versions before 2.1.
    pub time_us: i64,
    pub stack: StackId,
    /// Stream and pool, as an index into [`Snapshot::lanes`](super::Snapshot::lanes).
    pub lane: u16,
    pub action: TraceAction,
}

pub const NO_TIME: i64 = i64::MIN;

impl Default for TraceEvent {
    fn default() -> Self {
        Self { addr: 0, size: 0, time_us: NO_TIME, stack: 0, lane: 0, action: TraceAction::Unknown }
    }
}

/// A stream and the memory pool that it allocates from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Lane {
    pub stream: u64,
    pub pool: PoolId,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct BlockRecord {
    /// `None` if the file was written by a torch version before 2.1, which recorded no block addresses. The blocks of a
    /// segment are then contiguous.
    pub address: Option<u64>,
    pub size: u64,
    pub requested: Option<u64>,
    pub stack: StackId,
    pub state: BlockState,
}

#[derive(Debug, Clone, Default)]
pub struct SegmentRecord {
    pub device: u32,
    pub address: u64,
    pub total_size: u64,
    pub stream: u64,
    pub pool: PoolId,
    pub is_large: Option<bool>,
    pub is_expandable: bool,
    /// The block list, resolved at the end because several segments may refer to the same list.
    pub blocks: Option<PickleValue>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FrameRecord {
    pub file: TextId,
    pub function: TextId,
    pub line: u32,
}
