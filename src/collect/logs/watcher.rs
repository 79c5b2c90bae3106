//! Who is watched, which logs are followed, and the threads that do it.
//!
//! All orders only write on the board, which is locked for moments and never while anything is read. One thread, the
//! *follower*, looks at the logs in turn. A look that hangs keeps its log locked; the *warden* sees that the follower
//! has not come back, and starts another one, to which the locked log is as good as absent. The one left behind ends
//! when it does come back.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use super::content::Body;
use super::find::{Findings, FoundFile, LogTarget, find, named};
use super::log::{Excerpted, Log};
use super::pane::Pane;
use super::piped_log::Fed;
use super::tail::{FileId, Tail, beginning};
use super::{Settings, journal};
use crate::collect::clock::now_mono;
use crate::diagnose::recovery::{recover, take_failures};
use crate::model::event::{LogOrigin, LogWhy};
use crate::model::log::LogView;
use crate::model::process::ProcessKey;
use crate::model::reading::{Missing, Reading, Reason};
use crate::model::units::{Millis, Mono};

/// How often a log is looked at.
const PERIOD: Millis = Millis(250);
/// How long one look may take before the log counts as one that hangs.
const PATIENCE: Millis = Millis(2_000);
const WARDEN_PERIOD: Duration = Duration::from_millis(1_000);
/// With so many threads that did not come back, something else is wrong.
const MAX_FOLLOWERS: u64 = 16;
/// How often a process is looked at again in whose output nothing could be read.
const FIND_AGAIN: Millis = Millis(10_000);
/// A process that the driver no longer lists is ending, or has given up its GPU.
const KEEP_UNLISTED: Millis = Millis(5 * 60 * 1_000);
const MAX_LOGS: usize = 512;

type SendExcerpt = Box<dyn Fn(Excerpted) + Send + Sync>;

/// A handle on the threads, which end when the last one is dropped.
#[derive(Debug, Clone)]
pub struct Logs(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.board().is_closed = true;
        self.shared.changed.notify_all();
    }
}

struct Shared {
    settings: Settings,
    tell: SendExcerpt,
    board: Mutex<Board>,
    changed: Condvar,
    /// Since when the follower is busy with one thing, 0 when it is not.
    busy: AtomicU64,
    /// The followers that have not ended, with those that were left behind.
    followers: AtomicU64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// What makes two logs the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LogId {
    File(FileId),
    /// By its device.
    Terminal(u64, u64),
    Journal(ProcessKey),
}

#[derive(Default)]
struct Board {
    is_closed: bool,
    /// The follower's number; one with another number was left behind.
    follower: u64,
    processes: BTreeMap<ProcessKey, LoggedProcess>,
    logs: BTreeMap<LogId, Arc<Mutex<Log>>>,
    orders: VecDeque<WatchCommand>,
    /// Text was brought.
    is_urgent: bool,
}

#[derive(Debug, Default)]
struct LoggedProcess {
    /// When it was last looked where it writes; `None` before.
    found_at: Option<Mono>,
    is_being_found: bool,
    logs: Vec<LogId>,
    missing: Option<Missing>,
    /// Since when it is not on the list any more.
    unlisted: Option<Mono>,
    ended: bool,
}

type Answer<T> = Box<dyn FnOnce(T) + Send>;

enum WatchCommand {
    Ask(ProcessKey, LogWhy),
    View(ProcessKey, Answer<LogView>),
    Name(ProcessKey, PathBuf, Answer<Result<String, Missing>>),
}

