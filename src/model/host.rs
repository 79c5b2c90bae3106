//! The machine the GPUs sit in: the host line.

use serde::{Deserialize, Serialize};

use super::reading::Reading;
use super::units::{Bytes, Mono, Percent};

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    pub at: Mono,
    /// All cores together: 100 is every core busy.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub cpu: Reading<Percent>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub cores: Reading<u32>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub memory_total: Reading<Bytes>,
    /// Total less what programs could still get without swapping.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub memory_used: Reading<Bytes>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub swap_total: Reading<Bytes>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub swap_used: Reading<Bytes>,
    /// Load average over 1, 5 and 15 minutes.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub load: Reading<Vec<f64>>,
}

/// What stays the same while an agent runs; sent once, before the first frame.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Hello {
    /// The version of the frame format; a reader takes any, since fields are only ever added.
    pub schema: u32,
    /// What a reader must understand to read on; a reader refuses an entry it does not know. Empty so far.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Random, one a start: with an event's number it names the event for ever.
    pub agent: String,
    /// The program's version, for a message.
    pub version: String,
    pub host: String,
    /// No gputop runs there: its `nvidia-smi` tells what it can.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reduced: bool,
    /// The kernel's boot id: with a PID and a start time it names a process for ever.
    pub boot_id: String,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub kernel: Reading<String>,
    pub namespace: PidNamespace,
    /// The inode of the PID namespace that [`ProcessKey`](super::process::ProcessKey)s belong to.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub namespace_id: Reading<u64>,
    /// The hertz of [`StartTicks`](super::units::StartTicks).
    pub ticks_per_second: u64,
    /// Whom the collectors run as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

/// Whether PIDs mean here what the driver means by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PidNamespace {
    /// The initial namespace: the driver's PIDs are ours.
    Host,
    /// A container: the driver's PIDs are another namespace's and are never matched.
    Container,
    #[default]
    #[serde(other)]
    Unknown,
}

/// The driver's versions, or why there is no driver.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Driver {
    /// `580.159.03`
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub version: Reading<String>,
    /// The newest CUDA the driver supports: `13.0`.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub cuda: Reading<String>,
    /// How many GPUs the driver counts; when it counts none, or is not there, the sentence that says why.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub gpus: Reading<u32>,
}
