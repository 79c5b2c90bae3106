//! `gputop run`: a command run exactly as if typed, its text looked at as it passes, explained when it fails.
//!
//! Two ways, by what the shell gave us:
//!
//! ```text
//! by itself on a terminal (we lead the terminal's foreground group)      everything else: pipes, scripts, ranks, `&`
//!
//!   terminal ─ raw ─► relay ─► pty ─► CMD, leader of its own group         terminal ──────────── stdin ──► CMD, in our
//!            ◄─────── relay ◄── pty ◄─┘   in a session of its own                   ◄─ relay ◄─ pty ◄─ stdout,   own
//!                       │                 led by the keeper                               │            stderr     group
//!                       ▼                                                                 ▼
//!                      tape ─► diagnose, after a failure                                 tape
//! ```
//!
//! In a session the pty is the command's terminal: keys, Ctrl-C, window size and modes go through it, and whatever
//! the command does to it is done to it alone. Where others share our process group (a script, a pipeline, the
//! other ranks of a launcher) they share the keyboard's signals as well, so there the command stays among them, as it
//! would without us, and only what it writes to the terminal takes the way through a pty (what it does to the modes of
//! that is done to the terminal, and where its input is a pipe it may get its keys from there).
//!
//! What is a pipe or a file is the command's own: inherited, never copied.
//!
//! Nothing here may cost the command anything: where a pty or a process cannot be had, we become the command (`exec`).

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

pub use cancellation::while_wanted;
pub use command::{CommandLine, NotStarted};
pub use exit::Ended;
pub use explanation::{Explanation, explain};
pub use hook::Hook;
pub use ranks::Rank;

use crate::collect::clock::{now_mono, now_wall};
use crate::model::process::ProcessKey;
use crate::model::units::{Mono, UnixMillis};
use captured_output::Tape;
use signals::Signals;
use streams::{RunMode, Streams};

/// What is known of a command that has ended.
pub struct Finished {
    pub ended: Ended,
    who: Option<ProcessKey>,
    at: Moment,
    /// What to read it from, should it have failed.
    evidence: Evidence,
}

/// By both clocks.
#[derive(Debug, Clone, Copy)]
struct Moment {
    mono: Mono,
    wall: UnixMillis,
}

struct Evidence {
    command: CommandLine,
    tape: Tape,
    files: Vec<files::Mark>,
}

/// Runs the command to its end. `rank`, where it is one of many that share a terminal.
///
/// # Errors
/// When the command cannot be started; what a shell would say.
pub fn run(command: &CommandLine, rank: Option<&Rank>) -> Result<Finished, NotStarted> {
    let streams = Streams::look(rank.is_some());
    let files = files::Mark::now();
    let Ok(signals) = Signals::take() else {
        return Err(command.become_it(None));
    };
    let mut tape = Tape::default();
    let (ended, who) = match &streams.way {
        RunMode::Session => in_session(command, &streams, &signals, &mut tape)?,
        RunMode::Beside(_) => beside(command, &streams, &signals, &mut tape)?,
    };
    Ok(Finished {
        ended,
        who,
        at: Moment {
            mono: now_mono(),
            wall: now_wall(),
        },
        evidence: Evidence {
            command: command.clone(),
            tape,
            files,
        },
    })
}

/// On a pty that is its controlling terminal.
fn in_session(
    command: &CommandLine,
    streams: &Streams,
    signals: &Signals,
    tape: &mut Tape,
) -> Result<(Ended, Option<ProcessKey>), NotStarted> {
    let opened = terminal::Terminal::open(std::io::stdin())
        .and_then(|terminal| Ok((pty::Pty::like(&terminal)?, terminal)));
    let Ok((pty, mut terminal)) = opened else {
        return Err(command.become_it(Some(signals)));
    };
    let Ok(keeper) = session_leader::start(command, streams, signals, &pty) else {
        return Err(command.become_it(Some(signals)));
    };
    let mut ward = keeper.into_ward()?;
    // A failure to go raw leaves line editing to the terminal: keys arrive all the same.
    terminal.take();
    let relay = relay::Relay::new(Some(terminal), Some(pty), streams.keys(), tape);
    Ok((relay.run(signals, &mut ward), ward.who()))
}

/// In our own process group, with its input.
fn beside(
    command: &CommandLine,
    streams: &Streams,
    signals: &Signals,
    tape: &mut Tape,
) -> Result<(Ended, Option<ProcessKey>), NotStarted> {
    let through = streams.way.terminal().and_then(|fd| {
        let terminal = terminal::Terminal::open(fd).ok()?;
        let pty = pty::Pty::plain(&terminal).ok()?;
        Some((terminal, pty))
    });
    let (terminal, pty) = through.unzip();
    let slave = pty.as_ref().map(pty::Pty::slave);
    let mut ward = child_command::ChildCommand::own(command.spawn(streams, slave, signals)?);
    let relay = relay::Relay::new(terminal, pty, streams.keys(), tape);
    Ok((relay.run(signals, &mut ward), ward.who()))
}
