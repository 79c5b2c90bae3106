//! PyTorch memory snapshots (`torch.cuda.memory._dump_snapshot`, `_snapshot()`, `memory_snapshot()`, and files from
//! `gputop run --trace-allocs`), read from their pickles. They contain every segment and block of each device at one
//! time, the last events before that time, and the Python stacks of the allocations.
//!
//! The file is only read, never executed: a pickle is a program, and instructions that import, call or build objects
//! are rejected (`machine`). Data is converted to records immediately (`store`), because a snapshot may contain ten
//! million events. The resulting [`Snapshot`] contains each device's records in order.
//!
//! ```text
//! bytes ─► input ─► machine ─► store ─► assemble ─► Snapshot ─► history (live blocks, growth), trace (what-if)
//! ```
//!
//! The content of a file depends on the torch version (torch/csrc/cuda/Module.cpp, `memorySnapshot`). Before 2.1,
//! blocks have no address and events no time; 2.0 and earlier store the stacks in a `history` of each block; `pool_id`
//! of events was added in 2.9. Missing data is not displayed, and unknown data is not read.
//!
//! All event sizes are requested sizes, before rounding. The same applies to [`Device::requested`] and to the allocated
//! bytes of [`history`]; `memory_allocated()` is slightly larger.

mod addresses;
mod analysis;
mod assemble;
pub mod compare;
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

use serde::{Serialize, Serializer};

pub use self::analysis::DeviceAnalysis;
pub use self::device::{Device, Held};
pub use self::error::SnapshotError;
pub use self::record::{Lane, NO_TIME, StackId, TraceAction, TraceEvent};
use self::stacks::Stacks;

#[derive(Debug, Default)]
pub struct Snapshot {
    /// Devices with at least one segment or event, sorted by number.
    pub devices: Vec<Device>,
    pub stacks: Stacks,
    /// Streams and pools, indexed by [`TraceEvent::lane`].
    pub lanes: Vec<Lane>,
    /// `allocator_settings` in file order; recorded by torch 2.0 and later.
    pub settings: Vec<(String, Setting)>,
}

/// The value of an allocator option at the time of the snapshot.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Setting {
    Text(String),
    Number(f64),
    Switch(bool),
    /// `roundup_power2_divisions` has one entry for each power of two, in MiB.
    #[serde(serialize_with = "as_map")]
    Table(Vec<(String, f64)>),
}

fn as_map<S: Serializer>(pairs: &[(String, f64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

/// Reads a snapshot from a file of `size` bytes. Memory and time limits depend on this size; for a compressed file it
/// is the compressed size.
pub fn read(input: impl Read, size: u64) -> Result<Snapshot, SnapshotError> {
    let (store, root) = machine::read(input, size)?;
    assemble::snapshot(store, root)
}

impl Snapshot {
    pub fn lane(&self, event: &TraceEvent) -> Lane {
        self.lanes.get(usize::from(event.lane)).copied().unwrap_or_default()
    }

    /// Returns the program's `PYTORCH_CUDA_ALLOC_CONF` if it is present in the file and not empty.
    pub fn conf(&self) -> Option<&str> {
        self.settings.iter().find_map(|(name, value)| match value {
            Setting::Text(text) if name.ends_with("ALLOC_CONF") && !text.is_empty() => {
                Some(text.as_str())
            }
            _ => None,
        })
    }
}
