//! A memory snapshot as `gputop snapshot` prints it.

mod json;
mod text;

pub use json::json;
pub use text::{BEFORE, UNKNOWN, oom_words, seconds, settings, signed, text};

use crate::snapshot::{Device, Snapshot, Study};

/// A device, and what was computed of it.
pub struct Studied<'s> {
    pub device: &'s Device,
    pub study: &'s Study,
}

/// A snapshot, and those of its devices that are wanted.
pub struct Shown<'s> {
    /// The file's name, harmless to show.
    pub name: &'s str,
    pub snapshot: &'s Snapshot,
    pub devices: Vec<Studied<'s>>,
}

/// Why a device has no trace.
pub const NO_TRACE: &str = "no history was recorded: `torch.cuda.memory._record_memory_history()` at the start of the program does";
