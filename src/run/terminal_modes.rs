//! Copies modes from the pty to the terminal. In a shared process group the command reads the terminal but writes to
//! the pty. A full-screen program sets the modes of the stream it writes to, although it means the terminal.
//!
//! When stdin is a pipe, the command may read keys from its output terminal: `less` and `vim -` do. Other programs
//! open `/dev/tty`, the terminal itself, and read keys without gputop. A program that wants keys from the pty turns
//! off line mode and echo. Only then are keys copied, and only while gputop is in the foreground, no other process
//! has set the terminal's modes (`fzf | gputop run less`), and no process of the command has the terminal open.
//!
//! The kernel does not report mode changes. Checking at each chunk of output is enough, because a full-screen program
//! always draws.

use std::os::fd::AsFd;

use nix::sys::termios::{LocalFlags, OutputFlags, SetArg, Termios, tcgetattr, tcsetattr};

use super::terminal::Terminal;

pub(super) struct Mirror {
    /// Last seen modes of the pty.
    seen: Termios,
    /// Terminal modes that gputop set last, if the command's stdin is not the terminal.
    keyboard: Option<Termios>,
    is_read_directly: bool,
}

/// Returns the modes for an output pty that does not change the output: the terminal itself converts line ends. OPOST
/// stays set, so that the command turning it off can be detected.
pub(super) fn output_modes(terminal: &Termios) -> Termios {
    let mut modes = terminal.clone();
    modes.output_flags = OutputFlags::OPOST;
    modes
}

impl Mirror {
    /// Starts mirroring. `has_keyboard` means that no process reads the terminal as its stdin.
    pub(super) fn of(terminal: &Terminal, has_keyboard: bool) -> Self {
        Self {
            seen: output_modes(terminal.modes()),
            keyboard: has_keyboard.then(|| terminal.modes().clone()),
            is_read_directly: false,
        }
    }

    /// Forgets the modes after a stop. The shell has changed the terminal meanwhile, so all modes that the command
    /// sets from now on are copied again.
    pub(super) fn reset(&mut self, terminal: &Terminal) {
        self.seen = output_modes(terminal.modes());
        if let (Some(keyboard), Ok(modes)) = (&mut self.keyboard, tcgetattr(terminal)) {
            *keyboard = modes;
        }
        self.is_read_directly = false;
    }

    pub(super) fn follow(&mut self, master: impl AsFd, terminal: &Terminal) {
        let Ok(now) = tcgetattr(master) else { return };
        if now == self.seen || !terminal.is_foreground() || self.was_changed_by_others(terminal) {
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
        if let (Some(keyboard), Ok(modes)) = (&mut self.keyboard, tcgetattr(terminal)) {
            *keyboard = modes;
        }
        self.seen = now;
        self.is_read_directly = false;
    }

    /// Returns whether the command wants keys from the pty, and whether keys typed now are for it.
    pub(super) fn keys(&mut self, master: impl AsFd, terminal: &Terminal) -> (bool, bool) {
        let wants_keys = |modes: &Termios| {
            let line_mode = LocalFlags::ICANON | LocalFlags::ECHO;
            !modes.local_flags.intersects(line_mode)
        };
        if self.keyboard.is_none() {
            return (false, false);
        }
        let now = tcgetattr(&master).ok();
        let Some(now) = now.filter(wants_keys) else {
            return (false, false);
        };
        self.follow(master, terminal);
        let is_set = now == self.seen && !self.is_read_directly;
        let is_free = is_set && terminal.is_foreground() && !self.was_changed_by_others(terminal);
        (!self.is_read_directly, is_free)
    }

    /// Stops copying keys until the modes change again, because a process of the command reads the terminal itself.
    pub(super) fn ignore_keys(&mut self) {
        self.is_read_directly = true;
    }

    /// Returns true if another process has changed the terminal's modes and not restored them.
    fn was_changed_by_others(&self, terminal: &Terminal) -> bool {
        let keyboard = self.keyboard.as_ref();
        keyboard.is_some_and(|own| tcgetattr(terminal).is_ok_and(|modes| modes != *own))
    }
}
