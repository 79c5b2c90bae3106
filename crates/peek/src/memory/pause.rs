//! Pauses a process while it is read: stops its threads with ptrace, and always resumes them.
//!
//! Used only at the user's request (`gputop allocator --pause`). No other part of gputop stops a process. Each thread
//! is seized (`PTRACE_SEIZE`, which sends no signal and does not notify the parent) and interrupted. All threads must
//! stop within [`STOP_TIMEOUT`]. After another [`MAX_PAUSE`] they are resumed, even if the read is incomplete. A
//! process that was already stopped stays stopped, and pending signals are delivered.
//!
//! A separate thread traces the target, because the kernel detaches all tracees when their tracing thread exits. The
//! target is therefore resumed even after a panic, if gputop is killed, or if a thread stops too late. With `SIGSTOP`,
//! the target would stay stopped.
//!
//! The pause has two effects on the target: a blocking system call may return EINTR, as after Ctrl-Z and `fg`, and its
//! clocks keep running.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gputop_model::text::visible;
use gputop_model::{Pid, Reason};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use rustix::process::{WaitOptions, waitpid};

use super::access;
use super::ptrace_call::detach;

/// Maximum time to wait for all threads of the target to stop.
pub const STOP_TIMEOUT: Duration = Duration::from_millis(50);
/// Maximum time that the target's threads stay stopped.
pub const MAX_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of threads in the target. A process with more threads is not paused, because stopping each one takes
/// a few microseconds.
const MAX_THREADS: usize = 4_096;
/// Interval for checking whether the target's threads have stopped.
const POLL_INTERVAL: Duration = Duration::from_micros(100);
/// Flag to also wait for threads that are not children (`__WALL` in wait(2)).
const WAIT_ALL: u32 = 0x4000_0000;

/// Reason why a process was not paused. Each message is a phrase.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PauseError {
    #[error("process not found or already exited")]
    Gone,
    #[error("PID {0} already traces the process (a debugger or strace): stop that tracer first")]
    Traced(u32),
    #[error("{0}")]
    Denied(String),
    #[error("the process has more than {MAX_THREADS} threads")]
    TooMany,
    #[error(
        "thread {thread} ({name}) did not stop within {} ms: it is in a long system call, for example in a driver or on a slow disk",
        STOP_TIMEOUT.as_millis()
    )]
    Unstoppable { thread: i32, name: String },
    #[error("the kernel rejected the request: {0}")]
    Refused(String),
}

