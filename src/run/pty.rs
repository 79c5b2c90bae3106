//! The pty between gputop and the command: gputop holds the master, the command the slave.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Stdio;

use nix::fcntl::OFlag;
use nix::pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::termios::{SetArg, Termios, tcsetattr};

use super::terminal::Terminal;
use super::terminal_modes;
use super::unsafe_calls;

pub(super) struct Pty {
    pub(super) master: PtyMaster,
    slave: Slave,
}

/// The command's side of the pty. gputop keeps it open until the command has it, because reading a master without a
/// slave reports end of file.
pub(super) struct Slave {
    file: File,
    path: PathBuf,
}

impl Slave {
    pub(super) fn stdio(&self) -> io::Result<Stdio> {
        Ok(self.file.try_clone()?.into())
    }

    /// Opens the slave as the controlling terminal. The caller must lead a session that has none.
    pub(super) fn open_controlling(&self) -> io::Result<OwnedFd> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        Ok(file.into())
    }
}

impl Pty {
    /// Opens a pty that replaces the terminal, with its modes and size.
    pub(super) fn replacing(terminal: &Terminal) -> io::Result<Self> {
        Self::open(terminal, terminal.modes())
    }

    /// Opens a pty for output only.
    pub(super) fn for_output(terminal: &Terminal) -> io::Result<Self> {
        Self::open(terminal, &terminal_modes::output_modes(terminal.modes()))
    }

    fn open(terminal: &Terminal, modes: &Termios) -> io::Result<Self> {
        let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let master = posix_openpt(flags)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let path = PathBuf::from(ptsname_r(&master)?);
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        options.custom_flags(OFlag::O_NOCTTY.bits());
        let file = options.open(&path)?;
        tcsetattr(&file, SetArg::TCSANOW, modes)?;
        let pty = Self {
            master,
            slave: Slave { file, path },
        };
        pty.resize_as(terminal);
        Ok(pty)
    }

    pub(super) fn slave(&self) -> &Slave {
        &self.slave
    }

    /// Closes the slave, so that only the command holds it.
    pub(super) fn into_master(self) -> PtyMaster {
        self.master
    }

    fn resize_as(&self, terminal: &Terminal) {
        if let Ok(size) = unsafe_calls::window_size(terminal) {
            let _ = unsafe_calls::set_window_size(&self.master, &size);
        }
    }
}
