//! Formats the output of `gputop snapshot`, for one or two snapshots, as text and as JSON.

mod compare;
mod json;
mod text;

pub use compare::{
    comparison_json, comparison_text, figure_lines, total_lines, where_words, with_sign,
};
pub use json::json;
pub use text::{BEFORE, UNKNOWN, oom_words, seconds, settings, signed, text};

use crate::snapshot::{Device, DeviceAnalysis, Snapshot};

pub struct AnalysedDevice<'s> {
    pub device: &'s Device,
    pub study: &'s DeviceAnalysis,
}

pub struct SnapshotOutput<'s> {
    /// File name of the snapshot, safe to print.
    pub name: &'s str,
    pub snapshot: &'s Snapshot,
    pub devices: Vec<AnalysedDevice<'s>>,
}

pub const NO_TRACE: &str = "no history recorded; call `torch.cuda.memory._record_memory_history()` at the start of the program";
