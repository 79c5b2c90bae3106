//! Watches processes and their logs.
//!
//! The thread `logs` owns this state and never reads a file. Each search for logs and each followed log has its own
//! thread. An unresponsive file server therefore stops only the thread that accessed it.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use gputop_explain::recovery::{recover, take_failures};
use gputop_model::event::LogTrigger;
use gputop_model::{LogView, Millis, Missing, Mono, ProcessKey, Reading, Reason};
use gputop_peek::clock::now_mono;

use super::find::{Findings, FoundLog, LogId, find, named};
use super::log::{Log, ProcessExcerpt};
use crate::collect::logs::settings::LogSettings;

/// Interval between searches for logs of a process that has no readable log yet.
const FIND_INTERVAL: Millis = Millis(10_000);
/// Interval for checking which processes need a search for logs or can be forgotten.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long gputop follows the logs of a process that the driver no longer lists, because the process is exiting or has
/// released its GPU.
const UNLISTED_LIMIT: Millis = Millis(5 * 60 * 1_000);
const MAX_LOGS: usize = 512;
/// Number of followed logs from which no log of a candidate is added. The others are reserved for the processes that
/// use a GPU.
const MAX_LOGS_WITH_CANDIDATES: usize = MAX_LOGS / 4 * 3;
/// Maximum number of logs of one candidate. The output of most programs goes to one or two.
const MAX_LOGS_PER_CANDIDATE: usize = 4;
/// Maximum number of concurrent searches for logs, including hung ones.
const MAX_SEARCHES: usize = 16;
/// Number of concurrent searches from which none for a candidate is started.
const MAX_SEARCHES_WITH_CANDIDATES: usize = MAX_SEARCHES / 2;
/// Maximum time for a log's thread to respond to a view request. After that, the log is considered hung.
const VIEW_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of pending view requests per log.
const MAX_VIEWS: usize = 4;

type SendExcerpt = Arc<dyn Fn(ProcessExcerpt) + Send + Sync>;

/// Handle to the log threads, which stop when the last handle is dropped.
#[derive(Debug, Clone)]
pub struct Logs(Arc<Handle>);

#[derive(Debug)]
struct Handle(Sender<WatchCommand>);

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.0.send(None);
    }
}

/// Function to run on the thread `logs`, or `None` to stop the thread.
type WatchCommand = Option<Box<dyn FnOnce(&mut LogWatcher) + Send>>;

#[derive(Debug, Default)]
struct LoggedProcess {
    /// Time of the last search for the process's logs, or `None` before the first search.
    found_at: Option<Mono>,
    is_being_found: bool,
    logs: Vec<LogId>,
    missing: Option<Missing>,
    /// True if the process has loaded CUDA, but the driver does not list it yet.
    is_candidate: bool,
    /// Time at which to stop following the process, which the driver no longer lists.
    forget_at: Option<Mono>,
    exited: bool,
    /// Reasons to send the end of the process's logs once the search has found them.
    tail_requests: Vec<LogTrigger>,
}

impl LoggedProcess {
    fn is_search_due(&self, now: Mono) -> bool {
        let is_due = match self.found_at {
            None => true,
            // Search once for a candidate, because any user can start many, and the search for a pipe's readers is
            // expensive.
            Some(at) => {
                self.logs.is_empty() && !self.is_candidate && now.since(at) >= FIND_INTERVAL
            }
        };
        is_due && !self.is_being_found && !self.exited
    }
}

impl Logs {
    /// Starts the threads that find and follow logs. They call `report`, which must not block.
    pub fn start(
        settings: LogSettings,
        report: impl Fn(ProcessExcerpt) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (commands, inbox) = mpsc::channel();
        let watcher = LogWatcher {
            settings: Arc::new(settings),
            report: Arc::new(report),
            commands: commands.clone(),
            processes: BTreeMap::new(),
            logs: BTreeMap::new(),
            searches: Arc::default(),
        };
        spawn("logs", move || watcher.run(&inbox))?;
        Ok(Self(Arc::new(Handle(commands))))
    }

