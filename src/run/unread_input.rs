//! Returns unread keys to the terminal. Input that was typed while the command ran, and that it did not read, is
//! usually the next line for the shell.
//!
//! Kernels that do not allow this (`dev.tty.legacy_tiocsti` is 0) lose the input, as `script` and `sudo` do.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;

use nix::fcntl::OFlag;
use nix::pty::{PtyMaster, ptsname_r};
use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};

use super::terminal::Terminal;
use super::unsafe_calls;

/// Maximum input that a terminal buffers.
const MAX_INPUT: u64 = 4096;

/// Puts the unread input of the pty, and then `newer`, into the terminal's input.
pub(super) fn put_back(master: &PtyMaster, newer: &[u8], terminal: &Terminal) {
    let mut bytes = unread(master).unwrap_or_default();
    bytes.extend_from_slice(newer);
    for byte in &bytes {
        if unsafe_calls::put_back(terminal.as_fd(), *byte).is_err() {
            return;
        }
    }
}

fn unread(master: &PtyMaster) -> io::Result<Vec<u8>> {
    let mut slave = open(master)?;
    // An incomplete line can be read only in raw mode.
    let mut modes = tcgetattr(&slave)?;
    cfmakeraw(&mut modes);
    tcsetattr(&slave, SetArg::TCSANOW, &modes)?;
    let mut bytes = Vec::new();
    // Reading ends with an error when no more input is available.
    let _ = slave.by_ref().take(MAX_INPUT).read_to_end(&mut bytes);
    Ok(bytes)
}

fn open(master: &PtyMaster) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    options.custom_flags((OFlag::O_NOCTTY | OFlag::O_NONBLOCK).bits());
    options.open(ptsname_r(master)?)
}
