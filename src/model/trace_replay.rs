//! Results of replaying the allocation trace of a program that ran out of memory, under other settings of PyTorch's
//! allocator. The host that has the trace replays it and sends the results to the observers that explain the failure.

use serde::{Deserialize, Serialize};

use super::units::Bytes;

/// The replay of one failure.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceReplay {
    /// Device number inside the process.
    pub ordinal: u32,
    /// Free memory of the GPU at the failure, which distinguishes it from other failures of the process.
    pub free_bytes: Bytes,
    /// The program's peak of reserved memory up to the failure, under its own settings.
    pub peak_reserved_bytes: Bytes,
    /// Number of operations before the failure, if the trace does not reach back to the program's start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_operations: Option<u64>,
    pub tried: Vec<SettingResult>,
    /// Reason why the replay has no result, as a sentence. In that case, nothing was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// The result of one setting.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SettingResult {
    /// The setting in the syntax of `PYTORCH_CUDA_ALLOC_CONF`.
    pub conf: String,
    #[serde(rename = "fate")]
    pub outcome: ReplayOutcome,
    /// Peak of reserved memory up to the request that failed, or up to an earlier request that fails under this
    /// setting.
    pub peak_reserved_bytes: Bytes,
    /// Size of that earlier request, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fails_at_bytes: Option<Bytes>,
}

/// Outcome of the failed request under another setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplayOutcome {
    Fits,
    /// The request fails again.
    Same,
    /// An earlier request fails.
    Earlier,
    #[default]
    #[serde(other)]
    Unknown,
}
