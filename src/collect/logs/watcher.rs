//! Keeps track of watched processes and their logs, and runs the threads that follow them.
//!
//! Commands only change the `WatchState`, which is locked briefly and never during a read. One thread, the *follower*,
//! polls the logs in turn. If a poll hangs, its log stays locked. The *watchdog* notices that the follower is stuck and
//! starts another one, which skips the locked log. The stuck thread stops when its call returns.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use super::content::LogContent;
use super::find::{Findings, FoundFile, LogTarget, find, named};
use super::log::{Log, ProcessExcerpt};
use super::pane::Pane;
use super::piped_log::PipedLog;
use super::tail::{FileId, Tail, start_offset};
use super::{Settings, journal};
use crate::collect::clock::now_mono;
use crate::diagnose::recovery::{recover, take_failures};
use crate::model::event::{LogOrigin, LogWhy};
use crate::model::log::LogView;
use crate::model::process::ProcessKey;
use crate::model::reading::{Missing, Reading, Reason};
use crate::model::units::{Millis, Mono};

/// How often a log is polled.
const POLL_INTERVAL: Millis = Millis(250);
/// How long one poll may take before the log is considered to hang.
const POLL_TIMEOUT: Millis = Millis(2_000);
const WATCHDOG_INTERVAL: Duration = Duration::from_millis(1_000);
/// Maximum number of follower threads, including those that are stuck.
const MAX_FOLLOWERS: u64 = 16;
/// How often gputop searches again for logs of a process without a readable log.
const FIND_INTERVAL: Millis = Millis(10_000);
/// How long a process is followed that the driver no longer lists. It is exiting, or has released its GPU.
const UNLISTED_LIMIT: Millis = Millis(5 * 60 * 1_000);
const MAX_LOGS: usize = 512;

type SendExcerpt = Box<dyn Fn(ProcessExcerpt) + Send + Sync>;

/// A handle on the threads, which stop when the last handle is dropped.
#[derive(Debug, Clone)]
pub struct Logs(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.state().is_closed = true;
        self.shared.changed.notify_all();
    }
}

struct Shared {
    settings: Settings,
    report: SendExcerpt,
    state: Mutex<WatchState>,
    changed: Condvar,
    /// Time since which the follower is busy with one task, 0 if it is not busy.
    busy: AtomicU64,
    /// Number of running followers, including those that are stuck.
    followers: AtomicU64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// The identity of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LogId {
    File(FileId),
    /// Device and number of the terminal.
    Terminal(u64, u64),
    Journal(ProcessKey),
}

#[derive(Default)]
struct WatchState {
    is_closed: bool,
    /// The current follower's number; a follower with another number was replaced.
    follower: u64,
    processes: BTreeMap<ProcessKey, LoggedProcess>,
    logs: BTreeMap<LogId, Arc<Mutex<Log>>>,
    commands: VecDeque<WatchCommand>,
    /// A delivering thread has new text.
    is_urgent: bool,
}

#[derive(Debug, Default)]
struct LoggedProcess {
    /// Time of the last search for its logs; `None` before the first.
    found_at: Option<Mono>,
    is_being_found: bool,
    logs: Vec<LogId>,
    missing: Option<Missing>,
    /// Time since which the driver no longer lists it.
    unlisted: Option<Mono>,
    exited: bool,
}

type Answer<T> = Box<dyn FnOnce(T) + Send>;

enum WatchCommand {
    SendTail(ProcessKey, LogWhy),
    View(ProcessKey, Answer<LogView>),
    Name(ProcessKey, PathBuf, Answer<Result<String, Missing>>),
}

impl Logs {
    pub(super) fn start(settings: Settings, report: SendExcerpt) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            settings,
            report,
            state: Mutex::default(),
            changed: Condvar::new(),
            busy: AtomicU64::new(0),
            followers: AtomicU64::new(0),
        });
        spawn_follower(&shared, 0)?;
        let watchdog = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("logs watchdog".into())
            .spawn(move || watchdog.guard())?;
        Ok(Self(Arc::new(Handle { shared })))
    }

    /// Sets the processes to follow. A process that is no longer included is followed until it exits, because an exiting
    /// process disappears from the driver's list first.
    pub fn watch(&self, keys: &[ProcessKey]) {
        let now = now_mono();
        let mut state = self.0.shared.state();
        for (key, watched) in &mut state.processes {
            watched.unlisted = match keys.contains(key) {
                true => None,
                false => watched.unlisted.or(Some(now)),
            };
        }
        for &key in keys {
            state.processes.entry(key).or_default();
        }
        self.wake(state);
    }

    /// Reports the last output of a process that has exited.
    pub fn exited(&self, key: ProcessKey) {
        self.send_tail(key, LogWhy::Ended);
    }

    /// Reports the output of a process whose allocation failed.
    pub fn ooms_rose(&self, key: ProcessKey) {
        self.send_tail(key, LogWhy::Ooms);
    }

    /// Queries the output of a process since it was attached. `answer` is called on the follower's thread and must not
    /// block.
    pub fn view(&self, key: ProcessKey, answer: impl FnOnce(LogView) + Send + 'static) {
        self.send(WatchCommand::View(key, Box::new(answer)));
    }

    /// Follows an additional file as a log of the process, and answers with its name. A relative path is relative to the
    /// working directory of the process.
    pub fn name(
        &self,
        key: ProcessKey,
        path: PathBuf,
        answer: impl FnOnce(Result<String, Missing>) + Send + 'static,
    ) {
        self.send(WatchCommand::Name(key, path, Box::new(answer)));
    }

    fn send_tail(&self, key: ProcessKey, why: LogWhy) {
        self.send(WatchCommand::SendTail(key, why));
    }

    fn send(&self, command: WatchCommand) {
        let mut state = self.0.shared.state();
        state.commands.push_back(command);
        self.wake(state);
    }

    fn wake(&self, state: MutexGuard<'_, WatchState>) {
        drop(state);
        self.0.shared.changed.notify_all();
    }
}

