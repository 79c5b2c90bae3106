//! Single observations, from which incidents are built.
//!
//! An event is one observation with its process, GPU and time. Events are sent alongside frames and are never dropped.
//! Their format is the same on the wire, in a recording and in the incident store. An observation of an unknown kind
//! retains its JSON, so that no data is lost when it is passed on.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::gpu::{GpuProcess, HealthState, Memory};
use super::pool::PoolStats;
use super::process::{Process, ProcessKey};
use super::reading::Reading;
use super::remote_incident::RemoteIncident;
use super::trace_replay::TraceReplay;
use super::units::{Bytes, GpuUuid, Millis, Mono, Pid, UnixMillis};

/// One observation, with its origin and time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    pub boot_id: String,
    /// [`Hello::agent`](super::host::Hello::agent). Together with `seq` it identifies the event permanently, which
    /// makes it possible to recognise duplicates and to distinguish two agents on one host.
    pub agent: String,
    /// Increases by one with each event of an agent.
    pub seq: u64,
    pub time: UnixMillis,
    pub mono: Mono,
    /// The process that the event concerns, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessKey>,
    /// The physical GPU, also when the event concerns a MIG device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuUuid>,
    pub observation: Observation,
}

/// The observation with its measured values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Observation {
    /// A process that used a GPU has exited.
    Exit(Exit),
    /// A GPU stopped responding, was lost, or came back.
    Health(HealthChange),
    /// Xid reported by the NVIDIA driver.
    Xid(Xid),
    /// PyTorch's `num_ooms` of a process increased.
    Ooms(Box<OomsRose>),
    /// State of the GPU right after a failed allocation, read because of the failure.
    GpuAtOom(Box<GpuAtOom>),
    /// A log line matched a signature.
    Log(Box<LogExcerpt>),
    /// A report of the Python hook.
    Hook(HookEvent),
    /// The allocation trace of a failure was replayed under other settings.
    #[serde(rename = "replayed")]
    TraceReplay(Box<TraceReplay>),
    /// An incident from the host's incident store, which another observer concluded. Found in recordings only.
    #[serde(rename = "kept")]
    RemoteIncident(Box<RemoteIncident>),
    /// An event of a later version, with its complete JSON. Also used for known kinds whose fields have an unexpected
    /// type.
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
    /// The last known state of the process, so that its row can stay on screen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Box<Process>>,
    /// The GPUs that it used.
    pub gpus: Vec<GpuUuid>,
    /// The exit code; 128 + signal after a fatal signal.
    pub status: Reading<i32>,
    pub signal: Reading<i32>,
    pub oom: Box<OomVerdict>,
    /// Highest device memory observed, summed over all GPUs.
    pub peak_vram: Reading<Bytes>,
    /// Maximum delay between the exit and this event. It is measured from the kernel's report of the exit, or else from
    /// the time when the process was last seen alive.
    pub noticed_after: Millis,
}

/// Verdict on whether the kernel's out-of-memory killer killed a process, because host or cgroup memory ran out.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OomVerdict {
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub killed: Reading<bool>,
    /// Evidence for the verdict: a line of the kernel log, or an increased counter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthChange {
    pub state: HealthState,
    /// The driver's description, a phrase without a period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// One Xid, reported once even when both the driver and the kernel log report it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Xid {
    /// 999 if the driver reports no number.
    pub number: u64,
    /// The line of the kernel log, if it could be read.
    pub text: Reading<String>,
    /// The PID in that line, in the host's PID namespace. [`Event::process`] identifies the same process if gputop
    /// watches it.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub pid: Reading<Pid>,
}

/// Failed allocations counted by the allocator. Each raised an `OutOfMemoryError`, which the program may have caught.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OomsRose {
    pub before: u64,
    pub after: u64,
    /// Device number inside the process.
    pub ordinal: u32,
    /// Time of the previous sample. The failure happened between that time and the event.
    pub since: Mono,
    /// Pool statistics of the sample that detected the failure, with minimum and maximum since the previous frame.
    pub stats: PoolStats,
}

/// Memory use of a GPU right after an allocation on it failed. A frame may be up to one interval older.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuAtOom {
    pub memory: Memory,
    /// The processes that use the most memory.
    pub processes: Reading<Vec<GpuProcess>>,
    /// Delay between the detection of the failure and this reading.
    pub lag: Millis,
}

