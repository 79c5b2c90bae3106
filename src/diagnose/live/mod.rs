//! Incidents of processes that are being watched, while they happen. Pure: no file, no thread, no clock of its own.
//!
//! ```text
//! frames ─► track (what each pool was like in the minutes before) ──────────────┐ Measured
//! events (OOMs rose, log excerpt, Xid, exit) ─► case (one process, or the ranks │
//!          of a job; what comes within seconds belongs together) ───────────────┴► judge ─► Revision
//! stack, map of a failed allocation ─► scene (what was there, cut from the newest frame) ─────────┘
//! ```
//!
//! The same functions see a live host, a recording and another machine: all they know came in a stream. A case is
//! judged anew whenever something is added to it, and keeps its [`CaseKey`], so that whoever shows or stores it
//! replaces what it had. Text is judged as `explain` judges it, with what was measured beside it; an OOM without any
//! text is judged by its figures alone; a process that ended for reasons nobody knows is no incident.

mod case;
mod figures;
mod free_blocks;
mod group;
mod process_info;
mod recent_history;
mod scene;
#[cfg(test)]
mod tests;
mod unmatched_xid;

use std::collections::HashMap;
use std::sync::Arc;

use self::case::Case;
use self::group::Group;
use self::process_info::ProcessInfo;
use self::recent_history::Tracks;
use super::catalogue::Catalogue;
use crate::model::event::{Event, GpuAtOom, Observation};
use crate::model::frame::Frame;
use crate::model::host::Hello;
use crate::model::incident::Incident;
use crate::model::pool::FailureMap;
use crate::model::process::ProcessKey;
use crate::model::scene::Scene;
use crate::model::stack::{PythonStack, StackWhy};
use crate::model::units::{GpuUuid, Millis, Mono, UnixMillis};

/// What one process does within this time is one failure.
const TOGETHER: Millis = Millis(5_000);
/// A process that ends so long after its last observation ended of it: interpreters take their time.
const ENDED_OF_IT: Millis = Millis(30_000);
/// Ranks that wait for the one that failed give up after their timeout, which is half an hour at most by default.
const OTHER_RANKS: Millis = Millis(45 * 60_000);
/// The same failure again within this time is counted, not told anew.
const AGAIN: Millis = Millis(10 * 60_000);
/// Cases that are kept for what may still come to them.
const MAX_CASES: usize = 200;

/// Names a case for ever: two observers of the same host give the same failure the same key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct CaseKey {
    pub boot_id: String,
    /// The process that was first; none when a GPU failed without one.
    pub process: Option<ProcessKey>,
    pub gpu: Option<GpuUuid>,
    /// The moment of the first observation.
    pub first: Mono,
}

/// What is concluded now; replaces what was said under the same key.
#[derive(Debug, Clone, PartialEq)]
pub struct Revision {
    pub key: CaseKey,
    pub incident: Incident,
    /// When it happened.
    pub at: Mono,
    pub time: UnixMillis,
    /// Every process it is about.
    pub processes: Vec<ProcessKey>,
    /// The command under `gputop run` that the first of them is a part of.
    pub run: Option<ProcessKey>,
    /// The command line of the one that was first.
    pub command: Option<String>,
    /// The text that was read for it, as the collector sent it.
    pub excerpt: String,
    /// What was there around it.
    pub scene: Arc<Scene>,
}

/// Watches one stream.
#[derive(Debug, Default)]
pub struct Observer {
    hello: Arc<Hello>,
    tracks: Tracks,
    /// Processes as they were last seen, also after their end.
    known: HashMap<ProcessKey, ProcessInfo>,
    /// The index of the GPU of a process that the driver lists on one only.
    places: HashMap<ProcessKey, u32>,
    cases: Vec<Case>,
    now: Mono,
}

impl Observer {
    pub fn hello(&mut self, hello: Arc<Hello>) {
        if hello.boot_id != self.hello.boot_id {
            self.forget();
        }
        self.hello = hello;
    }

    /// A recording jumped: what was seen before says nothing about what comes.
    pub fn forget(&mut self) {
        *self = Self {
            hello: Arc::clone(&self.hello),
            ..Self::default()
        };
    }

