//! Events: single observations, from which incidents are built.
//!
//! An event is one observation with its process, GPU and time. Events are sent alongside frames. A slow reader loses
//! frames, but events only if it stalls. The format of events is the same on the wire, in a recording and in the
//! incident store. An event of an unknown kind retains its JSON, so that no data is lost when the event is forwarded.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use super::gpu::{GpuProcess, HealthState, Memory};
use super::pool::PoolStats;
use super::process::{Process, ProcessKey};
use super::reading::Reading;
use super::remote_incident::RemoteIncident;
use super::reported_pool::ReportedPool;
use super::trace_replay::TraceReplay;
use super::units::{Bytes, GpuUuid, Millis, Mono, Pid, UnixMillis};

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    pub boot_id: String,
    /// ID of the agent that sent the event ([`Hello::agent`](super::host::Hello::agent)). Together with `seq`, it
    /// uniquely identifies the event, even if two agents run on one host.
    pub agent: String,
    /// Sequence number; increases by one with each event of an agent.
    pub seq: u64,
    pub time: UnixMillis,
    pub mono: Mono,
    pub process: Option<ProcessKey>,
    /// UUID of the physical GPU, even if the event happened on a MIG device.
    pub gpu: Option<GpuUuid>,
    pub observation: Observation,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Observation {
    Exit(Box<Exit>),
    /// A process that has loaded CUDA but was not seen on a GPU, sent before the first other observation of it.
    Candidate(Box<Process>),
    /// A GPU stopped responding, was lost, or came back.
    Health(HealthChange),
    Xid(Xid),
    /// PyTorch counted a failed allocation in a process (`num_ooms` increased).
    Ooms(Box<OomCountIncreased>),
    /// State of the GPU right after a failed allocation.
    GpuAtOom(Box<GpuAtOom>),
    /// A log line matched a signature.
    Log(Box<LogExcerpt>),
    Hook(HookEvent),
    #[serde(rename = "replayed")]
    TraceReplay(Box<TraceReplay>),
    /// An incident from a host's incident store, diagnosed by another observer. Found in recordings only.
    #[serde(rename = "kept")]
    RemoteIncident(Box<RemoteIncident>),
    /// An event written by a later gputop version, with its complete JSON. Also used for known event kinds with fields
    /// of an unexpected type.
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
    /// The last known state of the exited process, so that its table row can remain on screen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Box<Process>>,
    /// True if the process had loaded CUDA but was not seen on a GPU. No table shows such a process.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_candidate: bool,
    pub gpus: Vec<GpuUuid>,
    /// Exit code of the process, or 128 plus the signal number if a signal killed it.
    pub status: Reading<i32>,
    pub signal: Reading<i32>,
    pub oom: Box<OomVerdict>,
    /// Peak device memory of the process, summed over all GPUs.
    pub peak_vram: Reading<Bytes>,
    /// Maximum delay between the exit and this event, measured from the kernel's exit report, or from the last time the
    /// process was seen alive.
    pub noticed_after: Millis,
}

/// Verdict on whether the kernel's out-of-memory killer killed a process because host or cgroup memory ran out.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OomVerdict {
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub killed: Reading<bool>,
    /// Evidence for the verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<OomEvidence>,
}

/// Evidence for a kill by the kernel's out-of-memory killer. In JSON, it is its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum OomEvidence {
    /// The line of the kernel log that names the process.
    KernelLine(String),
    /// An increased counter: `oom_kill in /sys/fs/cgroup/a/memory.events increased from 2 to 3`.
    Counter(String),
}

impl OomEvidence {
    pub fn text(&self) -> &str {
        let (Self::KernelLine(text) | Self::Counter(text)) = self;
        text
    }
}

impl From<String> for OomEvidence {
    fn from(text: String) -> Self {
        if text.contains("Killed process") { Self::KernelLine(text) } else { Self::Counter(text) }
    }
}

impl From<OomEvidence> for String {
    fn from(evidence: OomEvidence) -> Self {
        let (OomEvidence::KernelLine(text) | OomEvidence::Counter(text)) = evidence;
        text
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthChange {
    pub state: HealthState,
    /// The driver's description of the error, a phrase without a period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// An Xid error, reported once even if both the driver and the kernel log report it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Xid {
    /// Xid number, or 999 if the driver reports none.
    pub number: u64,
    /// The Xid's line in the kernel log, if readable.
    pub text: Reading<String>,
    /// PID in the kernel log line, in the host's PID namespace. [`Event::process`] identifies the same process if
    /// gputop watches it.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub pid: Reading<Pid>,
}

/// Failed allocations counted by PyTorch's allocator. Each raised an `OutOfMemoryError`, which the program may have
/// caught.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OomCountIncreased {
    pub before: u64,
    pub after: u64,
    /// Device index as seen by the process.
    pub ordinal: u32,
    /// Time of the previous sample. The failure happened between that sample and the event.
    pub since: Mono,
    /// Pool statistics from the sample that detected the failure, with the minimum and maximum since the previous
    /// frame.
    pub stats: PoolStats,
}

/// Memory use of a GPU right after a failed allocation. These values are newer than the last frame, which may be one
/// interval old.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuAtOom {
    pub memory: Memory,
    /// The processes that use the most memory on the GPU.
    pub processes: Reading<Vec<GpuProcess>>,
    /// Time from detecting the failure to reading the memory use.
    pub lag: Millis,
}

