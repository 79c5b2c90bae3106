//! Reads the Python stack of another process with the py-spy library.
//!
//! By default, py-spy stops the process while it reads; gputop uses the non-blocking mode. A read in this mode may be
//! inconsistent, so a thread's stack is accepted only if two consecutive reads are equal. The `python` thread attaches
//! to a process once (about 10 ms) and remains attached while the process is watched. One read takes about 1 ms.
//!
//! A stack for an event (a failed allocation, a new memory maximum) is read immediately or not at all, because a stack
//! taken more than a second later does not explain the event.

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
use crate::model::stack::{StackThread, StackTrigger, hook_frames};
use crate::model::text::visible;
use crate::model::{Bytes, Millis, Missing, Mono, ProcessKey, PythonStack, Reason, StackFrame};

/// Maximum number of times that two reads are compared before the stack is reported as changing.
const MAX_TRIES: usize = 5;
const MAX_THREADS: usize = 16;
const MAX_FRAMES: usize = 64;
const MAX_TEXT: usize = 200;
/// Maximum delay between an event and the read of its Python stack.
const MAX_LAG: Millis = Millis(1_000);
/// Maximum number of attached Python processes. Each needs a symbol table of several megabytes.
const MAX_ATTACHED: usize = 32;
/// Path of the /proc directory. Fixed, because py-spy always uses this path.
const PROC: &str = "/proc";

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StackRequest {
    pub process: ProcessKey,
    pub why: StackTrigger,
    /// Latest time known to be before the event.
    pub since: Mono,
    pub allocated: Option<Bytes>,
}

impl StackRequest {
    pub fn by_user(process: ProcessKey) -> Self {
        Self { process, why: StackTrigger::Request, since: now_mono(), allocated: None }
    }
}

pub type Stack = Result<PythonStack, Missing>;

enum StackCommand {
    Watch(Vec<ProcessKey>),
    Take(StackRequest),
}

/// Handle to the thread that reads Python stacks. The thread exits when the last handle is dropped.
#[derive(Debug, Clone)]
pub struct Python {
    commands: Sender<StackCommand>,
}

impl Python {
    /// Starts the stack reader's thread. The thread calls `answer` with each stack that a user requested, and with each
    /// stack for an event, if it was read in time.
    pub fn start(answer: impl Fn(ProcessKey, Stack) + Send + 'static) -> io::Result<Self> {
        let (commands, receiver) = mpsc::channel();
        std::thread::Builder::new().name("python".into()).spawn(move || {
            let mut reader = PythonReader::default();
            while let Ok(command) = receiver.recv() {
                match command {
                    StackCommand::Watch(keys) => reader.watch(&keys),
                    StackCommand::Take(request) => {
                        if let Some(stack) = reader.take(request) {
                            answer(request.process, stack);
                        }
                    }
                }
            }
        })?;
        Ok(Self { commands })
    }

    pub fn watch(&self, processes: Vec<ProcessKey>) {
        let _ = self.commands.send(StackCommand::Watch(processes));
    }

    pub fn take(&self, request: StackRequest) {
        let _ = self.commands.send(StackCommand::Take(request));
    }
}

/// Reader of Python stacks, with the processes to which it is attached. Separate from its thread, so that tests can use
/// it directly.
#[derive(Default)]
pub struct PythonReader {
    attached: BTreeMap<ProcessKey, PythonSpy>,
}

impl PythonReader {
    pub fn watch(&mut self, processes: &[ProcessKey]) {
        self.attached.retain(|key, _| processes.contains(key));
    }

    /// Reads a Python stack. For an event, returns `None` if the stack cannot be read in time or the read fails.
    pub fn take(&mut self, request: StackRequest) -> Option<Stack> {
        let is_by_user = request.why == StackTrigger::Request;
        let is_late = |at: Mono| !is_by_user && at.since(request.since) > MAX_LAG;
        if is_late(now_mono()) {
            return None;
        }
        match self.read(request) {
            Ok(stack) if is_late(stack.at) => None,
            Err(why) if !is_by_user => {
                let pid = request.process.pid.0;
                tracing::debug!(pid, %why, "no Python stack");
                None
            }
            stack => Some(stack),
        }
    }

    fn read(&mut self, request: StackRequest) -> Stack {
        let key = request.process;
        check(key)?;
        let attached = self.attached.remove(&key);
        let was_attached = attached.is_some();
        let mut spy = attached.map_or_else(|| attach(key), Ok)?;
        let mut read = read_stable(&mut spy, key);
        // Attach again, because after an exec the interpreter is at another address.
        if was_attached && read.as_ref().is_err_and(|failure| !failure.is_changing) {
            spy = attach(key)?;
            read = read_stable(&mut spy, key);
        }
        // Check that the PID still belongs to this process. If not, the stack may be from another process.
        check(key)?;
        if read.as_ref().map_or_else(|failure| failure.is_changing, |_| true) {
            if self.attached.len() >= MAX_ATTACHED {
                self.attached.clear();
            }
            self.attached.insert(key, spy);
        }
        let StableThreads { at, mut threads, changing } = read.map_err(|failure| failure.why)?;
        threads.sort_by_key(|thread| !thread.is_main);
        let beyond = threads.len().saturating_sub(MAX_THREADS);
        threads.truncate(MAX_THREADS);
        Ok(PythonStack {
            process: key,
            at,
            why: request.why,
            lag: at.since(request.since),
            allocated: request.allocated,
            threads,
            left_out: u32::try_from(changing + beyond).unwrap_or(u32::MAX),
        })
    }
}

