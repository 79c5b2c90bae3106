//! The Python stack of a process, read through py-spy's library from outside.
//!
//! py-spy would stop the process while it reads; it is told not to. A read may then be torn, so a thread's stack
//! counts only when two reads in a row gave the same. The thread `python` attaches to a process once (some ten
//! milliseconds) and keeps that while the process is watched; a read is about a millisecond.
//!
//! What was asked for at a moment (an allocation failed, a new maximum) is read at once or not at all: a stack of
//! more than a second later tells nothing of it.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{self, Sender};

use nix::errno::Errno;
use py_spy::config::LockingStrategy;
use py_spy::{Config, PythonSpy, StackTrace};

use super::clock::now_mono;
use super::process::access::Access;
use super::process::stat::{StatBuffer, StatFile};
use crate::model::process::ProcessKey;
use crate::model::reading::{Missing, Reason};
use crate::model::stack::{PythonStack, StackFrame, StackThread, StackWhy};
use crate::model::text::visible;
use crate::model::units::{Bytes, Millis, Mono};

/// How often two reads are compared before a program counts as one that does not hold still.
const TRIES: usize = 5;
const MAX_THREADS: usize = 16;
const MAX_FRAMES: usize = 64;
const MAX_TEXT: usize = 200;
/// A stack that was taken longer after the moment is not of that moment.
const MAX_LAG: Millis = Millis(1_000);
/// An attachment is a table of symbols: some megabytes.
const MAX_ATTACHED: usize = 32;
/// py-spy knows no other place.
const PROC: &str = "/proc";

/// Whose stack is wanted, and for what.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StackRequest {
    pub process: ProcessKey,
    pub why: StackWhy,
    /// The last moment at which it had not happened yet.
    pub since: Mono,
    pub allocated: Option<Bytes>,
}

impl StackRequest {
    pub fn asked(process: ProcessKey) -> Self {
        Self {
            process,
            why: StackWhy::Request,
            since: now_mono(),
            allocated: None,
        }
    }
}

pub type Stack = Result<PythonStack, Missing>;

enum StackCommand {
    Watch(Vec<ProcessKey>),
    Take(StackRequest),
}

/// A handle on the thread, which ends when the last one is dropped.
#[derive(Debug, Clone)]
pub struct Python {
    orders: Sender<StackCommand>,
}

impl Python {
    /// `answer` is called on the thread, for every request and for what was read in time.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(answer: impl Fn(ProcessKey, Stack) + Send + 'static) -> io::Result<Self> {
        let (orders, inbox) = mpsc::channel();
        std::thread::Builder::new()
            .name("python".into())
            .spawn(move || {
                let mut reader = PythonReader::default();
                while let Ok(order) = inbox.recv() {
                    match order {
                        StackCommand::Watch(keys) => reader.watch(&keys),
                        StackCommand::Take(wanted) => {
                            if let Some(stack) = reader.take(wanted) {
                                answer(wanted.process, stack);
                            }
                        }
                    }
                }
            })?;
        Ok(Self { orders })
    }

    /// Attachments to all other processes are given up.
    pub fn watch(&self, processes: Vec<ProcessKey>) {
        let _ = self.orders.send(StackCommand::Watch(processes));
    }

    pub fn take(&self, wanted: StackRequest) {
        let _ = self.orders.send(StackCommand::Take(wanted));
    }
}

/// The attachments; what the thread does, without the thread.
#[derive(Default)]
pub struct PythonReader {
    attached: BTreeMap<ProcessKey, PythonSpy>,
}

impl PythonReader {
    pub fn watch(&mut self, processes: &[ProcessKey]) {
        self.attached.retain(|key, _| processes.contains(key));
    }

    /// Nothing when it is too late, or could not be read and nobody asked.
    pub fn take(&mut self, wanted: StackRequest) -> Option<Stack> {
        let is_asked = wanted.why == StackWhy::Request;
        let is_late = |at: Mono| !is_asked && at.since(wanted.since) > MAX_LAG;
        if is_late(now_mono()) {
            return None;
        }
        match self.read(wanted) {
            Ok(stack) if is_late(stack.at) => None,
            Err(why) if !is_asked => {
                let pid = wanted.process.pid.0;
                tracing::debug!(pid, %why, "no Python stack");
                None
            }
            stack => Some(stack),
        }
    }

