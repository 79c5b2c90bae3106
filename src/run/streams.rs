//! What the shell gave us as stdin, stdout and stderr, and which way the command is run for it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use nix::unistd::{getpgrp, getpid, isatty, tcgetpgrp};

use super::relay::Keys;

/// How the command is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunMode {
    /// In a session of its own, whose terminal is our pty.
    Session,
    /// Beside us, in our group; what it writes to the terminal behind this descriptor goes through a pty.
    Beside(Option<Writes>),
}

/// A standard stream that is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writes {
    Stdout,
    Stderr,
}

impl RunMode {
    /// The descriptor whose terminal the command's output goes to.
    pub(super) fn terminal(self) -> Option<OwnedFd> {
        let fd = match self {
            Self::Session => io::stdin().as_fd().try_clone_to_owned(),
            Self::Beside(Some(Writes::Stdout)) => io::stdout().as_fd().try_clone_to_owned(),
            Self::Beside(Some(Writes::Stderr)) => io::stderr().as_fd().try_clone_to_owned(),
            Self::Beside(None) => return None,
        };
        fd.ok()
    }
}

/// The terminals among the three, by device.
pub(super) struct Streams {
    terminals: [Option<u64>; 3],
    pub(super) way: RunMode,
    is_shared: bool,
}

impl Streams {
    /// `is_shared`: that others have the same terminal, and its keyboard is nobody's alone.
    pub(super) fn look(is_shared: bool) -> Self {
        let terminals = [
            terminal(io::stdin().as_fd()),
            terminal(io::stdout().as_fd()),
            terminal(io::stderr().as_fd()),
        ];
        let is_ours = || {
            let leads = getpgrp() == getpid();
            leads && tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp())
        };
        let way = match terminals {
            [Some(a), Some(b), _] if a == b && !is_shared && is_ours() => RunMode::Session,
            [_, Some(_), _] => RunMode::Beside(Some(Writes::Stdout)),
            [_, None, Some(_)] => RunMode::Beside(Some(Writes::Stderr)),
            [_, None, None] => RunMode::Beside(None),
        };
        Self {
            terminals,
            way,
            is_shared,
        }
    }

    /// Whose the terminal's keys are.
    pub(super) fn keys(&self) -> Keys {
        match (self.way, self.terminals[0]) {
            (RunMode::Session, _) => Keys::Ours,
            (RunMode::Beside(_), None) if !self.is_shared => Keys::Nobodys,
            (RunMode::Beside(_), _) => Keys::Its,
        }
    }

    /// Whether standard stream `n` of the command is our pty.
    pub(super) fn replaces(&self, n: usize) -> bool {
        let through = match self.way {
            RunMode::Session => self.terminals[0],
            RunMode::Beside(Some(Writes::Stdout)) => self.terminals[1],
            RunMode::Beside(Some(Writes::Stderr)) => self.terminals[2],
            RunMode::Beside(None) => None,
        };
        let is_input_kept = n == 0 && self.way != RunMode::Session;
        through.is_some() && self.terminals[n] == through && !is_input_kept
    }
}

/// The device, where it is a terminal.
fn terminal(fd: BorrowedFd<'_>) -> Option<u64> {
    if !isatty(fd).unwrap_or(false) {
        return None;
    }
    let file = File::from(fd.try_clone_to_owned().ok()?);
    Some(file.metadata().ok()?.rdev())
}
