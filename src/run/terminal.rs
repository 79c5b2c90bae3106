//! The user's terminal, the pty between it and the command, and the standard streams that are terminals.
//!
//! gputop holds the master end of the pty, and the command the slave end. The command reads the terminal but writes to
//! the pty. A full-screen program sets modes on its output stream and expects them to affect the terminal, so modes are
//! copied from the pty to the terminal ([`Mirror`]). The kernel does not report mode changes. Checking at each chunk of
//! output is enough, because a full-screen program draws after it changes the modes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use nix::fcntl::OFlag;
use nix::pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::termios::{
    LocalFlags, OutputFlags, SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr,
};
use nix::unistd::{getpgrp, isatty, tcgetpgrp, ttyname};

use super::unsafe_calls;

/// The standard streams that are terminals, grouped by device.
pub(super) struct Streams([Option<u64>; 3]);

impl Streams {
    pub(super) fn detect() -> Self {
        Self([
            device(io::stdin().as_fd()),
            device(io::stdout().as_fd()),
            device(io::stderr().as_fd()),
        ])
    }

    pub(super) fn has_input(&self) -> bool {
        self.0[0].is_some()
    }

    /// Returns true if all three streams are the same terminal.
    pub(super) fn are_one_terminal(&self) -> bool {
        self.has_input() && self.0.iter().all(|stream| *stream == self.0[0])
    }

    /// Returns true if the pty replaces the command's standard stream `n` (output or error).
    pub(super) fn replaces(&self, n: usize) -> bool {
        self.0[n].is_some() && self.0[n] == self.0[1].or(self.0[2])
    }

    /// Opens the terminal that receives the output of the command.
    pub(super) fn terminal(&self) -> Option<CommandTerminal> {
        let terminal = match self.0 {
            [_, Some(_), _] => CommandTerminal::open(io::stdout()),
            [_, None, Some(_)] => CommandTerminal::open(io::stderr()),
            _ => return None,
        };
        terminal.ok()
    }
}

/// Returns the terminal's device number, or `None` if the stream is not a terminal.
fn device(fd: BorrowedFd<'_>) -> Option<u64> {
    if !isatty(fd).unwrap_or(false) {
        return None;
    }
    Some(File::from(fd.try_clone_to_owned().ok()?).metadata().ok()?.rdev())
}

pub(super) struct CommandTerminal {
    fd: OwnedFd,
    /// Terminal modes set by the shell.
    modes: Termios,
}

impl CommandTerminal {
    /// Reopens the terminal of a standard stream. Non-blocking mode then applies to this descriptor only, and does not
    /// affect the shell, which shares the stream.
    fn open(stream: impl AsFd) -> io::Result<Self> {
        let modes = tcgetattr(&stream)?;
        let flags = OFlag::O_NOCTTY | OFlag::O_NONBLOCK;
        let own = ttyname(&stream).map_err(io::Error::from).and_then(|path| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).custom_flags(flags.bits());
            options.open(path)
        });
        let fd = match own {
            Ok(file) => file.into(),
            // The terminal may be owned by another user, for example after `su`.
            Err(_) => stream.as_fd().try_clone_to_owned()?,
        };
        Ok(Self { fd, modes })
    }

    /// Returns true if gputop is in the foreground and may therefore read the terminal and set its modes.
    pub(super) fn is_foreground(&self) -> bool {
        tcgetpgrp(&self.fd).is_ok_and(|group| group == getpgrp())
    }

    pub(super) fn restore(&self) {
        if self.is_foreground() {
            let _ = tcsetattr(&self.fd, SetArg::TCSANOW, &self.modes);
        }
    }
}

impl AsFd for CommandTerminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

pub(super) struct Pty {
    pub(super) master: PtyMaster,
    /// Slave end, kept open until the command has inherited it, because reading a master without a slave reports end of
    /// file.
    pub(super) slave: File,
}

impl Pty {
    /// Opens a pty for the output that goes to the terminal or, with `is_session`, for a session of its own.
    pub(super) fn open(terminal: &CommandTerminal, is_session: bool) -> io::Result<Self> {
        let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let master = posix_openpt(flags)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        options.custom_flags(OFlag::O_NOCTTY.bits());
        let slave = options.open(ptsname_r(&master)?)?;
        // The terminal itself converts line endings. OPOST stays set on the pty, so that gputop can detect when the
        // command turns it off.
        let mut modes = terminal.modes.clone();
        if !is_session {
            modes.output_flags = OutputFlags::OPOST;
        }
        tcsetattr(&slave, SetArg::TCSANOW, &modes)?;
        unsafe_calls::copy_window_size(terminal, &master);
        Ok(Self { master, slave })
    }
}

/// Copies modes from the pty to the terminal.
pub(super) struct Mirror {
    /// Modes of the pty before the command changed them.
    initial: Termios,
    seen: Termios,
    /// True if the command's stdin is not the terminal. The command may then read keys from its output terminal, as
    /// `less` does when its input is a pipe.
    copies_keys: bool,
    /// True if the command has a session of its own with the pty. The terminal is then raw, and all keys go to the pty.
    is_session: bool,
    /// True if the terminal was made raw for the session.
    is_raw: bool,
}

impl Mirror {
    pub(super) fn of(pty: impl AsFd, copies_keys: bool, is_session: bool) -> io::Result<Self> {
        let initial = tcgetattr(pty)?;
        Ok(Self { seen: initial.clone(), initial, copies_keys, is_session, is_raw: false })
    }

    pub(super) fn is_session(&self) -> bool {
        self.is_session
    }

    /// Discards the copied modes after a stop. The shell has since changed the terminal, so all modes set by the
    /// command must be copied again.
    pub(super) fn reset(&mut self) {
        self.seen = self.initial.clone();
        self.is_raw = false;
    }

    pub(super) fn follow(&mut self, master: impl AsFd, terminal: &CommandTerminal) {
        if self.is_session {
            return self.make_raw(terminal);
        }
        let Ok(now) = tcgetattr(master) else { return };
        if now == self.seen || !terminal.is_foreground() {
            return;
        }
        let mut modes = terminal.modes.clone();
        modes.input_flags = now.input_flags;
        modes.local_flags = now.local_flags;
        modes.control_chars = now.control_chars;
        if !now.output_flags.contains(OutputFlags::OPOST) {
            modes.output_flags.remove(OutputFlags::OPOST);
        }
        let _ = tcsetattr(terminal, SetArg::TCSANOW, &modes);
        self.seen = now;
    }

    fn make_raw(&mut self, terminal: &CommandTerminal) {
        if !self.is_raw && terminal.is_foreground() {
            let mut modes = terminal.modes.clone();
            cfmakeraw(&mut modes);
            self.is_raw = tcsetattr(terminal, SetArg::TCSANOW, &modes).is_ok();
        }
    }

    /// Returns true if the command reads keys from the pty. It is assumed to do so once it turns off line mode and echo
    /// there.
    pub(super) fn wants_keys(&self, master: impl AsFd) -> bool {
        let line_mode = LocalFlags::ICANON | LocalFlags::ECHO;
        let is_raw = |modes: Termios| !modes.local_flags.intersects(line_mode);
        self.is_session || self.copies_keys && tcgetattr(master).is_ok_and(is_raw)
    }
}
