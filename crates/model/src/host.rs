//! Data about the host that contains the GPUs.

use serde::{Deserialize, Serialize};
use serde_with::apply;

use super::reading::Reading;
use super::units::{Bytes, Mono, Percent};

#[apply(Reading => #[serde(skip_serializing_if = "Reading::is_not_read")])]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    pub at: Mono,
    /// CPU usage across all cores. 100 means that every core is busy.
    pub cpu: Reading<Percent>,
    pub cores: Reading<u32>,
    #[serde(rename = "memory_total_bytes", alias = "memory_total")]
    pub memory_total: Reading<Bytes>,
    /// Total memory minus the memory that programs can still allocate without swapping.
    #[serde(rename = "memory_used_bytes", alias = "memory_used")]
    pub memory_used: Reading<Bytes>,
    /// File contents that the kernel keeps in memory.
    #[serde(rename = "page_cache_bytes", alias = "page_cache")]
    pub page_cache: Reading<Bytes>,
    #[serde(rename = "swap_total_bytes", alias = "swap_total")]
    pub swap_total: Reading<Bytes>,
    #[serde(rename = "swap_used_bytes", alias = "swap_used")]
    pub swap_used: Reading<Bytes>,
    /// Load average over 1, 5 and 15 minutes.
    pub load: Reading<Vec<f64>>,
}

/// Properties that stay the same while an agent runs. Sent once, before the first frame.
#[apply(Reading => #[serde(skip_serializing_if = "Reading::is_not_read")])]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Hello {
    /// Version of the frame format. Readers accept any version, because fields are only ever added.
    pub schema: u32,
    /// Features that a reader must support to accept the data. No such feature exists yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Random ID of this agent run. Together with an event's number, it uniquely identifies the event.
    pub agent: String,
    pub version: String,
    pub host: String,
    /// True if gputop does not run on the host and the data comes from `nvidia-smi`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reduced: bool,
    /// The kernel's boot ID. Together with a PID and a start time, it uniquely identifies a process.
    pub boot_id: String,
    pub kernel: Reading<String>,
    pub namespace: PidNamespace,
    /// Inode of the PID namespace that all [`ProcessKey`](super::process::ProcessKey)s refer to.
    pub namespace_id: Reading<u64>,
    /// Frequency of [`StartTicks`](super::units::StartTicks) in Hz.
    pub ticks_per_second: u64,
    /// User ID of the collectors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

impl Hello {
    /// Returns true for Linux on Windows (WSL).
    pub fn is_wsl(&self) -> bool {
        self.kernel.value().is_some_and(|release| is_wsl_kernel(release))
    }
}

/// Returns true if the kernel with this release, such as `5.15.153.1-microsoft-standard-WSL2`, runs in Windows.
pub fn is_wsl_kernel(release: &str) -> bool {
    let release = release.to_ascii_lowercase();
    release.contains("microsoft") || release.contains("wsl")
}

/// How gputop's PID namespace relates to the driver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PidNamespace {
    /// The host's initial namespace, in which the driver's PIDs are valid.
    Host,
    /// A container's namespace. The driver's PIDs belong to a different one, so they are never matched.
    Container,
    #[default]
    #[serde(other)]
    Unknown,
}

impl PidNamespace {
    /// Returns the kind of the namespace with this inode. The initial namespace has a fixed one: `PROC_PID_INIT_INO` in
    /// the kernel's include/linux/proc_ns.h.
    pub fn with_id(id: Option<u64>) -> Self {
        match id {
            Some(4_026_531_836) => Self::Host,
            Some(_) => Self::Container,
            None => Self::Unknown,
        }
    }
}

/// Driver versions, or the reason why no driver was found.
#[apply(Reading => #[serde(skip_serializing_if = "Reading::is_not_read")])]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Driver {
    /// `580.159.03`
    pub version: Reading<String>,
    /// Newest CUDA version supported by the driver: `13.0`.
    pub cuda: Reading<String>,
    /// Number of GPUs reported by the driver. If it reports none or no driver is found, contains the reason as a
    /// sentence.
    pub gpus: Reading<u32>,
}