    /// Takes the figures in; cases whose meaning depends on the time that has passed are told again.
    pub fn frame(&mut self, frame: &Arc<Frame>) -> Vec<Revision> {
        self.now = frame.mono;
        self.tracks.push(frame, self.hello.ticks_per_second);
        for process in frame.processes.iter().flat_map(|p| &*p.list) {
            let is_still = |known: &ProcessInfo| known.is_still(process);
            if !self.known.get(&process.key).is_some_and(is_still) {
                self.known.insert(process.key, ProcessInfo::of(process));
            }
        }
        self.place(frame);
        let tracks = &self.tracks;
        let open: Vec<ProcessKey> = self.cases.iter().flat_map(Case::processes).collect();
        self.known
            .retain(|key, _| tracks.is_known(*key) || open.contains(key));
        self.places
            .retain(|key, _| tracks.is_known(*key) || open.contains(key));
        let now = self.now;
        let settled: Vec<usize> = (0..self.cases.len())
            .filter(|&i| self.cases[i].settles(now))
            .collect();
        let revisions = settled.into_iter().filter_map(|i| self.judge(i)).collect();
        self.cases.retain(|case| !case.is_over(now));
        revisions
    }

    /// A program counts its own devices: where the driver lists it on one GPU, that is the one it means.
    fn place(&mut self, frame: &Frame) {
        let mut on: HashMap<ProcessKey, Vec<u32>> = HashMap::new();
        for gpu in &frame.gpus {
            let listed = gpu.processes.value().into_iter().flatten();
            for key in listed.filter_map(|process| process.process) {
                on.entry(key).or_default().push(gpu.index);
            }
        }
        for (key, indices) in on {
            match indices[..] {
                [index] => self.places.insert(key, index),
                _ => self.places.remove(&key),
            };
        }
    }

    /// The program's stack at the moment an allocation failed.
    pub fn stack(&mut self, stack: &PythonStack) -> Vec<Revision> {
        if stack.why != StackWhy::Oom {
            return Vec::new();
        }
        let Some(index) = self.failed(stack.process, stack.at) else {
            return Vec::new();
        };
        self.cases[index].stack(stack);
        self.judge(index).into_iter().collect()
    }

    /// The case of the allocation that failed in a process right before this moment.
    fn failed(&self, process: ProcessKey, at: Mono) -> Option<usize> {
        let is_it =
            |case: &Case| case.has_oom_of(process) && at.since(case.last_of(process)) <= TOGETHER;
        self.cases.iter().rposition(is_it)
    }

    /// The blocks of a pool right after an allocation failed in it.
    pub fn failure_map(&mut self, failed: &FailureMap) -> Vec<Revision> {
        let Some(index) = self.failed(failed.map.process, failed.map.at) else {
            return Vec::new();
        };
        match self.cases[index].take_map(failed) {
            true => self.judge(index).into_iter().collect(),
            false => Vec::new(),
        }
    }

    /// The GPU of such an allocation, read because of it.
    fn gpu_at_oom(&mut self, event: &Event, there: &GpuAtOom) -> Option<Revision> {
        let process = event.process?;
        let index = self.failed(process, event.mono)?;
        self.cases[index].see_gpu(process, there);
        self.judge(index)
    }

    pub fn event(&mut self, event: &Event) -> Vec<Revision> {
        if let Observation::GpuAtOom(there) = &event.observation {
            return self.gpu_at_oom(event, there).into_iter().collect();
        }
        // A log that ranks share stands for all of them.
        let first = match &event.observation {
            Observation::Log(excerpt) if event.process.is_none() => excerpt.writers.first(),
            _ => None,
        };
        if first.is_some() {
            let event = Event {
                process: first.copied(),
                ..event.clone()
            };
            return self.event(&event);
        }
        self.now = self.now.max(event.mono);
        let index = match &event.observation {
            Observation::Xid(xid) => self
                .owner_of(event, xid)
                .or_else(|| Some(self.case_of(event))),
            Observation::Ooms(_) | Observation::Log(_) | Observation::Hook(_) => {
                Some(self.case_of(event))
            }
            Observation::Exit(exit) => {
                if let (Some(key), Some(last)) = (event.process, &exit.last) {
                    self.known
                        .entry(key)
                        .or_insert_with(|| ProcessInfo::of(last));
                }
                self.case_that_ended(event)
            }
            // Parsing a long trace takes its time; it begins nothing by itself.
            Observation::Replayed(_) => self.case_with(event),
            _ => None,
        };
        let Some(index) = index else {
            return Vec::new();
        };
        let measured = event
            .process
            .map(|process| self.tracks.measured(process, event));
        self.set_scene(index, event);
        if !self.cases[index].add(event, measured) {
            return Vec::new();
        }
        let told = self.judge(index);
        match self.claim(index) {
            (index, true) => self.judge(index).into_iter().collect(),
            _ => told.into_iter().collect(),
        }
    }

