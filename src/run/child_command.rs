//! The command as the relay sees it: our own child, or the keeper's.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::Child;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::child_change::{Change, change, pid};
use super::exit::Ended;
use super::identity::identity;
use super::message::{LeaderCommand, Report};
use crate::model::process::ProcessKey;

pub(super) enum ChildCommand {
    Own {
        child: Child,
        is_stopped: bool,
        who: Option<ProcessKey>,
    },
    Kept {
        keeper: Pid,
        line: UnixStream,
        /// How often it was stopped.
        stops: i32,
        who: Option<ProcessKey>,
    },
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    Stopped(Signal),
    Ended(Ended),
}

impl ChildCommand {
    pub(super) fn own(child: Child) -> Self {
        Self::Own {
            who: identity(child.id()),
            child,
            is_stopped: false,
        }
    }

    pub(super) fn kept(keeper: Pid, line: UnixStream, who: Option<ProcessKey>) -> Self {
        Self::Kept {
            keeper,
            line,
            stops: 0,
            who,
        }
    }

    /// Its identity, where the kernel told.
    pub(super) fn who(&self) -> Option<ProcessKey> {
        match self {
            Self::Own { who, .. } | Self::Kept { who, .. } => *who,
        }
    }

    /// Readable when there are news; for an own child SIGCHLD says so.
    pub(super) fn line(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Own { .. } => None,
            Self::Kept { line, .. } => Some(line.as_fd()),
        }
    }

    /// Whether it gets the signals of our terminal's keyboard without us.
    pub(super) fn is_in_our_group(&self) -> bool {
        matches!(self, Self::Own { .. })
    }

    pub(super) fn signal(&mut self, signal: Signal) {
        match self {
            // One that is not ours to signal (setuid) would not be the user's either.
            Self::Own { child, .. } => drop(kill(pid(child), signal)),
            Self::Kept { line, .. } => drop(LeaderCommand::Signal(signal as i32).write(line)),
        }
    }

    /// Lets it go on if it is stopped; in a session with the terminal or without.
    pub(super) fn go_on(&mut self, has_terminal: bool) {
        match self {
            Self::Own {
                child, is_stopped, ..
            } => {
                if std::mem::take(is_stopped) {
                    let _ = kill(pid(child), Signal::SIGCONT);
                }
            }
            Self::Kept { line, stops, .. } => {
                let order = if has_terminal {
                    LeaderCommand::Foreground(*stops)
                } else {
                    LeaderCommand::Background(*stops)
                };
                drop(order.write(line));
            }
        }
    }

    /// After SIGCHLD, until there is no more.
    pub(super) fn child_news(&mut self) -> Option<News> {
        let Self::Own {
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
                    return Some(News::Stopped(signal));
                }
                Change::Ended(ended) => return Some(News::Ended(ended)),
            }
        }
    }

    /// When its line is readable.
    pub(super) fn kept_news(&mut self) -> Option<News> {
        let Self::Kept { line, stops, .. } = self else {
            return None;
        };
        match Report::read(line) {
            Ok(Report::Stopped(number)) => {
                *stops += 1;
                Signal::try_from(number).ok().map(News::Stopped)
            }
            Ok(Report::Exited(code)) => Some(News::Ended(Ended::Exited(code))),
            Ok(Report::Killed(signal)) => Some(News::Ended(Ended::Killed(signal))),
            Ok(Report::Started(_) | Report::NotStarted) => None,
            // Somebody killed the keeper: the session has ended, and hung up on the command.
            Err(_) => Some(News::Ended(Ended::Killed(Signal::SIGHUP as i32))),
        }
    }

    /// After its end: nobody is left who holds the session.
    pub(super) fn dismiss(&mut self) {
        if let Self::Kept { keeper, line, .. } = self {
            let _ = line.shutdown(std::net::Shutdown::Both);
            let _ = waitpid(*keeper, None);
        }
    }
}
