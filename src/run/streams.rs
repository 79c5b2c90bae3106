//! The stdin, stdout and stderr that the shell passed to gputop, and the run mode that follows from them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use nix::unistd::{getpgrp, getpid, isatty, tcgetpgrp};

use super::relay::Keys;

/// How the command is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunMode {
    /// In its own session, with a pty as its terminal.
    Session,
    /// In the process group of gputop. Output to the terminal behind this stream goes through a pty.
    SharedGroup(Option<OutputStream>),
}

/// A standard output stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputStream {
    Stdout,
    Stderr,
}

impl RunMode {
    /// Returns a descriptor of the terminal that receives the output of the command.
    pub(super) fn terminal(self) -> Option<OwnedFd> {
        let fd = match self {
            Self::Session => io::stdin().as_fd().try_clone_to_owned(),
            Self::SharedGroup(Some(OutputStream::Stdout)) => {
                io::stdout().as_fd().try_clone_to_owned()
            }
            Self::SharedGroup(Some(OutputStream::Stderr)) => {
                io::stderr().as_fd().try_clone_to_owned()
            }
            Self::SharedGroup(None) => return None,
        };
        fd.ok()
    }
}

/// The standard streams that are terminals, by device.
pub(super) struct Streams {
    terminals: [Option<u64>; 3],
    pub(super) mode: RunMode,
    is_shared: bool,
}

impl Streams {
    /// Inspects the standard streams. `is_shared` means that other processes use the same terminal, so its keys do
    /// not belong to this command alone.
    pub(super) fn detect(is_shared: bool) -> Self {
        let terminals = [
            terminal(io::stdin().as_fd()),
            terminal(io::stdout().as_fd()),
            terminal(io::stderr().as_fd()),
        ];
        let is_ours = || {
            let leads = getpgrp() == getpid();
            leads && tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp())
        };
        let mode = match terminals {
            [Some(a), Some(b), _] if a == b && !is_shared && is_ours() => RunMode::Session,
            [_, Some(_), _] => RunMode::SharedGroup(Some(OutputStream::Stdout)),
            [_, None, Some(_)] => RunMode::SharedGroup(Some(OutputStream::Stderr)),
            [_, None, None] => RunMode::SharedGroup(None),
        };
        Self {
            terminals,
            mode,
            is_shared,
        }
    }

    /// Returns how keys typed on the terminal reach the command.
    pub(super) fn keys(&self) -> Keys {
        match (self.mode, self.terminals[0]) {
            (RunMode::Session, _) => Keys::Relayed,
            (RunMode::SharedGroup(_), None) if !self.is_shared => Keys::OnRequest,
            (RunMode::SharedGroup(_), _) => Keys::ReadDirectly,
        }
    }

    /// Returns true if standard stream `n` of the command is the pty.
    pub(super) fn replaces(&self, n: usize) -> bool {
        let device = match self.mode {
            RunMode::Session => self.terminals[0],
            RunMode::SharedGroup(Some(OutputStream::Stdout)) => self.terminals[1],
            RunMode::SharedGroup(Some(OutputStream::Stderr)) => self.terminals[2],
            RunMode::SharedGroup(None) => None,
        };
        let is_unchanged_stdin = n == 0 && self.mode != RunMode::Session;
        device.is_some() && self.terminals[n] == device && !is_unchanged_stdin
    }
}

/// Returns the device if the stream is a terminal.
fn terminal(fd: BorrowedFd<'_>) -> Option<u64> {
    if !isatty(fd).unwrap_or(false) {
        return None;
    }
    let file = File::from(fd.try_clone_to_owned().ok()?);
    Some(file.metadata().ok()?.rdev())
}
