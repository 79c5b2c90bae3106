//! What happened once, as it was observed: the raw material of incidents.
//!
//! An event is an observation with its place and moment. It travels beside the frames, is never dropped, and is
//! the same on the wire, in a recording and in the incident store. An observation of a kind this version does not
//! know keeps its text, so that passing it on loses nothing.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::gpu::HealthState;
use super::process::{Process, ProcessKey};
use super::reading::Reading;
use super::units::{Bytes, GpuUuid, Millis, Mono, Pid, UnixMillis};

/// One observation and where it belongs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    pub boot_id: String,
    /// [`Hello::agent`](super::host::Hello::agent): with the number, unique for ever, so that an event seen twice
    /// is recognised and two agents on one host are told apart.
    pub agent: String,
    /// Counts up by one per agent.
    pub seq: u64,
    pub time: UnixMillis,
    pub mono: Mono,
    /// The process it concerns, if it concerns one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessKey>,
    /// The physical GPU, also when a MIG device is meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuUuid>,
    pub observation: Observation,
}

/// What was seen, with its figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Observation {
    /// A process that was on a GPU is no more.
    Exit(Exit),
    /// A GPU stopped answering, was lost, or came back.
    Health(HealthChange),
    /// The driver reported an Xid.
    Xid(Xid),
    /// PyTorch's `num_ooms` of a process rose.
    Ooms(OomsRose),
    /// A log line matched a signature.
    Log(LogExcerpt),
    /// The Python hook reported.
    Hook(HookEvent),
    /// A kind of a later version, whole; also one of ours whose fields have another shape.
    #[serde(untagged)]
    Unknown(Value),
}

impl Default for Observation {
    fn default() -> Self {
        Self::Unknown(Value::Null)
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Exit {
    /// The process as its row last showed it, so that the row can stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Box<Process>>,
    /// The GPUs it was on.
    pub gpus: Vec<GpuUuid>,
    /// The exit code; 128 + signal when a signal ended it.
    pub status: Reading<i32>,
    pub signal: Reading<i32>,
    pub oom: Box<OomVerdict>,
    /// The most device memory it was seen with, over all GPUs.
    pub peak_vram: Reading<Bytes>,
    /// How long after the end it was told, at most: since the kernel reported it, or since the process was last seen
    /// alive where the kernel did not.
    pub noticed_after: Millis,
}

/// Whether the kernel's out-of-memory killer ended a process, for want of the host's memory or of its cgroup's.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OomVerdict {
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub killed: Reading<bool>,
    /// What says so, or makes it likely: the kernel log's line, or a counter that rose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthChange {
    pub state: HealthState,
    /// The driver's words, a clause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// One Xid is one event, whether the driver's event, the kernel log's line or both reported it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Xid {
    /// 999 when the driver itself knows none.
    pub number: u64,
    /// The kernel log's line, when it could be read.
    pub text: Reading<String>,
    /// The process that the line names, as the host numbers processes. [`Event::process`] is the same one when it is
    /// among those that are watched here.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub pid: Reading<Pid>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OomsRose {
    pub before: u64,
    pub after: u64,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogExcerpt {
    pub file: Reading<String>,
    pub first_line: Reading<u64>,
    /// Bounded and with secrets removed at the collector.
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HookEvent {
    /// `exception`, `oom`, `step`, …
    pub what: String,
    pub data: Value,
}
