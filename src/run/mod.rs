//! `gputop run`: runs a command as if it had been typed, captures its output, and explains it when it fails.
//!
//! The mode depends on the standard streams that the shell passed to gputop:
//!
//! ```text
//! alone on a terminal (gputop leads its foreground process group)         everything else: pipes, scripts, ranks, `&`
//!
//!   terminal ─ raw ─► relay ─► pty ─► CMD, leader of its own group         terminal ──────────── stdin ──► CMD, in
//!            ◄─────── relay ◄── pty ◄─┘   in a session of its own                   ◄─ relay ◄─ pty ◄─ stdout,  gputop's
//!                       │                 led by the session leader                       │            stderr   group
//!                       ▼                                                                 ▼
//!                captured output ─► diagnosis, after a failure                    captured output
//! ```
//!
//! In a session the pty is the command's terminal. Keys, Ctrl-C, window size and modes go through it, and changes
//! that the command makes affect the pty only. In all other cases the process group is shared (a script, a pipeline,
//! the other ranks of a launcher) and so are the signals of the keyboard. The command then stays in that group, as it
//! would without gputop. Only the output that it writes to the terminal goes through a pty. Changes to the modes of
//! the pty are applied to the terminal, and when stdin is a pipe the command can read its keys from the pty.
//!
//! Streams that are pipes or files are inherited by the command, never copied.
//!
//! A failure in gputop must not stop the command: when no pty or process can be created, gputop replaces itself with
//! the command (`exec`).

mod cancellation;
mod captured_output;
mod child_change;
mod child_command;
mod command;
mod copy_bytes;
mod drain;
mod exit;
mod explanation;
mod files;
mod hook;
mod hook_evidence;
mod identity;
mod message;
mod pty;
mod ranks;
mod relay;
mod run_record;
mod session_leader;
mod signals;
mod streams;
mod terminal;
mod terminal_modes;
mod terminal_readers;
mod trace_replay;
mod unread_input;
mod unsafe_calls;

pub use cancellation::run_until_cancelled;
pub use command::{CommandLine, NotStarted};
pub use exit::ExitOutcome;
pub use explanation::{Explanation, explain};
pub use hook::Hook;
pub use ranks::Rank;

use crate::collect::clock::{now_mono, now_wall};
use crate::model::process::ProcessKey;
use crate::model::units::{Mono, UnixMillis};
use captured_output::CapturedOutput;
use signals::Signals;
use streams::{RunMode, Streams};

/// A command that has exited.
pub struct Finished {
    pub exit: ExitOutcome,
    process: Option<ProcessKey>,
    at: ExitTime,
    /// Sources for an explanation, if the command failed.
    evidence: Evidence,
}

/// Exit time by both clocks.
#[derive(Debug, Clone, Copy)]
struct ExitTime {
    mono: Mono,
    wall: UnixMillis,
}

struct Evidence {
    command: CommandLine,
    output: CapturedOutput,
    files: Vec<files::FilePosition>,
}

/// Runs the command until it exits. `rank` is set if the command is one of several ranks on a terminal.
pub fn run(command: &CommandLine, rank: Option<&Rank>) -> Result<Finished, NotStarted> {
    let streams = Streams::detect(rank.is_some());
    let files = files::FilePosition::current();
    let Ok(signals) = Signals::block() else {
        return Err(command.exec(None));
    };
    let mut output = CapturedOutput::default();
    let (exit, process) = match &streams.mode {
        RunMode::Session => in_session(command, &streams, &signals, &mut output)?,
        RunMode::SharedGroup(_) => in_shared_group(command, &streams, &signals, &mut output)?,
    };
    Ok(Finished {
        exit,
        process,
        at: ExitTime {
            mono: now_mono(),
            wall: now_wall(),
        },
        evidence: Evidence {
            command: command.clone(),
            output,
            files,
        },
    })
}

/// Runs the command in its own session, with a pty as its controlling terminal.
fn in_session(
    command: &CommandLine,
    streams: &Streams,
    signals: &Signals,
    output: &mut CapturedOutput,
) -> Result<(ExitOutcome, Option<ProcessKey>), NotStarted> {
    let opened = terminal::Terminal::open(std::io::stdin())
        .and_then(|terminal| Ok((pty::Pty::replacing(&terminal)?, terminal)));
    let Ok((pty, mut terminal)) = opened else {
        return Err(command.exec(Some(signals)));
    };
    let Ok(leader) = session_leader::start(command, streams, signals, &pty) else {
        return Err(command.exec(Some(signals)));
    };
    let mut child = leader.into_child_command()?;
    // If raw mode cannot be set, the terminal keeps line editing and keys still arrive.
    terminal.set_raw();
    let relay = relay::Relay::new(Some(terminal), Some(pty), streams.keys(), output);
    Ok((relay.run(signals, &mut child), child.process()))
}

/// Runs the command in the process group of gputop, with the same stdin.
fn in_shared_group(
    command: &CommandLine,
    streams: &Streams,
    signals: &Signals,
    output: &mut CapturedOutput,
) -> Result<(ExitOutcome, Option<ProcessKey>), NotStarted> {
    let opened = streams.mode.terminal().and_then(|fd| {
        let terminal = terminal::Terminal::open(fd).ok()?;
        let pty = pty::Pty::for_output(&terminal).ok()?;
        Some((terminal, pty))
    });
    let (terminal, pty) = opened.unzip();
    let slave = pty.as_ref().map(pty::Pty::slave);
    let mut child = child_command::ChildCommand::direct(command.spawn(streams, slave, signals)?);
    let relay = relay::Relay::new(terminal, pty, streams.keys(), output);
    Ok((relay.run(signals, &mut child), child.process()))
}