    fn read(&mut self, wanted: StackRequest) -> Stack {
        let key = wanted.process;
        check(key)?;
        let known = self.attached.remove(&key);
        let is_known = known.is_some();
        let mut spy = known.map_or_else(|| attach(key), Ok)?;
        let mut read = still(&mut spy, key);
        // A program that was executed in the place of the first has its interpreter elsewhere.
        if is_known && read.as_ref().is_err_and(|failure| !failure.is_moving) {
            spy = attach(key)?;
            read = still(&mut spy, key);
        }
        // The PID was this process before and after, so what was read is of it.
        check(key)?;
        if read
            .as_ref()
            .map_or_else(|failure| failure.is_moving, |_| true)
        {
            if self.attached.len() >= MAX_ATTACHED {
                self.attached.clear();
            }
            self.attached.insert(key, spy);
        }
        let StableThreads {
            at,
            mut threads,
            moving,
        } = read.map_err(|failure| failure.why)?;
        threads.sort_by_key(|thread| !thread.is_main);
        let beyond = threads.len().saturating_sub(MAX_THREADS);
        threads.truncate(MAX_THREADS);
        Ok(PythonStack {
            process: key,
            at,
            why: wanted.why,
            lag: at.since(wanted.since),
            allocated: wanted.allocated,
            threads,
            left_out: u32::try_from(moving + beyond).unwrap_or(u32::MAX),
        })
    }
}

/// Whether the PID still is that process.
fn check(key: ProcessKey) -> Result<(), Missing> {
    let path = Path::new(PROC).join(key.pid.to_string()).join("stat");
    let start = StatFile::open(&path).and_then(|file| Ok(file.read(&mut StatBuffer::new())?.start));
    match start {
        Ok(start) if start == key.start => Ok(()),
        Ok(_) => Err(Missing::new(Reason::Gone, "the process has ended")),
        Err(error) => Err(Access::new(Path::new(PROC)).missing("the Python stack", &error)),
    }
}

fn config() -> Config {
    Config {
        blocking: LockingStrategy::NonBlocking,
        // Without it py-spy would look for `__init__.py` in the folders of the program, which may hang.
        full_filenames: true,
        ..Config::default()
    }
}

fn attach(key: ProcessKey) -> Result<PythonSpy, Missing> {
    guarded(|| {
        let pid = py_spy::Pid::try_from(key.pid.0)?;
        Ok(PythonSpy::new(pid, &config())?)
    })
}

/// Runs a part of py-spy, which reads what may be torn: neither its errors nor a panic end the thread.
fn guarded<T>(
    part: impl FnOnce() -> Result<T, Box<dyn Error + Send + Sync>>,
) -> Result<T, Missing> {
    match catch_unwind(AssertUnwindSafe(part)) {
        Ok(result) => result.map_err(|error| missing(&*error)),
        Err(_) => Err(Missing::new(
            Reason::Unknown,
            "py-spy failed on this process",
        )),
    }
}

fn missing(error: &(dyn Error + 'static)) -> Missing {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    let refused = causes.find_map(|error| {
        let error = error.downcast_ref::<io::Error>()?;
        // What is torn leads to addresses that are not mapped; these tell of the process as a whole.
        let is_whole = [Errno::EACCES, Errno::EPERM, Errno::ESRCH, Errno::ENOENT]
            .iter()
            .any(|errno| error.raw_os_error() == Some(*errno as i32));
        is_whole.then_some(error)
    });
    if let Some(error) = refused {
        return Access::new(Path::new(PROC)).missing("the Python stack", error);
    }
    let text = error.to_string();
    if text.contains("Failed to find python version") {
        return Missing::new(
            Reason::Unsupported,
            "no Python interpreter is in this process",
        );
    }
    if text.starts_with("Unsupported version of Python") {
        return Missing::new(Reason::Unsupported, visible(text.as_bytes(), MAX_TEXT));
    }
    let text = format!("the Python stack could not be read: {text}");
    Missing::new(Reason::Unknown, visible(text.as_bytes(), MAX_TEXT))
}

