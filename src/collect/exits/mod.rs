//! The ends of watched processes, at the moment they happen.
//!
//! One thread sleeps on a pidfd for each process. The kernel wakes it when a process has ended, within a millisecond
//! and whatever the clocks do; it reads how the process ended (`status`) before the parent collects it, and tells
//! the agent. The agent still learns of ends by the process table, two seconds later at most: of processes that could
//! not be watched here, because the kernel is older than 5.3 or `ulimit -n` leaves no room.
//!
//! What SIGKILL ended, or nobody knows what, may have been the out-of-memory killer's (`oom`). The kernel's log tells
//! that, so it is read on this thread too; its lines about GPUs go on to the agent.
//!
//! A pidfd is bound to whoever has the PID when it is made; the start time is compared after that, so a process that
//! got the PID meanwhile is never taken for the one that was meant (as in `process/signal.rs`).

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

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use self::oom::{OomCounterPaths, OomKiller};
use self::status::{ExitTrace, Status};
use super::clock::now_mono;
use super::kernel_log::{KernelLine, KernelLog, XidLine};
use super::process::stat::{StatBuffer, StatFile};
use crate::model::event::OomVerdict;
use crate::model::process::ProcessKey;
use crate::model::reading::{Missing, Reading, Reason};
use crate::model::units::Mono;
use crate::open_files::{LongLivedFile, room_for};

/// How long an end is held back while more may be known of it in a moment: the status of another user's process, once
/// its parent collects it, or the line that says whom the out-of-memory killer chose. What is left of 100 ms.
const GRACE: Duration = Duration::from_millis(80);

/// How often the counters of the out-of-memory killer are read while nothing ends.
const REFRESH: Duration = Duration::from_secs(10);

/// Ends taken from the kernel in one go.
const BATCH: usize = 256;

/// One process has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    pub process: ProcessKey,
    /// The exit code; 128 + signal when a signal ended it.
    pub code: Reading<i32>,
    pub signal: Reading<i32>,
    pub oom: OomVerdict,
    /// It has ended after this: when the kernel woke the thread, or when the process table last saw it alive.
    pub since: Mono,
}

/// What the thread has to tell.
#[derive(Debug, Clone, PartialEq)]
pub enum ExitReport {
    End(Box<End>),
    Xid(Box<XidLine>),
    /// The exits of this many processes are noticed later, because of the limit on open files.
    Unwatched(usize),
    /// The kernel's log can no longer be read.
    LogEnded(Missing),
}

/// A handle on the thread, which ends when the handle is dropped.
#[derive(Debug)]
pub struct Ends {
    orders: Sender<ExitCommand>,
    wake: Arc<EventFd>,
    log: Result<(), Missing>,
}

#[derive(Debug)]
enum ExitCommand {
    Watch(Vec<ProcessKey>, Mono),
    Found(ProcessKey, Mono),
    Stop,
}

impl Ends {
    /// `tell` is called on the thread and should only pass on what it is told.
    ///
    /// # Errors
    /// When the system gives no thread or no descriptor.
    pub fn start(
        places: OomCounterPaths,
        kernel_log: &Path,
        tell: impl Fn(ExitReport) + Send + 'static,
    ) -> io::Result<Self> {
        let (orders, inbox) = mpsc::channel();
        let wake = Arc::new(EventFd::from_flags(
            EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK,
        )?);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&*wake, EpollEvent::new(EpollFlags::EPOLLIN, ORDERS))?;
        let opened = KernelLog::open(kernel_log).and_then(|log| {
            let added = epoll.add(&log, EpollEvent::new(EpollFlags::EPOLLIN, LOG));
            added.map_err(|error| Missing::new(Reason::Unknown, error.to_string()))?;
            Ok(log)
        });
        let (log_file, log) = match opened {
            Ok(file) => (Some(file), Ok(())),
            Err(why) => (None, Err(why)),
        };
        let thread = EndsThread {
            proc_root: places.proc_root.clone(),
            oom: OomKiller::new(places, log.clone()),
            log: log_file,
            refreshed: Instant::now(),
            epoll,
            wake: Arc::clone(&wake),
            inbox,
            tell: Box::new(tell),
            watched: BTreeMap::new(),
            tokens: HashMap::new(),
            next_token: LOG + 1,
            unwatched: 0,
            held: BTreeMap::new(),
        };
        std::thread::Builder::new()
            .name("ends".into())
            .spawn(move || thread.run())?;
        Ok(Self { orders, wake, log })
    }

    /// The processes to watch from now on, which were alive at `seen`; one that has ended since is told at once. One
    /// whose end was told must not be among them again.
    pub fn watch(&self, processes: Vec<ProcessKey>, seen: Mono) {
        self.order(ExitCommand::Watch(processes, seen));
    }

    /// The process table found the end of this one, which it last saw alive `since`. It is told from here, so that each
    /// end is told in one place: now, or with its status when that is awaited.
    pub fn found(&self, process: ProcessKey, since: Mono) {
        self.order(ExitCommand::Found(process, since));
    }

    /// Whether the kernel's log could be opened.
    pub fn log(&self) -> &Result<(), Missing> {
        &self.log
    }

    fn order(&self, order: ExitCommand) {
        let _ = self.orders.send(order);
        // It fails only when the thread has not looked for so long that the counter is full.
        let _ = self.wake.write(1);
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.order(ExitCommand::Stop);
    }
}

