//! Results of probing the allocator on a GPU: plain data, written by the probe's child process as one JSON line.
//!
//! A probe has three parts, each with a histogram over powers of two: the memory that the *driver* hands out, the free
//! blocks that a *pattern* of requests leaves in a fresh allocator under each policy, and the free blocks of a
//! *process*. A probe that was refused or could not create a CUDA context has a reason and no histograms.

use serde::{Deserialize, Serialize};
use serde_with::{apply, skip_serializing_none};

use super::frame::SCHEMA;
use super::process::ProcessKey;
use super::reading::Reading;
use super::units::{Bytes, GpuUuid, Millis, Mono, UnixMillis};

/// Default limit on the time for which a probe holds memory.
pub const DEFAULT_LIMIT: Millis = Millis(500);
/// Default limit on the memory held under one allocation policy.
pub const DEFAULT_ARENA: Bytes = Bytes::gib(1);
/// Upper bound on the memory of a CUDA context, used before its actual size is known. On an H200, NVML counts 518 MiB
/// for a context with libraries.
pub const CONTEXT: Bytes = Bytes::mib(640);

/// Returns the memory that a probe must leave free: 1 GiB, or 2 % of the GPU's memory if that is more. If other
/// processes use the GPU, the share is 10 % instead of 2 %, because the size of their next requests is unknown.
pub fn default_headroom(total: Bytes, others: bool) -> Bytes {
    let share = if others { total.0 / 10 } else { total.0 / 50 };
    Bytes(share.max(Bytes::gib(1).0))
}

/// Returns the minimum free memory for a probe. With less, the CUDA context alone would use up the headroom.
pub fn min_free(total: Bytes, headroom: Option<Bytes>, others: bool) -> Bytes {
    let headroom = headroom.unwrap_or_else(|| default_headroom(total, others));
    Bytes(headroom.0.saturating_add(CONTEXT.0))
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProbeRequest {
    /// UUID of a GPU or MIG device.
    pub gpu: GpuUuid,
    /// Process whose allocation sizes the pattern uses, and whose free blocks are also reported. If not set, the
    /// pattern is synthetic.
    pub process: Option<ProcessKey>,
    /// Maximum time for which the probe holds memory.
    pub limit: Option<Millis>,
    /// Memory that the probe must leave free at all times.
    pub headroom: Option<Bytes>,
    /// True to run the probe even if it could disturb other processes.
    pub force: bool,
    /// Allocation policies to run, or all if empty.
    pub policies: Vec<Policy>,
}

#[skip_serializing_none]
#[apply(Reading => #[serde(skip_serializing_if = "Reading::is_not_read")])]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Probe {
    pub schema: u32,
    /// UUID of a GPU or MIG device.
    pub gpu: GpuUuid,
    /// Wall-clock start time of the probe.
    pub time: UnixMillis,
    /// Start time as time since boot, used for the history of probes.
    pub at: Reading<Mono>,
    pub outcome: Outcome,
    /// Reason why the probe's outcome is not `done`: a phrase without a period.
    pub reason: Option<String>,
    /// Total memory of the GPU as counted by CUDA.
    pub total_bytes: Reading<Bytes>,
    /// Free GPU memory as counted by CUDA after the probe created its own context.
    pub free_bytes: Reading<Bytes>,
    /// Free GPU memory as counted by NVML, before the probe created a CUDA context.
    pub nvml_free_bytes: Reading<Bytes>,
    /// Memory that the probe left free at all times.
    pub headroom_bytes: Bytes,
    pub driver: Option<Fill>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<PatternResult>,
    pub process: Option<ProcessFragmentation>,
    pub cost: Cost,
}

impl Probe {
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
    /// The probe was refused, and nothing was allocated.
    Refused,
    /// Memory is free, but too fragmented for the driver to create a CUDA context.
    NoContext,
    /// The probe started but did not finish.
    Failed,
    #[default]
    #[serde(other)]
    Unknown,
}

/// Histogram bin for memory blocks larger than half of `up_to_bytes` and at most `up_to_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Bin {
    /// Upper limit of the block size, a power of two.
    pub up_to_bytes: Bytes,
    pub count: u64,
    pub bytes: Bytes,
}

