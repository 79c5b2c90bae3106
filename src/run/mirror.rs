//! Beside us a command reads the terminal itself, but writes to our pty; a program that draws a screen sets the modes of
//! what it writes to. They were meant for the terminal, so there they go.
//!
//! The kernel does not tell when modes change. Looking with each piece of output is enough: nobody takes a screen
//! without drawing on it.

use std::os::fd::AsFd;

use nix::sys::termios::{OutputFlags, SetArg, Termios, tcgetattr, tcsetattr};

use super::terminal::Terminal;

pub(super) struct Mirror {
    /// The pty's, as they were last seen.
    seen: Termios,
}

/// The terminal's modes for a pty whose output comes out as it went in: the terminal itself makes the line ends. That
/// there is processing at all stays set, so that switching it off is seen.
pub(super) fn plain(terminal: &Termios) -> Termios {
    let mut modes = terminal.clone();
    modes.output_flags = OutputFlags::OPOST;
    modes
}

impl Mirror {
    pub(super) fn of(terminal: &Terminal) -> Self {
        Self {
            seen: plain(terminal.modes()),
        }
    }

    pub(super) fn follow(&mut self, master: impl AsFd, terminal: &Terminal) {
        let Ok(now) = tcgetattr(master) else { return };
        if now == self.seen || !terminal.is_foreground() {
            return;
        }
        let mut modes = terminal.modes().clone();
        modes.input_flags = now.input_flags;
        modes.local_flags = now.local_flags;
        modes.control_chars = now.control_chars;
        if !now.output_flags.contains(OutputFlags::OPOST) {
            modes.output_flags.remove(OutputFlags::OPOST);
        }
        let _ = tcsetattr(terminal, SetArg::TCSANOW, &modes);
        self.seen = now;
    }
}
