//! Our pty: the master is ours, the slave is the command's.

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

/// The side of the command. Held open by us until the command has it: a master without a slave reads as ended.
pub(super) struct Slave {
    file: File,
    path: PathBuf,
}

impl Slave {
    pub(super) fn stdio(&self) -> io::Result<Stdio> {
        Ok(self.file.try_clone()?.into())
    }

    /// Opens it as the controlling terminal of the session that the caller leads and that has none.
    pub(super) fn control(&self) -> io::Result<OwnedFd> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        Ok(file.into())
    }
}

impl Pty {
    /// With the terminal's modes and size, to be a terminal in its place.
    pub(super) fn like(terminal: &Terminal) -> io::Result<Self> {
        Self::open(terminal, terminal.modes())
    }

    /// To be written to only.
    pub(super) fn plain(terminal: &Terminal) -> io::Result<Self> {
        Self::open(terminal, &terminal_modes::plain(terminal.modes()))
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

    /// Gives the slave to the command alone.
    pub(super) fn into_master(self) -> PtyMaster {
        self.master
    }

    fn resize_as(&self, terminal: &Terminal) {
        if let Ok(size) = unsafe_calls::window_size(terminal) {
            let _ = unsafe_calls::set_window_size(&self.master, &size);
        }
    }
}
