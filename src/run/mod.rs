//! `gputop run`: runs a command as if it had been typed, captures its output, and explains the failure if the command
//! fails.
//!
//! The command stays in gputop's process group and keeps its standard input, so keys, Ctrl-C, Ctrl-Z and job control
//! work as they would without gputop. Only terminal output goes through a pty:
//!
//! ```text
//!   terminal ─────────────────── stdin ──► command
//!            ◄─ relay ◄─ pty ◄── stdout, stderr
//!                 │
//!                 ▼
//!          captured output ─► diagnosis, after a failure
//! ```
//!
//! Changes to the pty's modes are applied to the terminal, and when stdin is a pipe the command can read keys from the
//! pty. An interactive shell is the exception: it needs a controlling terminal that it also writes to, so it gets a
//! session of its own with the pty, and gputop passes on every key. Other commands do not, even if they start such a
//! shell: they must receive the signals of their process group, and keys that they do not read belong to the shell.
//! Ctrl-Z would not stop them either, because the kernel ignores it in a process group without a parent in the same
//! session. Piped output goes through a pipe created by gputop (`pipes`). The command inherits streams that are files;
//! gputop reads these files after a failure.
//!
//! A failure in gputop must not stop the command: if a pty or process cannot be created, gputop replaces itself with
//! the command (`exec`).

mod command;
mod explanation;
mod hook;
mod oom_watch;
mod other_pools;
mod output;
mod pipes;
mod ranks;
mod relay;
mod signals;
mod stalls;
mod terminal;
mod unsafe_calls;

pub use command::{CommandLine, ExitOutcome, NotStarted};
pub use explanation::{Explanation, explain};
pub use hook::Hook;
pub use oom_watch::OomWatch;
pub use pipes::PipedStreams;
pub use ranks::Rank;
pub use signals::run_until_cancelled;
pub use stalls::StallReporter;

use gputop_model::{Mono, ProcessKey, UnixMillis};
use gputop_peek::clock::{now_mono, now_wall};
use output::{CapturedOutput, FilePosition};
use relay::Relay;
use signals::Signals;
use terminal::{Mirror, Pty, Streams};

pub struct Finished {
    pub exit: ExitOutcome,
    pub process: Option<ProcessKey>,
    at: ExitTime,
    /// Data needed to explain the failure if the command failed.
    evidence: RunEvidence,
    pipes: PipedStreams,
}

impl Finished {
    /// Returns the pipes still held open by processes that the command left running. Dropping the pipes waits until
    /// those processes have closed them, just as the pipe's reader would do without gputop.
    pub fn take_pipes(&mut self) -> PipedStreams {
        std::mem::take(&mut self.pipes)
    }
}

/// Which output of the command gputop captures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capture {
    /// Output to terminals, pipes and files.
    All,
    /// Output to files only. The command inherits terminals and pipes.
    Files,
}

/// Exit time, on the monotonic clock and on the wall clock.
#[derive(Debug, Clone, Copy)]
struct ExitTime {
    mono: Mono,
    wall: UnixMillis,
}

struct RunEvidence {
    command: CommandLine,
    /// Output captured on its way to the terminal and to each pipe.
    outputs: Vec<CapturedOutput>,
    files: Vec<FilePosition>,
}

/// Runs the command until it exits. `rank` is set if the command is one of several ranks that share the keyboard input
/// of a terminal. `stalls` reports ranks of the command that stall.
pub fn run(
    command: &CommandLine,
    rank: Option<&Rank>,
    capture: Capture,
    stalls: Option<StallReporter>,
) -> Result<Finished, NotStarted> {
    let streams = Streams::detect();
    let files = FilePosition::current();
    let Ok(signals) = Signals::block() else { return Err(command.exec(None)) };
    let copies_keys = !streams.has_input() && rank.is_none();
    let terminal = streams.terminal().filter(|_| capture == Capture::All);
    let is_session = rank.is_none() && streams.are_one_terminal() && command.is_interactive_shell();
    let opened = terminal.and_then(|terminal| {
        let pty = Pty::open(&terminal, is_session).ok()?;
        let mirror = Mirror::of(&pty.master, copies_keys, is_session).ok()?;
        Some((terminal, pty, mirror))
    });
    let slave = opened.as_ref().map(|(_, pty, _)| &pty.slave);
    let mut pipes = match capture {
        Capture::All => PipedStreams::open(),
        Capture::Files => PipedStreams::default(),
    };
    let programs = stalls.filter(|_| rank.is_none()).and_then(|stalls| stalls.search().ok());
    let mut child = command.spawn(&streams, slave, is_session, &pipes, &signals)?;
    let _stalls = programs.zip(child.process).map(|(programs, key)| programs.report_stalls(key));
    pipes.close_writers();
    // Drop gputop's copy of the slave end, so that only the command has it open.
    let opened = opened.map(|(terminal, pty, mirror)| (terminal, pty.master, mirror));
    let mut output = CapturedOutput::default();
    let exit = Relay::new(opened, &mut output).run(&signals, &mut child);
    let mut outputs = pipes.captured(&signals);
    outputs.insert(0, output);
    Ok(Finished {
        exit,
        process: child.process,
        at: ExitTime { mono: now_mono(), wall: now_wall() },
        evidence: RunEvidence { command: command.clone(), outputs, files },
        pipes,
    })
}
