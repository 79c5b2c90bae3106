//! A process that is sampled.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use gputop_model::phases::{GilHolder, MAX_PLACES, Phase, PhaseCount, ThreadLoad};
use gputop_model::process::RunState;
use gputop_model::text::visible;
use gputop_model::{Millis, Missing, Mono, PhaseRequest, PhaseWindow, ProcessKey};
use gputop_peek::clock::now_mono;
use gputop_peek::process::access::Access;
use gputop_peek::process::load::thread_state;
use gputop_peek::python::{LockHolder, StackSampler};

use super::busiest_thread::{BusiestThread, blocked_share};
use super::load::{LoadHistory, Roots};
use super::random::RandomIntervals;
use super::source_lines::SourceFiles;
use super::stack_phases::{Place, StackPhases};

/// How often a process is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Mean time between two samples.
    pub sample: Duration,
    /// Time between two windows, two lists of threads and two readings of counters.
    pub window: Duration,
}

/// While a screen or command shows the process.
pub const SHOWN: Pace = Pace { sample: Duration::from_millis(100), window: Duration::from_secs(1) };
/// While nobody looks at the process, but its GPU has little to do.
pub const BACKGROUND: Pace =
    Pace { sample: Duration::from_secs(1), window: Duration::from_secs(10) };
const MAX_WINDOW: Millis = Millis(600_000);
pub const MAX_SAMPLES: usize = 12_000;
const MAX_NAME_CHARS: usize = 32;
/// Number of lists of threads in a row in which another thread drives the GPU.
const MIN_LOOKS: u32 = 2;
/// Phases of a thread that uses a GPU.
const USES_GPU: &[Phase] = &[
    Phase::Forward,
    Phase::Backward,
    Phase::Optimizer,
    Phase::Sync,
    Phase::Copy,
    Phase::Collective,
    Phase::Compile,
];
/// Phases of a thread that waits for others.
const WAITS: &[Phase] = &[Phase::EventLoop, Phase::Sleep, Phase::QueueWait, Phase::Native];

#[derive(Debug)]
struct Sample {
    at: Mono,
    phase: Phase,
    place: Option<Place>,
    /// ID of the thread that held the global lock, or 0 if none did. `None` if it could not be read.
    holder: Option<u64>,
    /// State D.
    is_blocked: Option<bool>,
}

/// A process that is sampled while somebody asks for it.
#[derive(Debug)]
pub struct WatchedProcess {
    key: ProcessKey,
    window: Millis,
    pace: Pace,
    roots: Roots,
    sampler: Result<StackSampler, Missing>,
    phases: StackPhases,
    load: LoadHistory,
    /// Stands for the driving thread while no stack can be read.
    busiest: BusiestThread,
    samples: VecDeque<Sample>,
    intervals: RandomIntervals,
    started: Mono,
    next_sample: Instant,
    next_window: Instant,
    /// ID of the thread that drives the GPU. `None` for the main thread.
    driving: Option<u64>,
    /// Another thread that uses the GPU, and the number of lists in which it did.
    candidate: Option<(u64, u32)>,
    /// Places of the threads other than the driving one at the last look.
    places: BTreeMap<u64, String>,
}

impl WatchedProcess {
    pub fn new(roots: &Roots, request: PhaseRequest, pace: Pace) -> Self {
        let key = request.process;
        let now = Instant::now();
        let mut process = Self {
            key,
            window: request.window.min(MAX_WINDOW),
            pace,
            roots: roots.clone(),
            sampler: StackSampler::attach(&roots.proc, key.pid),
            phases: StackPhases::new(SourceFiles::new(&roots.proc, key)),
            load: LoadHistory::new(roots, key.pid),
            busiest: BusiestThread::new(&roots.proc, key.pid),
            samples: VecDeque::new(),
            intervals: RandomIntervals::new(),
            started: now_mono(),
            next_sample: now,
            next_window: now + pace.window,
            driving: None,
            candidate: None,
            places: BTreeMap::new(),
        };
        process.look_at_threads();
        process.load.take(process.thread_id());
        process
    }

    pub fn key(&self) -> ProcessKey {
        self.key
    }

