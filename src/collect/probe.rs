//! Probes a card of this host: what is known of it, and the map of the process that is asked about, become what the
//! probe's child is told; what cannot be probed is refused here, without a child.

use std::path::Path;
use std::thread;
use std::time::Duration;

use super::clock::{now_mono, now_wall};
use super::hook::last_history;
use super::torch::{Attached, Failure};
use crate::model::frame::{Frame, SCHEMA};
use crate::model::gpu::{Gpu, Memory, MigInstance};
use crate::model::probe::{
    DEFAULT_ARENA, DEFAULT_LIMIT, Outcome, POLICIES, Policy, Probe, ProbeRequest, ProcessSide,
    default_headroom, min_free,
};
use crate::model::process::ProcessKey;
use crate::model::reading::Reading;
use crate::model::units::{Bytes, GpuUuid, Millis};
use crate::probe::pattern::{self, Pattern, TimedMap};
use crate::probe::{ChildRequest, process_side};
use crate::user_files::{Base, directory};

/// Does it, and waits until everything is given back. Takes up to seconds.
pub fn probe(wish: &ProbeRequest, frame: &Frame, proc_root: &Path) -> Probe {
    let (time, at) = (now_wall(), now_mono());
    let mut probe = match ask(wish, frame) {
        Ok(ask) => with_process(ask, wish, frame, proc_root),
        Err(why) => refused(&wish.gpu, why),
    };
    probe.time = time;
    probe.at = at.into();
    probe
}

/// Whether a probe would work on a GPU: a child loads the driver and looks at it, creates no context and holds nothing.
///
/// # Errors
/// Why it would not: a clause.
pub fn outlook(gpu: &GpuUuid, frame: &Frame) -> Result<ProbeReadiness, String> {
    let wish = ProbeRequest {
        gpu: gpu.clone(),
        ..ProbeRequest::default()
    };
    let ask = ChildRequest {
        look: true,
        limit: Millis(0),
        locks: None,
        ..ask(&wish, frame)?
    };
    let total = target(gpu, &frame.gpus).and_then(|target| target.memory().total.get());
    let probe = crate::probe::probe(&ask);
    if probe.outcome != Outcome::Done {
        return Err(probe.reason.unwrap_or_else(|| "for no known reason".into()));
    }
    let without = probe.patterns.into_iter();
    Ok(ProbeReadiness {
        headroom: total.map(|total| default_headroom(total, ask.others)),
        without: without
            .filter_map(|run| Some((run.policy, run.missing?)))
            .collect(),
    })
}

/// A probe that would work.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeReadiness {
    /// What it would leave free.
    pub headroom: Option<Bytes>,
    /// Policies that it could not run, and why.
    pub without: Vec<(Policy, String)>,
}

/// A probe that never was, and why.
pub fn refused(gpu: &GpuUuid, why: String) -> Probe {
    Probe {
        schema: SCHEMA,
        gpu: gpu.clone(),
        outcome: Outcome::Refused,
        reason: Some(why),
        ..Probe::default()
    }
}

fn with_process(
    mut ask: ChildRequest,
    wish: &ProbeRequest,
    frame: &Frame,
    proc_root: &Path,
) -> Probe {
    let mut side = None;
    ask.pattern = pattern::synthetic(ask.arena);
    if let Some(process) = wish.process {
        match maps_of(process, &wish.gpu, frame, proc_root) {
            Ok(seen) => {
                let pattern = pattern_of(process, &seen, ask.arena);
                // An empty cache tells nothing of what its program will ask for.
                if !pattern.requests.is_empty() {
                    ask.pattern = pattern;
                }
                side = seen.last().map(|seen| process_side(&seen.map));
            }
            Err(why) => {
                side = Some(ProcessSide {
                    process,
                    missing: Some(why),
                    ..ProcessSide::default()
                });
            }
        }
    }
    let mut probe = crate::probe::probe(&ask);
    probe.process = side;
    probe
}

/// How often the process is looked at, and how long it goes on in between: half a second in all.
const LOOKS: usize = 12;
const BETWEEN_LOOKS: Duration = Duration::from_millis(40);

