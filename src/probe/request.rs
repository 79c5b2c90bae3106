//! The job that the parent sends to the child.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::pattern::Pattern;
use crate::model::probe::{DEFAULT_ARENA, DEFAULT_LIMIT, POLICIES, Policy};
use crate::model::reading::Reading;
use crate::model::units::{Bytes, GpuUuid, Millis};

/// One line of JSON on the child's standard input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChildRequest {
    /// NVML's UUID of a GPU or MIG device.
    pub gpu: GpuUuid,
    /// Current free memory as NVML counts it.
    pub nvml_free: Reading<Bytes>,
    /// True if other processes use the GPU.
    pub others: bool,
    pub limit: Millis,
    /// Memory that the user wants to leave free, instead of [`default_headroom`](crate::model::probe::default_headroom).
    pub headroom: Option<Bytes>,
    /// Run the probe even if it could disturb other processes.
    pub force: bool,
    pub policies: Vec<Policy>,
    /// Only check whether the probe is possible, without creating a context or allocating memory.
    pub look: bool,
    pub arena: Bytes,
    pub pattern: Pattern,
    /// Folder for the lock files of probes, or `None` if this user has no such folder.
    pub locks: Option<PathBuf>,
    /// PID of the requesting process. The child exits when that process does.
    pub parent: u32,
}

impl Default for ChildRequest {
    fn default() -> Self {
        Self {
            gpu: GpuUuid::default(),
            nvml_free: Reading::default(),
            others: false,
            limit: DEFAULT_LIMIT,
            headroom: None,
            force: false,
            policies: POLICIES.to_vec(),
            look: false,
            arena: DEFAULT_ARENA,
            pattern: Pattern::default(),
            locks: None,
            parent: std::process::id(),
        }
    }
}
