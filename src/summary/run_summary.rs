//! The summary of a recording.

use gputop_model::incident::Fix;
use gputop_model::{
    Allocator, Bytes, GpuUuid, Millis, Mono, Percent, Phase, ProcessKey, Record, Severity,
    Throttle, UnixMillis,
};
use serde::Serialize;
use serde_with::skip_serializing_none;

use super::distribution::Percentiles;
use super::fit::ProvenFit;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunSummary {
    pub schema: u32,
    pub recording: String,
    pub host: String,
    /// Time of the first sample.
    pub start: UnixMillis,
    /// Time from the first sample to the last.
    #[serde(rename = "duration_ms")]
    pub duration: Millis,
    /// Total recorded time, not counting gaps.
    #[serde(rename = "covered_ms")]
    pub covered: Millis,
    pub gaps: u64,
    pub samples: u64,
    /// Number of minutes with unreadable parts.
    #[serde(skip_serializing_if = "is_zero")]
    pub damaged_minutes: u64,
    /// Memory that the driver reserves for itself on one GPU (the maximum over all GPUs).
    #[serde(skip)]
    pub driver_reserved: Option<Bytes>,
    /// GPUs, sorted by index.
    pub gpus: Vec<GpuSummary>,
    /// Processes, sorted by peak device memory, largest first.
    pub processes: Vec<ProcessSummary>,
    /// Number of processes omitted because of the process limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub omitted_processes: u64,
    /// Incidents, oldest first.
    pub incidents: Vec<IncidentSummary>,
}

pub(super) fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GpuSummary {
    pub index: u32,
    pub uuid: GpuUuid,
    pub name: String,
    #[serde(rename = "total_bytes")]
    pub total: Option<Bytes>,
    /// GPU memory in use, including memory reserved by the driver.
    pub used: Option<Percentiles>,
    /// GPU memory that remained free throughout the recording.
    #[serde(rename = "unused_bytes")]
    pub unused: Option<Bytes>,
    /// Mean SM utilization.
    pub sm_percent: Option<Percent>,
    /// Share of time in which no kernel was running and no process was on the GPU.
    pub idle_percent: Option<Percent>,
    /// Share of time in which no kernel was running although a process held GPU memory.
    pub waiting_percent: Option<Percent>,
    /// Share of time in which clocks were reduced because of power limits, temperature or the power supply.
    pub throttled_percent: Option<Percent>,
    /// Share of time for each throttle reason.
    pub throttle_reasons: Vec<ThrottleShare>,
    pub energy: Option<Energy>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ThrottleShare {
    pub reason: Throttle,
    pub percent: Percent,
}

/// Energy: power integrated over the time between samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Energy {
    pub joules: f64,
    /// Time covered by the energy integral, not counting gaps.
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
    /// The `gputop run` command that started the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<ProcessKey>,
    /// Indices of the process's GPUs.
    pub gpus: Vec<u32>,
    /// Time during which the process used a GPU.
    #[serde(rename = "duration_ms")]
    pub duration: Millis,
    /// Device memory, summed over all GPUs.
    pub vram: Option<Percentiles>,
    /// Peak device memory of the process outside PyTorch's pools.
    #[serde(rename = "outside_peak_bytes")]
    pub outside_peak: Option<Bytes>,
    /// Share of time in which no kernel was running on the process's GPUs.
    pub waiting_percent: Option<Percent>,
    /// Phases of the process while its GPUs had little to do. `None` if its stack was never sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phases: Option<PhaseSummary>,
    pub pools: Vec<PoolSummary>,
    pub warnings: Vec<WarningSummary>,
    /// The smallest GPU on which a replay of the allocation trace succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fit: Option<ProvenFit>,
}

/// Phases of a process while its GPUs had little to do, as shares of the time in which it used a GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseSummary {
    /// Share in which the stack of the process was sampled. It is the sum of all phases.
    pub sampled_percent: Percent,
    /// Largest first.
    pub phases: Vec<PhaseShare>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PhaseShare {
    pub phase: Phase,
    pub percent: Percent,
}

/// Name of PyTorch's own pools.
pub(super) const TORCH: &str = "PyTorch";

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PoolSummary {
    pub framework: &'static str,
    pub allocator: Allocator,
    /// Device index as seen by the process.
    pub ordinal: u32,
    /// Index of the GPU, if known.
    pub gpu: Option<u32>,
    pub reserved: Option<Percentiles>,
    pub allocated: Option<Percentiles>,
    /// Peak reserved memory minus peak allocated memory.
    #[serde(rename = "unused_bytes")]
    pub unused: Option<Bytes>,
    /// Peak reserved memory according to PyTorch, including the time before the recording.
    #[serde(skip)]
    pub(super) reserved_peak: Bytes,
}

impl PoolSummary {
    pub fn is_torch(&self) -> bool {
        self.framework == TORCH
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WarningSummary {
    /// Kind of warning, such as `flushing` or `growing`.
    pub kind: &'static str,
    pub ordinal: u32,
    /// Time of the first occurrence, as an offset from the start of the recording.
    #[serde(rename = "after_ms")]
    pub after: Millis,
    /// The latest measurement behind the warning, as a phrase.
    pub text: String,
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IncidentSummary {
    pub id: String,
    pub severity: Severity,
    pub title: String,
    pub time: UnixMillis,
    /// Time of the incident, as an offset from the start of the recording.
    #[serde(rename = "after_ms")]
    pub after: Millis,
    pub process: Option<ProcessKey>,
    /// Index of the GPU.
    pub gpu: Option<u32>,
    pub count: u32,
    pub first_fix: Option<FixSummary>,
}

/// A fix for an incident.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FixSummary {
    pub title: String,
    /// Exact text of the change to apply.
    pub change: String,
}

impl IncidentSummary {
    pub(super) fn of(record: &Record, start: Mono, gpus: &[GpuSummary]) -> Self {
        let incident = &record.incident;
        let uuid = record.key.gpu.as_ref();
        let by_uuid = |uuid: &GpuUuid| gpus.iter().find(|gpu| gpu.uuid == *uuid);
        let fix = |fix: &Fix| FixSummary { title: fix.title.clone(), change: fix.change.clone() };
        Self {
            id: incident.id.clone(),
            severity: incident.severity,
            title: incident.title.clone(),
            time: record.key.time,
            after: record.key.first.since(start),
            process: record.key.process,
            gpu: uuid.and_then(by_uuid).map(|gpu| gpu.index).or(incident.fields.gpu_index),
            count: incident.count,
            first_fix: incident.fixes.first().map(fix),
        }
    }
}

impl RunSummary {
    /// Limits the summary to one command, the processes that it started, and the GPUs that they used.
    #[must_use]
    pub fn of_run(mut self, run: ProcessKey) -> Self {
        self.processes.retain(|process| process.process == run || process.run == Some(run));
        let used: Vec<u32> = self.processes.iter().flat_map(|p| p.gpus.clone()).collect();
        self.gpus.retain(|gpu| used.contains(&gpu.index));
        self
    }
}