    /// Sets the processes whose logs to follow. A process that is no longer included is followed until it exits, or for
    /// `UNLISTED_LIMIT`: the driver drops an exiting process from its list before it exits.
    pub fn watch(&self, keys: &[ProcessKey]) {
        let keys = keys.to_vec();
        self.send(move |watcher| watcher.watch(&keys));
    }

    /// Sets the processes whose logs to follow although the driver does not list them yet. A process that is no longer
    /// included is not followed any longer, unless the driver lists it.
    pub fn follow(&self, candidates: &[ProcessKey]) {
        let candidates = candidates.to_vec();
        self.send(move |watcher| watcher.follow_candidates(&candidates));
    }

    /// Reports the last output of an exited process.
    pub fn exited(&self, key: ProcessKey) {
        self.send(move |watcher| watcher.request_tail(key, LogTrigger::Ended));
    }

    /// Reports the last output of a process whose allocation failed.
    pub fn ooms_rose(&self, key: ProcessKey) {
        self.send(move |watcher| watcher.request_tail(key, LogTrigger::Ooms));
    }

    /// Requests the output of a process since gputop attached to it. `answer` is called on a different thread.
    pub fn view(&self, key: ProcessKey, answer: impl FnOnce(LogView) + Send + 'static) {
        self.send(move |watcher| watcher.view(key, answer));
    }

    /// Follows a file named by the user as a log of the process. Passes the log's name to `answer`. A relative path is
    /// resolved against the process's working directory.
    pub fn name(
        &self,
        key: ProcessKey,
        path: PathBuf,
        answer: impl FnOnce(Result<String, Missing>) + Send + 'static,
    ) {
        self.send(move |watcher| watcher.name(key, path, answer));
    }

    fn send(&self, command: impl FnOnce(&mut LogWatcher) + Send + 'static) {
        let _ = self.0.0.send(Some(Box::new(command)));
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(work).map(|_| ())
}

/// State of the thread `logs`.
struct LogWatcher {
    settings: Arc<LogSettings>,
    report: SendExcerpt,
    commands: Sender<WatchCommand>,
    processes: BTreeMap<ProcessKey, LoggedProcess>,
    logs: BTreeMap<LogId, FollowedLog>,
    /// Counter of running searches. Each search holds a clone.
    searches: Arc<()>,
}

impl LogWatcher {
    fn run(mut self, inbox: &Receiver<WatchCommand>) {
        loop {
            let command = if self.processes.is_empty() {
                inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                inbox.recv_timeout(CHECK_INTERVAL)
            };
            match command {
                Ok(None) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Some(command)) => command(&mut self),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = now_mono();
            self.forget(now);
            self.start_searches(now);
        }
    }

    /// Sends the end of the process's logs, once the search has found them.
    fn request_tail(&mut self, key: ProcessKey, why: LogTrigger) {
        let Some(watched) = self.processes.get_mut(&key) else { return };
        watched.exited |= why == LogTrigger::Ended;
        watched.tail_requests.push(why);
        if !watched.is_being_found {
            self.send_tails(key);
        }
    }

    fn send_tails(&mut self, key: ProcessKey) {
        let watched = self.processes.get_mut(&key);
        let requests = watched.map(|watched| std::mem::take(&mut watched.tail_requests));
        for why in requests.unwrap_or_default() {
            for log in self.logs_of(key) {
                log.send(LogCommand::SendTail(key, why));
            }
        }
    }

    fn watch(&mut self, keys: &[ProcessKey]) {
        let now = now_mono();
        for (key, watched) in &mut self.processes {
            if keys.contains(key) {
                (watched.is_candidate, watched.forget_at) = (false, None);
            } else if !watched.is_candidate {
                watched.forget_at.get_or_insert(Mono(now.0 + UNLISTED_LIMIT.0));
            }
        }
        for &key in keys {
            self.processes.entry(key).or_default();
        }
    }

    fn follow_candidates(&mut self, candidates: &[ProcessKey]) {
        let now = now_mono();
        for (key, watched) in &mut self.processes {
            if watched.is_candidate && !candidates.contains(key) {
                (watched.is_candidate, watched.forget_at) = (false, Some(now));
            }
        }
        for &key in candidates {
            let candidate = || LoggedProcess { is_candidate: true, ..LoggedProcess::default() };
            self.processes.entry(key).or_insert_with(candidate);
        }
    }