impl PauseError {
    pub fn reason(&self) -> Reason {
        match self {
            Self::Gone => Reason::Gone,
            Self::Denied(_) => Reason::Denied,
            Self::Traced(_) | Self::TooMany | Self::Unstoppable { .. } | Self::Refused(_) => {
                Reason::NotRead
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PauseStats {
    pub threads: usize,
    /// Time from the stop of the first thread until the last thread is resumed.
    pub time: Duration,
    /// True if the pause reached its time limit before the reader was done.
    pub is_cut_short: bool,
}

/// Paused process. Its threads are resumed on drop, or after [`MAX_PAUSE`] at the latest.
#[derive(Debug)]
pub struct ThreadPause {
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<PauseStats>>,
}

impl ThreadPause {
    /// Pauses a process. Returns when all its threads have stopped. If a thread cannot be stopped, resumes all threads
    /// and returns the reason.
    pub fn new(proc_root: &Path, pid: Pid) -> Result<Self, PauseError> {
        let (done, is_done) = mpsc::channel();
        let (result_sender, result) = mpsc::channel();
        let tracer = Tracer {
            tasks: proc_root.join(pid.to_string()).join("task"),
            proc_root: proc_root.to_owned(),
            pid,
            since: Instant::now(),
            threads: BTreeMap::new(),
        };
        let thread = std::thread::Builder::new()
            .name("pause".into())
            .spawn(move || tracer.run(&result_sender, &is_done))
            .map_err(|error| PauseError::Refused(error.to_string()))?;
        let pause = Self { done: Some(done), thread: Some(thread) };
        match result.recv() {
            Ok(stopped) => stopped.map(|()| pause),
            Err(_) => Err(PauseError::Refused("the tracing thread exited".into())),
        }
    }

    pub fn release(mut self) -> Option<PauseStats> {
        self.end()
    }

    fn end(&mut self) -> Option<PauseStats> {
        drop(self.done.take());
        self.thread.take()?.join().ok()
    }
}

impl Drop for ThreadPause {
    fn drop(&mut self) {
        self.end();
    }
}

/// State of a thread in the paused process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thread {
    Seized,
    /// Stopped. Contains the pending signal, or 0 if there is none.
    Stopped(i32),
}

struct Tracer {
    proc_root: PathBuf,
    tasks: PathBuf,
    pid: Pid,
    since: Instant,
    threads: BTreeMap<i32, Thread>,
}

impl Tracer {
    fn run(
        mut self,
        result_sender: &Sender<Result<(), PauseError>>,
        is_done: &Receiver<()>,
    ) -> PauseStats {
        let stopped = self.stop_all();
        let is_paused = stopped.is_ok();
        let is_received = result_sender.send(stopped).is_ok();
        let mut is_cut_short = false;
        if is_paused && is_received {
            let outcome = is_done.recv_timeout(MAX_PAUSE);
            is_cut_short = outcome == Err(RecvTimeoutError::Timeout);
        }
        let threads = self.threads.len();
        self.resume();
        PauseStats { threads, time: self.since.elapsed(), is_cut_short }
    }

    /// Stops all threads of the target. Repeats until the thread list contains no new thread, because a running thread
    /// can start new ones.
    fn stop_all(&mut self) -> Result<(), PauseError> {
        let deadline = self.since + STOP_TIMEOUT;
        loop {
            let is_new = self.seize_new()?;
            self.wait_for_stops(deadline)?;
            if !is_new {
                return if self.threads.is_empty() { Err(PauseError::Gone) } else { Ok(()) };
            }
        }
    }

    fn seize_new(&mut self) -> Result<bool, PauseError> {
        let Ok(entries) = std::fs::read_dir(&self.tasks) else { return Err(PauseError::Gone) };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let mut is_new = false;
        for thread in names {
            if self.threads.contains_key(&thread) {
                continue;
            }
            if self.threads.len() >= MAX_THREADS {
                return Err(PauseError::TooMany);
            }
            let tid = nix::unistd::Pid::from_raw(thread);
            match ptrace::seize(tid, Options::empty()) {
                Err(Errno::ESRCH) => continue,
                Err(_) if self.has_exited(thread) => continue,
                seized => seized.map_err(|errno| self.refused(errno))?,
            }
            is_new = true;
            self.threads.insert(thread, Thread::Seized);
            let _ = ptrace::interrupt(tid);
        }
        Ok(is_new)
    }

    fn wait_for_stops(&mut self, deadline: Instant) -> Result<(), PauseError> {
        while !self.all_stopped() {
            if Instant::now() >= deadline {
                return Err(self.unstoppable());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Polls each thread that has not yet stopped, and removes exited threads. Returns true if all threads have
    /// stopped.
    fn all_stopped(&mut self) -> bool {
        let options = WaitOptions::NOHANG | WaitOptions::from_bits_retain(WAIT_ALL);
        self.threads.retain(|&thread, state| {
            if *state != Thread::Seized {
                return true;
            }
            match waitpid(rustix::process::Pid::from_raw(thread), options) {
                Ok(Some((_, status))) => match status.stopping_signal() {
                    Some(signal) => {
                        *state = Thread::Stopped(signal_to_deliver(status.as_raw(), signal));
                        true
                    }
                    None => false,
                },
                Ok(None) => true,
                Err(_) => false,
            }
        });
        self.threads.values().all(|state| *state != Thread::Seized)
    }

    fn unstoppable(&self) -> PauseError {
        let running = self.threads.iter().find(|(_, state)| **state == Thread::Seized);
        let thread = running.map_or(0, |(thread, _)| *thread);
        let name = std::fs::read(self.tasks.join(thread.to_string()).join("comm"));
        PauseError::Unstoppable {
            thread,
            name: visible(name.unwrap_or_default().trim_ascii_end(), 20),
        }
    }

    fn refused(&self, errno: Errno) -> PauseError {
        match errno {
            Errno::EPERM | Errno::EACCES => match self.tracer() {
                Some(tracer) => PauseError::Traced(tracer),
                None => PauseError::Denied(access::hint(&self.proc_root, self.pid)),
            },
            other => PauseError::Refused(other.desc().to_owned()),
        }
    }

    /// Returns true if the thread has exited. A main thread that exits before the other threads stays in the list.
    fn has_exited(&self, thread: i32) -> bool {
        let status = std::fs::read_to_string(self.tasks.join(thread.to_string()).join("status"));
        status.is_ok_and(|status| status.contains("\nState:\tZ") || status.contains("\nState:\tX"))
    }

    /// Returns the PID of a process that already traces a thread of the target.
    fn tracer(&self) -> Option<u32> {
        let entries = std::fs::read_dir(&self.tasks).ok()?;
        entries
            .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("status")).ok())
            .filter_map(|status| number(&status, "TracerPid:"))
            .find(|&tracer| tracer != 0)
            .map(|tracer| self.process_of(tracer))
    }

    /// Returns the process that owns a tracing thread, because the kernel reports only the thread.
    fn process_of(&self, thread: u32) -> u32 {
        let status = std::fs::read_to_string(self.proc_root.join(format!("{thread}/status")));
        status.ok().and_then(|status| number(&status, "Tgid:")).unwrap_or(thread)
    }

    /// Resumes the stopped threads. Other threads cannot be detached yet; the kernel detaches them when the tracing
    /// thread exits.
    fn resume(&mut self) {
        for (&thread, state) in &self.threads {
            if let Thread::Stopped(signal) = *state {
                detach(thread, signal);
            }
        }
    }
}

/// Resumes the target's threads on drop, and therefore also after a panic.
impl Drop for Tracer {
    fn drop(&mut self) {
        self.resume();
    }
}

/// Returns the signal to deliver when detaching from a stopped thread, or 0. A stop with an event code was caused by
/// gputop's interrupt or by an earlier stop signal. Any other stop was caused by a signal that the thread has not
/// received yet, and that would be lost if it were not delivered.
fn signal_to_deliver(status: i32, signal: i32) -> i32 {
    if status >> 16 == 0 { signal } else { 0 }
}

fn number(status: &str, name: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delivers_pending_signals_only() {
        let stopped = |signal: i32, event: i32| event << 16 | signal << 8 | 0x7f;
        // The causes of the stops are, in this order: a pending SIGUSR1, a pending real-time signal, gputop's
        // interrupt, and SIGSTOP.
        assert_eq!(signal_to_deliver(stopped(10, 0), 10), 10);
        assert_eq!(signal_to_deliver(stopped(33, 0), 33), 33);
        assert_eq!(signal_to_deliver(stopped(5, 128), 5), 0);
        assert_eq!(signal_to_deliver(stopped(19, 128), 19), 0);
    }

    #[test]
    fn reads_numbers_from_status() {
        let status = "Name:\tx\nTgid:\t5\nTracerPid:\t77\n";
        assert_eq!(number(status, "TracerPid:"), Some(77));
        assert_eq!(number(status, "Tgid:"), Some(5));
        assert_eq!(number("Name:\tx\n", "Tgid:"), None);
    }

    #[test]
    fn rejects_nonexistent_process_and_itself() {
        let pause = |pid| ThreadPause::new(Path::new("/proc"), Pid(pid)).err();
        assert_eq!(pause(0x7fff_fff0), Some(PauseError::Gone));
        // A thread cannot trace its own process.
        assert!(pause(std::process::id()).is_some());
    }
}
