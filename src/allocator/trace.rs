//! What a program did to PyTorch's caching allocator: the requests of one device in their order, which
//! [`model`](super::model) replays under other settings.
//!
//! Whoever reads a history (a memory snapshot's `device_traces`, the hook's trace, the present blocks of a running
//! process) writes it down as a [`Trace`], once per device. Only what the *program* did is an [`Op`]: allocate, free,
//! empty the cache. What the allocator did in answer (segments) is another setting's to decide; it is
//! kept as [`RecordedAction`], to tell how near the replay under the program's own settings comes to what happened.
//!
//! A snapshot's events become operations like this:
//!
//! | `action` | |
//! |---|---|
//! | `alloc` | [`Op::Alloc`]; its `size` is what was asked for, before rounding |
//! | `free_requested` | [`Op::Free`] |
//! | `free_completed` | [`Op::FreeCompleted`] |
//! | `segment_alloc`, `segment_map` | [`Op::Recorded`] with [`RecordedAction::Reserved`] |
//! | `segment_free`, `segment_unmap` | [`Op::Recorded`] with [`RecordedAction::Returned`] |
//! | `oom` | [`Op::Refused`]; its `size` is the rounded one |
//!
//! PyTorch keeps the last events only. A block that lived before the first one is in [`Trace::start`].

pub use crate::model::pool::PoolId;
use crate::model::units::Bytes;

/// Which block an operation means: any number that no other *live* block has. Where the history knows addresses, the
/// block's address.
pub type BlockId = u64;

/// One event of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A request.
    Alloc {
        block: BlockId,
        /// What was asked for, before rounding.
        requested: Bytes,
        /// The stream's handle; 0 is the default stream.
        stream: u64,
        pool: PoolId,
    },
    /// The program let go of a block. It is active until [`FreeCompleted`](Self::FreeCompleted): at once, unless
    /// other streams used it (`record_stream`).
    Free { block: BlockId },
    /// A block that was let go is free now. Where a history does not tell the two apart, it says both.
    FreeCompleted { block: BlockId },
    /// A request that failed with out of memory in the recording.
    Refused {
        requested: Bytes,
        stream: u64,
        pool: PoolId,
        /// What the driver had free then.
        driver_free: Option<Bytes>,
    },
    /// `torch.cuda.empty_cache()`.
    EmptyCache,
    /// A graph or a `MemPool` was destroyed: its memory goes back once its blocks are free.
    ReleasePool { pool: PoolId },
    /// What the allocator did, which no replay needs.
    Recorded(RecordedAction),
}

/// What the recorded program's allocator did in answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedAction {
    /// Memory came from the driver: `segment_alloc` or `segment_map`.
    Reserved(Bytes),
    /// It went back: `segment_free` or `segment_unmap`.
    Returned(Bytes),
}

/// A block that was live before the history begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Live {
    pub block: BlockId,
    /// What was asked for; where that is not known, the block's own size.
    pub requested: Bytes,
    pub stream: u64,
    pub pool: PoolId,
}

/// The history of one device.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trace {
    /// The device's number inside the process.
    pub device: u32,
    /// Blocks that lived already, in the order of their addresses, which is the nearest thing to the order in which
    /// they were made.
    pub start: Vec<Live>,
    pub ops: Vec<Op>,
    /// The events before the first are lost: the recording keeps only so many.
    pub cut: bool,
    pub recorded: Recorded,
}

/// What is known of the program that was recorded.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Recorded {
    /// `(2, 8)` for torch 2.8.
    pub torch: Option<(u16, u16)>,
    /// `PYTORCH_CUDA_ALLOC_CONF` as the program had it.
    pub conf: Option<String>,
    /// What the device has for programs.
    pub card: Option<Bytes>,
    /// On the device and not the allocator's: context, libraries, other processes.
    pub outside: Option<Bytes>,
    /// The allocator's own peak of reserved memory.
    pub reserved_peak: Option<Bytes>,
    /// What it had reserved when the history ended.
    pub reserved_end: Option<Bytes>,
}
