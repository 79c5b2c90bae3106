//! The user's terminal.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::fcntl::OFlag;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, tcgetpgrp, ttyname};

pub(super) struct Terminal {
    fd: OwnedFd,
    /// Modes that the shell set.
    modes: Termios,
    is_raw: bool,
}

impl Terminal {
    /// Opens the terminal behind a standard stream again. Non-blocking mode then applies to this descriptor only, not
    /// to the shell that shares the stream.
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
            // The terminal belongs to another user, as after `su`. A slow terminal then blocks keys as well.
            Err(_) => stream.as_fd().try_clone_to_owned()?,
        };
        Ok(Self {
            fd,
            modes,
            is_raw: false,
        })
    }

    pub(super) fn modes(&self) -> &Termios {
        &self.modes
    }

    /// Returns true if gputop is in the foreground, and so may read the terminal and set its modes.
    pub(super) fn is_foreground(&self) -> bool {
        tcgetpgrp(&self.fd).is_ok_and(|group| group == getpgrp())
    }

    pub(super) fn is_raw(&self) -> bool {
        self.is_raw
    }

    /// Sets raw mode if gputop is in the foreground.
    pub(super) fn set_raw(&mut self) {
        if !self.is_foreground() {
            return;
        }
        // Another process may have changed the modes meanwhile.
        if !self.is_raw
            && let Ok(modes) = tcgetattr(&self.fd)
        {
            self.modes = modes;
        }
        let mut raw = self.modes.clone();
        cfmakeraw(&mut raw);
        self.is_raw = tcsetattr(&self.fd, SetArg::TCSANOW, &raw).is_ok();
    }

    /// Restores the modes of the shell.
    pub(super) fn restore(&mut self) {
        let modes = self.modes.clone();
        self.restore_modes(&modes);
    }

    /// Sets these modes and leaves raw mode. Changes by `stty` on the pty were meant for the terminal.
    pub(super) fn restore_modes(&mut self, modes: &Termios) {
        if self.is_raw && self.is_foreground() {
            let _ = tcsetattr(&self.fd, SetArg::TCSANOW, modes);
        }
        self.is_raw = false;
    }
}

/// Restores the modes, also on a panic.
impl Drop for Terminal {
    fn drop(&mut self) {
        self.restore();
    }
}

impl AsFd for Terminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