    /// Forgets processes that exited, and those that the driver has not listed for a long time.
    fn forget(&mut self, now: Mono) {
        let logs = &self.logs;
        self.processes.retain(|key, watched| {
            if watched.is_being_found {
                return true;
            }
            let Some(forget_at) = watched.forget_at else { return true };
            if watched.exited {
                return false;
            }
            if now < forget_at {
                return true;
            }
            for log in watched.logs.iter().filter_map(|id| logs.get(id)) {
                log.send(LogCommand::RemoveWriter(*key));
            }
            false
        });
    }

    fn start_searches(&mut self, now: Mono) {
        for (&key, watched) in &mut self.processes {
            let running = Arc::strong_count(&self.searches) - 1;
            if !watched.is_search_due(now)
                || watched.is_candidate && running >= MAX_SEARCHES_WITH_CANDIDATES
            {
                continue;
            }
            let (settings, commands) = (Arc::clone(&self.settings), self.commands.clone());
            let search = move || {
                let found = find(&settings, key, now_mono());
                let _ =
                    commands.send(Some(Box::new(move |watcher| watcher.take_findings(key, found))));
            };
            if !spawn_search(&self.searches, search) {
                return;
            }
            watched.is_being_found = true;
            watched.found_at = Some(now);
        }
    }

    fn take_findings(&mut self, key: ProcessKey, found: Result<Findings, Missing>) {
        let missing = match found {
            Err(why) => Some(why),
            Ok(findings) => {
                let attach = |found| self.attach(key, found).err();
                let failures: Vec<_> = findings.found.into_iter().filter_map(attach).collect();
                findings.missing.into_iter().chain(failures).next()
            }
        };
        if let Some(watched) = self.processes.get_mut(&key) {
            watched.missing = missing;
            watched.is_being_found = false;
        }
        self.send_tails(key);
    }

    /// Adds the process as a writer of a log, and starts following the log if it is new. Fails if the maximum number of
    /// logs is already followed.
    fn attach(&mut self, key: ProcessKey, found: FoundLog) -> Result<(), Missing> {
        let (id, from) = (found.id, found.from);
        if !self.logs.contains_key(&id) {
            let watched = self.processes.get(&key);
            let candidate = watched.filter(|watched| watched.is_candidate);
            if candidate.is_some_and(|candidate| candidate.logs.len() >= MAX_LOGS_PER_CANDIDATE) {
                return Ok(());
            }
            let max = if candidate.is_some() { MAX_LOGS_WITH_CANDIDATES } else { MAX_LOGS };
            if self.logs.len() >= max {
                let why = format!("already following the maximum of {max} logs");
                return Err(Missing::new(Reason::NotRead, why));
            }
            let log = Log::new(found.name, found.origin, found.content, now_mono());
            self.logs.insert(id.clone(), self.follow(id.clone(), log)?);
        }
        if let Some(log) = self.logs.get_mut(&id) {
            log.writers += 1;
            log.send(LogCommand::AddWriter(key, from));
        }
        if let Some(watched) = self.processes.get_mut(&key)
            && !watched.logs.contains(&id)
        {
            watched.logs.push(id);
        }
        Ok(())
    }

    /// Starts a thread that follows a log. It stops when its command sender is dropped.
    fn follow(&self, id: LogId, log: Log) -> Result<FollowedLog, Missing> {
        let (commands, inbox) = mpsc::channel();
        let (report, over) = (Arc::clone(&self.report), self.commands.clone());
        let over = move |writers| {
            let id = id.clone();
            // Stop following the log, unless a writer was added in the meantime.
            let stop = move |watcher: &mut Self| {
                if watcher.logs.get(&id).is_some_and(|log| log.writers == writers) {
                    watcher.logs.remove(&id);
                }
            };
            let _ = over.send(Some(Box::new(stop)));
        };
        let views: Arc<AtomicUsize> = Arc::default();
        let unanswered = Arc::clone(&views);
        let work = move || follow(log, &inbox, &unanswered, &report, &over);
        spawn("log", work).map_err(|error| Missing::new(Reason::Unknown, error.to_string()))?;
        Ok(FollowedLog { commands, writers: 0, views })
    }

