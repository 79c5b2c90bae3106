//! A snapshot with the analysis of its devices.

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
