//! Sees what a screen or a recorder sees, makes incidents of it, and keeps them.
//!
//! ```text
//! source ─► Update ─► screen, recorder
//!              └────► Watcher::see ─► thread "incidents": Observer ─► Revision ─► store, on_incident
//!                                                                        └─► Watcher::next ─► banner
//! ```
//!
//! Of one failure there may be several conclusions: this thread's, which changes as more is seen, and those of others that
//! saw it. All of them go into the store, where [one of them stands](crate::incidents::Record::revised_by); what is told is
//! what stands there and never what was concluded here alone, under the same name and key each time. Others' come in two
//! ways: they write into the same store, or a far host's agent tells what is in the store there ([`Update::RemoteIncident`], each
//! incident once and again when it has changed; [`source::remote`](crate::source::remote) asks for it anew after a lost
//! link). What was seen on a far host and by nobody's store, while no agent was there, nobody knows.
//!
//! Judging a text takes tens of milliseconds and writing a file may block: both happen on the thread, and whoever
//! draws only passes on what it got. A recording is watched in the same way and nothing of it is stored: it was,
//! when it happened. What another host's store told then lies in it as events ([`Observation::RemoteIncident`]), and a ledger takes
//! the place of the store.

mod incident_record;
mod recording_incidents;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc as channel;

use self::incident_record::Keeping;
use crate::diagnose::live::{Observer, Revision};
use crate::diagnose::recovery::{recover, take_failures};
use crate::incidents::{Store, Track, Uid};
use crate::model::event::{Event, Observation};
use crate::model::frame::Frame;
use crate::model::host::Hello;
use crate::model::pool::FailureMap;
use crate::model::remote_incident::RemoteIncident;
use crate::model::scene::Scene;
use crate::model::stack::PythonStack;
use crate::source::Update;

/// Frames that wait for the thread; more say nothing that the next one does not.
pub const MAX_WAITING: usize = 32;

/// Where incidents are kept, and who is told of them.
#[derive(Debug, Clone)]
pub struct Keep {
    pub store: Store,
    /// The user's command, run with the incident's JSON on its standard input.
    pub on_incident: Option<String>,
}

/// What the thread has to say.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchResult {
    /// A new incident, or more of one that was told before under the same key; with its name in the store.
    Incident(Box<Revision>, Option<Uid>),
    /// A sentence about what could not be kept or told.
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

/// A handle on the thread, which ends when the handle is dropped.
#[derive(Debug)]
pub struct Watcher {
    seen: mpsc::Sender<WatchInput>,
    waiting: Arc<AtomicUsize>,
    most_waiting: usize,
    found: channel::UnboundedReceiver<WatchResult>,
}

