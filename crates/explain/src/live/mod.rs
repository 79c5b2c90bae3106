//! Detects incidents in watched processes as they happen. The module uses no files, no threads and no clock.
//!
//! ```text
//! frames ─► recent_history (figures of the last minutes) ──────────────────────┐ Measured
//! events (OOMs rose, log excerpt, Xid, exit) ─► case (one process or the ranks │
//!          of a job; events within seconds belong together) ───────────────────┴► conclusion ─► Record
//! stack, map of a failed allocation ─► scene (from the newest frame) ────────────────────────┘
//! ```
//!
//! The input is a stream from a live host, a recording or a remote host. Each new observation updates the conclusion
//! about its case. The case keeps its [`IncidentKey`], so a new revision replaces the old one. Text is diagnosed as in
//! `explain`, together with measurements. An OOM without text is diagnosed from memory figures alone. If a process
//! exits for an unknown reason, that is not an incident.

mod case;
mod figures;
mod free_blocks;
mod group;
mod process_info;
mod recent_history;
mod scene;
mod stall;
#[cfg(test)]
mod tests;
mod unmatched_xid;
mod windows;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use gputop_model::event::{Event, GpuAtOom, HealthChange, Observation};
use gputop_model::frame::Frame;
use gputop_model::gpu::{Gpu, HealthState};
use gputop_model::holders::summary::HolderSummary;
use gputop_model::host::Hello;
use gputop_model::incident_key::IncidentKey;
use gputop_model::incident_record::Record;
use gputop_model::newest::Newest;
use gputop_model::pool::FailureMap;
use gputop_model::process::ProcessKey;
use gputop_model::stack::{PythonStack, StackTrigger};
use gputop_model::units::{GpuUuid, Millis, Mono, UnixMillis};

use self::case::LiveCase;
pub use self::case::SourceReader;
use self::group::Group;
use self::process_info::ProcessInfo;
use self::recent_history::RecentHistory;
pub use self::stall::{Stall, StallWatch};
use self::windows::{EXIT_WINDOW, OTHER_RANKS_TIMEOUT, SAME_FAILURE_WINDOW};
use super::catalogue::Catalogue;
use super::ranks::JoinedJobs;

/// Maximum age, at the time of a failure, of an earlier reading of the memory holders. Once memory is nearly full, the
/// holders are read only while memory use is growing.
const MAX_HOLDERS_AGE: Millis = Millis(60 * 60_000);
const MAX_CASES: usize = 200;
/// Time after which a lost GPU is an incident. A reloaded driver is read again after five seconds.
const LOST_TIMEOUT: Millis = Millis(12_000);
const MAX_LOST: usize = 256;
const MAX_REMAP_FAILED: usize = 256;
/// Maximum memory of the observations in all cases. The oldest cases are dropped first.
const MAX_CASES_BYTES: usize = 16 << 20;
/// Maximum number of processes whose memory holders are kept, and their maximum memory.
const MAX_HOLDERS: usize = 256;
const MAX_HOLDERS_BYTES: usize = 2 << 20;
/// Maximum memory of the known processes' texts. Beyond it, the properties of exited processes are forgotten.
const MAX_KNOWN_BYTES: usize = 8 << 20;
/// If two consecutive frames are further apart than this, the history is not continuous.
const MAX_FRAME_DISTANCE: Millis = Millis(5_000);

/// Detects the incidents in a stream of frames and events.
#[derive(Debug)]
pub struct Observer {
    /// Set if the user's source files may be on this machine.
    pub source_reader: Option<SourceReader>,
    hello: Arc<Hello>,
    history: RecentHistory,
    /// Sample history from before a jump in a recording, stored until the first frame after the jump arrives.
    before_jump: Option<RecentHistory>,
    /// Last known state of each process, including exited processes.
    known: HashMap<ProcessKey, ProcessInfo>,
    /// GPU index of each process that the driver lists on exactly one GPU.
    gpu_indices: HashMap<ProcessKey, u32>,
    cases: Vec<LiveCase>,
    /// GPUs that were lost and for which no incident was reported yet.
    lost: Vec<Event>,
    /// GPUs with a failed row remap for which an incident was reported.
    remap_failed: Vec<GpuUuid>,
    stalls: StallWatch,
    /// Latest reading of the memory holders of each process, most recently read process last.
    holders: Newest<Arc<HolderSummary>>,
    now: Mono,
}

