//! The probe request that the parent process sends to its child.

use std::path::PathBuf;

use gputop_model::probe::{DEFAULT_ARENA, DEFAULT_LIMIT, POLICIES};
use gputop_model::{Bytes, GpuUuid, Millis, Policy, Reading};
use serde::{Deserialize, Serialize};

use super::pattern::AllocationPattern;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChildRequest {
    /// NVML's UUID of a GPU or MIG device.
    pub gpu: GpuUuid,
    /// Current free memory as counted by NVML.
    pub nvml_free: Reading<Bytes>,
    /// True if other processes use the GPU.
    pub others: bool,
    pub limit: Millis,
    /// Memory that the user wants to leave free, instead of [`default_headroom`](gputop_model::probe::default_headroom).
    pub headroom: Option<Bytes>,
    /// True if the probe should run even if it could disturb other processes.
    pub force: bool,
    pub policies: Vec<Policy>,
    /// True to only check whether a probe is possible, without creating a CUDA context or allocating memory.
    pub look: bool,
    pub arena: Bytes,
    pub pattern: AllocationPattern,
    /// Directory for the probes' lock files, or `None` if this user has no such directory.
    pub locks: Option<PathBuf>,
    /// PID of the requesting process. The child exits when its parent does.
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
            pattern: AllocationPattern::default(),
            locks: None,
            parent: std::process::id(),
        }
    }
}
