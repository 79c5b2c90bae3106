//! Diagnoses the updates that a screen or recorder receives, and saves the resulting incidents.
//!
//! The store merges the watcher's conclusion with those of other observers. The watcher then reports the merged
//! incident, with its stored ID and key. Conclusions of other observers reach the watcher in two ways: another gputop
//! process writes to the same store, or a remote agent sends the incidents of its host's store
//! ([`Update::RemoteIncident`]). The agent sends each incident once, and sends it again whenever it changes;
//! [`source::remote`](crate::source::remote) requests them again after a lost connection. If gputop is not running on a
//! remote host when a failure happens there, the failure is not recorded.
//!
//! Diagnosing text takes tens of milliseconds, and writing a file may block. The watcher thread does both, so the task
//! that draws the screen only has to pass on updates. A recording is watched in the same way, but its incidents are not
//! stored, because they were stored when they happened. A recording contains the incidents of remote stores as events
//! ([`Observation::RemoteIncident`]).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gputop_explain::live::Observer;
use gputop_explain::ranks::JoinedJobs;
use gputop_explain::recovery::{recover, take_failures};
use gputop_model::incident_record::Track;
use gputop_model::protocol::Update;
use gputop_model::protocol::backlog::{self, Backlog, Waiting};
use gputop_model::{Hello, Observation, Record, memory_size};
use tokio::sync::mpsc as channel;

use super::activity::ActivityWatcher;
use super::results::{ResultReceiver, ResultSender, WatchResult, result_channel};
use super::saver::IncidentSaver;
use super::sink::IncidentSink;
use super::source_lines;
use super::uid::Uid;

/// Maximum number of frames queued for the watcher thread. Further frames are dropped, because the next frame has newer
/// data. A jump in a recording queues up to 125 frames at once, which the watcher uses to detect memory growth.
pub const MAX_WAITING_FRAMES: usize = 128;

enum WatchInput {
    Update(Update),
    History(Uid, Vec<Track>),
}

/// Handle to the watcher's thread. Dropping it stops the thread.
#[derive(Debug)]
pub struct Watcher {
    inputs: mpsc::Sender<Waiting<WatchInput>>,
    /// The memory of the queued inputs.
    backlog: Arc<Backlog>,
    waiting: Arc<AtomicUsize>,
    max_waiting: usize,
    results: ResultReceiver,
}

impl Watcher {
    /// Starts the watcher thread. Without a store, incidents are reported but not saved.
    pub fn start(sink: Option<IncidentSink>) -> std::io::Result<Self> {
        Self::start_with(sink, MAX_WAITING_FRAMES, JoinedJobs::default())
    }

    /// Like [`start`](Self::start), but with a different limit on queued frames, and for one of several hosts whose ranks
    /// are judged together.
    pub fn start_with(
        sink: Option<IncidentSink>,
        max_waiting: usize,
        jobs: JoinedJobs,
    ) -> std::io::Result<Self> {
        let (inputs, inbox) = mpsc::channel();
        let (report, results) = result_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let observer = Observer::of_host_among(jobs);
        let thread = Thread::new(sink, Arc::clone(&waiting), report, observer);
        std::thread::Builder::new().name("incidents".into()).spawn(move || thread.run(&inbox))?;
        let backlog = Backlog::new(backlog::MAX_BYTES);
        Ok(Self { inputs, backlog, waiting, max_waiting, results })
    }

    /// Returns a watcher without a thread, which detects no incidents.
    pub fn none() -> Self {
        Self {
            inputs: mpsc::channel().0,
            backlog: Backlog::new(backlog::MAX_BYTES),
            waiting: Arc::default(),
            max_waiting: 0,
            results: result_channel().1,
        }
    }

    /// Returns the memory of the queued updates. Its owner reads a source only while there is room
    /// ([`Source::next_for`](gputop_model::protocol::stream::Source::next_for)), because [`see`](Self::see) drops no event.
    pub fn backlog(&self) -> Arc<Backlog> {
        Arc::clone(&self.backlog)
    }

    /// Passes relevant updates to the watcher thread. Never blocks.
    pub fn see(&self, update: &Update) {
        match update {
            Update::Frame(_) => {
                if self.waiting.load(Ordering::Relaxed) >= self.max_waiting {
                    return;
                }
                self.waiting.fetch_add(1, Ordering::Relaxed);
            }
            Update::Hello(_)
            | Update::Event(_)
            | Update::Stacks(..)
            | Update::FailureMap(_)
            | Update::HolderSummary(_)
            | Update::RemoteIncident(_)
            | Update::Jump { .. } => {}
            _ => return,
        }
        let input = self.backlog.add(WatchInput::Update(update.clone()), update.memory_size());
        let _ = self.inputs.send(input);
    }

    /// Adds the values measured around the time of an incident to its stored record.
    pub fn add_history(&self, uid: Uid, tracks: Vec<Track>) {
        let bytes = memory_size::of(&tracks);
        let _ = self.inputs.send(self.backlog.add(WatchInput::History(uid, tracks), bytes));
    }

    /// Waits for the next result from the watcher thread. Safe to cancel. Never returns after the thread has stopped.
    pub async fn next(&mut self) -> WatchResult {
        match self.results.next().await {
            Some(found) => found,
            None => std::future::pending().await,
        }
    }