fn spawn_follower(shared: &Arc<Shared>, number: u64) -> io::Result<()> {
    let follower = Arc::clone(shared);
    std::thread::Builder::new()
        .name("logs".into())
        .spawn(move || follower.follow(number))?;
    shared.followers.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// The follower's next task. It is small, so that nothing else waits for one that hangs.
enum Task {
    Find(ProcessKey),
    Execute(WatchCommand),
    /// Poll all logs.
    Poll,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, WatchState> {
        // Every change to the state is complete, so a poisoned lock is safe to use.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow(self: &Arc<Self>, number: u64) {
        let mut buffer = Vec::new();
        let mut due = None;
        while let Some(task) = self.next_task(number, due) {
            match task {
                Task::Find(key) => self.guarded(number, || {
                    let found = find(&self.settings, key, now_mono());
                    self.attach(key, found);
                }),
                Task::Execute(command) => self.guarded(number, || self.execute(command)),
                Task::Poll => due = Some(self.poll(number, &mut buffer)),
            }
        }
        self.followers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Polls every log, and returns the time of the next poll.
    fn poll(&self, number: u64, buffer: &mut Vec<u8>) -> Mono {
        let mut due = Mono(now_mono().0 + POLL_INTERVAL.0);
        for (id, log) in self.logs() {
            // A replaced follower is stuck with it.
            let Ok(mut log) = log.try_lock() else {
                continue;
            };
            let excerpts = self.guarded(number, || recover(|| log.poll(buffer, now_mono())));
            let excerpts = excerpts.unwrap_or_else(|| {
                log.restart();
                take_failures()
                    .iter()
                    .for_each(|failure| tracing::error!("error while following a log: {failure}"));
                Vec::new()
            });
            due = log.due().map_or(due, |at| at.min(due));
            let is_over = log.is_over();
            drop(log);
            excerpts
                .into_iter()
                .for_each(|excerpt| (self.report)(excerpt));
            if is_over {
                self.state().logs.remove(&id);
            }
        }
        due
    }

    fn logs(&self) -> Vec<(LogId, Arc<Mutex<Log>>)> {
        let state = self.state();
        let logs = state.logs.iter();
        logs.map(|(id, log)| (*id, Arc::clone(log))).collect()
    }

    /// Runs a call that may hang, supervised by the watchdog.
    fn guarded<T>(&self, number: u64, part: impl FnOnce() -> T) -> T {
        self.busy.store(now_mono().0.max(1), Ordering::Relaxed);
        let result = part();
        // A replaced follower must not clear the flag of its successor.
        if self.state().follower == number {
            self.busy.store(0, Ordering::Relaxed);
        }
        result
    }

    fn next_task(&self, number: u64, due: Option<Mono>) -> Option<Task> {
        let mut state = self.state();
        loop {
            if state.is_closed || state.follower != number {
                return None;
            }
            let now = now_mono();
            state.forget(now);
            if let Some(key) = state.next_to_find(now) {
                return Some(Task::Find(key));
            }
            if let Some(command) = state.commands.pop_front() {
                return Some(Task::Execute(command));
            }
            let is_due = due.is_none_or(|due| due <= now) && !state.logs.is_empty();
            if is_due || std::mem::take(&mut state.is_urgent) {
                return Some(Task::Poll);
            }
            let wait = if state.logs.is_empty() {
                FIND_INTERVAL
            } else {
                due.map_or(POLL_INTERVAL, |due| due.since(now))
                    .max(Millis(1))
            };
            state = if state.processes.is_empty() {
                let waited = self.changed.wait(state);
                waited.unwrap_or_else(PoisonError::into_inner)
            } else {
                let waited = self
                    .changed
                    .wait_timeout(state, Duration::from_millis(wait.0));
                waited.unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }

    fn attach(self: &Arc<Self>, key: ProcessKey, found: Result<Findings, Missing>) {
        let findings = match found {
            Ok(findings) => findings,
            Err(missing) => {
                if let Some(watched) = self.state().processes.get_mut(&key) {
                    watched.missing = Some(missing);
                    watched.is_being_found = false;
                }
                return;
            }
        };
        let mut missing = findings.missing;
        for found in findings.found {
            let attached = match found {
                LogTarget::File(file) => self.attach_file(key, file, findings.young),
                LogTarget::Terminal(device, number) => self.attach_terminal(key, (device, number)),
                LogTarget::Journal => self.attach_journal(key),
            };
            missing = missing.or(attached.err());
        }
        if let Some(watched) = self.state().processes.get_mut(&key) {
            watched.missing = missing;
            watched.is_being_found = false;
        }
    }

    fn attach_file(
        &self,
        key: ProcessKey,
        file: Box<FoundFile>,
        young: Option<SystemTime>,
    ) -> Result<(), Missing> {
        let from = start_offset(&file.open.1, young);
        self.add(key, LogId::File(file.id()), from, move |now| {
            let tail = Tail::new(file.location, file.open, from, now);
            Log::new(
                Reading::Value(file.name),
                file.origin,
                LogContent::File(tail),
                now,
            )
        })
    }

    fn attach_journal(self: &Arc<Self>, key: ProcessKey) -> Result<(), Missing> {
        let shared = Arc::downgrade(self);
        let on_text = move || wake(&shared);
        let piped = journal::follow(&self.settings, key.pid, on_text).map_err(|error| {
            let why = format!("cannot read the journal: {error}");
            Missing::new(Reason::Unsupported, why)
        })?;
        self.add(key, LogId::Journal(key), 0, move |now| {
            let name = Reading::Value("journal".into());
            Log::new(name, LogOrigin::Journal, LogContent::Piped(piped), now)
        })
    }

    /// Queries tmux on a separate thread, because it may block.
    fn attach_terminal(
        self: &Arc<Self>,
        key: ProcessKey,
        terminal: (u64, u64),
    ) -> Result<(), Missing> {
        let id = LogId::Terminal(terminal.0, terminal.1);
        if let Some(log) = self.log(id) {
            if let Ok(mut log) = log.try_lock() {
                let from = log.offset();
                log.add_writer(key, from);
            }
            self.note(key, id);
            return Ok(());
        }
        let shared = Arc::downgrade(self);
        let settings = self.settings.clone();
        let thread = std::thread::Builder::new().name("tmux".into());
        let spawned = thread.spawn(move || match Pane::find(&settings, terminal) {
            Ok(pane) => {
                let (piped, mailbox) = PipedLog::new(None);
                if let Some(shared) = shared.upgrade() {
                    let name = Reading::Value(pane.name());
                    // If there are too many logs, `piped` is dropped and `follow` returns.
                    let _ = shared.add(key, id, 0, move |now| {
                        Log::new(name, LogOrigin::Pane, LogContent::Piped(piped), now)
                    });
                }
                pane.follow(&mailbox, || wake(&shared));
            }
            Err(missing) => {
                let Some(shared) = shared.upgrade() else {
                    return;
                };
                if let Some(watched) = shared.state().processes.get_mut(&key) {
                    watched.missing = watched.missing.take().or(Some(missing));
                }
            }
        });
        spawned
            .map(|_| ())
            .map_err(|error| Missing::new(Reason::Unknown, error.to_string()))
    }

    fn log(&self, id: LogId) -> Option<Arc<Mutex<Log>>> {
        self.state().logs.get(&id).cloned()
    }

    fn note(&self, key: ProcessKey, id: LogId) {
        if let Some(watched) = self.state().processes.get_mut(&key)
            && !watched.logs.contains(&id)
        {
            watched.logs.push(id);
        }
    }

    /// Adds the process as a writer of a log, which `make` creates if it is not followed yet.
    ///
    /// # Errors
    /// The maximum number of logs is followed already.
    fn add(
        &self,
        key: ProcessKey,
        id: LogId,
        from: u64,
        make: impl FnOnce(Mono) -> Log,
    ) -> Result<(), Missing> {
        match self.log(id) {
            Some(log) => {
                // A log that hangs is locked and is not followed at the moment.
                if let Ok(mut log) = log.try_lock() {
                    log.add_writer(key, from);
                }
            }
            None => {
                let mut log = make(now_mono());
                log.add_writer(key, from);
                let mut state = self.state();
                if state.logs.len() >= MAX_LOGS {
                    let why = format!("the maximum of {MAX_LOGS} logs is followed already");
                    return Err(Missing::new(Reason::NotRead, why));
                }
                state.logs.insert(id, Arc::new(Mutex::new(log)));
            }
        }
        self.note(key, id);
        Ok(())
    }

    fn execute(&self, command: WatchCommand) {
        match command {
            WatchCommand::SendTail(key, why) => {
                for log in self.logs_of(key) {
                    if let Ok(mut log) = log.try_lock() {
                        log.request_tail(key, why, now_mono());
                    }
                }
                if why == LogWhy::Ended
                    && let Some(watched) = self.state().processes.get_mut(&key)
                {
                    watched.exited = true;
                }
            }
            WatchCommand::View(key, answer) => answer(self.view(key)),
            WatchCommand::Name(key, path, answer) => answer(self.name(key, &path)),
        }
    }

    fn name(&self, key: ProcessKey, path: &Path) -> Result<String, Missing> {
        if !self.state().processes.contains_key(&key) {
            return Err(not_followed());
        }
        let file = named(&self.settings, key, path)?;
        let name = file.name.clone();
        self.attach_file(key, Box::new(file), None)?;
        Ok(name)
    }

    fn view(&self, key: ProcessKey) -> LogView {
        let mut view = LogView {
            process: key,
            at: now_mono(),
            text: Reading::missing(Reason::NotRead, "no log of this process was found"),
            ..LogView::default()
        };
        match self.state().processes.get(&key) {
            None => {
                view.missing = Some(not_followed());
            }
            Some(watched) => {
                view.is_attached = watched.found_at.is_some() && !watched.is_being_found;
                view.missing.clone_from(&watched.missing);
            }
        }
        for log in self.logs_of(key) {
            match log.try_lock() {
                Ok(log) => log.add_to(&mut view, key),
                Err(_) => view.missing = Some(not_answering()),
            }
        }
        view
    }

    fn logs_of(&self, key: ProcessKey) -> Vec<Arc<Mutex<Log>>> {
        let state = self.state();
        let ids = state.processes.get(&key).map(|watched| &watched.logs);
        let logs = ids
            .into_iter()
            .flatten()
            .filter_map(|id| state.logs.get(id));
        logs.cloned().collect()
    }

    /// Replaces the follower if it hangs.
    fn guard(self: &Arc<Self>) {
        let mut state = self.state();
        while !state.is_closed {
            let busy = self.busy.load(Ordering::Relaxed);
            let hangs = busy != 0 && now_mono().since(Mono(busy)) >= POLL_TIMEOUT;
            if hangs && self.followers.load(Ordering::Relaxed) < MAX_FOLLOWERS {
                state.follower += 1;
                self.busy.store(0, Ordering::Relaxed);
                if let Err(error) = spawn_follower(self, state.follower) {
                    tracing::error!(%error, "cannot start a thread to follow logs");
                }
            }
            state = if state.processes.is_empty() {
                let waited = self.changed.wait(state);
                waited.unwrap_or_else(PoisonError::into_inner)
            } else {
                let waited = self.changed.wait_timeout(state, WATCHDOG_INTERVAL);
                waited.unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }
}

fn not_followed() -> Missing {
    Missing::new(
        Reason::Unsupported,
        "gputop follows only logs of processes that compute on a GPU",
    )
}

/// Makes the follower poll now.
fn wake(shared: &Weak<Shared>) {
    if let Some(shared) = shared.upgrade() {
        shared.state().is_urgent = true;
        shared.changed.notify_all();
    }
}

fn not_answering() -> Missing {
    Missing::new(
        Reason::NotRead,
        "the file system of the log does not answer",
    )
}

impl WatchState {
    /// Returns the next process whose logs are to be found, and marks it as in progress.
    fn next_to_find(&mut self, now: Mono) -> Option<ProcessKey> {
        let is_due = |watched: &LoggedProcess| match watched.found_at {
            None => true,
            Some(at) => watched.logs.is_empty() && now.since(at) >= FIND_INTERVAL,
        };
        let (key, watched) = self
            .processes
            .iter_mut()
            .find(|(_, w)| is_due(w) && !w.is_being_found && !w.exited)?;
        watched.is_being_found = true;
        watched.found_at = Some(now);
        Some(*key)
    }

    /// Forgets processes that exited, and those that the driver has not listed for a long time.
    fn forget(&mut self, now: Mono) {
        let logs = &mut self.logs;
        self.processes.retain(|key, watched| {
            let is_old = |at| now.since(at) >= UNLISTED_LIMIT;
            if watched.exited && watched.unlisted.is_some() {
                return false;
            }
            if !watched.unlisted.is_some_and(is_old) {
                return true;
            }
            for id in &watched.logs {
                if let Some(Ok(mut log)) = logs.get(id).map(|log| log.try_lock()) {
                    log.remove_writer(*key);
                }
            }
            false
        });
    }
}
