//! PyTorch's memory snapshots (`torch.cuda.memory._dump_snapshot`, `_snapshot()`, `memory_snapshot()`; those of
//! `gputop run --trace-allocs`), read from their pickles: every segment and block of each device at one moment, the
//! last events before it, and the Python stacks that asked for them.
//!
//! Pure reading of bytes: a pickle is a program, and this one's instructions that import, call or build are refused
//! (`machine`). What is read goes into records at once (`store`), since a snapshot may hold ten million events;
//! at the end [`Snapshot`] has the records of each device in order.
//!
//! ```text
//! bytes ─► input ─► machine ─► store ─► whole ─► Snapshot ─► history (live blocks, growth), trace (what-if)
//! ```
//!
//! What a file holds depends on the version of torch (torch/csrc/cuda/Module.cpp, `memorySnapshot`): before 2.1 blocks
//! have no address and events no time, and 2.0 and earlier keep the stacks in a `history` of each block, `pool_id` of events came in
//! 2.9. What is missing is left out of what is shown; what is not known is not read.
//!
//! All sizes of events are what was asked for, before rounding: so is [`Device::requested`], and the allocated bytes of
//! [`history`] with it; `memory_allocated()` is a little more.

mod addresses;
mod analysis;
mod assemble;
mod device;
mod error;
pub mod history;
mod input;
mod machine;
mod opcode;
mod record;
pub mod stacks;
mod store;
mod text;
mod trace;

use std::io::Read;

pub use self::analysis::Study;
pub use self::device::{Device, Held};
pub use self::error::SnapshotError;
pub use self::record::{Action, Event, Lane, NO_TIME, StackId};
use self::stacks::Stacks;

/// A whole snapshot.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Those that have a segment or an event, by their number.
    pub devices: Vec<Device>,
    pub stacks: Stacks,
    /// Streams and pools, by [`Event::lane`].
    pub lanes: Vec<Lane>,
    /// `allocator_settings`, in the order of the file; from torch 2.0 on.
    pub settings: Vec<(String, Setting)>,
}

/// An option of the allocator as it was in force.
#[derive(Debug, Clone, PartialEq)]
pub enum Setting {
    Text(String),
    Number(f64),
    Switch(bool),
    /// `roundup_power2_divisions` has one for each power of two, in MiB.
    Table(Vec<(String, f64)>),
}

/// Reads a snapshot from a file of `size` bytes. The size limits memory and time; for a compressed file it is the compressed size.
///
/// # Errors
/// With one sentence: what is wrong and where.
pub fn read(input: impl Read, size: u64) -> Result<Snapshot, SnapshotError> {
    let (store, root) = machine::read(input, size)?;
    assemble::snapshot(store, root)
}

impl Snapshot {
    pub fn lane(&self, event: &Event) -> Lane {
        self.lanes
            .get(usize::from(event.lane))
            .copied()
            .unwrap_or_default()
    }

    /// `PYTORCH_CUDA_ALLOC_CONF` of the program, where the file says it and it was set.
    pub fn conf(&self) -> Option<&str> {
        self.settings.iter().find_map(|(name, value)| match value {
            Setting::Text(text) if name.ends_with("ALLOC_CONF") && !text.is_empty() => {
                Some(text.as_str())
            }
            _ => None,
        })
    }
}
