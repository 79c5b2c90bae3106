//! What the probe allocator found on a card: plain data, written by its child as one JSON line.
//!
//! Three things stand side by side, each a histogram over powers of two: what the *driver* hands out, what a *pattern*
//! of requests leaves of a fresh allocator under each policy, and the free blocks of a *process*. A probe that was
//! refused, or that found that no context can be created, says so with its reason and has no histograms.

use serde::{Deserialize, Serialize};

use super::process::ProcessKey;
use super::reading::Reading;
use super::units::{Bytes, GpuUuid, Millis, Mono, UnixMillis};

/// Memory is held for so long at most, unless more is asked for.
pub const DEFAULT_LIMIT: Millis = Millis(500);
/// A policy may hold so much, unless less is left.
pub const DEFAULT_ARENA: Bytes = Bytes::gib(1);
/// What a context costs at most, before it is known: 518 MiB on an H200 as NVML counts it, libraries included.
pub const CONTEXT: Bytes = Bytes::mib(640);

/// The larger of 1 GiB and 2 % of the card; 10 % where others live there, since what they need next is not known.
pub fn default_headroom(total: Bytes, others: bool) -> Bytes {
    let share = if others { total.0 / 10 } else { total.0 / 50 };
    Bytes(share.max(Bytes::gib(1).0))
}

/// With less free than this nothing is probed: the context alone would eat into the headroom.
pub fn least_free(total: Bytes, headroom: Option<Bytes>, others: bool) -> Bytes {
    let headroom = headroom.unwrap_or_else(|| default_headroom(total, others));
    Bytes(headroom.0.saturating_add(CONTEXT.0))
}

/// What a person asks of a probe.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProbeRequest {
    /// A GPU, or a MIG device.
    pub gpu: GpuUuid,
    /// Whose sizes the pattern has, and whose free blocks stand beside; none: a synthetic pattern.
    pub process: Option<ProcessKey>,
    /// Memory is held for so long at most.
    pub limit: Option<Millis>,
    /// To stay free at all times.
    pub headroom: Option<Bytes>,
    /// Go on where it could hurt.
    pub force: bool,
    /// All of them where none is named.
    pub policies: Vec<Policy>,
}

/// One probe of one card.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Probe {
    pub schema: u32,
    /// A GPU, or a MIG device.
    pub gpu: GpuUuid,
    /// When it began, by the wall clock.
    pub time: UnixMillis,
    /// The same moment since boot: what the history of probes is drawn on.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub at: Reading<Mono>,
    pub outcome: Outcome,
    /// Why it is not `done`: a clause without a final period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The card's memory, as CUDA counts it.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub total_bytes: Reading<Bytes>,
    /// Free as CUDA counts it, beside the probe's own context.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub free_bytes: Reading<Bytes>,
    /// Free as NVML counts it, before the probe had a context.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub nvml_free_bytes: Reading<Bytes>,
    /// What was left free at all times.
    pub headroom_bytes: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<Fill>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<PatternRun>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessSide>,
    pub cost: Cost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Done,
    /// Nothing was allocated, for the reason given.
    Refused,
    /// There is free memory, and yet the driver could create no context: too scattered.
    NoContext,
    /// It began and did not come to its end.
    Failed,
    #[default]
    #[serde(other)]
    Unknown,
}

/// Pieces of a size: above half of `up_to_bytes`, up to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Bin {
    /// A power of two.
    pub up_to_bytes: Bytes,
    pub count: u64,
    pub bytes: Bytes,
}

/// What the driver handed out when everything but the headroom was asked for, the largest power of two first.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fill {
    pub held_bytes: Bytes,
    /// What it was to hold: free less headroom, in whole granules.
    pub wanted_bytes: Bytes,
    /// The largest single allocation that succeeded.
    pub largest_bytes: Bytes,
    /// The smallest size that is tried: 2 MiB.
    pub granule_bytes: Bytes,
    pub histogram: Vec<Bin>,
    pub latency: Vec<Latency>,
    /// The time limit came first: the histogram is not all of it.
    pub cut_short: bool,
}

impl Fill {
    /// Every size that was tried was given as long as there was room for it: the binary form of what is free. A clean
    /// staircase has at most one piece of a size, but for the largest.
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
    /// So often there was room for it, by the driver's own count, and it was refused.
    pub failed: u64,
    pub total_us: u64,
    pub longest_us: u64,
}

/// By which rules a pattern was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// PyTorch's caching allocator with its defaults: segments from cudaMalloc, best fit, split and merged.
    Native,
    /// PyTorch's `expandable_segments:True`: one range of addresses for each pool, pages mapped behind it.
    Expandable,
    /// Every request is the driver's (`cudaMalloc`, `cudaFree`).
    Plain,
    /// The driver's stream-ordered pool (`cudaMallocAsync`).
    Pool,
    #[default]
    #[serde(other)]
    Unknown,
}

/// All of them, in the order in which they are run: what asks the driver most comes last.
pub const POLICIES: &[Policy] = &[
    Policy::Native,
    Policy::Expandable,
    Policy::Pool,
    Policy::Plain,
];

impl Policy {
    /// Its name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Expandable => "expandable",
            Self::Plain => "plain",
            Self::Pool => "pool",
            Self::Unknown => "unknown",
        }
    }

    /// What it is, as a noun phrase.
    pub fn words(self) -> &'static str {
        match self {
            Self::Native => "PyTorch's native rules",
            Self::Expandable => "expandable segments",
            Self::Plain => "plain cudaMalloc",
            Self::Pool => "stream-ordered pool",
            Self::Unknown => "a policy of a later version",
        }
    }
}

/// What a pattern of requests left of a fresh allocator.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PatternRun {
    pub policy: Policy,
    /// Where sizes and lifetimes come from: `synthetic`; `PID 418, allocation trace`, `PID 418, sampled`, `PID 418,
    /// current blocks`.
    pub source: String,
    /// It could hold so much.
    pub arena_bytes: Bytes,
    /// Requests of the pattern, and how many of them were made before the time was up.
    pub requests: u64,
    pub requests_made: u64,
    /// Requests that did not fit.
    pub failures: u64,
    pub reserved_peak_bytes: Bytes,
    /// At the end.
    pub reserved_bytes: Bytes,
    pub allocated_bytes: Bytes,
    pub free_bytes: Bytes,
    pub largest_free_block: Bytes,
    /// 1 − largest free block / free: 0 is one hole. Absent when nothing is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_fragmentation: Option<f64>,
    pub free_histogram: Vec<Bin>,
    pub us: u64,
    /// Why it was not run, or not to its end: a clause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// The free blocks of a process's own cache.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessSide {
    pub process: ProcessKey,
    /// The map is one moment.
    pub exact: bool,
    pub reserved_bytes: Bytes,
    pub free_bytes: Bytes,
    pub largest_free_block: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_fragmentation: Option<f64>,
    pub free_histogram: Vec<Bin>,
    /// Why there is none: a clause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// What the probe cost the card and whoever shares it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// The most that was held at once, the context not counted.
    pub held_peak_bytes: Bytes,
    /// Bytes held, each for as long as it was held, in bytes × milliseconds.
    pub held_byte_ms: u64,
    /// From the first byte held to the last given back.
    pub held_ms: u64,
    /// The context: NVML's free before less CUDA's free after, so other processes' doings are in it.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub context_bytes: Reading<Bytes>,
    /// Loading the driver and creating the context.
    pub start_ms: u64,
    /// From the child's start to its end.
    pub total_ms: u64,
}