fn check(key: ProcessKey) -> Result<(), Missing> {
    Access::new(Path::new(PROC)).check(key, "the Python stack")
}

fn config() -> Config {
    Config {
        blocking: LockingStrategy::NonBlocking,
        // Prevent py-spy from searching the program's directories for `__init__.py`, because such a search may hang.
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

/// Calls py-spy, and converts both its errors and its panics to a reason. Inconsistent data may cause either.
fn guarded<T>(
    part: impl FnOnce() -> Result<T, Box<dyn Error + Send + Sync>>,
) -> Result<T, Missing> {
    match catch_unwind(AssertUnwindSafe(part)) {
        Ok(result) => result.map_err(|error| missing(&*error)),
        Err(_) => Err(Missing::new(Reason::Unknown, "py-spy failed on this process")),
    }
}

fn missing(error: &(dyn Error + 'static)) -> Missing {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    let process_error = causes.find_map(|error| {
        let error = error.downcast_ref::<io::Error>()?;
        // These errors mean that the process itself is not readable. Inconsistent data, in contrast, leads to reads of
        // unmapped addresses, which fail with other errors.
        let is_process_error = [Errno::EACCES, Errno::EPERM, Errno::ESRCH, Errno::ENOENT]
            .iter()
            .any(|errno| error.raw_os_error() == Some(*errno as i32));
        is_process_error.then_some(error)
    });
    if let Some(error) = process_error {
        return Access::new(Path::new(PROC)).missing("the Python stack", error);
    }
    let text = error.to_string();
    if text.contains("Failed to find python version") {
        return Missing::new(Reason::Unsupported, "no Python interpreter found in this process");
    }
    if text.starts_with("Unsupported version of Python") {
        return Missing::new(Reason::Unsupported, visible(text.as_bytes(), MAX_TEXT));
    }
    let text = format!("cannot read the Python stack: {text}");
    Missing::new(Reason::Unknown, visible(text.as_bytes(), MAX_TEXT))
}

/// Threads whose stacks are equal in two consecutive reads.
struct StableThreads {
    at: Mono,
    threads: Vec<StackThread>,
    /// Number of threads whose stacks differ between two reads.
    changing: usize,
}

struct Failure {
    why: Missing,
    /// True if the reads of the stack succeeded but differed.
    is_changing: bool,
}

/// Reads stacks until two consecutive reads agree on every thread. If they never do, returns the threads that agreed in
/// the last try, provided that the main thread is among them.
fn read_stable(spy: &mut PythonSpy, key: ProcessKey) -> Result<StableThreads, Failure> {
    let mut partial = None;
    let mut before: Option<Vec<StackTrace>> = None;
    let mut failed = None;
    for _ in 0..=MAX_TRIES {
        // Retry a failed read, because it usually means inconsistent data.
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
            let is_stable = |trace: &&StackTrace| before.iter().any(|b| is_same_stack(b, trace));
            let stable: Vec<_> = now.iter().filter(is_stable).collect();
            let changing = now.len() - stable.len();
            let read = StableThreads {
                at,
                threads: stable.iter().filter_map(|trace| thread(trace, key)).collect(),
                changing,
            };
            if changing == 0 {
                return Ok(read);
            }
            if read.threads.iter().any(|thread| thread.is_main) {
                partial = Some(read);
            }
        }
        before = Some(now);
    }
    partial.ok_or_else(|| Failure {
        is_changing: failed.is_none(),
        why: failed
            .unwrap_or_else(|| Missing::new(Reason::NotRead, "the stack changed in every read")),
    })
}

fn is_same_stack(a: &StackTrace, b: &StackTrace) -> bool {
    a.thread_id == b.thread_id && a.frames == b.frames
}

/// Converts a thread's stack and removes the hook's frames. Returns `None` for the hook's own thread.
fn thread(trace: &StackTrace, key: ProcessKey) -> Option<StackThread> {
    let name = trace.thread_name.as_deref().unwrap_or_default();
    // Also compare the thread's name: in a container the thread IDs differ, and before Python 3.11 they are unknown.
    let is_main = trace.os_thread_id == Some(key.pid.0.into()) || name == "MainThread";
    let hook = hook_frames(&trace.frames, |frame| &frame.filename);
    let frames = &trace.frames[hook..];
    if hook > 0 && frames.is_empty() {
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

/// Shortens a long path at its start, because the file name at its end is more informative.
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