/// Text that a process wrote after it was first seen on a GPU, from a log that was discovered or named by the user.
///
/// The event, not the text, identifies the writer. [`Event::process`] is set if a single watched process writes to the
/// log. It is empty if several share the log, such as the ranks of a launcher; [`writers`](Self::writers) then lists
/// them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogExcerpt {
    /// Name of the log: a path as the process sees it, `tmux pane %3`, `journal`.
    pub file: Reading<String>,
    /// Line number, counted from 1; missing if the log was not read from its beginning.
    pub first_line: Reading<u64>,
    /// Whole lines where possible. Escaped for display, limited in length, with secrets removed.
    pub text: String,
    /// How gputop found the log.
    pub origin: LogOrigin,
    /// Why the excerpt was sent.
    pub why: LogWhy,
    /// Byte position of the text in the log, or, for a tmux pane or the journal, in the part that was read.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub offset: Reading<Bytes>,
    /// True if the text directly follows the previous excerpt of this log.
    pub continues: bool,
    /// True if the log grew faster than it could be read, so that text before or within this excerpt was skipped.
    pub sampled: bool,
    /// Bytes skipped since the previous excerpt.
    #[serde(skip_serializing_if = "Bytes::is_zero")]
    pub skipped: Bytes,
    /// Bytes dropped to stay within the size limit, from this excerpt or from earlier ones that were not sent.
    pub left_out: Bytes,
    /// Maximum delay between writing the newest line and sending it.
    pub lag: Millis,
    /// The watched processes that write to the log, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub writers: Vec<ProcessKey>,
}

/// How a log was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogOrigin {
    /// The file to which the process's standard output or error is redirected.
    Descriptor,
    /// A file written by the program that reads the process's pipe: `tee`, `multilog`.
    PipeReader,
    /// The tmux pane whose terminal the process writes to.
    Pane,
    Journal,
    Docker,
    Slurm,
    /// A file named by the user.
    Named,
    #[default]
    #[serde(other)]
    Unknown,
}

impl LogOrigin {
    /// Returns the origin for display after the log's name, or nothing if the name already implies it.
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

/// The reason for sending an excerpt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogWhy {
    /// The text contains a literal from the signature of an explanation.
    Matched,
    /// A process that writes to the log exited; the excerpt is the end of its output.
    Ended,
    /// `num_ooms` of a process that writes to the log increased; the excerpt is its latest output.
    Ooms,
    #[default]
    #[serde(other)]
    Unknown,
}

/// A report from the Python hook inside a program. `what` determines whether `oom` or `exception` is set.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HookEvent {
    /// `exception`, `oom`, …
    pub what: String,
    /// Time of the occurrence, by the clock of the program's host.
    pub time: UnixMillis,
    /// Set if optimizer steps can be counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<Steps>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom: Option<Box<HookOom>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exception: Option<Box<HookException>>,
    /// The whole report, if this version does not know its kind.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub data: Value,
}

/// Optimizer steps of the whole program.
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
    /// Device number inside the program.
    pub device: u32,
    /// Size of the segment requested from the driver; the error message contains it.
    pub requested_bytes: Bytes,
    /// Memory of the GPU, or the part that the program may use.
    pub limit_bytes: Bytes,
    /// Free memory of the GPU.
    pub free_bytes: Bytes,
    pub allocated_bytes: Option<HookGauge>,
    pub reserved_bytes: Option<HookGauge>,
    pub active_bytes: Option<HookGauge>,
    pub inactive_split_bytes: Option<HookGauge>,
    pub num_ooms: Option<u64>,
    pub num_alloc_retries: Option<u64>,
    /// The largest free block in the pool and stream of the request.
    pub largest_free_block: Option<Bytes>,
    /// The largest free block that only another stream may use.
    pub largest_free_block_other_streams: Option<Bytes>,
    pub pools: Vec<HookPool>,
    /// `whole`, or the reason why the snapshot is incomplete.
    pub snapshot: String,
    /// The innermost lines of the program's own code, innermost first.
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
    /// `large`, `small`, `private`.
    pub pool: String,
    pub segments: u64,
    pub reserved_bytes: Bytes,
    pub allocated_bytes: Bytes,
    /// Freed blocks that wait for another stream.
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

/// An uncaught exception.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HookException {
    /// The type with its module: `torch.OutOfMemoryError`.
    pub r#type: String,
    pub message: String,
    /// Origin of the uncaught exception: `program`, `thread`, `multiprocessing`, `cell`.
    pub r#where: String,
    /// The innermost line of the program's own code.
    pub file: String,
    pub line: u32,
    /// The traceback as Python prints it; may contain line breaks.
    pub traceback: String,
}