    /// Waits up to `limit` until all inputs are diagnosed and saved. Called before gputop exits, because the last
    /// update may contain the failure that ended the run. [`Notifications::finish`](super::Notifications::finish) waits
    /// for the user's commands.
    pub fn finish(self, limit: std::time::Duration) -> Vec<WatchResult> {
        let Self { inputs, mut results, .. } = self;
        drop(inputs);
        let deadline = std::time::Instant::now() + limit;
        let mut all = Vec::new();
        loop {
            match results.try_next() {
                Ok(result) => all.push(result),
                Err(channel::error::TryRecvError::Disconnected) => return all,
                Err(channel::error::TryRecvError::Empty)
                    if std::time::Instant::now() >= deadline =>
                {
                    return all;
                }
                Err(channel::error::TryRecvError::Empty) => {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            }
        }
    }
}

/// Maximum number of incidents in a diagnosis of a recording. Later ones are left out.
const MAX_RECORDS: usize = 1_000;

/// Diagnoses a recording on the calling thread. Never drops a frame, so the result is deterministic.
pub struct RecordingDiagnosis {
    thread: Thread,
    results: ResultReceiver,
    records: Vec<Record>,
}

impl Default for RecordingDiagnosis {
    fn default() -> Self {
        let (report, results) = result_channel();
        let thread = Thread::new(None, Arc::default(), report, Observer::default());
        Self { thread, results, records: Vec::new() }
    }
}

impl RecordingDiagnosis {
    pub fn see(&mut self, update: Update) {
        self.thread.waiting.store(1, Ordering::Relaxed);
        let input = WatchInput::Update(update);
        for record in self.thread.with_restart(|thread| thread.handle(input)) {
            // The state of the machine would take more memory than everything else.
            let record = Record { scene: None, ..record };
            match self.records.iter().position(|known| known.key == record.key) {
                Some(at) => self.records[at] = record,
                None if self.records.len() < MAX_RECORDS => self.records.push(record),
                None => {}
            }
        }
    }

    /// Returns the latest revision of each incident and the diagnosis errors.
    pub fn finish(mut self) -> (Vec<Record>, Vec<String>) {
        let mut troubles = Vec::new();
        while let Ok(result) = self.results.try_next() {
            if let WatchResult::Error(why) = result {
                troubles.push(why);
            }
        }
        (self.records, troubles)
    }
}

/// Returns true if the processes run on this machine, where their source files can be read.
fn is_this_machine(hello: &Hello) -> bool {
    let own = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    own.is_ok_and(|own| own.trim() == hello.boot_id)
}

/// Lets only one thread diagnose at a time. The catalogue's regular expressions retain scratch memory for each thread
/// that matches concurrently, and when a job on a hundred hosts fails, all threads would match at once.
fn diagnosis_lock() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Thread {
    observer: Observer,
    waiting: Arc<AtomicUsize>,
    activity: ActivityWatcher,
    saver: IncidentSaver,
    report: ResultSender,
    /// The last diagnosis error, stored so that it is reported only once even if the same text causes it with every
    /// frame.
    last_failure: Option<String>,
}

impl Thread {
    fn new(
        sink: Option<IncidentSink>,
        waiting: Arc<AtomicUsize>,
        report: ResultSender,
        observer: Observer,
    ) -> Self {
        Self {
            observer,
            waiting,
            activity: ActivityWatcher::start(sink.as_ref(), &report),
            saver: IncidentSaver::new(sink, report.clone()),
            report,
            last_failure: None,
        }
    }

    fn run(mut self, inbox: &mpsc::Receiver<Waiting<WatchInput>>) {
        while let Ok(input) = inbox.recv() {
            self.report.unread.wait();
            for record in self.with_restart(|thread| thread.handle(input.take())) {
                if !self.report.send(WatchResult::Incident(Box::new(record))) {
                    return;
                }
            }
        }
    }

    /// Runs a diagnosis step. After a panic, restarts with a new observer and reports the error.
    fn with_restart<T: Default>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let result = recover(|| work(self)).unwrap_or_else(|| {
            self.observer.forget();
            T::default()
        });
        for failure in take_failures() {
            if self.last_failure.as_ref() != Some(&failure) {
                self.last_failure = Some(failure.clone());
                self.report.send(WatchResult::Error(failure));
            }
        }
        result
    }

    /// Handles a watcher input. Returns the incidents to report.
    fn handle(&mut self, input: WatchInput) -> Vec<Record> {
        let update = match input {
            WatchInput::Update(update) => update,
            WatchInput::History(uid, tracks) => {
                self.saver.add_history(&uid, tracks);
                return Vec::new();
            }
        };
        if let Update::Event(event) = &update
            && let Observation::RemoteIncident(remote) = &event.observation
        {
            return self.saver.replay(remote).into_iter().collect();
        }
        self.prepare(&update);
        if let Some(why) = self.activity.see(&update) {
            self.report.send(WatchResult::Error(why));
        }
        let mut records = {
            let _lock = diagnosis_lock();
            self.conclude(&update)
        };
        for record in &mut records {
            self.saver.save(record);
        }
        records
    }

    fn prepare(&mut self, update: &Update) {
        match update {
            Update::Hello(hello) => {
                self.observer.source_reader = is_this_machine(hello).then_some(source_lines::add);
                self.saver.hello(hello);
            }
            Update::Frame(frame) => {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                self.saver.retry(frame.mono);
            }
            Update::Event(event) => self.saver.event(event),
            Update::RemoteIncident(remote) => self.saver.adopt(remote),
            Update::Jump { .. } => self.saver.restart(),
            _ => {}
        }
    }

    fn conclude(&mut self, update: &Update) -> Vec<Record> {
        let observer = &mut self.observer;
        match update {
            Update::Hello(hello) => observer.hello(Arc::clone(hello)),
            Update::Frame(frame) => return observer.frame(frame),
            Update::Event(event) => return observer.event(event),
            Update::Stacks(_, stack) => {
                if let Ok(stack) = &**stack {
                    return observer.stack(stack);
                }
            }
            Update::FailureMap(map) => return observer.failure_map(map),
            Update::HolderSummary(summary) => return observer.holders(summary),
            Update::Jump { .. } => observer.forget(),
            _ => {}
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests;