/// The threads of which two reads agree.
struct StableThreads {
    at: Mono,
    threads: Vec<StackThread>,
    /// How many others there are.
    moving: usize,
}

struct Failure {
    why: Missing,
    /// The reads as such succeed.
    is_moving: bool,
}

/// Reads until two reads in a row agree on every thread; at last takes those that agreed, if the main one did.
fn still(spy: &mut PythonSpy, key: ProcessKey) -> Result<StableThreads, Failure> {
    let mut partly = None;
    let mut before: Option<Vec<StackTrace>> = None;
    let mut failed = None;
    for _ in 0..=TRIES {
        // One that fails is torn, more often than not.
        let now = match guarded(|| Ok(spy.get_stack_traces()?)) {
            Ok(traces) => traces,
            Err(why) => {
                (before, failed) = (None, Some(why));
                continue;
            }
        };
        failed = None;
        if let Some(before) = &before {
            let at = now_mono();
            let is_still = |trace: &&StackTrace| before.iter().any(|b| is_same_stack(b, trace));
            let held: Vec<_> = now.iter().filter(is_still).collect();
            let moving = now.len() - held.len();
            let read = StableThreads {
                at,
                threads: held.iter().filter_map(|trace| thread(trace, key)).collect(),
                moving,
            };
            if moving == 0 {
                return Ok(read);
            }
            if read.threads.iter().any(|thread| thread.is_main) {
                partly = Some(read);
            }
        }
        before = Some(now);
    }
    partly.ok_or_else(|| Failure {
        is_moving: failed.is_none(),
        why: failed.unwrap_or_else(|| {
            Missing::new(
                Reason::NotRead,
                "the program did not hold still: no two reads in a row were the same",
            )
        }),
    })
}

fn is_same_stack(a: &StackTrace, b: &StackTrace) -> bool {
    a.thread_id == b.thread_id && a.frames == b.frames
}

/// Of the hook that `gputop run` adds, which may be at work in a thread or have one of its own.
const HOOK: &str = "/gputop_hook.py";

/// Where the program stands: what the hook does in its place is left out, and a thread that is the hook's.
fn thread(trace: &StackTrace, key: ProcessKey) -> Option<StackThread> {
    let name = trace.thread_name.as_deref().unwrap_or_default();
    // Inside a container threads have other numbers, and before Python 3.11 none is known.
    let is_main = trace.os_thread_id == Some(key.pid.0.into()) || name == "MainThread";
    let is_hook = |frame: &py_spy::Frame| frame.filename.ends_with(HOOK);
    let hook = trace.frames.iter().rposition(is_hook);
    let frames = &trace.frames[hook.map_or(0, |at| at + 1)..];
    if hook.is_some() && frames.is_empty() {
        return None;
    }
    Some(StackThread {
        name: visible(name.as_bytes(), MAX_TEXT),
        is_main,
        frames: frames.iter().take(MAX_FRAMES).map(frame).collect(),
    })
}

fn frame(frame: &py_spy::Frame) -> StackFrame {
    StackFrame {
        function: visible(frame.name.as_bytes(), MAX_TEXT),
        file: path(&frame.filename),
        line: u32::try_from(frame.line).unwrap_or_default(),
    }
}

/// A long path loses its beginning: its end tells more.
fn path(text: &str) -> String {
    let beyond = text.chars().count().saturating_sub(MAX_TEXT - 1);
    if beyond == 0 {
        return visible(text.as_bytes(), MAX_TEXT);
    }
    let end: String = text.chars().skip(beyond).collect();
    visible(format!("…{end}").as_bytes(), MAX_TEXT)
}

#[cfg(test)]
mod tests;