    /// Returns true if the stacks of the process can be read.
    pub fn has_stacks(&self) -> bool {
        self.sampler.is_ok()
    }

    pub fn set_window(&mut self, request: PhaseRequest) {
        self.window = request.window.min(MAX_WINDOW);
    }

    /// Returns the time of the next sample or window.
    pub fn due(&self) -> Instant {
        self.next_sample.min(self.next_window)
    }

    /// Takes a sample if one is due. Once a second, returns what the process did, or why it cannot be watched.
    pub fn tick(&mut self) -> Option<Result<PhaseWindow, Missing>> {
        let now = Instant::now();
        if now >= self.next_sample {
            self.sample();
            // A late sample does not make the next ones early.
            self.next_sample = Instant::now() + self.intervals.next(self.pace.sample);
        }
        if now < self.next_window {
            return None;
        }
        self.next_window = now + self.pace.window;
        if let Err(why) = Access::new(&self.roots.proc).check(self.key, "the process") {
            return Some(Err(why));
        }
        // The program may still be starting. In the background, one attempt is enough.
        if self.sampler.is_err() && self.pace == SHOWN {
            self.sampler = StackSampler::attach(&self.roots.proc, self.key.pid);
        }
        self.look_at_threads();
        self.load.take(self.thread_id());
        Some(Ok(self.window()))
    }

    /// Returns the ID of the driving thread for `/proc`.
    fn thread_id(&self) -> u32 {
        let main = self.key.pid.0;
        if self.sampler.is_err() {
            return self.busiest.id();
        }
        let Some(driving) = self.driving.filter(|_| self.load.knows_threads()) else { return main };
        let threads = self.sampler.as_ref().map(StackSampler::threads).unwrap_or_default();
        let thread = threads.iter().find(|thread| thread.id == driving);
        thread.and_then(|thread| thread.native_id).unwrap_or(main)
    }

    fn driving_id(&self) -> Option<u64> {
        let threads = self.sampler.as_ref().ok()?.threads();
        self.driving.or_else(|| Some(threads.first()?.id))
    }

