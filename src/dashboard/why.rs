//! Why a process leaves its GPU idle, or is slow: its newest window, and the figures of its GPU in the same time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use gputop_explain::why::{Answer, Cause, Cores, GpuLoad, GpuSample, Signals, conclude};
use gputop_model::frame::Frame;
use gputop_model::gpu::{Gpu, GpuProcess};
use gputop_model::phases::PhaseWindow;
use gputop_model::process::ProcessKey;
use gputop_model::reading::Missing;
use gputop_model::units::{GpuUuid, Millis, Mono};

use super::host_state::HostState;
use crate::dashboard::jobs::Jobs;

/// Time for which a window is asked by default.
pub const WINDOW: Millis = Millis(10_000);
/// Minimum time between two retained readings of a GPU.
const MIN_DISTANCE: Millis = Millis(900);
/// Time for which the figures of a GPU are retained, unless a longer window is asked for.
const RETAINED: Millis = Millis(60_000);
/// Maximum number of processes with a retained window.
const MAX_PROCESSES: usize = 64;
/// Age from which on a window no longer describes a process.
const MAX_AGE: Millis = Millis(5_000);

/// Number of windows that must agree before a cause is noted, and the minimum time between two of them.
const STABLE_WINDOWS: usize = 3;
const MIN_CAUSE_DISTANCE: Millis = Millis(9_500);
/// Age from which on a cause is no longer noted.
const MAX_CAUSE_AGE: Millis = Millis(15_000);
/// Use of a GPU below which the cause is noted, in percent.
const MAX_NOTED_USE: f64 = 60.0;

type WindowResult = Arc<Result<PhaseWindow, Missing>>;

/// The newest window of each process that is sampled, and the recent figures of all GPUs.
#[derive(Debug, Default)]
pub struct Why {
    windows: BTreeMap<ProcessKey, WindowResult>,
    /// The causes of the last windows of each process, oldest first.
    causes: BTreeMap<ProcessKey, VecDeque<RecentCause>>,
    gpus: BTreeMap<GpuUuid, VecDeque<(Mono, GpuSample)>>,
    pushed_at: Option<Mono>,
    retained: Millis,
}

/// The cause of one window.
#[derive(Debug)]
struct RecentCause {
    at: Mono,
    cause: Cause,
    answer: Answer,
}

/// An answer, and what it is based on.
pub struct WhyReport<'a> {
    pub window: &'a PhaseWindow,
    pub gpu: Option<GpuLoad>,
    pub answer: Answer,
}

impl Why {
    /// Retains the figures of all GPUs for a window of this length.
    pub fn retain_gpus(&mut self, window: Millis) {
        self.retained = window;
    }

    pub(super) fn take(&mut self, process: ProcessKey, window: WindowResult) {
        if self.windows.len() >= MAX_PROCESSES && !self.windows.contains_key(&process) {
            self.windows.clear();
            self.causes.clear();
        }
        self.windows.insert(process, window);
    }

    /// Adds the answer on a window, unless too little time has passed since the previous one.
    fn take_answer(&mut self, process: ProcessKey, at: Mono, answer: Answer) {
        let causes = self.causes.entry(process).or_default();
        if causes.back().is_some_and(|last| at.since(last.at) < MIN_CAUSE_DISTANCE) {
            return;
        }
        if causes.len() >= STABLE_WINDOWS {
            causes.pop_front();
        }
        causes.push_back(RecentCause { at, cause: answer.cause, answer });
    }

    /// Returns the last answer on a process if the cause was the same in several windows.
    fn stable(&self, process: ProcessKey, now: Mono) -> Option<&Answer> {
        let causes = self.causes.get(&process)?;
        let last = causes.back().filter(|last| now.since(last.at) < MAX_CAUSE_AGE)?;
        let is_stable =
            causes.len() >= STABLE_WINDOWS && causes.iter().all(|one| one.cause == last.cause);
        is_stable.then_some(&last.answer)
    }

