//! Detects the exits of watched processes immediately.
//!
//! One thread waits on the pidfds of all watched processes. The kernel wakes the thread within a millisecond of an
//! exit. The thread reads the exit status (`status`) before the parent reaps the process, and reports it to the agent.
//! If a process cannot be watched, because the kernel is older than 5.3 or `ulimit -n` is too low, the process table
//! detects its exit within 2 s.
//!
//! A process that was killed by SIGKILL, or whose status is unknown, may be a victim of the out-of-memory killer
//! (`oom`). This thread also reads the kernel log, which names the victims. It forwards lines about GPUs to the agent.
//!
//! A pidfd refers to the process that has the PID when the pidfd is opened. Comparing the start time after opening
//! ensures that a process that reused the PID is never mistaken for the requested one (as in `process/signal.rs`).

pub mod oom;
mod pidfd_info;
pub mod self_test;
mod status;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use gputop_model::event::OomVerdict;
use gputop_model::{Missing, Mono, ProcessKey, Reading, Reason};
use gputop_peek::clock::now_mono;
use gputop_peek::process::stat::start_time;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use self::oom::{OomCounterPaths, OomKiller};
use self::status::{ExitTrace, Status};
use super::kernel_log::{KernelLine, KernelLog, XidLine};
use crate::open_files::{LongLivedFile, room_for};

/// Maximum time that an exit report is delayed to wait for more data: the OOM killer's log line or, for another user's
/// process, the exit status, which is not readable until the parent reaps the process. Short enough to keep the total
/// delay below 100 ms.
const GRACE_TIMEOUT: Duration = Duration::from_millis(80);

/// Interval for reading the OOM kill counters while no process exits.
const REFRESH_INTERVAL: Duration = Duration::from_secs(10);

const MAX_BATCH: usize = 256;

#[derive(Debug, Clone, PartialEq)]
pub struct ProcessExit {
    pub process: ProcessKey,
    /// Exit code, or 128 + signal if a signal killed the process.
    pub code: Reading<i32>,
    pub signal: Reading<i32>,
    pub oom: OomVerdict,
    /// Lower bound of the exit time: when the kernel woke the watcher, or when the process table last saw the process
    /// alive.
    pub since: Mono,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ExitReport {
    Exit(Box<ProcessExit>),
    Xid(Box<XidLine>),
    /// Number of processes whose exits are detected late, because of the open-file limit.
    Unwatched(usize),
    /// The kernel log is no longer readable.
    LogClosed(Missing),
}

/// Handle to the watcher's thread. Dropping it stops the thread.
#[derive(Debug)]
pub struct ExitWatcher {
    commands: Sender<ExitCommand>,
    wake: Arc<EventFd>,
    log: Result<(), Missing>,
}

#[derive(Debug)]
enum ExitCommand {
    Watch(Vec<ProcessKey>, Mono),
    Found(ProcessKey, Mono),
    Stop,
}

impl ExitWatcher {
    /// Starts the watcher's thread, which calls `report`. The callback must not block.
    pub fn start(
        oom_paths: OomCounterPaths,
        kernel_log: &Path,
        report: impl Fn(ExitReport) + Send + 'static,
    ) -> io::Result<Self> {
        let (commands, inbox) = mpsc::channel();
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&*wake, EpollEvent::new(EpollFlags::EPOLLIN, COMMANDS))?;
        let opened = KernelLog::open(kernel_log).and_then(|log| {
            let added = epoll.add(&log, EpollEvent::new(EpollFlags::EPOLLIN, LOG));
            added.map_err(|error| Missing::new(Reason::Unknown, error.to_string()))?;
            Ok(log)
        });
        let (log_file, log) = match opened {
            Ok(file) => (Some(file), Ok(())),
            Err(why) => (None, Err(why)),
        };
        let thread = WatcherThread {
            proc_root: oom_paths.proc_root.clone(),
            oom: OomKiller::new(oom_paths, log.clone()),
            log: log_file,
            refreshed: Instant::now(),
            epoll,
            wake: Arc::clone(&wake),
            inbox,
            report: Box::new(report),
            watched: BTreeMap::new(),
            tokens: HashMap::new(),
            next_token: LOG + 1,
            unwatched: 0,
        };
        std::thread::Builder::new().name("exits".into()).spawn(move || thread.run())?;
        Ok(Self { commands, wake, log })
    }

