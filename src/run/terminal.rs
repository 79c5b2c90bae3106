//! The terminal that the user sits at.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::fcntl::OFlag;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, tcgetpgrp, ttyname};

pub(super) struct Terminal {
    fd: OwnedFd,
    /// As the shell had them.
    modes: Termios,
    is_taken: bool,
}

impl Terminal {
    /// The terminal behind a standard stream, opened once more: not to block is then a setting of ours, and not of the
    /// shell that shares the stream.
    pub(super) fn open(stream: impl AsFd) -> io::Result<Self> {
        let modes = tcgetattr(&stream)?;
        let flags = OFlag::O_NOCTTY | OFlag::O_NONBLOCK;
        let own = ttyname(&stream).map_err(io::Error::from).and_then(|path| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).custom_flags(flags.bits());
            options.open(path)
        });
        let fd = match own {
            Ok(file) => file.into(),
            // Another user's, as after `su`: a terminal that is slow then holds up keys as well.
            Err(_) => stream.as_fd().try_clone_to_owned()?,
        };
        Ok(Self {
            fd,
            modes,
            is_taken: false,
        })
    }

    pub(super) fn modes(&self) -> &Termios {
        &self.modes
    }

    /// Whether we are who may read it and set its modes.
    pub(super) fn is_foreground(&self) -> bool {
        tcgetpgrp(&self.fd).is_ok_and(|group| group == getpgrp())
    }

    pub(super) fn is_taken(&self) -> bool {
        self.is_taken
    }

    /// Lets every key and every byte through, if it is ours to decide.
    pub(super) fn take(&mut self) {
        if !self.is_foreground() {
            return;
        }
        // Whoever had it in between may have changed them for good.
        if !self.is_taken
            && let Ok(modes) = tcgetattr(&self.fd)
        {
            self.modes = modes;
        }
        let mut raw = self.modes.clone();
        cfmakeraw(&mut raw);
        self.is_taken = tcsetattr(&self.fd, SetArg::TCSANOW, &raw).is_ok();
    }

    /// Back to the shell's modes.
    pub(super) fn give_back(&mut self) {
        let modes = self.modes.clone();
        self.leave(&modes);
    }

    /// Back with these modes: what `stty` did to the pty was meant for the terminal.
    pub(super) fn leave(&mut self, modes: &Termios) {
        if self.is_taken && self.is_foreground() {
            let _ = tcsetattr(&self.fd, SetArg::TCSANOW, modes);
        }
        self.is_taken = false;
    }
}

/// Also on a panic.
impl Drop for Terminal {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl AsFd for Terminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
