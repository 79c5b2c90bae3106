//! What the child is told to do.

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
    /// A GPU or a MIG device, by NVML's name of it.
    pub gpu: GpuUuid,
    /// Free on it just now, as NVML counts.
    pub nvml_free: Reading<Bytes>,
    /// Other processes live there.
    pub others: bool,
    pub limit: Millis,
    /// What the user wants left free; else [`default_headroom`](crate::model::probe::default_headroom).
    pub headroom: Option<Bytes>,
    /// Go on where it could hurt.
    pub force: bool,
    pub policies: Vec<Policy>,
    /// Only say whether it could: no context is created and nothing allocated.
    pub look: bool,
    pub arena: Bytes,
    pub pattern: Pattern,
    /// Where the lock files of probes are; none where this user has no such place.
    pub locks: Option<PathBuf>,
    /// The asking process: the child ends with it.
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