    /// Replaces the list of watched processes. All of them were alive at `seen`. A process that has exited since then
    /// is reported immediately. The list must not contain a process whose exit was already reported.
    pub fn watch(&self, processes: Vec<ProcessKey>, seen: Mono) {
        self.send(ExitCommand::Watch(processes, seen));
    }

    /// Handles an exit found by the process table, which last saw the process running at `since`. If the process is
    /// watched, its pidfd provides the exit status. If not, the exit is reported immediately, without a status. Every
    /// exit is reported once.
    pub fn exit_found(&self, process: ProcessKey, since: Mono) {
        self.send(ExitCommand::Found(process, since));
    }

    pub fn log(&self) -> &Result<(), Missing> {
        &self.log
    }

    fn send(&self, command: ExitCommand) {
        let _ = self.commands.send(command);
        // Ignore the result: the write fails only if the thread was stuck for so long that the eventfd's counter is
        // full.
        let _ = self.wake.write(1);
    }
}

impl Drop for ExitWatcher {
    fn drop(&mut self) {
        self.send(ExitCommand::Stop);
    }
}

/// Epoll token for commands. The next token is for the kernel log, and all later tokens are for processes.
const COMMANDS: u64 = 0;
const LOG: u64 = 1;

struct WatcherThread {
    proc_root: PathBuf,
    epoll: Epoll,
    wake: Arc<EventFd>,
    inbox: Receiver<ExitCommand>,
    report: Box<dyn Fn(ExitReport) + Send>,
    log: Option<KernelLog>,
    oom: OomKiller,
    refreshed: Instant,
    watched: BTreeMap<u64, ExitWatch>,
    tokens: HashMap<ProcessKey, u64>,
    next_token: u64,
    /// Number of processes without a pidfd when the list of watched processes last changed.
    unwatched: usize,
}

struct ExitWatch {
    process: ProcessKey,
    pidfd: OwnedFd,
    /// File with the OOM kill counter of the process's cgroup.
    group: Option<Arc<Path>>,
    /// Set while the exit report is delayed to wait for more data.
    held: Option<HeldExit>,
}

#[derive(Clone, Copy)]
struct HeldExit {
    until: Instant,
    since: Mono,
}

/// Error returned once the watcher's handle has been dropped.
struct Stopped;