/// Its requests, from the best that is known of them.
fn pattern_of(process: ProcessKey, seen: &[TimedMap], arena: Bytes) -> Pattern {
    let source = format!("PID {}", process.pid);
    let Some(last) = seen.last() else {
        return Pattern::default();
    };
    if let Some(trace) = last_history(process, last.map.ordinal) {
        return pattern::of_trace(&trace, &format!("{source}, its trace"), arena);
    }
    pattern::of_maps(seen, &format!("{source}, watched"), arena).unwrap_or_else(|| {
        let source = format!("{source}, its present blocks");
        pattern::of_map(&last.map, &source, arena)
    })
}

/// The device's maps of the process while it goes on, at least one: those of this GPU where it could be told which, else
/// of what holds most.
fn maps_of(
    process: ProcessKey,
    gpu: &GpuUuid,
    frame: &Frame,
    proc_root: &Path,
) -> Result<Vec<TimedMap>, String> {
    let say = |failure: Failure| failure.missing().to_string();
    let mut attached = Attached::open(proc_root, process.pid).map_err(say)?;
    let placed = frame.pools.iter().flat_map(|pools| pools.of(process));
    let here = placed
        .filter(|pool| pool.gpu.value() == Some(gpu))
        .map(|pool| pool.ordinal)
        .next();
    let ordinal = match here {
        Some(ordinal) => ordinal,
        None => {
            let stats = attached.stats().map_err(say)?;
            let most = stats.iter().max_by_key(|s| s.reserved_bytes.all.current);
            most.map_or(0, |stats| stats.ordinal)
        }
    };
    let mut all: Vec<TimedMap> = Vec::new();
    for look in 0..LOOKS {
        if look > 0 {
            thread::sleep(BETWEEN_LOOKS);
        }
        let (mut map, stats) = match attached.map_and_stats(ordinal) {
            Ok(found) => found,
            // It may have ended meanwhile: what was seen counts.
            Err(_) if look > 0 => break,
            Err(failure) => return Err(say(failure)),
        };
        map.process = process;
        map.at = now_mono();
        // What is of several moments says nothing of who lived when; one is better than none.
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

/// What the child is told, without the pattern.
fn ask(wish: &ProbeRequest, frame: &Frame) -> Result<ChildRequest, String> {
    let target = target(&wish.gpu, &frame.gpus)
        .ok_or_else(|| format!("there is no GPU {} here", wish.gpu))?;
    if target.mig.is_none() && target.gpu.mig_enabled.get() == Some(true) {
        return Err(match target.gpu.mig.first() {
            Some(mig) => format!(
                "the GPU is in MIG mode, its memory belongs to its devices; probe one of those: --gpu {}",
                mig.uuid
            ),
            None => "the GPU is in MIG mode and has no MIG device".into(),
        });
    }
    let memory = target.memory();
    let others = target.others();
    let ask = ChildRequest {
        gpu: wish.gpu.clone(),
        nvml_free: memory.free.clone(),
        others,
        limit: wish.limit.unwrap_or(DEFAULT_LIMIT),
        headroom: wish.headroom,
        force: wish.force,
        policies: match wish.policies.as_slice() {
            [] => POLICIES.to_vec(),
            some => some.to_vec(),
        },
        look: false,
        arena: DEFAULT_ARENA,
        pattern: Pattern::default(),
        locks: directory(Base::Runtime, "probe").ok(),
        parent: std::process::id(),
    };
    if let (Some(free), Some(total), false) = (memory.free.get(), memory.total.get(), wish.force) {
        let least = min_free(total, wish.headroom, others);
        if free < least {
            return Err(too_little(free, least, others));
        }
    }
    Ok(ask)
}

fn too_little(free: Bytes, least: Bytes, others: bool) -> String {
    let because = if others {
        " because other processes live there"
    } else {
        ""
    };
    format!(
        "{free} are free, and the probe wants {least}: its headroom{because} and a context of its own; --headroom sets less, --force takes half of what is free"
    )
}

/// A GPU, or a MIG device of it.
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
        Some(Target {
            gpu,
            mig: Some(mig),
        })
    })
}

impl Target<'_> {
    fn memory(&self) -> &Memory {
        self.mig.map_or(&self.gpu.memory, |mig| &mig.memory)
    }

    /// Whether anybody lives there; where the driver does not tell, somebody may.
    fn others(&self) -> bool {
        let Reading::Value(listed) = &self.gpu.processes else {
            return true;
        };
        let instance = self.mig.and_then(|mig| mig.gpu_instance.get());
        listed
            .iter()
            .any(|process| instance.is_none() || process.gpu_instance == instance)
    }
}
