//! Diagnoses the updates that a screen or recorder receives, and saves the resulting incidents.
//!
//! The watcher reports the stored result, never its own conclusion alone, and always under the same name and key. Other
//! conclusions arrive in two ways: another gputop writes to the same store, or a remote agent sends the incidents of its
//! host's store ([`Update::RemoteIncident`]). It sends each once and again after changes;
//! [`source::remote`](crate::source::remote) requests them again after the connection was lost. A failure on a remote host
//! that happens while no gputop runs there is not recorded.
//!
//! Diagnosing text takes tens of milliseconds, and writing a file may block. Both happen on the thread, so the drawing task
//! only passes on updates. A recording is watched in the same way, but its incidents are not stored, because they were
//! stored when they happened. Incidents from remote stores are part of a recording as events
//! ([`Observation::RemoteIncident`]).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc as channel;

use super::saver::IncidentSaver;
use super::{Store, Track, Uid};
use crate::diagnose::live::{Observer, Revision};
use crate::diagnose::recovery::{recover, take_failures};
use crate::model::event::{Event, Observation};
use crate::model::frame::Frame;
use crate::model::host::Hello;
use crate::model::pool::FailureMap;
use crate::model::remote_incident::RemoteIncident;
use crate::model::scene::Scene;
use crate::model::stack::PythonStack;
use crate::source::Update;

/// Maximum number of frames that wait for the thread. Further frames are dropped, because the next one has newer data.
pub const MAX_WAITING_FRAMES: usize = 32;

/// The store for incidents and the command to run for each.
#[derive(Debug, Clone)]
pub struct IncidentSink {
    pub store: Store,
    /// The user's command, run with the incident's JSON on its standard input.
    pub on_incident: Option<String>,
}

/// A result of the thread.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchResult {
    /// A new incident, or a revision of one that was reported before with the same key; with its name in the store.
    Incident(Box<Revision>, Option<Uid>),
    /// An error message about an incident that could not be saved or a command that failed.
    Trouble(String),
}

enum WatchInput {
    Hello(Arc<Hello>),
    Frame(Arc<Frame>),
    Event(Box<Event>),
    Stack(Box<PythonStack>),
    FailureMap(Arc<FailureMap>),
    RemoteIncident(Arc<RemoteIncident>),
    Jump,
    History(Uid, Vec<Track>),
}

/// A handle on the thread, which stops when the handle is dropped.
#[derive(Debug)]
pub struct Watcher {
    inputs: mpsc::Sender<WatchInput>,
    waiting: Arc<AtomicUsize>,
    max_waiting: usize,
    results: channel::UnboundedReceiver<WatchResult>,
}

impl Watcher {
    /// Starts the thread. Without a store, incidents are only reported.
    pub fn start(sink: Option<IncidentSink>) -> std::io::Result<Self> {
        Self::start_with(sink, MAX_WAITING_FRAMES)
    }

    /// Like [`start`](Self::start), with another limit on waiting frames.
    pub fn start_with(sink: Option<IncidentSink>, max_waiting: usize) -> std::io::Result<Self> {
        let (inputs, inbox) = mpsc::channel();
        let (report, results) = channel::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let thread = Thread {
            observer: Observer::default(),
            waiting: Arc::clone(&waiting),
            saver: IncidentSaver::new(sink, report.clone()),
            report,
            last_failure: None,
        };
        std::thread::Builder::new()
            .name("incidents".into())
            .spawn(move || thread.run(&inbox))?;
        Ok(Self {
            inputs,
            waiting,
            max_waiting,
            results,
        })
    }

    /// Passes relevant updates to the thread; never blocks.
    pub fn see(&self, update: &Update) {
        let input = match update {
            Update::Hello(hello) => WatchInput::Hello(Arc::clone(hello)),
            Update::Frame(frame) => {
                if self.waiting.load(Ordering::Relaxed) >= self.max_waiting {
                    return;
                }
                self.waiting.fetch_add(1, Ordering::Relaxed);
                WatchInput::Frame(Arc::clone(frame))
            }
            Update::Event(event) => WatchInput::Event(Box::new(event.clone())),
            Update::Stacks(_, stack) => match &**stack {
                Ok(stack) => WatchInput::Stack(Box::new(stack.clone())),
                Err(_) => return,
            },
            Update::FailureMap(map) => WatchInput::FailureMap(Arc::clone(map)),
            Update::RemoteIncident(remote) => WatchInput::RemoteIncident(Arc::clone(remote)),
            Update::Jump { .. } => WatchInput::Jump,
            _ => return,
        };
        let _ = self.inputs.send(input);
    }

    /// Adds the measured values around an incident to the stored record.
    pub fn add_history(&self, uid: Uid, tracks: Vec<Track>) {
        let _ = self.inputs.send(WatchInput::History(uid, tracks));
    }

    /// Waits for the next result. Safe to cancel; never returns after the thread has stopped.
    pub async fn next(&mut self) -> WatchResult {
        match self.results.recv().await {
            Some(found) => found,
            None => std::future::pending().await,
        }
    }