impl WatcherThread {
    fn run(mut self) {
        let mut events = [EpollEvent::empty(); MAX_BATCH];
        loop {
            let count = match self.epoll.wait(&mut events, self.epoll_timeout()) {
                Ok(count) => count,
                Err(Errno::EINTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "process exits are no longer noticed immediately");
                    return;
                }
            };
            let woken = now_mono();
            // Read the kernel log first, because it may explain the exits.
            self.read_log(woken);
            let events = &events[..count];
            if events.iter().any(|event| event.data() == COMMANDS) && self.serve().is_err() {
                return;
            }
            for token in events.iter().map(EpollEvent::data).filter(|t| *t > LOG) {
                self.notice(token, woken);
            }
            self.release_held();
            if self.refreshed.elapsed() >= REFRESH_INTERVAL && !self.watched.is_empty() {
                self.oom.refresh(now_mono());
                self.refreshed = Instant::now();
            }
        }
    }

    /// Returns the time until the first delayed exit report or the next counter refresh is due, or `None` while no
    /// process is watched.
    fn epoll_timeout(&self) -> EpollTimeout {
        let refresh = (!self.watched.is_empty()).then_some(self.refreshed + REFRESH_INTERVAL);
        let held = self.watched.values().filter_map(|watched| watched.held);
        let held = held.map(|held| held.until).min();
        let Some(until) = refresh.into_iter().chain(held).min() else { return EpollTimeout::NONE };
        let left = until.saturating_duration_since(Instant::now());
        // Round up, to avoid a busy loop during the last millisecond.
        EpollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(EpollTimeout::ZERO)
    }

    fn read_log(&mut self, now: Mono) {
        let Some(log) = &mut self.log else { return };
        let (oom, report) = (&mut self.oom, &self.report);
        let read = log.read(|line| match line {
            KernelLine::OomKill(kill) => oom.note(kill, now),
            KernelLine::Xid(xid) => report(ExitReport::Xid(Box::new(xid))),
        });
        if log.take_missed() {
            tracing::warn!("kernel log lines were lost: the kernel logged faster than gputop read");
        }
        if let Err(why) = read {
            tracing::warn!(%why, "can no longer read the kernel log");
            self.oom.lose_log(why.clone());
            (self.report)(ExitReport::LogClosed(why));
            // Close the kernel log, which removes it from the epoll set.
            self.log = None;
        }
    }

    fn serve(&mut self) -> Result<(), Stopped> {
        let _ = self.wake.read();
        loop {
            match self.inbox.try_recv() {
                Ok(ExitCommand::Watch(processes, seen)) => self.watch(&processes, seen),
                Ok(ExitCommand::Found(process, since)) => self.exit_found(process, since),
                Ok(ExitCommand::Stop) | Err(TryRecvError::Disconnected) => return Err(Stopped),
                Err(TryRecvError::Empty) => return Ok(()),
            }
        }
    }

    fn watch(&mut self, processes: &[ProcessKey], seen: Mono) {
        let wanted: HashSet<&ProcessKey> = processes.iter().collect();
        let dropped: Vec<u64> = self
            .watched
            .iter()
            .filter(|(_, watched)| !wanted.contains(&watched.process))
            .map(|(token, _)| *token)
            .collect();
        for token in dropped {
            self.forget(token);
        }
        let mut unwatched = 0;
        for &process in processes {
            if self.tokens.contains_key(&process) {
                continue;
            }
            match open(&self.proc_root, process) {
                Ok(Some(pidfd)) => self.add(process, pidfd),
                Ok(None) => self.report(process, None, collected(), seen),
                // Leave the exit of this process to the process table, which detects it through the process's open stat
                // file.
                Err(error) => {
                    unwatched += usize::from(is_limit(&error));
                    tracing::debug!(pid = process.pid.0, %error, "not watched");
                }
            }
        }
        // Report the number of unwatched processes again only if it increases.
        if unwatched > self.unwatched {
            (self.report)(ExitReport::Unwatched(unwatched));
        }
        self.unwatched = unwatched;
    }

    fn exit_found(&mut self, process: ProcessKey, since: Mono) {
        if !self.tokens.contains_key(&process) {
            self.report(process, None, collected(), since);
        }
    }

    fn add(&mut self, process: ProcessKey, pidfd: OwnedFd) {
        let token = self.next_token;
        // Use edge-triggered mode: one event when the process exits, and one when it is reaped.
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, token);
        if let Err(error) = self.epoll.add(&pidfd, event) {
            tracing::debug!(pid = process.pid.0, %error, "not watched");
            return;
        }
        self.next_token += 1;
        self.tokens.insert(process, token);
        let group = self.oom.watch(process.pid);
        let watched = ExitWatch { process, pidfd, group, held: None };
        self.watched.insert(token, watched);
    }

    /// Stops watching a process. Closing its pidfd removes it from the epoll set.
    fn forget(&mut self, token: u64) -> Option<ExitWatch> {
        let watched = self.watched.remove(&token)?;
        self.tokens.remove(&watched.process);
        Some(watched)
    }

    /// Handles a wake-up by a pidfd, which means that the process has exited or has been reaped.
    fn notice(&mut self, token: u64, woken: Mono) {
        let Some(watched) = self.watched.get(&token) else { return };
        let pid = watched.process.pid;
        let trace = status::read_trace(&self.proc_root, watched.process, &watched.pidfd);
        let status = match trace {
            // Ignore the event: another thread of the process may have called exec, which older kernels signal as an
            // exit.
            ExitTrace::Alive => return,
            ExitTrace::Status(status) => Status::of_wait(status),
            ExitTrace::Collected => collected(),
            ExitTrace::Hidden => return self.hold(token, woken),
        };
        if status.may_be_oom_killed() && self.oom.is_line_awaited(pid, now_mono()) {
            return self.hold(token, woken);
        }
        let since = watched.held.map_or(woken, |held| held.since);
        self.finish(token, status, since);
    }

    fn hold(&mut self, token: u64, since: Mono) {
        if let Some(watched) = self.watched.get_mut(&token) {
            watched.held.get_or_insert(HeldExit { until: Instant::now() + GRACE_TIMEOUT, since });
        }
    }

    fn release_held(&mut self) {
        let now = Instant::now();
        let due: Vec<(u64, Mono)> = self
            .watched
            .iter()
            .filter_map(|(token, watched)| Some((*token, watched.held?)))
            .filter(|(_, held)| held.until <= now)
            .map(|(token, held)| (token, held.since))
            .collect();
        for (token, since) in due {
            // Read the status again, because kernels before 6.9 do not signal that the process was reaped.
            let trace = self
                .watched
                .get(&token)
                .map(|w| status::read_trace(&self.proc_root, w.process, &w.pidfd));
            let status = match trace {
                Some(ExitTrace::Status(status)) => Status::of_wait(status),
                Some(ExitTrace::Collected) => collected(),
                _ => Status::unknown(
                    Reason::Denied,
                    "the parent has not reaped the process yet; until then, only the process's user and root can read its exit status",
                ),
            };
            self.finish(token, status, since);
        }
    }

    fn finish(&mut self, token: u64, status: Status, since: Mono) {
        if let Some(watched) = self.forget(token) {
            self.report(watched.process, watched.group.as_ref(), status, since);
        }
    }

    fn report(
        &mut self,
        process: ProcessKey,
        group: Option<&Arc<Path>>,
        status: Status,
        since: Mono,
    ) {
        let oom = if status.may_be_oom_killed() {
            let by_sigkill = status.signal.get().is_some();
            self.oom.verdict(process.pid, group, by_sigkill, now_mono())
        } else {
            oom::not_killed()
        };
        (self.report)(ExitReport::Exit(Box::new(ProcessExit {
            process,
            code: status.code,
            signal: status.signal,
            oom,
            since,
        })));
    }
}

fn collected() -> Status {
    Status::unknown(
        Reason::Unsupported,
        "only the parent process received the exit status; since Linux 6.15, the kernel also reports it to other processes",
    )
}

/// Opens a pidfd for exactly this process. Returns `None` if the process has exited.
fn open(proc_root: &Path, process: ProcessKey) -> io::Result<Option<OwnedFd>> {
    let pid = i32::try_from(process.pid.0).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        opened => opened?,
    };
    room_for(LongLivedFile::Pidfd, &pidfd)?;
    match start_time(proc_root, process.pid) {
        Ok(start) => Ok((start == process.start).then_some(pidfd)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns true if a limit on open files is the cause of the error. A thread's ID in place of a process's, for example, is
/// another cause.
fn is_limit(error: &io::Error) -> bool {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(errno) => matches!(errno, Errno::EMFILE | Errno::ENFILE),
        None => error.kind() == io::ErrorKind::Other,
    }
}

/// Returns true if the error means that a process's directory, or the process itself, no longer exists.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::ENOENT | Errno::ESRCH))
}

#[cfg(test)]
mod tests;
