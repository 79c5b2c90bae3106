//! Probes a GPU of this host. Builds the request for the probe's child process from the state of the GPU and the map of
//! the selected process. Rejects an unsuitable GPU before starting the child process.

use std::path::Path;
use std::thread;
use std::time::Duration;

use gputop_model::probe::{
    DEFAULT_ARENA, DEFAULT_LIMIT, Outcome, POLICIES, ProcessFragmentation, default_headroom,
    min_free,
};
use gputop_model::{
    Bytes, Frame, Gpu, GpuUuid, Memory, MigInstance, Millis, Policy, Probe, ProbeRequest,
    ProcessKey, Reading,
};
use gputop_peek::clock::{now_mono, now_wall};
use gputop_peek::torch::{Attached, Failure};

use super::hook::last_history;
use crate::probe::pattern::{self, AllocationPattern, TimedMap};
use crate::probe::{ChildRequest, process_side};
use crate::user_files::{Base, directory};

/// Runs a GPU memory probe and waits until the probe has freed all its memory, which takes up to several seconds.
pub fn probe(wanted: &ProbeRequest, frame: &Frame, proc_root: &Path) -> Probe {
    let (time, at) = (now_wall(), now_mono());
    let mut probe = match child_request(wanted, frame) {
        Ok(request) => with_process(request, wanted, frame, proc_root),
        Err(why) => Probe::refused(&wanted.gpu, why),
    };
    probe.time = time;
    probe.at = at.into();
    probe
}

/// Checks whether a probe would work on a GPU. A child process loads the driver and queries the GPU, but creates no
/// context and allocates nothing.
pub fn readiness(gpu: &GpuUuid, frame: &Frame) -> Result<ProbeReadiness, String> {
    let wanted = ProbeRequest { gpu: gpu.clone(), ..ProbeRequest::default() };
    let request = ChildRequest {
        look: true,
        limit: Millis(0),
        locks: None,
        ..child_request(&wanted, frame)?
    };
    let total = target(gpu, &frame.gpus).and_then(|target| target.memory().total.get());
    let probe = crate::probe::probe(&request);
    if probe.outcome != Outcome::Done {
        return Err(probe.reason.unwrap_or_else(|| "for an unknown reason".into()));
    }
    let without = probe.patterns.into_iter();
    Ok(ProbeReadiness {
        headroom: total.map(|total| default_headroom(total, request.others)),
        without: without.filter_map(|run| Some((run.policy, run.missing?))).collect(),
    })
}

#[derive(Debug, Clone, PartialEq)]
pub struct ProbeReadiness {
    /// GPU memory that the probe would leave free.
    pub headroom: Option<Bytes>,
    /// Allocation policies that the probe could not run, each with the reason.
    pub without: Vec<(Policy, String)>,
}

fn with_process(
    mut request: ChildRequest,
    wanted: &ProbeRequest,
    frame: &Frame,
    proc_root: &Path,
) -> Probe {
    let mut side = None;
    request.pattern = pattern::synthetic(request.arena);
    if let Some(process) = wanted.process {
        match maps_of(process, &wanted.gpu, frame, proc_root) {
            Ok(seen) => {
                let pattern = pattern_of(process, &seen, request.arena);
                // Keep the synthetic pattern if the process's allocator cache is empty. An empty cache does not show
                // which sizes the program will request.
                if !pattern.requests.is_empty() {
                    request.pattern = pattern;
                }
                side = seen.last().map(|seen| process_side(&seen.map));
            }
            Err(why) => {
                side = Some(ProcessFragmentation {
                    process,
                    missing: Some(why),
                    ..ProcessFragmentation::default()
                });
            }
        }
    }
    let mut probe = crate::probe::probe(&request);
    probe.process = side;
    probe
}

/// Number of allocator samples taken before a probe, and their interval. Sampling takes half a second in total.
const SAMPLES: usize = 12;
const SAMPLE_INTERVAL: Duration = Duration::from_millis(40);

/// Returns the process's allocation pattern from the best available source: the allocation trace, the samples, or the
/// current blocks, in this order.
fn pattern_of(process: ProcessKey, seen: &[TimedMap], arena: Bytes) -> AllocationPattern {
    let source = format!("PID {}", process.pid);
    let Some(last) = seen.last() else { return AllocationPattern::default() };
    if let Some(trace) = last_history(process, last.map.ordinal) {
        return pattern::of_trace(&trace, &format!("{source}, allocation trace"), arena);
    }
    pattern::of_maps(seen, &format!("{source}, sampled"), arena).unwrap_or_else(|| {
        let source = format!("{source}, current blocks");
        pattern::of_map(&last.map, &source, arena)
    })
}