impl Logs {
    pub(super) fn start(settings: Settings, tell: SendExcerpt) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            settings,
            tell,
            board: Mutex::default(),
            changed: Condvar::new(),
            busy: AtomicU64::new(0),
            followers: AtomicU64::new(0),
        });
        spawn_follower(&shared, 0)?;
        let warden = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("logs warden".into())
            .spawn(move || warden.guard())?;
        Ok(Self(Arc::new(Handle { shared })))
    }

    /// The processes to follow from now on. One that is left out is followed until it ends, since what is about to
    /// end leaves the driver's list first.
    pub fn watch(&self, keys: &[ProcessKey]) {
        let now = now_mono();
        let mut board = self.0.shared.board();
        for (key, watched) in &mut board.processes {
            watched.unlisted = match keys.contains(key) {
                true => None,
                false => watched.unlisted.or(Some(now)),
            };
        }
        for &key in keys {
            board.processes.entry(key).or_default();
        }
        self.wake(board);
    }

    /// The process has ended: what it wrote last is told.
    pub fn ended(&self, key: ProcessKey) {
        self.ask(key, LogWhy::Ended);
    }

    /// An allocation of the process failed: what it writes about it is told.
    pub fn ooms_rose(&self, key: ProcessKey) {
        self.ask(key, LogWhy::Ooms);
    }

    /// What the process wrote since it was attached to. `answer` is called on the follower's thread and should only
    /// pass it on.
    pub fn view(&self, key: ProcessKey, answer: impl FnOnce(LogView) + Send + 'static) {
        self.order(WatchCommand::View(key, Box::new(answer)));
    }

    /// Follows this file, too, as a log of the process; relative to its working directory. Answers with its name.
    pub fn name(
        &self,
        key: ProcessKey,
        path: PathBuf,
        answer: impl FnOnce(Result<String, Missing>) + Send + 'static,
    ) {
        self.order(WatchCommand::Name(key, path, Box::new(answer)));
    }

    fn ask(&self, key: ProcessKey, why: LogWhy) {
        self.order(WatchCommand::Ask(key, why));
    }

    fn order(&self, order: WatchCommand) {
        let mut board = self.0.shared.board();
        board.orders.push_back(order);
        self.wake(board);
    }

    fn wake(&self, board: MutexGuard<'_, Board>) {
        drop(board);
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

/// What the follower does next: one thing, so that nothing waits behind one that hangs.
enum Turn {
    Find(ProcessKey),
    Obey(WatchCommand),
    /// At all logs.
    Look,
}

impl Shared {
    fn board(&self) -> MutexGuard<'_, Board> {
        // Every change to the board is whole.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow(self: &Arc<Self>, number: u64) {
        let mut buffer = Vec::new();
        let mut due = None;
        while let Some(turn) = self.next_turn(number, due) {
            match turn {
                Turn::Find(key) => self.guarded(number, || {
                    let found = find(&self.settings, key, now_mono());
                    self.attach(key, found);
                }),
                Turn::Obey(order) => self.guarded(number, || self.obey(order)),
                Turn::Look => due = Some(self.look(number, &mut buffer)),
            }
        }
        self.followers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Looks at every log, and says when to look again.
    fn look(&self, number: u64, buffer: &mut Vec<u8>) -> Mono {
        let mut due = Mono(now_mono().0 + PERIOD.0);
        for (id, log) in self.logs() {
            // Another follower was left behind with it.
            let Ok(mut log) = log.try_lock() else {
                continue;
            };
            let told = self.guarded(number, || recover(|| log.look(buffer, now_mono())));
            let told = told.unwrap_or_else(|| {
                log.restart();
                take_failures()
                    .iter()
                    .for_each(|failure| tracing::error!("a log: {failure}"));
                Vec::new()
            });
            due = log.due().map_or(due, |at| at.min(due));
            let is_over = log.is_over();
            drop(log);
            told.into_iter().for_each(|told| (self.tell)(told));
            if is_over {
                self.board().logs.remove(&id);
            }
        }
        due
    }

    fn logs(&self) -> Vec<(LogId, Arc<Mutex<Log>>)> {
        let board = self.board();
        let logs = board.logs.iter();
        logs.map(|(id, log)| (*id, Arc::clone(log))).collect()
    }

    /// Runs what may hang where the warden sees it.
    fn guarded<T>(&self, number: u64, part: impl FnOnce() -> T) -> T {
        self.busy.store(now_mono().0.max(1), Ordering::Relaxed);
        let result = part();
        // One that was left behind does not speak for its successor.
        if self.board().follower == number {
            self.busy.store(0, Ordering::Relaxed);
        }
        result
    }

    fn next_turn(&self, number: u64, due: Option<Mono>) -> Option<Turn> {
        let mut board = self.board();
        loop {
            if board.is_closed || board.follower != number {
                return None;
            }
            let now = now_mono();
            board.forget(now);
            if let Some(key) = board.next_to_find(now) {
                return Some(Turn::Find(key));
            }
            if let Some(order) = board.orders.pop_front() {
                return Some(Turn::Obey(order));
            }
            let is_due = due.is_none_or(|due| due <= now) && !board.logs.is_empty();
            if is_due || std::mem::take(&mut board.is_urgent) {
                return Some(Turn::Look);
            }
            let wait = if board.logs.is_empty() {
                FIND_AGAIN
            } else {
                due.map_or(PERIOD, |due| due.since(now)).max(Millis(1))
            };
            board = if board.processes.is_empty() {
                let waited = self.changed.wait(board);
                waited.unwrap_or_else(PoisonError::into_inner)
            } else {
                let waited = self
                    .changed
                    .wait_timeout(board, Duration::from_millis(wait.0));
                waited.unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }

    fn attach(self: &Arc<Self>, key: ProcessKey, found: Result<Findings, Missing>) {
        let findings = match found {
            Ok(findings) => findings,
            Err(missing) => {
                if let Some(watched) = self.board().processes.get_mut(&key) {
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
        if let Some(watched) = self.board().processes.get_mut(&key) {
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
        let from = beginning(&file.open.1, young);
        self.add(key, LogId::File(file.id()), from, move |now| {
            let tail = Tail::new(file.place, file.open, from, now);
            Log::new(
                Reading::Value(file.name),
                file.origin,
                Body::File(tail),
                now,
            )
        })
    }

    fn attach_journal(self: &Arc<Self>, key: ProcessKey) -> Result<(), Missing> {
        let shared = Arc::downgrade(self);
        let brought = move || wake(&shared);
        let fed = journal::follow(&self.settings, key.pid, brought).map_err(|error| {
            let why = format!("the journal, which could not be read: {error}");
            Missing::new(Reason::Unsupported, why)
        })?;
        self.add(key, LogId::Journal(key), 0, move |now| {
            let name = Reading::Value("journal".into());
            Log::new(name, LogOrigin::Journal, Body::Fed(fed), now)
        })
    }

    /// tmux is asked on a thread of its own, which may wait for it.
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
                let (fed, mailbox) = Fed::new(None);
                if let Some(shared) = shared.upgrade() {
                    let name = Reading::Value(pane.name());
                    // Where it is one too many there is nobody to read it either.
                    let _ = shared.add(key, id, 0, move |now| {
                        Log::new(name, LogOrigin::Pane, Body::Fed(fed), now)
                    });
                }
                pane.follow(&mailbox, || wake(&shared));
            }
            Err(missing) => {
                let Some(shared) = shared.upgrade() else {
                    return;
                };
                if let Some(watched) = shared.board().processes.get_mut(&key) {
                    watched.missing = watched.missing.take().or(Some(missing));
                }
            }
        });
        spawned
            .map(|_| ())
            .map_err(|error| Missing::new(Reason::Unknown, error.to_string()))
    }

    fn log(&self, id: LogId) -> Option<Arc<Mutex<Log>>> {
        self.board().logs.get(&id).cloned()
    }

    fn note(&self, key: ProcessKey, id: LogId) {
        if let Some(watched) = self.board().processes.get_mut(&key)
            && !watched.logs.contains(&id)
        {
            watched.logs.push(id);
        }
    }

    /// Makes the process a writer of a log, which `make` makes if it is not followed yet.
    ///
    /// # Errors
    /// When as many are followed as may be.
    fn add(
        &self,
        key: ProcessKey,
        id: LogId,
        from: u64,
        make: impl FnOnce(Mono) -> Log,
    ) -> Result<(), Missing> {
        match self.log(id) {
            Some(log) => {
                // One that hangs is followed by nobody just now.
                if let Ok(mut log) = log.try_lock() {
                    log.add_writer(key, from);
                }
            }
            None => {
                let mut log = make(now_mono());
                log.add_writer(key, from);
                let mut board = self.board();
                if board.logs.len() >= MAX_LOGS {
                    let why = format!("{MAX_LOGS} logs are followed already, and no more");
                    return Err(Missing::new(Reason::NotRead, why));
                }
                board.logs.insert(id, Arc::new(Mutex::new(log)));
            }
        }
        self.note(key, id);
        Ok(())
    }

    fn obey(&self, order: WatchCommand) {
        match order {
            WatchCommand::Ask(key, why) => {
                for log in self.logs_of(key) {
                    if let Ok(mut log) = log.try_lock() {
                        log.ask(key, why, now_mono());
                    }
                }
                if why == LogWhy::Ended
                    && let Some(watched) = self.board().processes.get_mut(&key)
                {
                    watched.ended = true;
                }
            }
            WatchCommand::View(key, answer) => answer(self.view(key)),
            WatchCommand::Name(key, path, answer) => answer(self.name(key, &path)),
        }
    }

    fn name(&self, key: ProcessKey, path: &Path) -> Result<String, Missing> {
        if !self.board().processes.contains_key(&key) {
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
        match self.board().processes.get(&key) {
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
        let board = self.board();
        let ids = board.processes.get(&key).map(|watched| &watched.logs);
        let logs = ids
            .into_iter()
            .flatten()
            .filter_map(|id| board.logs.get(id));
        logs.cloned().collect()
    }

    /// Sees that the follower comes back, and replaces it when it does not.
    fn guard(self: &Arc<Self>) {
        let mut board = self.board();
        while !board.is_closed {
            let busy = self.busy.load(Ordering::Relaxed);
            let hangs = busy != 0 && now_mono().since(Mono(busy)) >= PATIENCE;
            if hangs && self.followers.load(Ordering::Relaxed) < MAX_FOLLOWERS {
                board.follower += 1;
                self.busy.store(0, Ordering::Relaxed);
                if let Err(error) = spawn_follower(self, board.follower) {
                    tracing::error!(%error, "no thread to follow logs");
                }
            }
            board = if board.processes.is_empty() {
                let waited = self.changed.wait(board);
                waited.unwrap_or_else(PoisonError::into_inner)
            } else {
                let waited = self.changed.wait_timeout(board, WARDEN_PERIOD);
                waited.unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }
}

fn not_followed() -> Missing {
    Missing::new(
        Reason::Unsupported,
        "only processes that compute on a GPU are followed",
    )
}

/// Has the follower look now.
fn wake(shared: &Weak<Shared>) {
    if let Some(shared) = shared.upgrade() {
        shared.board().is_urgent = true;
        shared.changed.notify_all();
    }
}

fn not_answering() -> Missing {
    Missing::new(
        Reason::NotRead,
        "the file system that the log is on does not answer",
    )
}

impl Board {
    /// A process to look at now, marked as being looked at.
    fn next_to_find(&mut self, now: Mono) -> Option<ProcessKey> {
        let is_due = |watched: &LoggedProcess| match watched.found_at {
            None => true,
            Some(at) => watched.logs.is_empty() && now.since(at) >= FIND_AGAIN,
        };
        let (key, watched) = self
            .processes
            .iter_mut()
            .find(|(_, w)| is_due(w) && !w.is_being_found && !w.ended)?;
        watched.is_being_found = true;
        watched.found_at = Some(now);
        Some(*key)
    }

    /// Processes that ended, and those that have long had nothing to do with a GPU.
    fn forget(&mut self, now: Mono) {
        let logs = &mut self.logs;
        self.processes.retain(|key, watched| {
            let is_old = |at| now.since(at) >= KEEP_UNLISTED;
            if watched.ended && watched.unlisted.is_some() {
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