/// Memory allocated by the driver when the probe requests everything but the headroom, largest power of two first.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fill {
    pub held_bytes: Bytes,
    /// Target size of the fill: free memory minus headroom, rounded down to a multiple of `granule_bytes`.
    pub wanted_bytes: Bytes,
    pub largest_bytes: Bytes,
    /// Smallest allocation size tried: 2 MiB.
    pub granule_bytes: Bytes,
    pub histogram: Vec<Bin>,
    pub latency: Vec<Latency>,
    /// True if the time limit or the maximum number of blocks ended the fill, so that the histogram is incomplete.
    pub cut_short: bool,
}

impl Fill {
    /// Returns true if the fill was completed and the driver never refused a request while enough memory was free. The
    /// blocks of a clean fill correspond to the binary digits of the amount of free memory: at most one block of each
    /// size, except for the largest size.
    pub fn is_clean(&self) -> bool {
        !self.cut_short && self.latency.iter().all(|size| size.failed == 0)
    }
}

/// Duration and failures of the driver's allocations of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    pub bytes: Bytes,
    pub count: u64,
    /// Number of requests refused by the driver although it reported enough free memory.
    pub failed: u64,
    pub total_us: u64,
    pub longest_us: u64,
}

crate::named! {
    /// Allocation policy under which a probe runs a pattern of requests.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Policy {
        /// PyTorch's caching allocator with default settings. Segments come from cudaMalloc; free blocks are chosen by
        /// best fit, split, and merged.
        Native = "native", "PyTorch's native rules",
        /// PyTorch's caching allocator with expandable_segments:True. One address range per pool, to which pages are
        /// mapped.
        Expandable = "expandable", "expandable segments",
        /// cudaMalloc for every request.
        Plain = "plain", "plain cudaMalloc",
        /// cudaMallocAsync, the driver's stream-ordered pool.
        Pool = "pool", "stream-ordered pool",
        #[default]
        #[serde(other)]
        Unknown = "unknown", "unknown policy",
    }
    /// Returns the policy's name on the command line and in JSON.
    fn name;
    /// Returns a noun phrase for the allocation policy.
    fn words;
}

/// All allocation policies in the order in which they run. Those with the most driver calls are last.
pub const POLICIES: &[Policy] = &[Policy::Native, Policy::Expandable, Policy::Pool, Policy::Plain];

/// Result of running a pattern of requests in a fresh allocator.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PatternResult {
    pub policy: Policy,
    /// Source of the pattern's sizes and lifetimes: `synthetic`; `PID 418, allocation trace`, `PID 418, sampled`, `PID
    /// 418, current blocks`.
    pub source: String,
    /// Maximum memory that the policy was allowed to hold.
    pub arena_bytes: Bytes,
    /// Number of requests in the pattern. If the time limit is reached, fewer requests are made (`requests_made`).
    pub requests: u64,
    pub requests_made: u64,
    /// Number of requests that did not fit.
    pub failures: u64,
    pub reserved_peak_bytes: Bytes,
    /// Memory reserved from the driver at the end of the run.
    pub reserved_bytes: Bytes,
    pub allocated_bytes: Bytes,
    pub free_bytes: Bytes,
    pub largest_free_block: Bytes,
    /// 1 − largest free block / free bytes. 0 if all free memory is one block. Absent if no memory is free.
    pub external_fragmentation: Option<f64>,
    pub free_histogram: Vec<Bin>,
    pub us: u64,
    /// Reason why the pattern was not run or not completed, as a phrase without a period.
    pub missing: Option<String>,
}

/// Free blocks in a process's own allocator, for comparison with the policies.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessFragmentation {
    pub process: ProcessKey,
    /// True if the pool map is consistent.
    pub exact: bool,
    pub reserved_bytes: Bytes,
    pub free_bytes: Bytes,
    pub largest_free_block: Bytes,
    pub external_fragmentation: Option<f64>,
    pub free_histogram: Vec<Bin>,
    /// Reason why no pool map is available: a phrase without a period.
    pub missing: Option<String>,
}

/// Cost of a probe for the GPU and the processes that share it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// Maximum memory held by the probe at once, excluding the CUDA context.
    pub held_peak_bytes: Bytes,
    /// Bytes held by the probe, multiplied by the holding time (bytes × milliseconds).
    pub held_byte_ms: u64,
    /// Time in ms from the first allocation to the last release.
    pub held_ms: u64,
    /// Memory of the CUDA context: NVML's free memory before the context was created minus CUDA's free memory
    /// afterwards. Includes allocations by other processes in between.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub context_bytes: Reading<Bytes>,
    /// Time in ms to load the driver and create the CUDA context.
    pub start_ms: u64,
    /// Time in ms from the start of the probe's child process to its exit.
    pub total_ms: u64,
}