    /// Waits until all inputs are diagnosed and saved, at most `limit`. Called before the program exits, because the last
    /// update may contain the failure that ended the run.
    pub fn finish(self, limit: std::time::Duration) -> Vec<WatchResult> {
        let Self {
            inputs,
            mut results,
            ..
        } = self;
        drop(inputs);
        let deadline = std::time::Instant::now() + limit;
        let mut all = Vec::new();
        loop {
            match results.try_recv() {
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

/// Lets one thread diagnose at a time. The catalogue's regular expressions retain scratch memory for each thread that
/// matches at the same time, and when a job on a hundred hosts fails, all threads would match at once.
fn diagnosis_lock() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Thread {
    observer: Observer,
    waiting: Arc<AtomicUsize>,
    saver: IncidentSaver,
    report: channel::UnboundedSender<WatchResult>,
    /// The last error of the diagnosis, because the same text may fail again with each frame.
    last_failure: Option<String>,
}

impl Thread {
    fn run(mut self, inbox: &mpsc::Receiver<WatchInput>) {
        while let Ok(input) = inbox.recv() {
            let revisions = self.with_restart(|thread| thread.handle(input));
            for (mut revision, uid) in revisions {
                // The store has the blocks; screens do not show them.
                if revision.scene.map.is_some() {
                    Scene::forget_blocks(Arc::make_mut(&mut revision.scene));
                }
                let sent = self
                    .report
                    .send(WatchResult::Incident(Box::new(revision), uid));
                if sent.is_err() {
                    return;
                }
            }
        }
    }

    /// Runs a part of the diagnosis. After a panic it continues with a new observer and reports the error.
    fn with_restart<T: Default>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let result = recover(|| work(self)).unwrap_or_else(|| {
            self.observer.forget();
            T::default()
        });
        for failure in take_failures() {
            if self.last_failure.as_ref() != Some(&failure) {
                self.last_failure = Some(failure.clone());
                let _ = self.report.send(WatchResult::Trouble(failure));
            }
        }
        result
    }

    /// Handles an input. Returns the revisions to report, with their names in the store.
    fn handle(&mut self, input: WatchInput) -> Vec<(Revision, Option<Uid>)> {
        if let WatchInput::Event(event) = &input
            && let Observation::RemoteIncident(remote) = &event.observation
        {
            let replayed = self.saver.replay(remote);
            return replayed
                .map(|revision| (revision, None))
                .into_iter()
                .collect();
        }
        let concluded = self.conclude(input).into_iter();
        let saved = concluded.map(|mut revision| {
            let uid = self.saver.save(&mut revision);
            (revision, uid)
        });
        saved.collect()
    }

    fn conclude(&mut self, input: WatchInput) -> Vec<Revision> {
        match input {
            WatchInput::Hello(hello) => {
                self.saver.hello(&hello);
                self.observer.hello(hello);
                Vec::new()
            }
            WatchInput::Frame(frame) => {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                self.saver.retry(frame.mono);
                let _lock = diagnosis_lock();
                self.observer.frame(&frame)
            }
            WatchInput::Event(event) => {
                self.saver.event(&event);
                let _lock = diagnosis_lock();
                self.observer.event(&event)
            }
            WatchInput::Stack(stack) => {
                let _lock = diagnosis_lock();
                self.observer.stack(&stack)
            }
            WatchInput::FailureMap(map) => {
                let _lock = diagnosis_lock();
                self.observer.failure_map(&map)
            }
            WatchInput::RemoteIncident(remote) => {
                self.saver.adopt(&remote);
                Vec::new()
            }
            WatchInput::Jump => {
                self.observer.forget();
                self.saver.forget();
                Vec::new()
            }
            WatchInput::History(uid, tracks) => {
                self.saver.add_history(&uid, tracks);
                Vec::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::event::LogExcerpt;
    use crate::model::process::ProcessKey;
    use crate::model::units::{Mono, Pid, StartTicks};

    fn log_update(pid: u32, text: &str) -> Update {
        Update::Event(Event {
            mono: Mono(u64::from(pid)),
            process: Some(ProcessKey {
                pid: Pid(pid),
                start: StartTicks(1),
            }),
            observation: Observation::Log(Box::new(LogExcerpt {
                text: text.to_owned(),
                ..LogExcerpt::default()
            })),
            ..Event::default()
        })
    }

    fn ids(found: &[WatchResult]) -> Vec<&str> {
        let incidents = found.iter().filter_map(|found| match found {
            WatchResult::Incident(revision, _) => Some(revision.incident.id.as_str()),
            WatchResult::Trouble(_) => None,
        });
        incidents.collect()
    }

    const FAILED: &str = "CUDA error: device-side assert triggered\n";

    #[test]
    fn a_multibyte_name_does_not_stop_the_diagnosis() {
        let name = "é".repeat(300);
        let xid = format!("NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=a{name}, MMU Fault\n");
        let watcher = Watcher::start(None).expect("a thread");
        watcher.see(&log_update(418, &xid));
        watcher.see(&log_update(419, FAILED));
        let found = watcher.finish(Duration::from_secs(60));
        assert_eq!(
            ids(&found),
            ["xid-31-mmu-fault", "assert-unknown-device-side"]
        );
    }

    #[test]
    fn continues_after_a_panic_and_reports_it_once() {
        let (report, mut found) = channel::unbounded_channel();
        let mut thread = Thread {
            observer: Observer::default(),
            waiting: Arc::default(),
            saver: IncidentSaver::new(None, report.clone()),
            report,
            last_failure: None,
        };
        for _ in 0..2 {
            let revisions: Vec<Revision> = thread.with_restart(|_| panic!("injected"));
            assert!(revisions.is_empty());
        }
        let Ok(WatchResult::Trouble(why)) = found.try_recv() else {
            panic!("nothing was reported");
        };
        assert!(why.starts_with("diagnosis restarted: injected"), "{why}");
        assert!(found.try_recv().is_err(), "reported twice");
        let Update::Event(event) = log_update(419, FAILED) else {
            panic!("no event");
        };
        let input = WatchInput::Event(Box::new(event));
        assert_eq!(thread.with_restart(|thread| thread.handle(input)).len(), 1);
    }
}