impl Default for Observer {
    fn default() -> Self {
        Self {
            source_reader: None,
            hello: Arc::default(),
            history: RecentHistory::default(),
            before_jump: None,
            known: HashMap::new(),
            gpu_indices: HashMap::new(),
            cases: Vec::new(),
            lost: Vec::new(),
            remap_failed: Vec::new(),
            stalls: StallWatch::default(),
            holders: Newest::new(MAX_HOLDERS, MAX_HOLDERS_BYTES),
            now: Mono(0),
        }
    }
}

impl Observer {
    /// Returns an observer of one of several hosts, whose ranks are judged together. Each stall is an incident of the host
    /// of the rank that holds up the others.
    pub fn of_host_among(jobs: JoinedJobs) -> Self {
        Self { stalls: StallWatch::new(jobs), ..Self::default() }
    }

    pub fn hello(&mut self, hello: Arc<Hello>) {
        if hello.boot_id != self.hello.boot_id {
            self.forget();
        }
        self.hello = hello;
    }

    /// Clears the state after a jump in a recording, except the properties of the host (`hello`). The sample history is
    /// set aside, and continues if it ends shortly before the first frame after the jump.
    pub fn forget(&mut self) {
        let histories = [self.before_jump.take(), Some(std::mem::take(&mut self.history))];
        let before_jump = histories.into_iter().flatten().max_by_key(|h| h.newest().mono);
        let mut stalls = std::mem::take(&mut self.stalls);
        stalls.forget(&self.hello.host);
        *self = Self {
            stalls,
            source_reader: self.source_reader,
            hello: Arc::clone(&self.hello),
            before_jump,
            ..Self::default()
        };
    }

    /// Adds a frame. Returns new revisions of the cases whose diagnosis depends on the elapsed time.
    pub fn frame(&mut self, frame: &Arc<Frame>) -> Vec<Record> {
        self.now = frame.mono;
        let reaches = |h: &RecentHistory| frame.mono.since(h.newest().mono) <= MAX_FRAME_DISTANCE;
        if let Some(mut before) = self.before_jump.take().filter(reaches) {
            before.forget_from(frame.mono);
            self.history = before;
        }
        self.history.push(frame, self.hello.ticks_per_second);
        for process in frame.processes.iter().flat_map(|p| &*p.list) {
            let is_unchanged = |known: &ProcessInfo| known.is_unchanged(process);
            if !self.known.get(&process.key).is_some_and(is_unchanged) {
                self.known.insert(process.key, ProcessInfo::of(process));
            }
        }
        self.update_gpu_indices(frame);
        let history = &self.history;
        let open: Vec<ProcessKey> = self.cases.iter().flat_map(LiveCase::processes).collect();
        self.known.retain(|key, _| history.is_known(*key) || open.contains(key));
        self.gpu_indices.retain(|key, _| history.is_known(*key) || open.contains(key));
        let is_open = |key: ProcessKey| history.is_known(key) || open.contains(&key);
        self.holders.retain(|summary| is_open(summary.process));
        self.drop_surplus_known();
        let now = self.now;
        let settled: Vec<usize> =
            (0..self.cases.len()).filter(|&i| self.cases[i].settles(now)).collect();
        let mut revisions: Vec<Record> =
            settled.into_iter().filter_map(|i| self.conclude(i)).collect();
        revisions.extend(self.lost_gpus(frame));
        revisions.extend(self.failed_remaps(frame));
        for stall in self.stalls.frame(&self.hello.host, frame) {
            revisions.extend(self.stalled(frame, stall));
        }
        self.cases.retain(|case| !case.is_over(now));
        revisions
    }

    /// Opens a case for each GPU that has been lost for a while, unless an Xid explains that already. Ignores GPUs that
    /// come back after the driver was reloaded.
    fn lost_gpus(&mut self, frame: &Frame) -> Vec<Record> {
        let gpu_of = |event: &Event| {
            let mut gpus = frame.gpus.iter();
            gpus.find(|gpu| Some(&gpu.uuid) == event.gpu.as_ref())
        };
        let is_lost =
            |event: &Event| gpu_of(event).is_some_and(|gpu| gpu.health.state == HealthState::Lost);
        let now = frame.mono;
        let is_due = |event: &&Event| now.since(event.mono) >= LOST_TIMEOUT && is_lost(event);
        let due: Vec<Event> = self.lost.iter().filter(is_due).cloned().collect();
        self.lost.retain(|event| {
            now.since(event.mono) < LOST_TIMEOUT || is_lost(event) && !due.contains(event)
        });
        let mut records = Vec::new();
        for mut event in due {
            // A GPU that was lost before this gputop was started is one incident for every gputop since the boot.
            if gpu_of(&event).is_some_and(|gpu| gpu.health.since.is_none()) {
                event.mono = Mono(0);
            }
            if !self.cases.iter().any(|case| case.has_xid_on(event.gpu.as_ref())) {
                records.extend(self.gpu_failure(&event));
            }
        }
        records
    }

