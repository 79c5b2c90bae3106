//! Holds a process still while it is read: its threads are stopped by ptrace, and let go again whatever happens.
//!
//! Only where the user asked for it (`gputop allocator --pause`): nothing else in gputop stops a target. Each thread is
//! seized (`PTRACE_SEIZE`: no signal is sent and the parent is told nothing) and interrupted; within [`TO_STOP`] all
//! must stand, and after [`TO_HOLD`] more they are let go, read or not. What was stopped already stays stopped, a signal
//! that was on its way to a thread is handed on to it.
//!
//! A thread of its own does this, because the kernel lets go what a tracing thread held when that thread ends: by a
//! panic, by a kill of gputop, or since a stop came too late to be answered. `SIGSTOP` would outlast all of these.
//!
//! What the target notices: a system call that waits may return EINTR as after Ctrl-Z and `fg`; its clocks went on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use rustix::process::{WaitOptions, waitpid};

use super::access;
use super::ptrace_call::detach;
use crate::model::reading::Reason;
use crate::model::text::visible;
use crate::model::units::Pid;

/// How long all threads together may take to stop.
pub const TO_STOP: Duration = Duration::from_millis(50);
/// How long they are held from then on, at most.
pub const TO_HOLD: Duration = Duration::from_millis(100);
/// A process with more is left alone: to stop each takes a few microseconds.
const MAX_THREADS: usize = 4_096;
const PAUSE: Duration = Duration::from_micros(100);
/// Threads that are no children are waited for by this (`__WALL` in wait(2)).
const WAIT_ALL: u32 = 0x4000_0000;

/// Why a process is not held: clauses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PauseError {
    #[error("no such process, or it has ended")]
    Gone,
    #[error("PID {0} traces it already (a debugger, strace): end that one first")]
    Traced(u32),
    #[error("{0}")]
    Denied(String),
    #[error("it has more than {MAX_THREADS} threads")]
    TooMany,
    #[error(
        "thread {thread} ({name}) did not stop within {} ms: the kernel is busy for it, as with a driver or a slow disk",
        TO_STOP.as_millis()
    )]
    Unstoppable { thread: i32, name: String },
    #[error("the kernel refused: {0}")]
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

/// What a hold was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PauseStats {
    pub threads: usize,
    /// From the first thread that was stopped to the last that was let go.
    pub time: Duration,
    /// It was let go at the limit, before the reader was done.
    pub is_cut_short: bool,
}

/// A process all of whose threads stand, until this is dropped or [`TO_HOLD`] is over.
#[derive(Debug)]
pub struct ThreadPause {
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<PauseStats>>,
}

impl ThreadPause {
    /// Returns once every thread stands.
    ///
    /// # Errors
    /// With the reason, and every thread let go again.
    pub fn new(proc_root: &Path, pid: Pid) -> Result<Self, PauseError> {
        let (done, is_done) = mpsc::channel();
        let (say, said) = mpsc::channel();
        let tracer = Tracer {
            tasks: proc_root.join(pid.to_string()).join("task"),
            proc_root: proc_root.to_owned(),
            pid,
            since: Instant::now(),
            threads: BTreeMap::new(),
        };
        let thread = std::thread::Builder::new()
            .name("hold".into())
            .spawn(move || tracer.run(&say, &is_done))
            .map_err(|error| PauseError::Refused(error.to_string()))?;
        let hold = Self {
            done: Some(done),
            thread: Some(thread),
        };
        match said.recv() {
            Ok(stopped) => stopped.map(|()| hold),
            Err(_) => Err(PauseError::Refused("the thread that holds it ended".into())),
        }
    }

    /// Lets go, and says what it was.
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

/// A thread of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thread {
    Seized,
    /// Stands; with the signal that it was about to take, 0 for none.
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
    fn run(mut self, say: &Sender<Result<(), PauseError>>, is_done: &Receiver<()>) -> PauseStats {
        let stopped = self.stop_all();
        let is_held = stopped.is_ok();
        let is_heard = say.send(stopped).is_ok();
        let mut is_cut_short = false;
        if is_held && is_heard {
            let ended = is_done.recv_timeout(TO_HOLD);
            is_cut_short = ended == Err(RecvTimeoutError::Timeout);
        }
        let threads = self.threads.len();
        self.let_go();
        PauseStats {
            threads,
            time: self.since.elapsed(),
            is_cut_short,
        }
    }

    /// Until a look at the list finds no thread that does not stand: one that stands starts no other.
    fn stop_all(&mut self) -> Result<(), PauseError> {
        let deadline = self.since + TO_STOP;
        loop {
            let is_new = self.seize_new()?;
            self.wait_for_stops(deadline)?;
            if !is_new {
                return match self.threads.is_empty() {
                    true => Err(PauseError::Gone),
                    false => Ok(()),
                };
            }
        }
    }