/// Log text that a process wrote after it was first seen on a GPU. gputop found the log, or the user named it.
///
/// The event, not the text, identifies the writer. [`Event::process`] is set if a single watched process writes to the
/// log. If several share the log, such as a launcher's ranks, it is empty and [`writers`](Self::writers) lists them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogExcerpt {
    /// Name of the log: a path as seen by the process, `tmux pane %3`, `journal`.
    pub file: Reading<String>,
    /// Line number of the excerpt's first line, counted from 1. Missing if the log was not read from its beginning.
    pub first_line: Reading<u64>,
    /// Log text in complete lines where possible. It is escaped for display, limited in length, and contains no
    /// secrets.
    pub text: String,
    pub origin: LogOrigin,
    pub why: LogTrigger,
    /// Byte position of the text in the log. For a tmux pane or the journal, the position within the part that was
    /// read.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub offset: Reading<Bytes>,
    /// True if the text directly follows the log's previous excerpt.
    pub continues: bool,
    /// True if text before or within this excerpt was skipped, because the log grew faster than gputop could read it.
    pub sampled: bool,
    /// Number of log bytes skipped since the previous excerpt.
    #[serde(skip_serializing_if = "Bytes::is_zero")]
    pub skipped: Bytes,
    /// Bytes dropped to stay within the size limit, from this excerpt or from earlier ones that were not sent.
    pub left_out: Bytes,
    /// Maximum delay between the time the program wrote the newest log line and the time gputop sent it.
    pub lag: Millis,
    /// Watched processes that write to the log, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub writers: Vec<ProcessKey>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogOrigin {
    /// File to which the process's standard output or error is redirected.
    Descriptor,
    /// File written by the program that reads the process's output pipe: `tee`, `multilog`.
    PipeReader,
    /// tmux pane whose terminal the process writes to.
    Pane,
    Journal,
    Docker,
    Slurm,
    Named,
    #[default]
    #[serde(other)]
    Unknown,
}

impl LogOrigin {
    /// Returns the log's origin for display after its name, or `None` if the name already implies the origin.
    pub fn words(self) -> Option<&'static str> {
        match self {
            Self::Descriptor | Self::Pane | Self::Journal | Self::Unknown => None,
            Self::PipeReader => Some("through a pipe"),
            Self::Docker => Some("docker"),
            Self::Slurm => Some("slurm"),
            Self::Named => Some("named"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogTrigger {
    /// The log text contains a literal from an error signature.
    Matched,
    /// A process that writes to the log exited. The excerpt is the end of its output.
    Ended,
    /// `num_ooms` of a process that writes to the log increased. The excerpt is its latest output.
    Ooms,
    #[default]
    #[serde(other)]
    Unknown,
}

/// A report from the Python hook inside a program. `what` determines whether `oom` or `exception` is set.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HookEvent {
    /// Kind of hook report: `exception`, `oom`, …
    pub what: String,
    /// Time of the reported failure, by the clock of the program's host.
    pub time: UnixMillis,
    /// Number of optimizer steps, if the hook can count them.
    pub steps: Option<Steps>,
    pub oom: Option<Box<HookOom>>,
    pub exception: Option<Box<HookException>>,
    /// The complete hook report, if this version does not know its kind.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub data: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Steps {
    pub begun: u64,
    pub done: u64,
}

/// State of PyTorch's allocator during an out-of-memory error, after it flushed its cache and before it raised the
/// exception.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HookOom {
    pub device: u32,
    /// Size of the segment requested from the driver, as in the error message.
    pub requested_bytes: Bytes,
    /// Total memory of the GPU, or the part of it that the program may use.
    pub limit_bytes: Bytes,
    pub free_bytes: Bytes,
    pub allocated_bytes: Option<HookGauge>,
    pub reserved_bytes: Option<HookGauge>,
    pub active_bytes: Option<HookGauge>,
    pub inactive_split_bytes: Option<HookGauge>,
    pub num_ooms: Option<u64>,
    pub num_alloc_retries: Option<u64>,
    /// Size of the largest free block in the pool and stream of the request.
    pub largest_free_block: Option<Bytes>,
    /// Size of the largest free block that only other streams may use.
    pub largest_free_block_other_streams: Option<Bytes>,
    pub pools: Vec<HookPool>,
    /// `whole`, or the reason why the allocator snapshot is incomplete.
    pub snapshot: String,
    /// Stack frames in the program's own code, innermost first.
    pub frames: Vec<HookFrame>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HookGauge {
    pub current: Bytes,
    pub peak: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HookPool {
    /// Kind of PyTorch pool: `large`, `small`, `private`.
    pub pool: String,
    pub segments: u64,
    pub reserved_bytes: Bytes,
    pub allocated_bytes: Bytes,
    /// Memory in freed blocks that cannot be reused until another stream has finished with them.
    pub awaiting_free_bytes: Bytes,
    pub free_bytes: Bytes,
    pub free_blocks: u64,
    pub largest_free_block: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HookFrame {
    pub file: String,
    pub line: u32,
    pub function: String,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HookException {
    /// Exception type with its module: `torch.OutOfMemoryError`.
    pub r#type: String,
    pub message: String,
    /// Origin of the uncaught exception: `program`, `thread`, `multiprocessing`, `cell`.
    pub r#where: String,
    /// File that contains the innermost traceback line in the program's own code.
    pub file: String,
    pub line: u32,
    /// The traceback as Python prints it. May contain line breaks.
    pub traceback: String,
    /// Pools of JAX, TensorFlow and CuPy in the program, if memory ran out. Their arrays were still alive.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<ReportedPool>,
}
