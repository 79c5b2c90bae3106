//! The driver's process list for one GPU, and the used memory that is not attributed to any listed process.

use serde::{Deserialize, Serialize};
use serde_with::{apply, skip_serializing_none};

use crate::process::ProcessKey;
use crate::reading::Reading;
use crate::units::{Bytes, Percent, Pid};

/// An entry in the driver's process list of one GPU.
#[skip_serializing_none]
#[apply(Reading => #[serde(skip_serializing_if = "Reading::is_not_read")])]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuProcess {
    /// PID in the driver's namespace, which is the host's.
    pub pid: Pid,
    /// The matching kernel process, if it was found when the driver's list was read. Only this field links a driver
    /// entry to a [`Process`](crate::process::Process). Absent inside a container, where the driver's PIDs do
    /// not match the kernel's.
    pub process: Option<ProcessKey>,
    pub kind: ContextKind,
    /// The process's device memory as counted by the driver. NVML under-reports managed memory.
    #[serde(rename = "vram_bytes", alias = "vram")]
    pub vram: Reading<Bytes>,
    /// Share of the GPU's SM time used by the process since the last sample.
    pub sm: Reading<Percent>,
    pub memory_bandwidth: Reading<Percent>,
    pub gpu_instance: Option<u32>,
    pub compute_instance: Option<u32>,
}

impl GpuProcess {
    /// Returns the key of the process's history: the kernel's key if known, or the driver's PID alone.
    pub fn key(&self) -> ProcessKey {
        self.process.unwrap_or(ProcessKey { pid: self.pid, ..ProcessKey::default() })
    }
}

/// A part of a GPU's used memory that cannot be attributed to a visible process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Unattributed {
    pub bytes: Bytes,
    pub cause: UnattributedCause,
    /// PIDs mentioned in the explanation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pids: Vec<Pid>,
    /// Explanation of the unattributed memory with its sizes, ending with a period.
    pub sentence: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnattributedCause {
    /// gputop runs in a container, and the memory belongs to a process in another container or on the host.
    OutsideContainer,
    /// gputop runs in WSL, and the memory belongs to a program in Windows or in another distribution.
    OutsideWsl,
    /// The driver lists processes that this user is not permitted to see.
    Hidden,
    /// The driver lists a process that does not exist.
    Gone,
    /// A process has exited, but some of its threads may still be running.
    Zombie,
    /// A process has the GPU open, but the driver lists no memory for it.
    HeldOpen,
    /// The MPS server is running, and not all of its clients are listed.
    MpsServer,
    /// The memory has not been examined yet. The next frame contains the result.
    NotRead,
    #[default]
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextKind {
    #[default]
    Compute,
    Graphics,
    /// Process listed both as a compute and as a graphics process.
    Mixed,
    #[serde(other)]
    Unknown,
}