/// Returns at least one memory map of the process's pool on `gpu`. If no pool is known to be on `gpu`, uses the pool
/// with the most reserved memory.
fn maps_of(
    process: ProcessKey,
    gpu: &GpuUuid,
    frame: &Frame,
    proc_root: &Path,
) -> Result<Vec<TimedMap>, String> {
    let message = |failure: Failure| failure.missing().to_string();
    let mut attached = Attached::open(proc_root, process.pid).map_err(message)?;
    let pools = frame.pools.iter().flat_map(|pools| pools.of(process));
    let on_gpu = pools.filter(|pool| pool.gpu.value() == Some(gpu)).map(|pool| pool.ordinal).next();
    let ordinal = match on_gpu {
        Some(ordinal) => ordinal,
        None => {
            let stats = attached.stats().map_err(message)?;
            let largest = stats.iter().max_by_key(|s| s.reserved_bytes.all.current);
            largest.map_or(0, |stats| stats.ordinal)
        }
    };
    let mut all: Vec<TimedMap> = Vec::new();
    for sample in 0..SAMPLES {
        if sample > 0 {
            thread::sleep(SAMPLE_INTERVAL);
        }
        let (mut map, stats) = match attached.map_and_stats(ordinal) {
            Ok(found) => found,
            // If the process has exited, use the samples taken so far.
            Err(_) if sample > 0 => break,
            Err(failure) => return Err(message(failure)),
        };
        map.process = process;
        map.at = now_mono();
        // Use an inexact map only as a fallback. Such a map combines data from several points in time, so block
        // lifetimes cannot be derived from it.
        let is_first = all.is_empty();
        if map.exact || is_first {
            let requests = u64::try_from(stats.allocation.all.allocated).unwrap_or_default();
            let seen = TimedMap { requests, map };
            if all.last().is_some_and(|last| !last.map.exact) {
                all.clear();
            }
            all.push(seen);
        }
    }
    Ok(all)
}

/// Builds the request for the probe's child process, without the allocation pattern.
fn child_request(wanted: &ProbeRequest, frame: &Frame) -> Result<ChildRequest, String> {
    let target = target(&wanted.gpu, &frame.gpus)
        .ok_or_else(|| format!("GPU {} not found on this host", wanted.gpu))?;
    if target.mig.is_none() && target.gpu.mig_enabled.get() == Some(true) {
        return Err(match target.gpu.mig.first() {
            Some(mig) => format!(
                "the GPU is in MIG mode; probe one of its MIG devices instead: --gpu {}",
                mig.uuid
            ),
            None => "the GPU is in MIG mode and has no MIG device".into(),
        });
    }
    let memory = target.memory();
    let others = target.others();
    let request = ChildRequest {
        gpu: wanted.gpu.clone(),
        nvml_free: memory.free.clone(),
        others,
        limit: wanted.limit.unwrap_or(DEFAULT_LIMIT),
        headroom: wanted.headroom,
        force: wanted.force,
        policies: match wanted.policies.as_slice() {
            [] => POLICIES.to_vec(),
            some => some.to_vec(),
        },
        look: false,
        arena: DEFAULT_ARENA,
        pattern: AllocationPattern::default(),
        locks: directory(Base::Runtime, "probe").ok(),
        parent: std::process::id(),
    };
    if let (Some(free), Some(total), false) = (memory.free.get(), memory.total.get(), wanted.force)
    {
        let least = min_free(total, wanted.headroom, others);
        if free < least {
            return Err(not_enough_free(free, least, others));
        }
    }
    Ok(request)
}

fn not_enough_free(free: Bytes, least: Bytes, others: bool) -> String {
    let because = if others { ", larger because other processes use the GPU," } else { "" };
    format!(
        "only {free} is free, but the probe needs {least}: the headroom{because} plus its own context. Lower the headroom with --headroom, or use half of the free memory with --force"
    )
}

struct Target<'f> {
    gpu: &'f Gpu,
    mig: Option<&'f MigInstance>,
}

fn target<'f>(uuid: &GpuUuid, gpus: &'f [Gpu]) -> Option<Target<'f>> {
    gpus.iter().find_map(|gpu| {
        if gpu.uuid == *uuid {
            return Some(Target { gpu, mig: None });
        }
        let mig = gpu.mig.iter().find(|mig| mig.uuid == *uuid)?;
        Some(Target { gpu, mig: Some(mig) })
    })
}

impl Target<'_> {
    fn memory(&self) -> &Memory {
        self.mig.map_or(&self.gpu.memory, |mig| &mig.memory)
    }

    /// Returns true if other processes use the GPU, or if the driver does not list its processes.
    fn others(&self) -> bool {
        let Reading::Value(listed) = &self.gpu.processes else { return true };
        let instance = self.mig.and_then(|mig| mig.gpu_instance.get());
        listed.iter().any(|process| instance.is_none() || process.gpu_instance == instance)
    }
}