    /// Opens a case for each GPU that could not replace a defective memory row, once, unless an Xid reports that
    /// already.
    fn failed_remaps(&mut self, frame: &Frame) -> Vec<Record> {
        let is_new = |gpu: &&Gpu| {
            gpu.ecc.remap_failed.get() == Some(true) && !self.remap_failed.contains(&gpu.uuid)
        };
        let room = MAX_REMAP_FAILED.saturating_sub(self.remap_failed.len());
        let gpus = frame.gpus.iter().filter(is_new).map(|gpu| gpu.uuid.clone());
        let failed: Vec<GpuUuid> = gpus.take(room).collect();
        let mut records = Vec::new();
        for gpu in failed {
            self.remap_failed.push(gpu.clone());
            let has_xid = |number| self.cases.iter().any(|case| case.has_xid(number, Some(&gpu)));
            if has_xid(63) || has_xid(64) {
                continue;
            }
            let event = Event {
                boot_id: self.hello.boot_id.clone(),
                time: frame.time,
                // The failure lasts until the GPU is replaced. With the same time, it is one incident for every gputop
                // since the host was started.
                mono: Mono(0),
                gpu: Some(gpu),
                observation: Observation::Health(HealthChange::default()),
                ..Event::default()
            };
            records.extend(self.gpu_failure(&event));
        }
        records
    }

    /// Adds a stall to the case of its job. It is the same case for each gputop on this host, because it begins when the
    /// ranks began to wait.
    fn stalled(&mut self, frame: &Frame, stall: Stall) -> Option<Record> {
        let waited = frame.mono.since(stall.since).0;
        let event = Event {
            boot_id: self.hello.boot_id.clone(),
            time: UnixMillis(frame.time.0.saturating_sub(waited.cast_signed())),
            mono: stall.since,
            process: Some(stall.process),
            ..Event::default()
        };
        let index = self.case_of(&event);
        self.set_scene(index, &event);
        let is_news = stall.is_news;
        self.cases[index].take_stall(stall, self.now);
        is_news.then(|| self.conclude(index)).flatten()
    }

    /// Adds the failure of a GPU to a case.
    fn gpu_failure(&mut self, event: &Event) -> Option<Record> {
        let index = self.case_of(event);
        self.set_scene(index, event);
        let is_added = self.cases[index].add(event, None);
        is_added.then(|| self.conclude(index)).flatten()
    }

    /// Forgets all processes that are not in the newest frame, if the known ones take too much memory. A host can report
    /// any number of exits between two frames.
    fn drop_surplus_known(&mut self) {
        if self.known.values().map(ProcessInfo::bytes).sum::<usize>() <= MAX_KNOWN_BYTES {
            return;
        }
        let list = self.history.newest().processes.iter();
        let list = list.flat_map(|processes| &*processes.list);
        let listed: HashSet<ProcessKey> = list.map(|process| process.key).collect();
        self.known.retain(|key, _| listed.contains(key));
        self.gpu_indices.retain(|key, _| listed.contains(key));
    }

    /// Updates the GPU index of each process. Programs have their own device numbers, but a process that the driver
    /// lists on only one GPU uses that GPU.
    fn update_gpu_indices(&mut self, frame: &Frame) {
        let mut on: HashMap<ProcessKey, Vec<u32>> = HashMap::new();
        for gpu in &frame.gpus {
            let listed = gpu.processes.value().into_iter().flatten();
            for key in listed.filter_map(|process| process.process) {
                on.entry(key).or_default().push(gpu.index);
            }
        }
        for (key, indices) in on {
            match indices[..] {
                [index] => self.gpu_indices.insert(key, index),
                _ => self.gpu_indices.remove(&key),
            };
        }
    }

    /// Sets the GPU index of an exited process that was in no frame since a jump in a recording.
    fn add_gpu_index(&mut self, process: Option<ProcessKey>, gpus: &[GpuUuid]) {
        let (Some(key), [uuid]) = (process, gpus) else {
            return;
        };
        let histories = [Some(&self.history), self.before_jump.as_ref()];
        let mut known = histories.into_iter().flatten().flat_map(RecentHistory::gpus);
        if let Some(gpu) = known.find(|gpu| gpu.uuid == *uuid) {
            self.gpu_indices.entry(key).or_insert(gpu.index);
        }
    }