    /// The open case that an observation belongs to; otherwise a new one.
    fn case_of(&mut self, event: &Event) -> usize {
        let group = self.group(event);
        let is_its = |case: &Case| {
            let quiet = event.mono.since(case.last_at());
            case.group() == &group
                && (quiet <= TOGETHER || (case.is_fatal_for_others(event) && quiet <= OTHER_RANKS))
        };
        if let Some(index) = self.cases.iter().rposition(is_its) {
            return index;
        }
        if self.cases.len() >= MAX_CASES {
            self.cases.remove(0);
        }
        let key = CaseKey {
            boot_id: event.boot_id.clone(),
            process: event.process,
            gpu: event.gpu.clone().filter(|_| event.process.is_none()),
            first: event.mono,
        };
        self.cases.push(Case::new(key, group, event.time));
        self.cases.len() - 1
    }

    /// What is there now, where the event is the first of its process.
    fn set_scene(&mut self, index: usize, event: &Event) {
        let case = &mut self.cases[index];
        if event.process.is_some_and(|key| case.has(key)) {
            return;
        }
        let mut told: Vec<GpuUuid> = event.gpu.iter().cloned().collect();
        if let Observation::Exit(exit) = &event.observation {
            told.extend(exit.gpus.iter().cloned());
        }
        let frame = self.tracks.newest();
        let place = event.process.and_then(|key| self.places.get(&key));
        let at_place = place.and_then(|at| frame.gpus.iter().find(|gpu| gpu.index == *at));
        told.extend(at_place.map(|gpu| gpu.uuid.clone()));
        scene::take(case.scene(), frame, event.process, &told);
    }

    /// The case of a process that has ended now; one that was ended by force begins one.
    fn case_that_ended(&mut self, event: &Event) -> Option<usize> {
        match self.case_with(event) {
            Some(index) => Some(index),
            None => case::was_killed_by_the_host(event).then(|| self.case_of(event)),
        }
    }

    /// The last case of the process, if its last observation is not long ago.
    fn case_with(&self, event: &Event) -> Option<usize> {
        let process = event.process?;
        let is_its = |case: &Case| {
            case.processes().any(|key| key == process)
                && event.mono.since(case.last_of(process)) <= ENDED_OF_IT
        };
        self.cases.iter().rposition(is_its)
    }

    fn group(&self, event: &Event) -> Group {
        let process = event.process.and_then(|key| self.known.get(&key));
        Group::of(event, process)
    }

    fn judge(&mut self, index: usize) -> Option<Revision> {
        if self.cases[index].waits(self.now) {
            return None;
        }
        let gpus = self.tracks.gpus();
        // Cards cost memory and a few milliseconds: only who needs them has them.
        let catalogue = Catalogue::embedded();
        let revision =
            self.cases[index].judge(catalogue, &self.known, &self.places, gpus, self.now)?;
        Some(self.counted(index, revision))
    }

    /// A program that catches the same failure at every step has one incident with a count.
    fn counted(&mut self, index: usize, mut revision: Revision) -> Revision {
        let (before, rest) = self.cases.split_at_mut(index);
        let this = &mut rest[0];
        let earlier = before
            .iter_mut()
            .rev()
            .find(|case| case.is_repeated_by(&revision));
        if let Some(earlier) = earlier {
            earlier.repeat(this, &mut revision);
        }
        this.tell(&revision);
        revision
    }
}