    fn sample(&mut self) {
        let driving = self.driving_id();
        let thread_id = self.thread_id();
        let (Ok(sampler), Some(driving)) = (&mut self.sampler, driving) else {
            return self.busiest.look();
        };
        let holder = sampler.lock_holder().map(|holder| match holder {
            LockHolder::Nobody => 0,
            LockHolder::Thread(id) => id,
        });
        let stack = sampler.stack(driving);
        let (phase, place) = match &stack {
            Some(frames) => self.phases.of(frames),
            None => (Phase::Unreadable, None),
        };
        let state = thread_state(&self.roots.proc, self.key.pid, thread_id);
        let is_blocked = state.map(|state| state == RunState::Blocked);
        if self.samples.len() >= MAX_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample { at: now_mono(), phase, place, holder, is_blocked });
    }

    /// Lists the threads, and finds out which drives the GPU: another than the main thread if that only waits.
    fn look_at_threads(&mut self) {
        let driving = self.driving_id();
        let Ok(sampler) = &mut self.sampler else { return self.busiest.list_threads() };
        let Ok(threads) = sampler.list() else { return };
        let threads = threads.to_vec();
        let mut phases = Vec::new();
        self.places.clear();
        for thread in &threads {
            let Some(frames) = sampler.stack(thread.id) else { continue };
            let (phase, place) = self.phases.of(&frames);
            phases.push((thread.id, thread.is_main, phase));
            if Some(thread.id) != driving {
                self.places.extend(place.map(|place| (thread.id, place.label())));
            }
        }
        if self.driving.is_some_and(|id| !threads.iter().any(|thread| thread.id == id)) {
            self.drive(None);
        }
        let main_waits = phases.iter().any(|(_, is_main, phase)| *is_main && WAITS.contains(phase));
        let other = phases.iter().find(|(_, is_main, phase)| !is_main && USES_GPU.contains(phase));
        let Some((id, ..)) = other.filter(|_| main_waits && self.driving.is_none()) else {
            self.candidate = None;
            return;
        };
        let looks = self.candidate.filter(|(known, _)| known == id).map_or(0, |(_, looks)| looks);
        self.candidate = Some((*id, looks + 1));
        if looks + 1 >= MIN_LOOKS {
            self.drive(Some(*id));
        }
    }

    fn drive(&mut self, thread: Option<u64>) {
        self.driving = thread;
        self.candidate = None;
        // Samples of another thread say nothing about this one.
        self.samples.clear();
        self.started = now_mono();
    }

    /// Returns what the process did in the window that ends now.
    fn window(&mut self) -> PhaseWindow {
        let at = now_mono();
        let from = self.started.max(Mono(at.0.saturating_sub(self.window.0)));
        self.samples.retain(|sample| sample.at >= from);
        let started = Mono(self.key.start.0.saturating_mul(10));
        let mut window = PhaseWindow {
            process: self.key,
            at,
            length: at.since(from),
            age: at.since(started),
            phases: self.counts(),
            no_stacks: self.sampler.as_ref().err().cloned(),
            thread: match &self.sampler {
                Ok(_) => self.thread_load(),
                Err(_) => self.busiest.load(from),
            },
            gil: self.gil(),
            ..PhaseWindow::default()
        };
        window.places = self.top_places();
        self.load.add_to(&mut window, from);
        window
    }

    fn counts(&self) -> Vec<PhaseCount> {
        let mut counts: BTreeMap<Phase, u32> = BTreeMap::new();
        for sample in &self.samples {
            *counts.entry(sample.phase).or_default() += 1;
        }
        let mut counts: Vec<PhaseCount> =
            counts.into_iter().map(|(phase, count)| PhaseCount { phase, count }).collect();
        counts.sort_by_key(|count| std::cmp::Reverse(count.count));
        counts
    }

    fn top_places(&mut self) -> Vec<gputop_model::PhasePlace> {
        let mut counts: BTreeMap<_, (&Place, u32)> = BTreeMap::new();
        for sample in &self.samples {
            if let Some(place) = &sample.place {
                let position = (place.position.line, place.position.columns);
                let key = (sample.phase, place.code.id, position);
                counts.entry(key).or_insert((place, 0)).1 += 1;
            }
        }
        let mut places: Vec<(Phase, Place, u32)> = counts
            .into_iter()
            .map(|((phase, ..), (place, count))| (phase, place.clone(), count))
            .collect();
        places.sort_by_key(|(_, _, count)| std::cmp::Reverse(*count));
        places.truncate(MAX_PLACES);
        let describe = |(phase, place, count)| self.phases.described(&place, phase, count);
        places.into_iter().map(describe).collect()
    }

    fn thread_load(&self) -> ThreadLoad {
        let driving = self.driving_id();
        let threads = self.sampler.as_ref().map(StackSampler::threads).unwrap_or_default();
        let thread = threads.iter().find(|thread| Some(thread.id) == driving);
        ThreadLoad {
            name: thread.map_or(String::new(), |t| visible(t.name.as_bytes(), MAX_NAME_CHARS)),
            is_main: thread.is_none_or(|thread| thread.is_main),
            blocked: blocked_share(self.samples.iter().filter_map(|sample| sample.is_blocked)),
            ..ThreadLoad::default()
        }
    }

    fn gil(&self) -> Option<GilHolder> {
        let driving = self.driving_id()?;
        let holders: Vec<u64> = self.samples.iter().filter_map(|sample| sample.holder).collect();
        let mut others: BTreeMap<u64, u32> = BTreeMap::new();
        for id in holders.iter().filter(|id| **id != 0 && **id != driving) {
            *others.entry(*id).or_default() += 1;
        }
        let most = others.iter().max_by_key(|(_, count)| **count).map(|(id, _)| *id);
        let threads = self.sampler.as_ref().map(StackSampler::threads).unwrap_or_default();
        let thread = threads.iter().find(|thread| Some(thread.id) == most);
        Some(GilHolder {
            samples: u32::try_from(holders.len()).unwrap_or(u32::MAX),
            others: others.values().sum(),
            name: thread.map_or(String::new(), |t| visible(t.name.as_bytes(), MAX_NAME_CHARS)),
            place: most.and_then(|id| self.places.get(&id).cloned()).unwrap_or_default(),
        })
    }
}
