//! What the allocations of a program that ran out of memory would have come to under other settings of PyTorch's
//! allocator: the replay of its allocation trace, made where the trace lies and told to whoever explains the failure.

use serde::{Deserialize, Serialize};

use super::units::Bytes;

/// The replay of one failure.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Replayed {
    /// The device's number inside the process.
    pub ordinal: u32,
    /// What was free on the card when it failed: tells this failure from others of the process.
    pub free_bytes: Bytes,
    /// The most that the program had reserved until then, under its own settings.
    pub peak_reserved_bytes: Bytes,
    /// Only so many operations before the failure are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_operations: Option<u64>,
    pub tried: Vec<SettingResult>,
    /// Why it tells nothing: a sentence. Then nothing was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SettingResult {
    /// As `PYTORCH_CUDA_ALLOC_CONF` takes it.
    pub conf: String,
    pub fate: Fate,
    /// The most that is reserved until the request that failed, or until what fails earlier.
    pub peak_reserved_bytes: Bytes,
    /// The request that fails, where it is an earlier one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fails_at_bytes: Option<Bytes>,
}

/// What becomes of the request that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    Fits,
    /// It fails as it did.
    Same,
    /// One before it fails.
    Earlier,
    #[default]
    #[serde(other)]
    Unknown,
}
