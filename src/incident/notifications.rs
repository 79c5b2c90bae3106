//! The owner of the user's commands: knows which notifications are not sent yet, and stops the commands at exit.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::results::{WatchResult, WeakResultSender};

/// Maximum time in which the threads stop their commands. They check every 10 ms whether they must.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// All notifications of this gputop process. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Notifications(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Set when gputop exits. Running commands are then killed, and no others are started.
    is_stopping: AtomicBool,
    state: Mutex<State>,
    has_closed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Subjects of the notifications that wait or whose command runs, in the order in which they were added.
    open: BTreeMap<u64, String>,
    /// Subjects of the notifications that were not sent, if nothing else has reported that.
    lost: Vec<String>,
}

impl Notifications {
    /// Adds a notification. `subject` names its incident or process.
    pub(super) fn add(&self, subject: String) -> Notification {
        let mut state = self.state();
        state.next += 1;
        let id = state.next;
        state.open.insert(id, subject);
        Notification { id, all: self.clone() }
    }

    /// Waits up to `limit` until all notifications are sent. Then kills the running commands. Returns the subjects of
    /// the notifications that were not sent. Called before gputop exits.
    pub fn finish(&self, limit: Duration) -> Vec<String> {
        drop(self.wait(Instant::now() + limit));
        self.0.is_stopping.store(true, Ordering::Relaxed);
        let mut state = self.wait(Instant::now() + STOP_TIMEOUT);
        let mut lost = std::mem::take(&mut state.lost);
        lost.extend(state.open.values().cloned());
        lost
    }

    /// Waits until no notification is open.
    fn wait(&self, deadline: Instant) -> MutexGuard<'_, State> {
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self
            .0
            .has_closed
            .wait_timeout_while(self.state(), left, |state| !state.open.is_empty());
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A notification that is not sent yet. If it is dropped without having been closed, it counts as not sent.
#[derive(Debug)]
pub(super) struct Notification {
    id: u64,
    all: Notifications,
}

impl Notification {
    /// Set when gputop exits.
    pub(super) fn is_cancelled(&self) -> &AtomicBool {
        &self.all.0.is_stopping
    }

    /// Closes the notification, and reports why it was not sent. Once gputop exits, nothing reads `report`, so the
    /// reason is added to the notifications that were not sent.
    pub(super) fn close(self, result: Result<(), String>, report: &WeakResultSender) {
        let mut state = self.all.state();
        let Some(subject) = state.open.remove(&self.id) else { return };
        if let Err(why) = result {
            let error = WatchResult::Error(format!("on_incident: {why}"));
            let is_reported = !self.is_cancelled().load(Ordering::Relaxed) && report.send(error);
            if !is_reported {
                state.lost.push(format!("{subject} ({why})"));
            }
        }
        drop(state);
        self.all.0.has_closed.notify_all();
    }
}

impl Drop for Notification {
    fn drop(&mut self) {
        let mut state = self.all.state();
        if let Some(subject) = state.open.remove(&self.id) {
            state.lost.push(subject);
            self.all.0.has_closed.notify_all();
        }
    }
}
