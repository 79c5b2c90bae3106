//! Traces of the requests to PyTorch's caching allocator on one device, in order. [`model`](super::model) replays them
//! under other settings.
//!
//! Every source (a memory snapshot's `device_traces`, the hook's trace, the current blocks of a running process) is
//! converted to one [`Trace`] per device. Most [`Op`]s are actions of the *program*: allocate, free, empty the cache.
//! The allocator's own actions (segments) depend on the settings. They are stored as [`RecordedAction`], so that a
//! replay under the program's own settings can be checked against the recording.
//!
//! The events of a snapshot map to operations as follows:
//!
//! | `action` | |
//! |---|---|
//! | `alloc` | [`Op::Alloc`]; its `size` is the requested size, before rounding |
//! | `free_requested` | [`Op::Free`] |
//! | `free_completed` | [`Op::FreeCompleted`] |
//! | `segment_alloc`, `segment_map` | [`Op::Recorded`] with [`RecordedAction::Reserved`] |
//! | `segment_free`, `segment_unmap` | [`Op::Recorded`] with [`RecordedAction::Returned`] |
//! | `oom` | [`Op::Refused`]; its `size` is the rounded size |
//!
//! PyTorch keeps only the latest events. Blocks that were live before the first event are in [`Trace::start`].

pub use gputop_model::pool::PoolId;
use gputop_model::units::Bytes;

/// Identifier of an operation's block: any number that no other *live* block has. This is the block's address if the
/// trace contains addresses.
pub type BlockId = u64;

/// One event of an allocation trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// The program requests memory.
    Alloc {
        block: BlockId,
        /// Requested size, before rounding.
        requested: Bytes,
        /// CUDA stream handle. 0 is the default stream.
        stream: u64,
        pool: PoolId,
    },
    /// The program frees a block. The block stays active until [`FreeCompleted`](Self::FreeCompleted), which follows
    /// immediately unless other streams used the block (`record_stream`).
    Free { block: BlockId },
    /// A freed block becomes available. Sources that do not distinguish between freeing and completion produce both
    /// operations.
    FreeCompleted { block: BlockId },
    /// A request that failed with an out-of-memory error in the recording.
    Refused {
        requested: Bytes,
        stream: u64,
        pool: PoolId,
        /// Free memory reported by the driver when the request failed.
        driver_free: Option<Bytes>,
    },
    /// `torch.cuda.empty_cache()`.
    EmptyCache,
    /// A graph or a `MemPool` was destroyed. Its memory is released once its blocks are free.
    ReleasePool { pool: PoolId },
    /// Action of the allocator in the recording. Replays ignore it.
    Recorded(RecordedAction),
}

/// Action of the recorded program's allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedAction {
    /// Memory was obtained from the driver: `segment_alloc` or `segment_map`.
    Reserved(Bytes),
    /// Memory was released to the driver: `segment_free` or `segment_unmap`.
    Returned(Bytes),
}

/// A block that was already allocated when the trace began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Live {
    pub block: BlockId,
    /// Requested size of the block, or its actual size if unknown.
    pub requested: Bytes,
    pub stream: u64,
    pub pool: PoolId,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trace {
    /// Device index as seen by the process.
    pub device: u32,
    /// Blocks that were live when the trace began, sorted by address. Their allocation order is unknown, and the
    /// address order is the best available approximation.
    pub start: Vec<Live>,
    pub ops: Vec<Op>,
    /// True if the trace does not contain the earliest events, because the source retains only a limited number.
    pub cut: bool,
    pub recorded: Recorded,
}

/// Known properties of the recorded program.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Recorded {
    /// Major and minor version of a torch release: `(2, 8)` for torch 2.8.
    pub torch: Option<(u16, u16)>,
    /// The recorded program's `PYTORCH_CUDA_ALLOC_CONF`.
    pub conf: Option<String>,
    /// Device memory available to programs.
    pub card: Option<Bytes>,
    /// Device memory used outside the allocator: context, libraries, other processes.
    pub outside: Option<Bytes>,
    /// The allocator's own peak of reserved memory.
    pub reserved_peak: Option<Bytes>,
    pub reserved_end: Option<Bytes>,
}
