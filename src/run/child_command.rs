//! The command as the relay sees it: a direct child, or a child of the session leader.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::Child;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::child_change::{Change, change, pid};
use super::exit::ExitOutcome;
use super::identity::identity;
use super::message::{LeaderCommand, Report};
use crate::model::process::ProcessKey;

pub(super) enum ChildCommand {
    Direct {
        child: Child,
        is_stopped: bool,
        process: Option<ProcessKey>,
    },
    OfLeader {
        leader: Pid,
        socket: UnixStream,
        /// Number of times the command was stopped.
        stops: i32,
        process: Option<ProcessKey>,
    },
}

/// A state change that the relay must handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StateChange {
    Stopped(Signal),
    Exited(ExitOutcome),
}

impl ChildCommand {
    pub(super) fn direct(child: Child) -> Self {
        Self::Direct {
            process: identity(child.id()),
            child,
            is_stopped: false,
        }
    }

    pub(super) fn of_leader(leader: Pid, socket: UnixStream, process: Option<ProcessKey>) -> Self {
        Self::OfLeader {
            leader,
            socket,
            stops: 0,
            process,
        }
    }

    /// Returns the identity of the process, if /proc could be read.
    pub(super) fn process(&self) -> Option<ProcessKey> {
        match self {
            Self::Direct { process, .. } | Self::OfLeader { process, .. } => *process,
        }
    }

    /// Returns the socket of the session leader, which is readable when the state has changed. A direct child is
    /// announced by SIGCHLD instead.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Direct { .. } => None,
            Self::OfLeader { socket, .. } => Some(socket.as_fd()),
        }
    }

    /// Returns true if the command receives keyboard signals of the terminal directly.
    pub(super) fn shares_our_group(&self) -> bool {
        matches!(self, Self::Direct { .. })
    }

    pub(super) fn signal(&mut self, signal: Signal) {
        match self {
            // If gputop may not signal the process (setuid), the user could not either.
            Self::Direct { child, .. } => drop(kill(pid(child), signal)),
            Self::OfLeader { socket, .. } => {
                drop(LeaderCommand::Signal(signal as i32).write(socket));
            }
        }
    }

    /// Continues the command if it is stopped. In a session, also gives it the terminal or takes it away.
    pub(super) fn resume(&mut self, has_terminal: bool) {
        match self {
            Self::Direct {
                child, is_stopped, ..
            } => {
                if std::mem::take(is_stopped) {
                    let _ = kill(pid(child), Signal::SIGCONT);
                }
            }
            Self::OfLeader { socket, stops, .. } => {
                let command = if has_terminal {
                    LeaderCommand::Foreground(*stops)
                } else {
                    LeaderCommand::Background(*stops)
                };
                drop(command.write(socket));
            }
        }
    }

    /// Returns the next state change of a direct child. Called after SIGCHLD until it returns `None`.
    pub(super) fn next_change(&mut self) -> Option<StateChange> {
        let Self::Direct {
            child, is_stopped, ..
        } = self
        else {
            return None;
        };
        loop {
            match change(child)? {
                Change::Continued => *is_stopped = false,
                Change::Stopped(signal) => {
                    *is_stopped = true;
                    return Some(StateChange::Stopped(signal));
                }
                Change::Exited(exit) => return Some(StateChange::Exited(exit)),
            }
        }
    }

    /// Reads one report of the session leader. Called when its socket is readable.
    pub(super) fn read_leader_report(&mut self) -> Option<StateChange> {
        let Self::OfLeader { socket, stops, .. } = self else {
            return None;
        };
        match Report::read(socket) {
            Ok(Report::Stopped(number)) => {
                *stops += 1;
                Signal::try_from(number).ok().map(StateChange::Stopped)
            }
            Ok(Report::Exited(code)) => Some(StateChange::Exited(ExitOutcome::Exited(code))),
            Ok(Report::Killed(signal)) => Some(StateChange::Exited(ExitOutcome::Killed(signal))),
            Ok(Report::Started(_) | Report::NotStarted) => None,
            // The session leader was killed: the session is over and the kernel sent SIGHUP to the command.
            Err(_) => Some(StateChange::Exited(ExitOutcome::Killed(
                Signal::SIGHUP as i32,
            ))),
        }
    }

    /// Lets the session leader exit after the command has exited.
    pub(super) fn release_leader(&mut self) {
        if let Self::OfLeader { leader, socket, .. } = self {
            let _ = socket.shutdown(std::net::Shutdown::Both);
            let _ = waitpid(*leader, None);
        }
    }
}
