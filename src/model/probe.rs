//! Results of the allocator probe on a GPU: plain data, written by its child process as one JSON line.
//!
//! A probe has three parts, each with a histogram over powers of two: the memory that the *driver* hands out, the free
//! blocks that a *pattern* of requests leaves in a fresh allocator under each policy, and the free blocks of a
//! *process*. A probe that was refused, or that could not create a context, has a reason and no histograms.

use serde::{Deserialize, Serialize};

use super::frame::SCHEMA;
use super::process::ProcessKey;
use super::reading::Reading;
use super::units::{Bytes, GpuUuid, Millis, Mono, UnixMillis};

/// Default limit on the time for which a probe holds memory.
pub const DEFAULT_LIMIT: Millis = Millis(500);
/// Default limit on the memory that a policy may hold.
pub const DEFAULT_ARENA: Bytes = Bytes::gib(1);
/// Upper bound for the memory of a context before it is known. On an H200, NVML counts 518 MiB for a context with
/// libraries.
pub const CONTEXT: Bytes = Bytes::mib(640);

/// Returns the memory that a probe must leave free: the larger of 1 GiB and 2 % of the GPU's memory. If other processes
/// use the GPU, the share is 10 %, because the size of their next requests is unknown.
pub fn default_headroom(total: Bytes, others: bool) -> Bytes {
    let share = if others { total.0 / 10 } else { total.0 / 50 };
    Bytes(share.max(Bytes::gib(1).0))
}

/// Returns the minimum free memory for a probe. With less, the context alone would use up the headroom.
pub fn min_free(total: Bytes, headroom: Option<Bytes>, others: bool) -> Bytes {
    let headroom = headroom.unwrap_or_else(|| default_headroom(total, others));
    Bytes(headroom.0.saturating_add(CONTEXT.0))
}

/// A user's request for a probe.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProbeRequest {
    /// A GPU, or a MIG device.
    pub gpu: GpuUuid,
    /// The process that provides the sizes of the pattern, and whose free blocks are compared. If not set, the pattern
    /// is synthetic.
    pub process: Option<ProcessKey>,
    /// Maximum time for which memory is held.
    pub limit: Option<Millis>,
    /// Memory that must stay free at all times.
    pub headroom: Option<Bytes>,
    /// Run the probe even if it could disturb other processes.
    pub force: bool,
    /// The policies to run. All of them if empty.
    pub policies: Vec<Policy>,
}

/// One probe of one GPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Probe {
    pub schema: u32,
    /// A GPU, or a MIG device.
    pub gpu: GpuUuid,
    /// Wall-clock time of the start.
    pub time: UnixMillis,
    /// The same time on the clock since boot, used for the history of probes.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub at: Reading<Mono>,
    pub outcome: Outcome,
    /// Reason why the outcome is not `done`: a phrase without a period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Total memory of the GPU as CUDA counts it.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub total_bytes: Reading<Bytes>,
    /// Free memory as CUDA counts it, without the probe's own context.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub free_bytes: Reading<Bytes>,
    /// Free memory as NVML counts it, before the probe created a context.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub nvml_free_bytes: Reading<Bytes>,
    /// Memory that was left free at all times.
    pub headroom_bytes: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<Fill>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<PatternRun>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessSide>,
    pub cost: Cost,
}

impl Probe {
    /// Returns the result of a probe that was rejected, with the reason.
    pub fn refused(gpu: &GpuUuid, why: String) -> Self {
        Self {
            schema: SCHEMA,
            gpu: gpu.clone(),
            outcome: Outcome::Refused,
            reason: Some(why),
            ..Self::default()
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Done,
    /// Nothing was allocated, for the given reason.
    Refused,
    /// Memory is free, but too fragmented for the driver to create a context.
    NoContext,
    /// The probe started but did not finish.
    Failed,
    #[default]
    #[serde(other)]
    Unknown,
}

/// Blocks larger than half of `up_to_bytes` and at most `up_to_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Bin {
    /// Upper size limit, a power of two.
    pub up_to_bytes: Bytes,
    pub count: u64,
    pub bytes: Bytes,
}

/// Memory that the driver hands out when asked for everything but the headroom, largest power of two first.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fill {
    pub held_bytes: Bytes,
    /// The target: free memory minus headroom, in whole granules.
    pub wanted_bytes: Bytes,
    /// The largest single allocation that succeeded.
    pub largest_bytes: Bytes,
    /// The smallest size tried: 2 MiB.
    pub granule_bytes: Bytes,
    pub histogram: Vec<Bin>,
    pub latency: Vec<Latency>,
    /// True if the time limit ended the fill, so that the histogram is incomplete.
    pub cut_short: bool,
}