    /// Adds a program's stack at a failed allocation.
    pub fn stack(&mut self, stack: &PythonStack) -> Vec<Record> {
        if stack.why != StackTrigger::Oom {
            return Vec::new();
        }
        let Some(index) = self.case_of_oom(stack.process, stack.at) else {
            return Vec::new();
        };
        self.cases[index].stack(stack);
        self.conclude(index).into_iter().collect()
    }

    /// Returns the index of the case for an allocation that failed in `process` shortly before `at`.
    fn case_of_oom(&self, process: ProcessKey, at: Mono) -> Option<usize> {
        let is_match = |case: &LiveCase| {
            case.has_oom_of(process) && at.since(case.last_of(process)) <= SAME_FAILURE_WINDOW
        };
        self.cases.iter().rposition(is_match)
    }

    /// Adds the blocks of a pool, read after a failed allocation.
    pub fn failure_map(&mut self, failed: &FailureMap) -> Vec<Record> {
        let Some(index) = self.case_of_oom(failed.map.process, failed.map.at) else {
            return Vec::new();
        };
        if self.cases[index].take_map(failed) {
            self.conclude(index).into_iter().collect()
        } else {
            Vec::new()
        }
    }

    /// Adds a reading of the memory holders. If an allocation failed shortly before, the reading explains that failure.
    /// Otherwise, it is stored for the next failure.
    pub fn holders(&mut self, summary: &Arc<HolderSummary>) -> Vec<Record> {
        let key = summary.process;
        self.holders.retain(|earlier| earlier.process != key);
        self.holders.push(Arc::clone(summary));
        match self.case_of_oom(key, summary.at) {
            Some(index) if self.cases[index].take_holders(summary) => {
                self.conclude(index).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    /// Adds the memory holders that were read shortly before the allocation failed.
    fn add_earlier_holders(&mut self, index: usize, event: &Event) {
        let mut read = self.holders.iter();
        let read = event.process.and_then(|key| read.find(|summary| summary.process == key));
        if let Some(summary) = read
            && event.mono.since(summary.at) <= MAX_HOLDERS_AGE
        {
            self.cases[index].take_holders(summary);
        }
    }

    /// Adds GPU values that were read in response to a failed allocation.
    fn gpu_at_oom(&mut self, event: &Event, gpu: &GpuAtOom) -> Option<Record> {
        let process = event.process?;
        let index = self.case_of_oom(process, event.mono)?;
        self.cases[index].set_gpu_at_oom(process, gpu);
        self.conclude(index)
    }

    pub fn event(&mut self, event: &Event) -> Vec<Record> {
        if let Observation::GpuAtOom(gpu) = &event.observation {
            return self.gpu_at_oom(event, gpu).into_iter().collect();
        }
        if let Observation::Candidate(process) = &event.observation {
            self.known.entry(process.key).or_insert_with(|| ProcessInfo::of(process));
            return Vec::new();
        }
        // If several ranks share the log, attribute it to the first rank.
        let first = match &event.observation {
            Observation::Log(excerpt) if event.process.is_none() => excerpt.writers.first(),
            _ => None,
        };
        if first.is_some() {
            let event = Event { process: first.copied(), ..event.clone() };
            return self.event(&event);
        }
        self.now = self.now.max(event.mono);
        self.stalls.event(event);
        if let Observation::Health(change) = &event.observation {
            self.lost.retain(|lost| lost.gpu != event.gpu);
            if change.state == HealthState::Lost && self.lost.len() < MAX_LOST {
                self.lost.push(event.clone());
            }
            return Vec::new();
        }
        let index = match &event.observation {
            Observation::Xid(xid) => {
                self.owner_of(event, xid).or_else(|| Some(self.case_of(event)))
            }
            Observation::Ooms(_) | Observation::Log(_) | Observation::Hook(_) => {
                Some(self.case_of(event))
            }
            Observation::Exit(exit) => {
                if let (Some(key), Some(last)) = (event.process, &exit.last) {
                    self.known.entry(key).or_insert_with(|| ProcessInfo::of(last));
                }
                self.add_gpu_index(event.process, &exit.gpus);
                self.drop_surplus_known();
                self.case_of_exit(event)
            }
            // A replay result does not open a case. Replaying a long trace takes time, so the case already exists when
            // the result arrives.
            Observation::TraceReplay(_) => self.case_with(event),
            _ => None,
        };
        let Some(index) = index else {
            return Vec::new();
        };
        let measured = event.process.map(|process| self.history.measured(process, event));
        self.set_scene(index, event);
        if !self.cases[index].add(event, measured) {
            return Vec::new();
        }
        if let Some(process) = event.process
            && let Some(stall) = self.stalls.by_other_host(process, event.mono)
        {
            self.cases[index].take_stall_by_other_host(stall);
        }
        let index = self.drop_large_cases(index);
        self.add_earlier_holders(index, event);
        let revision = self.conclude(index);
        match self.claim(index) {
            (index, true) => self.conclude(index).into_iter().collect(),
            _ => revision.into_iter().collect(),
        }
    }

    /// Returns the index of an event's open case, or of a new one.
    fn case_of(&mut self, event: &Event) -> usize {
        let group = self.group(event);
        let is_match = |case: &LiveCase| {
            let quiet = event.mono.since(case.last_at());
            (case.group() == &group || case.stalls(event.process))
                && (quiet <= SAME_FAILURE_WINDOW
                    || (case.is_fatal_for_others(event) && quiet <= OTHER_RANKS_TIMEOUT))
        };
        if let Some(index) = self.cases.iter().rposition(is_match) {
            return index;
        }
        if self.cases.len() >= MAX_CASES {
            self.cases.remove(0);
        }
        let key = IncidentKey {
            boot_id: event.boot_id.clone(),
            process: event.process,
            run: None,
            gpu: event.gpu.clone().filter(|_| event.process.is_none()),
            first: event.mono,
            time: event.time,
        };
        self.cases.push(LiveCase::new(key, group));
        self.cases.len() - 1
    }

    /// Drops the oldest cases if all cases together take too much memory. Returns the new index of the case at `index`,
    /// which is not dropped.
    fn drop_large_cases(&mut self, mut index: usize) -> usize {
        self.cases[index].measure();
        let mut bytes: usize = self.cases.iter().map(LiveCase::bytes).sum();
        while bytes > MAX_CASES_BYTES && self.cases.len() > 1 {
            let oldest = usize::from(index == 0);
            bytes -= self.cases.remove(oldest).bytes();
            index -= usize::from(oldest < index);
        }
        index
    }

    /// Copies the scene from the newest frame into the case when the first event of a process arrives.
    fn set_scene(&mut self, index: usize, event: &Event) {
        let case = &mut self.cases[index];
        if event.process.is_some_and(|key| case.has(key)) {
            return;
        }
        let mut reported: Vec<GpuUuid> = event.gpu.iter().cloned().collect();
        if let Observation::Exit(exit) = &event.observation {
            reported.extend(exit.gpus.iter().cloned());
        }
        let frame = self.history.newest();
        let gpu_index = event.process.and_then(|key| self.gpu_indices.get(&key));
        let gpu = gpu_index.and_then(|at| frame.gpus.iter().find(|gpu| gpu.index == *at));
        reported.extend(gpu.map(|gpu| gpu.uuid.clone()));
        scene::take(case.scene(), frame, event.process, &reported);
    }

    /// Returns the index of the case for a process's exit. If there is none, opens one for a kill by the host's OOM
    /// killer.
    fn case_of_exit(&mut self, event: &Event) -> Option<usize> {
        match self.case_with(event) {
            Some(index) => Some(index),
            None => case::was_killed_by_host(event).then(|| self.case_of(event)),
        }
    }

    /// Returns the index of the process's last case, if the case's last observation is recent.
    fn case_with(&self, event: &Event) -> Option<usize> {
        let process = event.process?;
        let is_match = |case: &LiveCase| {
            case.processes().any(|key| key == process)
                && event.mono.since(case.last_of(process)) <= EXIT_WINDOW
        };
        self.cases.iter().rposition(is_match)
    }

    fn group(&self, event: &Event) -> Group {
        let process = event.process.and_then(|key| self.known.get(&key));
        Group::of(event, process)
    }

    fn conclude(&mut self, index: usize) -> Option<Record> {
        if self.cases[index].waits_for_owner(self.now) {
            return None;
        }
        let gpus = self.history.gpus();
        // Load the error cards only when they are needed, because loading takes memory and a few milliseconds.
        let catalogue = Catalogue::embedded();
        let revision = self.cases[index].conclude(
            catalogue,
            &self.known,
            &self.gpu_indices,
            gpus,
            self.now,
            self.source_reader,
        )?;
        Some(self.counted(index, revision))
    }

    /// Counts repetitions, so that a program that catches the same failure at every step produces only one incident.
    fn counted(&mut self, index: usize, mut revision: Record) -> Record {
        let (before, rest) = self.cases.split_at_mut(index);
        let this = &mut rest[0];
        let earlier = before.iter_mut().rev().find(|case| case.is_repeated_by(&revision));
        if let Some(earlier) = earlier {
            earlier.repeat(this, &mut revision);
        }
        this.publish(&revision);
        revision
    }
}
