//! What happened once, as it was observed: the raw material of incidents.
//!
//! An event is an observation with its place and moment. It travels beside the frames, is never dropped, and is
//! the same on the wire, in a recording and in the incident store. An observation of a kind this version does not
//! know keeps its text, so that passing it on loses nothing.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::gpu::{GpuProcess, HealthState, Memory};
use super::pool::PoolStats;
use super::process::{Process, ProcessKey};
use super::reading::Reading;
use super::remote_incident::RemoteIncident;
use super::replay_result::Replayed;
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
    Ooms(Box<OomsRose>),
    /// The GPU of such a failure, read because of it.
    GpuAtOom(Box<GpuAtOom>),
    /// A log line matched a signature.
    Log(Box<LogExcerpt>),
    /// The Python hook reported.
    Hook(HookEvent),
    /// The allocation trace of a failure was played under other settings.
    Replayed(Box<Replayed>),
    /// Somebody else there had concluded this, and the host's incident store tells it. In recordings alone.
    #[serde(rename = "kept")]
    RemoteIncident(Box<RemoteIncident>),
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

/// The allocator counted failed allocations, each an `OutOfMemoryError` that the program may have caught.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OomsRose {
    pub before: u64,
    pub after: u64,
    /// The device's number inside the process.
    pub ordinal: u32,
    /// The last sample before; it failed after this, and before the event's moment.
    pub since: Mono,
    /// The pool in the sample that saw it, with the least and the greatest since the frame before.
    pub stats: PoolStats,
}

/// Who held a GPU right after an allocation on it failed; a frame may be a whole interval older.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuAtOom {
    pub memory: Memory,
    /// Those that hold most.
    pub processes: Reading<Vec<GpuProcess>>,
    /// How long after the failure was seen it was read.
    pub lag: Millis,
}

/// Text that a process wrote after it was first seen on a GPU, from a log that was found by itself or named.
///
/// Whose text it is says the event, by where the text was read, and never the text: [`Event::process`] when one
/// watched process writes there; when several share the log (the ranks of a launcher) it is none, and
/// [`writers`](Self::writers) lists them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogExcerpt {
    /// The log's name: a path as the process sees it, `tmux pane %3`, `journal`.
    pub file: Reading<String>,
    /// Counted from 1; missing where the log was not read from its beginning.
    pub first_line: Reading<u64>,
    /// Whole lines where possible; harmless (control characters made visible), bounded, and with secrets removed.
    pub text: String,
    /// How the log was found.
    pub origin: LogOrigin,
    /// What made it worth sending.
    pub why: LogWhy,
    /// Where in the log the text begins; of a pane or the journal, where in what was read of it.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub offset: Reading<Bytes>,
    /// It goes on directly behind the excerpt that was sent before of this log.
    pub continues: bool,
    /// The log grew faster than it was read: text before this, or within it, was passed over.
    pub sampled: bool,
    /// How much of it was passed over since the excerpt before.
    #[serde(skip_serializing_if = "Bytes::is_zero")]
    pub skipped: Bytes,
    /// Text of this excerpt, or of earlier ones that were not sent at all, that would have been too much.
    pub left_out: Bytes,
    /// At most so long lay between the writing of the newest line and the sending.
    pub lag: Millis,
    /// The watched processes that write to the log, when there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub writers: Vec<ProcessKey>,
}

/// How a log was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogOrigin {
    /// The file behind the process's standard output or error.
    Descriptor,
    /// A file written by who reads the process's pipe: `tee`, `multilog`.
    PipeReader,
    /// The tmux pane whose terminal the process writes to.
    Pane,
    Journal,
    Docker,
    Slurm,
    /// A person named it.
    Named,
    #[default]
    #[serde(other)]
    Unknown,
}

impl LogOrigin {
    /// How it was found, to stand behind its name; nothing where the name says it.
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

/// What made an excerpt worth sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogWhy {
    /// The text holds a literal that a card's signature looks for.
    Matched,
    /// A process that writes there ended: the end of what it wrote.
    Ended,
    /// `num_ooms` of a process that writes there rose: what it wrote last.
    Ooms,
    #[default]
    #[serde(other)]
    Unknown,
}

/// What the Python hook tells from inside a program. One of `oom` and `exception` is there, by `what`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HookEvent {
    /// `exception`, `oom`, …
    pub what: String,
    /// When it happened, by the clock of the program's host.
    pub time: UnixMillis,
    /// Where optimizer steps can be counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<Steps>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom: Option<Box<HookOom>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exception: Option<Box<HookException>>,
    /// Of a kind that this version does not know, whole.
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

/// PyTorch's allocator at the instant of an out-of-memory error: after it flushed its cache, before it raised.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HookOom {
    /// As the program counts its devices.
    pub device: u32,
    /// The segment that the driver was asked for; the error's text names it.
    pub requested_bytes: Bytes,
    /// The card's memory, or what the program may use of it.
    pub limit_bytes: Bytes,
    /// Free on the card.
    pub free_bytes: Bytes,
    pub allocated_bytes: Option<HookGauge>,
    pub reserved_bytes: Option<HookGauge>,
    pub active_bytes: Option<HookGauge>,
    pub inactive_split_bytes: Option<HookGauge>,
    pub num_ooms: Option<u64>,
    pub num_alloc_retries: Option<u64>,
    /// The largest free block that the request could have been given, had it been large enough: of its pool and its
    /// stream.
    pub largest_free_block: Option<Bytes>,
    /// The largest that only another stream may use.
    pub largest_free_block_other_streams: Option<Bytes>,
    pub pools: Vec<HookPool>,
    /// `whole`; else why not all of it is known.
    pub snapshot: String,
    /// The innermost lines of the program's own code, the innermost first.
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
    /// Freed, waiting for another stream.
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

/// An exception that nobody caught.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HookException {
    /// With its module: `torch.OutOfMemoryError`.
    pub r#type: String,
    pub message: String,
    /// Where nobody caught it: `program`, `thread`, `multiprocessing`, `cell`.
    pub r#where: String,
    /// The innermost line of the program's own code.
    pub file: String,
    pub line: u32,
    /// As Python prints it; may hold line breaks.
    pub traceback: String,
}