    fn name(
        &self,
        key: ProcessKey,
        path: PathBuf,
        answer: impl FnOnce(Result<String, Missing>) + Send + 'static,
    ) {
        if !self.processes.contains_key(&key) {
            return answer(Err(not_followed()));
        }
        if Arc::strong_count(&self.searches) > MAX_SEARCHES {
            return answer(Err(not_answering()));
        }
        let (settings, commands) = (Arc::clone(&self.settings), self.commands.clone());
        spawn_search(&self.searches, move || match named(&settings, key, &path) {
            Ok(file) => {
                let _ = commands.send(Some(Box::new(move |watcher| {
                    let name = file.name.clone();
                    answer(watcher.attach(key, file).map(|()| name));
                })));
            }
            Err(why) => answer(Err(why)),
        });
    }

    /// Collects the view on a separate thread, because a log's thread may not respond.
    fn view(&self, key: ProcessKey, answer: impl FnOnce(LogView) + Send + 'static) {
        let mut view = LogView {
            process: key,
            at: now_mono(),
            text: Reading::missing(Reason::NotRead, "no log of this process was found"),
            ..LogView::default()
        };
        match self.processes.get(&key) {
            None => view.missing = Some(not_followed()),
            Some(watched) => {
                view.is_attached = watched.found_at.is_some() && !watched.is_being_found;
                view.missing.clone_from(&watched.missing);
            }
        }
        let logs: Vec<FollowedLog> = self.logs_of(key).cloned().collect();
        if logs.is_empty() {
            return answer(view);
        }
        let spawned = spawn("log view", move || {
            for log in logs {
                match log.view(key, &view) {
                    Some(added) => view = added,
                    None => view.missing = Some(not_answering()),
                }
            }
            answer(view);
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "cannot start a thread to view a log");
        }
    }

    fn logs_of(&self, key: ProcessKey) -> impl Iterator<Item = &FollowedLog> {
        let ids = self.processes.get(&key).map(|watched| &watched.logs);
        ids.into_iter().flatten().filter_map(|id| self.logs.get(id))
    }
}

/// Runs a search on its own thread. Returns false if too many searches are running.
fn spawn_search(searches: &Arc<()>, search: impl FnOnce() + Send + 'static) -> bool {
    if Arc::strong_count(searches) > MAX_SEARCHES {
        return false;
    }
    let running = Arc::clone(searches);
    let spawned = spawn("log search", move || {
        search();
        drop(running);
    });
    if let Err(error) = &spawned {
        tracing::error!(%error, "cannot start a thread to search for logs");
    }
    spawned.is_ok()
}

enum LogCommand {
    /// Adds a process whose text begins at the given offset. `None` means the current offset.
    AddWriter(ProcessKey, Option<u64>),
    RemoveWriter(ProcessKey),
    SendTail(ProcessKey, LogTrigger),
    View(ProcessKey, LogView, Sender<LogView>),
}

#[derive(Clone)]
struct FollowedLog {
    commands: Sender<LogCommand>,
    /// Number of times a writer was added to the log.
    writers: usize,
    /// Number of pending view requests.
    views: Arc<AtomicUsize>,
}

impl FollowedLog {
    fn send(&self, command: LogCommand) {
        let _ = self.commands.send(command);
    }

