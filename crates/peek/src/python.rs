//! Reads the Python stack of another process without stopping it.
//!
//! The stack may change during a read, so a thread's stack is accepted only if two consecutive reads are equal. The
//! `python` thread searches for the interpreter of a process once and keeps its address while the process is watched.
//!
//! A stack for an event (a failed allocation, a new memory maximum) is read immediately or not at all, because a stack
//! taken more than a second later does not explain the event.

mod gil;
mod line_table;
mod sampler;
mod stacks;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::mpsc::{self, Sender};

use gputop_model::stack::{StackThread, StackTrigger, hook_frames};
use gputop_model::{Bytes, Millis, Missing, Mono, ProcessKey, PythonStack, Reason};

pub use self::line_table::SourcePosition;
pub use self::sampler::{Code, LockHolder, SampledFrame, SampledThread, StackSampler};
use self::stacks::{PythonProcess, Thread, Threads};
use super::clock::now_mono;
use super::process::access::Access;

/// Maximum number of times that two reads are compared before the stack is reported as changing.
const MAX_TRIES: usize = 5;
const MAX_THREADS: usize = 16;
const MAX_FRAMES: usize = 64;
/// Maximum delay between an event and the read of its Python stack.
const MAX_LAG: Millis = Millis(1_000);
/// Maximum number of processes whose interpreter is kept.
const MAX_ATTACHED: usize = 32;
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
pub struct PythonStacks {
    commands: Sender<StackCommand>,
}

impl PythonStacks {
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
    attached: BTreeMap<ProcessKey, PythonProcess>,
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
        let attach = || PythonProcess::attach(Path::new(PROC), key.pid);
        let mut python = attached.map_or_else(attach, Ok)?;
        let mut read = read_stable(&python);
        // Attach again, because after an exec the interpreter is at another address.
        if was_attached && read.as_ref().is_err_and(|failure| !failure.is_changing) {
            python = attach()?;
            read = read_stable(&python);
        }
        // Check that the PID still belongs to this process. If not, the stack may be from another process.
        check(key)?;
        if read.as_ref().map_or_else(|failure| failure.is_changing, |_| true) {
            if self.attached.len() >= MAX_ATTACHED {
                self.attached.clear();
            }
            self.attached.insert(key, python);
        }
        let StableThreads { at, mut threads, left_out } = read.map_err(|failure| failure.why)?;
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
            left_out: u32::try_from(left_out + beyond).unwrap_or(u32::MAX),
        })
    }
}

fn check(key: ProcessKey) -> Result<(), Missing> {
    Access::new(Path::new(PROC)).check(key, "the Python stack")
}

/// Threads whose stacks are equal in two consecutive reads.
struct StableThreads {
    at: Mono,
    threads: Vec<StackThread>,
    /// Number of threads whose stacks differ between two reads, or were not read.
    left_out: usize,
}

struct StackFailure {
    why: Missing,
    /// True if the reads of the stack succeeded but differed.
    is_changing: bool,
}

/// Reads stacks until two consecutive reads agree on every thread. If they never do, returns the threads that agreed in
/// the last try, provided that the main thread is among them.
fn read_stable(python: &PythonProcess) -> Result<StableThreads, StackFailure> {
    let mut partial = None;
    let mut before = Threads::default();
    for _ in 0..=MAX_TRIES {
        let now = python.threads().map_err(|why| StackFailure { why, is_changing: false })?;
        let stable: Vec<&Thread> =
            now.threads.iter().filter(|thread| before.threads.contains(thread)).collect();
        let changing = now.threads.len() - stable.len() + now.failed;
        let is_main = |thread: &Thread| thread.id == now.main;
        let threads: Vec<StackThread> =
            stable.into_iter().filter_map(|thread| shown(thread, is_main(thread))).collect();
        let has_main = threads.iter().any(|thread| thread.is_main);
        let left_out = changing + now.left_out;
        let read = StableThreads { at: now_mono(), threads, left_out };
        if changing == 0 && !now.threads.is_empty() {
            return Ok(read);
        }
        if has_main {
            partial = Some(read);
        }
        before = now;
    }
    let is_changing = !before.threads.is_empty();
    let why = if is_changing {
        Missing::new(Reason::NotRead, "the stack changed in every read")
    } else {
        Missing::new(Reason::Unknown, "no part of the Python stack could be read")
    };
    partial.ok_or(StackFailure { why, is_changing })
}

/// Removes the hook's frames from a stack. Returns `None` for the hook's own thread.
fn shown(thread: &Thread, is_main: bool) -> Option<StackThread> {
    let hook = hook_frames(&thread.frames, |frame| &frame.file);
    let frames = &thread.frames[hook..];
    if hook > 0 && frames.is_empty() {
        return None;
    }
    let frames = frames.iter().take(MAX_FRAMES).cloned().collect();
    Some(StackThread { name: thread.name.clone(), is_main, frames })
}

#[cfg(test)]
mod tests;