/// What the kernel wakes the thread for: orders, the log, or the process with this token.
const ORDERS: u64 = 0;
const LOG: u64 = 1;

struct EndsThread {
    proc_root: PathBuf,
    epoll: Epoll,
    wake: Arc<EventFd>,
    inbox: Receiver<ExitCommand>,
    tell: Box<dyn Fn(ExitReport) + Send>,
    log: Option<KernelLog>,
    oom: OomKiller,
    refreshed: Instant,
    watched: BTreeMap<u64, ExitWatch>,
    tokens: HashMap<ProcessKey, u64>,
    next_token: u64,
    /// Processes without a pidfd at the last order.
    unwatched: usize,
    /// Ended, and held back until more is known.
    held: BTreeMap<u64, Held>,
}

struct ExitWatch {
    process: ProcessKey,
    pidfd: OwnedFd,
    /// The file that counts the kills in its cgroup.
    group: Option<Arc<Path>>,
}

struct Held {
    until: Instant,
    since: Mono,
}

/// The handle is gone.
struct Stopped;

impl EndsThread {
    fn run(mut self) {
        let mut events = [EpollEvent::empty(); BATCH];
        loop {
            let count = match self.epoll.wait(&mut events, self.patience()) {
                Ok(count) => count,
                Err(Errno::EINTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "ends are no longer noticed at once");
                    return;
                }
            };
            let woken = now_mono();
            // First, since it may say what the processes ended of.
            self.read_log(woken);
            let events = &events[..count];
            if events.iter().any(|event| event.data() == ORDERS) && self.serve().is_err() {
                return;
            }
            for token in events.iter().map(EpollEvent::data).filter(|t| *t > LOG) {
                self.notice(token, woken);
            }
            self.release_held();
            if self.refreshed.elapsed() >= REFRESH && !self.watched.is_empty() {
                self.oom.refresh(now_mono());
                self.refreshed = Instant::now();
            }
        }
    }

    /// Until the first that is held back must be told, or the counters are due; for ever while nothing is watched.
    fn patience(&self) -> EpollTimeout {
        let refresh = (!self.watched.is_empty()).then_some(self.refreshed + REFRESH);
        let held = self.held.values().map(|held| held.until).min();
        let Some(until) = refresh.into_iter().chain(held).min() else {
            return EpollTimeout::NONE;
        };
        let left = until.saturating_duration_since(Instant::now());
        // Rounded up, or the last millisecond would be spent in a loop.
        EpollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(EpollTimeout::ZERO)
    }

    fn read_log(&mut self, now: Mono) {
        let Some(log) = &mut self.log else { return };
        let (oom, tell) = (&mut self.oom, &self.tell);
        let read = log.read(|line| match line {
            KernelLine::OomKill(kill) => oom.note(kill, now),
            KernelLine::Xid(xid) => tell(ExitReport::Xid(Box::new(xid))),
        });
        if log.take_missed() {
            tracing::warn!("the kernel logged faster than it was read; lines are missing");
        }
        if let Err(why) = read {
            tracing::warn!(%why, "the kernel log is no longer read");
            self.oom.lose_log(why.clone());
            (self.tell)(ExitReport::LogEnded(why));
            // Closing it takes it out of the epoll set.
            self.log = None;
        }
    }

    fn serve(&mut self) -> Result<(), Stopped> {
        let _ = self.wake.read();
        loop {
            match self.inbox.try_recv() {
                Ok(ExitCommand::Watch(processes, seen)) => self.watch(&processes, seen),
                Ok(ExitCommand::Found(process, since)) => self.found(process, since),
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
                Ok(None) => self.tell(process, None, collected(), seen),
                // The process table has it open, and will find its end.
                Err(error) => {
                    unwatched += 1;
                    tracing::debug!(pid = process.pid.0, %error, "not watched");
                }
            }
        }
        // Reported again only when it gets worse.
        if unwatched > self.unwatched {
            (self.tell)(ExitReport::Unwatched(unwatched));
        }
        self.unwatched = unwatched;
    }

    fn found(&mut self, process: ProcessKey, since: Mono) {
        if !self.tokens.contains_key(&process) {
            self.tell(process, None, collected(), since);
        }
    }

    fn add(&mut self, process: ProcessKey, pidfd: OwnedFd) {
        let token = self.next_token;
        // Edge-triggered: once when it ends, and once more when it is collected.
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, token);
        if let Err(error) = self.epoll.add(&pidfd, event) {
            tracing::debug!(pid = process.pid.0, %error, "not watched");
            return;
        }
        self.next_token += 1;
        self.tokens.insert(process, token);
        let group = self.oom.watch(process.pid);
        let watched = ExitWatch {
            process,
            pidfd,
            group,
        };
        self.watched.insert(token, watched);
    }

    /// Closing the descriptor takes it out of the epoll set.
    fn forget(&mut self, token: u64) -> Option<ExitWatch> {
        self.held.remove(&token);
        let watched = self.watched.remove(&token)?;
        self.tokens.remove(&watched.process);
        Some(watched)
    }

    /// The kernel says that it has ended, or once more that it was collected.
    fn notice(&mut self, token: u64, woken: Mono) {
        let Some(watched) = self.watched.get(&token) else {
            return;
        };
        let pid = watched.process.pid;
        let remains = status::look(&self.proc_root, watched.process, &watched.pidfd);
        let status = match remains {
            // Another thread of it may have executed a program, which older kernels take for an end.
            ExitTrace::Alive => return,
            ExitTrace::Told(status) => Status::of_wait(status),
            ExitTrace::Collected => collected(),
            ExitTrace::Hidden => return self.hold(token, woken),
        };
        if status.may_be_oom_killed() && self.oom.is_line_awaited(pid, now_mono()) {
            return self.hold(token, woken);
        }
        let since = self.held.get(&token).map_or(woken, |held| held.since);
        self.end(token, status, since);
    }

    fn hold(&mut self, token: u64, since: Mono) {
        self.held.entry(token).or_insert(Held {
            until: Instant::now() + GRACE,
            since,
        });
    }

    fn release_held(&mut self) {
        let now = Instant::now();
        let due: Vec<(u64, Mono)> = self
            .held
            .iter()
            .filter(|(_, held)| held.until <= now)
            .map(|(token, held)| (*token, held.since))
            .collect();
        for (token, since) in due {
            // Once more: kernels before 6.9 do not wake for the collection.
            let remains = self
                .watched
                .get(&token)
                .map(|w| status::look(&self.proc_root, w.process, &w.pidfd));
            let status = match remains {
                Some(ExitTrace::Told(status)) => Status::of_wait(status),
                Some(ExitTrace::Collected) => collected(),
                _ => Status::unknown(
                    Reason::Denied,
                    "its parent has not collected it yet; until then its own user and root are told",
                ),
            };
            self.end(token, status, since);
        }
    }

    fn end(&mut self, token: u64, status: Status, since: Mono) {
        if let Some(watched) = self.forget(token) {
            self.tell(watched.process, watched.group.as_ref(), status, since);
        }
    }

    fn tell(
        &mut self,
        process: ProcessKey,
        group: Option<&Arc<Path>>,
        status: Status,
        since: Mono,
    ) {
        let oom = if status.may_be_oom_killed() {
            let by_sigkill = status.signal.get().is_some();
            self.oom.judge(process.pid, group, by_sigkill, now_mono())
        } else {
            oom::not_killed()
        };
        (self.tell)(ExitReport::End(Box::new(End {
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
        "only its parent was told; the kernel tells others since Linux 6.15",
    )
}

/// A pidfd of exactly this process; none when it has ended.
fn open(proc_root: &Path, process: ProcessKey) -> io::Result<Option<OwnedFd>> {
    let pid = i32::try_from(process.pid.0).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        opened => opened?,
    };
    room_for(LongLivedFile::Pidfd, &pidfd)?;
    let path = proc_root.join(process.pid.to_string()).join("stat");
    let start = || Ok(StatFile::open(&path)?.read(&mut StatBuffer::new())?.start);
    match start() {
        Ok(start) => Ok((start == process.start).then_some(pidfd)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The directory, or the process behind the open file, is no more.
fn is_gone(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::ENOENT | Errno::ESRCH))
}

#[cfg(test)]
mod tests;
