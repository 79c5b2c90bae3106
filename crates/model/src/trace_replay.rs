//! Results of replaying an allocation trace with different PyTorch allocator settings, after the program ran out of
//! memory. The trace is replayed on the host where it was recorded, which sends the results to all observers of the
//! failure.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::units::Bytes;

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceReplay {
    /// Device index as seen by the process.
    pub ordinal: u32,
    /// Free memory on the GPU when the failure happened. Distinguishes the failure from others in the same process.
    pub free_bytes: Bytes,
    /// The program's peak reserved memory up to the failure, with its own settings.
    pub peak_reserved_bytes: Bytes,
    /// Number of operations in the trace, if the trace does not reach back to the program's start.
    pub last_operations: Option<u64>,
    pub tried: Vec<SettingResult>,
    /// Reason why the replay has no result, as a sentence. No settings were tried in this case.
    pub missing: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SettingResult {
    /// Allocator setting in the syntax of `PYTORCH_CUDA_ALLOC_CONF`.
    pub conf: String,
    #[serde(rename = "fate")]
    pub outcome: ReplayOutcome,
    /// Peak reserved memory up to the failed request, or up to an earlier request that fails with the setting.
    pub peak_reserved_bytes: Bytes,
    /// Size of an earlier request that fails with the setting, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fails_at_bytes: Option<Bytes>,
}

/// Outcome of replaying up to the failed request with another allocator setting.
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