    fn seize_new(&mut self) -> Result<bool, PauseError> {
        let Ok(entries) = std::fs::read_dir(&self.tasks) else {
            return Err(PauseError::Gone);
        };
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
                Err(_) if self.has_ended(thread) => continue,
                seized => seized.map_err(|errno| self.refused(errno))?,
            }
            is_new = true;
            self.threads.insert(thread, Thread::Seized);
            let _ = ptrace::interrupt(tid);
        }
        Ok(is_new)
    }

    fn wait_for_stops(&mut self, deadline: Instant) -> Result<(), PauseError> {
        while !self.all_stand() {
            if Instant::now() >= deadline {
                return Err(self.unstoppable());
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Asks each that does not stand yet, and forgets those that ended.
    fn all_stand(&mut self) -> bool {
        let options = WaitOptions::NOHANG | WaitOptions::from_bits_retain(WAIT_ALL);
        self.threads.retain(|&thread, state| {
            if *state != Thread::Seized {
                return true;
            }
            match waitpid(rustix::process::Pid::from_raw(thread), options) {
                Ok(Some((_, status))) => match status.stopping_signal() {
                    Some(signal) => {
                        *state = Thread::Stopped(signal_to_hand_on(status.as_raw(), signal));
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
        let standing = self
            .threads
            .iter()
            .find(|(_, state)| **state == Thread::Seized);
        let thread = standing.map_or(0, |(thread, _)| *thread);
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

    /// A main thread that ended before the others stays on the list.
    fn has_ended(&self, thread: i32) -> bool {
        let status = std::fs::read_to_string(self.tasks.join(thread.to_string()).join("status"));
        status.is_ok_and(|status| status.contains("\nState:\tZ") || status.contains("\nState:\tX"))
    }

    /// Who traces a thread of it, before this does.
    fn tracer(&self) -> Option<u32> {
        let entries = std::fs::read_dir(&self.tasks).ok()?;
        entries
            .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("status")).ok())
            .filter_map(|status| number(&status, "TracerPid:"))
            .find(|&tracer| tracer != 0)
            .map(|tracer| self.process_of(tracer))
    }

    /// The kernel names the thread that traces.
    fn process_of(&self, thread: u32) -> u32 {
        let status = std::fs::read_to_string(self.proc_root.join(format!("{thread}/status")));
        let process = status.ok().and_then(|status| number(&status, "Tgid:"));
        process.unwrap_or(thread)
    }

    /// One that did not stop cannot be let go by a call: the kernel does it when this thread ends.
    fn let_go(&mut self) {
        for (&thread, state) in &self.threads {
            if let Thread::Stopped(signal) = *state {
                detach(thread, signal);
            }
        }
    }
}

/// Also when something of the above panics: the thread ends, and with it the hold.
impl Drop for Tracer {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// A stop by the interrupt, or by a stop signal that was taken before, carries an event; without one a signal is about
/// to be delivered, and would be lost.
fn signal_to_hand_on(status: i32, signal: i32) -> i32 {
    if status >> 16 == 0 { signal } else { 0 }
}

fn number(status: &str, name: &str) -> Option<u32> {
    let number = status.lines().find_map(|line| line.strip_prefix(name))?;
    number.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_signal_on_its_way_is_handed_on() {
        let stopped = |signal: i32, event: i32| event << 16 | signal << 8 | 0x7f;
        // SIGUSR1 and a real-time signal; the interrupt; a stop by SIGSTOP.
        assert_eq!(signal_to_hand_on(stopped(10, 0), 10), 10);
        assert_eq!(signal_to_hand_on(stopped(33, 0), 33), 33);
        assert_eq!(signal_to_hand_on(stopped(5, 128), 5), 0);
        assert_eq!(signal_to_hand_on(stopped(19, 128), 19), 0);
    }

    #[test]
    fn numbers_are_read_from_status() {
        let status = "Name:\tx\nTgid:\t5\nTracerPid:\t77\n";
        assert_eq!(number(status, "TracerPid:"), Some(77));
        assert_eq!(number(status, "Tgid:"), Some(5));
        assert_eq!(number("Name:\tx\n", "Tgid:"), None);
    }

    #[test]
    fn a_process_that_never_was_and_oneself_are_not_held() {
        let hold = |pid| ThreadPause::new(Path::new("/proc"), Pid(pid)).err();
        assert_eq!(hold(0x7fff_fff0), Some(PauseError::Gone));
        // No thread may trace its own process.
        assert!(hold(std::process::id()).is_some());
    }
}