    /// Retains the figures of all GPUs, at most once a second.
    pub(super) fn push(&mut self, frame: &Frame) {
        if self.pushed_at.is_some_and(|at| frame.mono.since(at) < MIN_DISTANCE) {
            return;
        }
        self.pushed_at = Some(frame.mono);
        self.gpus.retain(|uuid, _| frame.gpus.iter().any(|gpu| gpu.uuid == *uuid));
        for gpu in &frame.gpus {
            let readings = self.gpus.entry(gpu.uuid.clone()).or_default();
            readings.push_back((frame.mono, GpuSample::of(gpu)));
            let retained = self.retained.max(RETAINED).0 + 2 * MIN_DISTANCE.0;
            readings.retain(|(at, _)| frame.mono.since(*at).0 <= retained);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self { retained: self.retained, ..Self::default() };
    }

    /// Returns the newest window of a process, or why there is none. `None` if it is not sampled.
    pub fn window(&self, process: ProcessKey) -> Option<&Result<PhaseWindow, Missing>> {
        self.windows.get(&process).map(|window| &**window)
    }

    /// Returns the figures of a GPU in the time of a window.
    fn load(&self, gpu: &Gpu, window: &PhaseWindow) -> GpuLoad {
        let readings = self.gpus.get(&gpu.uuid).into_iter().flatten();
        // The first figures are means of a time before the window.
        let from = Mono(window.at.0.saturating_sub(window.length.0) + MIN_DISTANCE.0);
        let inside = readings.filter(|(at, _)| *at >= from && *at <= Mono(window.at.0 + 2_000));
        GpuLoad::over(inside.map(|(_, reading)| reading), gpu)
    }
}

/// Returns the GPU on which a process holds the most memory.
pub fn gpu_of(frame: &Frame, process: ProcessKey) -> Option<&Gpu> {
    let held = |gpu: &&Gpu| listed(gpu, process).and_then(|entry| entry.vram.get());
    let gpus = frame.gpus.iter().filter(|gpu| listed(gpu, process).is_some());
    gpus.max_by_key(held)
}

fn listed(gpu: &Gpu, process: ProcessKey) -> Option<&GpuProcess> {
    gpu.processes.value()?.iter().find(|entry| entry.key() == process)
}

/// Returns why a process is slow, or why that is not known. `None` if the process is not sampled.
pub fn report(host: &HostState, process: ProcessKey) -> Option<Result<WhyReport<'_>, &Missing>> {
    let window = match host.why.window(process)? {
        Ok(window) => window,
        Err(why) => return Some(Err(why)),
    };
    let frame = &host.frame;
    let gpu = gpu_of(frame, process).map(|gpu| GpuLoad {
        held: listed(gpu, process).and_then(|entry| entry.vram.get()),
        is_unused: host.unused_for(process).is_some_and(|time| time >= window.length),
        ..host.why.load(gpu, window)
    });
    let (waits_for, holds_up) = verdicts(&host.jobs, process);
    let signals = Signals {
        window,
        gpu: gpu.as_ref(),
        waits_for: waits_for.as_deref(),
        holds_up: holds_up.as_deref(),
        cores: cores(frame),
    };
    let answer = conclude(&signals);
    Some(Ok(WhyReport { window, gpu, answer }))
}

/// Returns the verdict on the rank that a process waits for, and the one that names the process.
fn verdicts(jobs: &Jobs, process: ProcessKey) -> (Option<String>, Option<String>) {
    let (mut waits_for, mut holds_up) = (None, None);
    for report in jobs.reports() {
        let Some(row) = report.ranks.iter().find(|row| row.process == process) else { continue };
        for verdict in &report.verdicts {
            if verdict.culprits.contains(&row.rank) {
                holds_up.get_or_insert_with(|| verdict.to_string());
            } else if verdict.waiting.contains(&row.rank) {
                waits_for.get_or_insert_with(|| verdict.to_string());
            }
        }
    }
    (waits_for, holds_up)
}

fn cores(frame: &Frame) -> Option<Cores> {
    let host = frame.host.as_ref()?;
    let total = host.cores.get()?;
    let used = f64::from(total) * host.cpu.get()?.0 / 100.0;
    Some(Cores { total, idle: (f64::from(total) - used).max(0.0) as u32 })
}

/// Returns the process on a GPU that has little to do, and why: if the cause was the same in several windows.
pub fn stable_answer<'a>(host: &'a HostState, gpu: &Gpu) -> Option<(ProcessKey, &'a Answer)> {
    let now = host.frame.mono;
    let sm_active = gpu.traffic.as_ref().and_then(|traffic| traffic.sm_active.get());
    let used = sm_active.or(gpu.sm.get())?;
    if host.is_rewound() || used.0 >= MAX_NOTED_USE {
        return None;
    }
    let listed = gpu.processes.value().into_iter().flatten();
    let answers = listed.filter_map(|entry| {
        let process = entry.key();
        Some((process, host.why.stable(process, now)?))
    });
    let noted =
        answers.filter(|(_, answer)| !answer.note.is_empty() && answer.cause != Cause::Busy);
    // An idle process does not explain why the others use little of the GPU.
    noted.min_by_key(|(_, answer)| answer.cause == Cause::NothingRuns)
}

impl HostState {
    /// Takes a window, and remembers its cause.
    pub(super) fn take_window(&mut self, process: ProcessKey, window: WindowResult) {
        let at = window.as_ref().as_ref().ok().map(|window| window.at);
        self.why.take(process, window);
        let answer = match report(self, process) {
            Some(Ok(report)) => report.answer,
            _ => return,
        };
        if let Some(at) = at {
            self.why.take_answer(process, at, answer);
        }
    }

    /// Returns true if no recent window of a process has arrived, and no reason why there is none.
    pub fn awaits_samples(&self, process: ProcessKey) -> bool {
        match self.why.window(process) {
            Some(Ok(window)) => self.frame.mono.since(window.at) >= MAX_AGE,
            Some(Err(_)) => false,
            None => true,
        }
    }
}