impl Fill {
    /// Returns true if the driver served every size while enough memory was free. The blocks of a clean fill then
    /// correspond to the binary digits of the amount of free memory: at most one block of each size, except for the
    /// largest size.
    pub fn is_clean(&self) -> bool {
        !self.cut_short && self.latency.iter().all(|size| size.failed == 0)
    }
}

/// Allocations of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    pub bytes: Bytes,
    pub count: u64,
    /// Number of requests that the driver refused although it reported enough free memory.
    pub failed: u64,
    pub total_us: u64,
    pub longest_us: u64,
}

/// The allocation policy under which a pattern was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// PyTorch's caching allocator with its defaults: segments from cudaMalloc, best fit, split and merged.
    Native,
    /// PyTorch's `expandable_segments:True`: one address range for each pool, to which pages are mapped.
    Expandable,
    /// Every request goes to the driver (`cudaMalloc`, `cudaFree`).
    Plain,
    /// The driver's stream-ordered pool (`cudaMallocAsync`).
    Pool,
    #[default]
    #[serde(other)]
    Unknown,
}

/// All policies in the order in which they run. Those with the most driver calls are last.
pub const POLICIES: &[Policy] = &[
    Policy::Native,
    Policy::Expandable,
    Policy::Pool,
    Policy::Plain,
];

impl Policy {
    /// Returns the name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Expandable => "expandable",
            Self::Plain => "plain",
            Self::Pool => "pool",
            Self::Unknown => "unknown",
        }
    }

    /// Returns a noun phrase that describes the policy.
    pub fn words(self) -> &'static str {
        match self {
            Self::Native => "PyTorch's native rules",
            Self::Expandable => "expandable segments",
            Self::Plain => "plain cudaMalloc",
            Self::Pool => "stream-ordered pool",
            Self::Unknown => "unknown policy",
        }
    }
}

/// Result of running a pattern of requests in a fresh allocator.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PatternRun {
    pub policy: Policy,
    /// Source of the sizes and lifetimes: `synthetic`; `PID 418, allocation trace`, `PID 418, sampled`, `PID 418,
    /// current blocks`.
    pub source: String,
    /// Maximum memory that the policy could hold.
    pub arena_bytes: Bytes,
    /// Number of requests in the pattern. The next field is the number of requests made before the time limit.
    pub requests: u64,
    pub requests_made: u64,
    /// Requests that did not fit.
    pub failures: u64,
    pub reserved_peak_bytes: Bytes,
    /// Memory at the end of the run.
    pub reserved_bytes: Bytes,
    pub allocated_bytes: Bytes,
    pub free_bytes: Bytes,
    pub largest_free_block: Bytes,
    /// 1 − largest free block / free bytes. 0 if all free memory is one block. Absent if no memory is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_fragmentation: Option<f64>,
    pub free_histogram: Vec<Bin>,
    pub us: u64,
    /// Reason why the pattern was not run, or was not run to its end, as a phrase without a period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// The free blocks of a process's own cache.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessSide {
    pub process: ProcessKey,
    /// True if the map is consistent.
    pub exact: bool,
    pub reserved_bytes: Bytes,
    pub free_bytes: Bytes,
    pub largest_free_block: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_fragmentation: Option<f64>,
    pub free_histogram: Vec<Bin>,
    /// Reason why no map is available: a phrase without a period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// Cost of the probe for the GPU and for the processes that share it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// Maximum memory held at once, without the context.
    pub held_peak_bytes: Bytes,
    /// Bytes multiplied by the time for which they were held (bytes × milliseconds).
    pub held_byte_ms: u64,
    /// Time from the first byte held to the last byte returned.
    pub held_ms: u64,
    /// Memory of the context: NVML's free memory before it was created minus CUDA's free memory afterwards. The
    /// difference includes activity of other processes in between.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub context_bytes: Reading<Bytes>,
    /// Time to load the driver and create the context.
    pub start_ms: u64,
    /// Time from the start of the child to its exit.
    pub total_ms: u64,
}
