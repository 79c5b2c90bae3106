//! The summary of a recording: peaks and percentiles of memory, use of time, energy, warnings and incidents, for each GPU
//! and each process.
//!
//! ```text
//! line of a recording ─► line::read ─► Totals::push ─► Totals::append (parts of the recording) ─► Totals::finish ─► RunSummary
//! RunSummary, RunSummary ─► compare ─► Comparison
//! ```
//!
//! A value counts for the time since the previous sample. After a longer pause, called a gap, it counts for no time, so
//! shares, percentiles and energy refer to the time that the recording really covers.

mod compare;
mod distribution;
mod fit;
mod line;
mod subject;
mod totals;

use serde::Serialize;

pub use self::compare::{ComparedSubject, Comparison, Difference, compare};
pub use self::distribution::Percentiles;
pub use self::fit::{ProvenFit, UnprovenFit, smallest_card};
pub use self::line::{FrameLine, RecordedLine, read};
pub use self::subject::{Figure, Quantity, Subject};
pub use self::totals::{RETENTION, Totals};
use crate::model::gpu::Throttle;
use crate::model::incident::{Fix, Severity};
use crate::model::incident_record::Record;
use crate::model::pool::Allocator;
use crate::model::process::ProcessKey;
use crate::model::units::{Bytes, GpuUuid, Millis, Mono, Percent, UnixMillis};

/// The summary of one recording.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunSummary {
    pub schema: u32,
    /// File name of the recording.
    pub recording: String,
    pub host: String,
    /// Time of the first sample.
    pub start: UnixMillis,
    /// Time from the first sample to the last.
    #[serde(rename = "duration_ms")]
    pub duration: Millis,
    /// Part of the duration without gaps.
    #[serde(rename = "covered_ms")]
    pub covered: Millis,
    pub gaps: u64,
    pub samples: u64,
    /// Number of minutes with unreadable parts.
    #[serde(skip_serializing_if = "is_zero")]
    pub damaged_minutes: u64,
    /// Memory that the driver reserves for itself on a GPU: the maximum over all GPUs.
    #[serde(skip)]
    pub driver_reserved: Option<Bytes>,
    /// Sorted by index.
    pub gpus: Vec<GpuSummary>,
    /// Sorted by peak of device memory, largest first.
    pub processes: Vec<ProcessSummary>,
    /// Number of further processes, beyond the limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub omitted_processes: u64,
    /// Oldest first.
    pub incidents: Vec<IncidentSummary>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GpuSummary {
    pub index: u32,
    pub uuid: GpuUuid,
    pub name: String,
    #[serde(rename = "total_bytes")]
    pub total: Option<Bytes>,
    /// All memory that was not free.
    pub used: Option<Percentiles>,
    /// Memory that was free all the time.
    #[serde(rename = "unused_bytes")]
    pub unused: Option<Bytes>,
    /// Share of time without a running kernel and without a process.
    pub idle_percent: Option<Percent>,
    /// Share of time without a running kernel, although a process held memory.
    pub waiting_percent: Option<Percent>,
    /// Share of time in which power, heat or the power supply lowered the clocks.
    pub throttled_percent: Option<Percent>,
    /// Share of time of each reason for lower clocks.
    pub throttle_reasons: Vec<ThrottleShare>,
    pub energy: Option<Energy>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ThrottleShare {
    pub reason: Throttle,
    pub percent: Percent,
}

/// Power integrated over the time between samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Energy {
    pub joules: f64,
    /// Time covered by the integral. Gaps are not part of it.
    #[serde(rename = "covered_ms")]
    pub covered: Millis,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessSummary {
    pub process: ProcessKey,
    /// Command line, if it was readable.
    pub command: Option<String>,
    pub user: Option<String>,
    pub rank: Option<u32>,
    /// The command under `gputop run` that started the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<ProcessKey>,
    /// Indices of its GPUs.
    pub gpus: Vec<u32>,
    /// Time in which the process used a GPU.
    #[serde(rename = "duration_ms")]
    pub duration: Millis,
    /// Device memory, summed over all GPUs.
    pub vram: Option<Percentiles>,
    /// Maximum of the device memory outside of PyTorch's pools.
    #[serde(rename = "outside_peak_bytes")]
    pub outside_peak: Option<Bytes>,
    /// Share of time in which no kernel ran on its GPUs.
    pub waiting_percent: Option<Percent>,
    pub pools: Vec<PoolSummary>,
    pub warnings: Vec<WarningSummary>,
    /// The smallest GPU on which a replay of the allocation trace succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fit: Option<ProvenFit>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PoolSummary {
    /// Name of the framework.
    pub framework: &'static str,
    pub allocator: Allocator,
    /// Device number inside the process.
    pub ordinal: u32,
    /// Index of the GPU, if known.
    pub gpu: Option<u32>,
    pub reserved: Option<Percentiles>,
    pub allocated: Option<Percentiles>,
    /// Peak of reserved memory minus peak of allocated memory.
    #[serde(rename = "unused_bytes")]
    pub unused: Option<Bytes>,
    /// PyTorch's own peak of reserved memory, which includes the time before the recording.
    #[serde(skip)]
    reserved_peak: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WarningSummary {
    /// `flushing`, `growing`.
    pub kind: &'static str,
    pub ordinal: u32,
    /// Time from the start of the recording to the first occurrence.
    #[serde(rename = "after_ms")]
    pub after: Millis,
    /// The latest measurement, as a phrase.
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IncidentSummary {
    pub id: String,
    pub severity: Severity,
    pub title: String,
    pub time: UnixMillis,
    /// Time from the start of the recording.
    #[serde(rename = "after_ms")]
    pub after: Millis,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessKey>,
    /// Index of the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    pub count: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_fix: Option<FixSummary>,
}

/// A fix, as in an explanation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FixSummary {
    pub title: String,
    /// The exact text to apply.
    pub change: String,
}

impl IncidentSummary {
    fn of(record: &Record, start: Mono, gpus: &[GpuSummary]) -> Self {
        let incident = &record.incident;
        let uuid = record.key.gpu.as_ref();
        let by_uuid = |uuid: &GpuUuid| gpus.iter().find(|gpu| gpu.uuid == *uuid);
        let fix = |fix: &Fix| FixSummary {
            title: fix.title.clone(),
            change: fix.change.clone(),
        };
        Self {
            id: incident.id.clone(),
            severity: incident.severity,
            title: incident.title.clone(),
            time: record.key.time,
            after: record.key.first.since(start),
            process: record.key.process,
            gpu: uuid
                .and_then(by_uuid)
                .map(|gpu| gpu.index)
                .or(incident.fields.gpu_index),
            count: incident.count,
            first_fix: incident.fixes.first().map(fix),
        }
    }
}

impl RunSummary {
    /// Leaves out all processes except for a command and the processes that it started, and the GPUs that these did not
    /// use.
    #[must_use]
    pub fn of_run(mut self, run: ProcessKey) -> Self {
        self.processes
            .retain(|process| process.process == run || process.run == Some(run));
        let used: Vec<u32> = self.processes.iter().flat_map(|p| p.gpus.clone()).collect();
        self.gpus.retain(|gpu| used.contains(&gpu.index));
        self
    }
}