    /// Returns `view` with this log added, or `None` if the log's thread does not respond.
    fn view(&self, key: ProcessKey, view: &LogView) -> Option<LogView> {
        if self.views.fetch_add(1, Ordering::Relaxed) >= MAX_VIEWS {
            self.views.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let (sender, answer) = mpsc::channel();
        self.send(LogCommand::View(key, view.clone(), sender));
        answer.recv_timeout(VIEW_TIMEOUT).ok()
    }
}

/// Follows a log until its command sender is dropped. Calls `over` with the number of writers added so far when all
/// writers have exited.
fn follow(
    mut log: Log,
    inbox: &Receiver<LogCommand>,
    views: &AtomicUsize,
    report: &SendExcerpt,
    over: &impl Fn(usize),
) {
    let mut writers = 0;
    // Call `over` at most once for each number of writers. If the same file is followed again later, a repeated call
    // could be mistaken for the end of the new log.
    let mut reported = None;
    loop {
        let command = match log.due() {
            Some(due) => inbox.recv_timeout(Duration::from_millis(due.since(now_mono()).0)),
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match command {
            Ok(LogCommand::AddWriter(key, from)) => {
                writers += 1;
                log.add_writer(key, from.unwrap_or(log.offset()));
            }
            Ok(LogCommand::RemoveWriter(key)) => log.remove_writer(key),
            Ok(LogCommand::SendTail(key, why)) => log.request_tail(key, why, now_mono()),
            Ok(LogCommand::View(key, mut view, answer)) => {
                log.add_to(&mut view, key);
                views.fetch_sub(1, Ordering::Relaxed);
                let _ = answer.send(view);
            }
            Err(RecvTimeoutError::Timeout) => {
                for excerpt in poll(&mut log) {
                    report(excerpt);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if log.is_over() && reported != Some(writers) {
            reported = Some(writers);
            over(writers);
        }
    }
}

/// Reads a log and returns its excerpts. If this panics, drops the text read so far and continues with later text.
fn poll(log: &mut Log) -> Vec<ProcessExcerpt> {
    let excerpts = recover(|| log.poll(&mut Vec::new(), now_mono()));
    excerpts.unwrap_or_else(|| {
        log.restart();
        for failure in take_failures() {
            tracing::error!("error while following a log: {failure}");
        }
        Vec::new()
    })
}

fn not_followed() -> Missing {
    Missing::new(Reason::Unsupported, "gputop follows only logs of processes that compute on a GPU")
}

fn not_answering() -> Missing {
    Missing::new(Reason::NotRead, "the file system that holds the log is not responding")
}

#[cfg(test)]
mod tests {
    use super::super::tail::{LogFileLocation, Tail};
    use super::*;
    use gputop_model::event::LogOrigin;

    #[test]
    fn candidates_are_searched_once() {
        let mut process = LoggedProcess { is_candidate: true, ..LoggedProcess::default() };
        assert!(process.is_search_due(Mono(0)));
        process.found_at = Some(Mono(0));
        assert!(!process.is_search_due(Mono(FIND_INTERVAL.0)));
        process.is_candidate = false;
        assert!(process.is_search_due(Mono(FIND_INTERVAL.0)));
    }

    #[test]
    fn candidates_leave_room_for_the_logs_of_processes_on_a_gpu() {
        let (commands, _inbox) = mpsc::channel();
        let mut watcher = LogWatcher {
            settings: Arc::new(LogSettings::new("/proc".as_ref(), None, None)),
            report: Arc::new(|_| {}),
            commands,
            processes: BTreeMap::new(),
            logs: BTreeMap::new(),
            searches: Arc::default(),
        };
        // Each log is a terminal of its own, but all have the same content.
        let file = tempfile::NamedTempFile::new().expect("a file");
        let log = |number| {
            let path = file.path().to_owned();
            let owners = vec![nix::unistd::geteuid().as_raw()];
            let location = LogFileLocation::Path { path, owners, reader: None };
            let open = location.open().expect("an open file");
            let content = Box::new(Tail::new(location, open, 0, now_mono()));
            let (name, origin) = (String::new(), LogOrigin::Pane);
            FoundLog { id: LogId::Terminal(0, number), name, origin, content, from: None }
        };
        let candidates: Vec<ProcessKey> = (1..=512).map(|pid| ProcessKey::new(pid, 1)).collect();
        watcher.follow_candidates(&candidates);
        let attached = candidates.iter().map(|key| watcher.attach(*key, log(key.pid.0.into())));
        assert_eq!(attached.filter(Result::is_ok).count(), MAX_LOGS_WITH_CANDIDATES);
        let process = ProcessKey::new(1_000, 1);
        watcher.watch(&[process]);
        assert!(watcher.attach(process, log(1_000)).is_ok());
    }
}