impl Watcher {
    /// With nothing to keep it only tells.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(keep: Option<Keep>) -> std::io::Result<Self> {
        Self::start_with(keep, MAX_WAITING)
    }

    /// The same where so many frames wait for the thread at most.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(keep: Option<Keep>, most_waiting: usize) -> std::io::Result<Self> {
        let (seen, inbox) = mpsc::channel();
        let (tell, found) = channel::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let thread = Thread {
            observer: Observer::default(),
            waiting: Arc::clone(&waiting),
            keeping: Keeping::new(keep, tell.clone()),
            tell,
            last_failure: None,
        };
        std::thread::Builder::new()
            .name("incidents".into())
            .spawn(move || thread.run(&inbox))?;
        Ok(Self {
            seen,
            waiting,
            most_waiting,
            found,
        })
    }

    /// Passes on what matters of an update; never waits.
    pub fn see(&self, update: &Update) {
        let seen = match update {
            Update::Hello(hello) => WatchInput::Hello(Arc::clone(hello)),
            Update::Frame(frame) => {
                if self.waiting.load(Ordering::Relaxed) >= self.most_waiting {
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
            Update::RemoteIncident(kept) => WatchInput::RemoteIncident(Arc::clone(kept)),
            Update::Jump { .. } => WatchInput::Jump,
            _ => return,
        };
        let _ = self.seen.send(seen);
    }

    /// Adds the minutes around an incident to what is stored of it.
    pub fn add_history(&self, uid: Uid, tracks: Vec<Track>) {
        let _ = self.seen.send(WatchInput::History(uid, tracks));
    }

    /// What was found next. Safe to cancel; never comes back when the thread has ended.
    pub async fn next(&mut self) -> WatchResult {
        match self.found.recv().await {
            Some(found) => found,
            None => std::future::pending().await,
        }
    }

    /// Waits until everything that was seen is judged and kept, at most `limit`: whoever leaves asks for this, since
    /// the last thing it saw may be what ended the run.
    pub fn finish(self, limit: std::time::Duration) -> Vec<WatchResult> {
        let Self {
            seen, mut found, ..
        } = self;
        drop(seen);
        let deadline = std::time::Instant::now() + limit;
        let mut all = Vec::new();
        loop {
            match found.try_recv() {
                Ok(one) => all.push(one),
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

/// One thread judges at a time. What the cards' expressions need while they are matched stays with them, for as many as ever
/// matched at once; when a job of a hundred hosts fails, all of them hear of it in the same moment.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Thread {
    observer: Observer,
    waiting: Arc<AtomicUsize>,
    keeping: Keeping,
    tell: channel::UnboundedSender<WatchResult>,
    /// The last error of the diagnosis: the same text may fail again with each frame.
    last_failure: Option<String>,
}

impl Thread {
    fn run(mut self, inbox: &mpsc::Receiver<WatchInput>) {
        while let Ok(seen) = inbox.recv() {
            let found = self.restarting(|thread| thread.look(seen));
            for (mut revision, uid) in found {
                // Who is told shows what can be read; the blocks are in the store.
                if revision.scene.map.is_some() {
                    Scene::forget_blocks(Arc::make_mut(&mut revision.scene));
                }
                let told = self
                    .tell
                    .send(WatchResult::Incident(Box::new(revision), uid));
                if told.is_err() {
                    return;
                }
            }
        }
    }

    /// Runs a part of the diagnosis. After a panic it goes on with an observer that has seen nothing, and says so.
    fn restarting<T: Default>(&mut self, look: impl FnOnce(&mut Self) -> T) -> T {
        let found = recover(|| look(self)).unwrap_or_else(|| {
            self.observer.forget();
            T::default()
        });
        for failure in take_failures() {
            if self.last_failure.as_ref() != Some(&failure) {
                self.last_failure = Some(failure.clone());
                let _ = self.tell.send(WatchResult::Trouble(failure));
            }
        }
        found
    }

    /// What is to be told, with its name in the store.
    fn look(&mut self, seen: WatchInput) -> Vec<(Revision, Option<Uid>)> {
        if let WatchInput::Event(event) = &seen
            && let Observation::RemoteIncident(kept) = &event.observation
        {
            let replayed = self.keeping.replay(kept);
            return replayed.map(|one| (one, None)).into_iter().collect();
        }
        let concluded = self.conclude(seen).into_iter();
        let known = concluded.map(|mut revision| {
            let uid = self.keeping.keep(&mut revision);
            (revision, uid)
        });
        known.collect()
    }

    fn conclude(&mut self, seen: WatchInput) -> Vec<Revision> {
        match seen {
            WatchInput::Hello(hello) => {
                self.keeping.hello(&hello);
                self.observer.hello(hello);
                Vec::new()
            }
            WatchInput::Frame(frame) => {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                self.keeping.settle(frame.mono);
                let _turn = turn();
                self.observer.frame(&frame)
            }
            WatchInput::Event(event) => {
                self.keeping.event(&event);
                let _turn = turn();
                self.observer.event(&event)
            }
            WatchInput::Stack(stack) => {
                let _turn = turn();
                self.observer.stack(&stack)
            }
            WatchInput::FailureMap(map) => {
                let _turn = turn();
                self.observer.failure_map(&map)
            }
            WatchInput::RemoteIncident(kept) => {
                self.keeping.adopt(&kept);
                Vec::new()
            }
            WatchInput::Jump => {
                self.observer.forget();
                self.keeping.forget();
                Vec::new()
            }
            WatchInput::History(uid, tracks) => {
                self.keeping.add_history(&uid, tracks);
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

    fn says(pid: u32, text: &str) -> Update {
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
    fn a_name_in_another_script_does_not_end_the_diagnosis() {
        let name = "é".repeat(300);
        let xid = format!("NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=a{name}, MMU Fault\n");
        let watcher = Watcher::start(None).expect("a thread");
        watcher.see(&says(418, &xid));
        watcher.see(&says(419, FAILED));
        let found = watcher.finish(Duration::from_secs(60));
        assert_eq!(
            ids(&found),
            ["xid-31-mmu-fault", "assert-unknown-device-side"]
        );
    }

    #[test]
    fn after_a_panic_the_diagnosis_goes_on_and_says_so_once() {
        let (tell, mut found) = channel::unbounded_channel();
        let mut thread = Thread {
            observer: Observer::default(),
            waiting: Arc::default(),
            keeping: Keeping::new(None, tell.clone()),
            tell,
            last_failure: None,
        };
        for _ in 0..2 {
            let nothing: Vec<Revision> = thread.restarting(|_| panic!("injected"));
            assert!(nothing.is_empty());
        }
        let Ok(WatchResult::Trouble(why)) = found.try_recv() else {
            panic!("nothing was said");
        };
        assert!(why.starts_with("diagnosis restarted: injected"), "{why}");
        assert!(found.try_recv().is_err(), "said twice");
        let Update::Event(event) = says(419, FAILED) else {
            panic!("no event");
        };
        let seen = WatchInput::Event(Box::new(event));
        assert_eq!(thread.restarting(|thread| thread.look(seen)).len(), 1);
    }
}
