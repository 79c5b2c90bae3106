//! Beside us a command reads the terminal itself, but writes to our pty; a program that draws a screen sets the modes of
//! what it writes to. They were meant for the terminal, so there they go.
//!
//! With an input that is a pipe it may read its keys from where it writes as well: `less` and `vim -` do. Other programs
//! open `/dev/tty`, which is the terminal itself, and read their keys without us. Who wants keys from the pty takes it out
//! of the mode for lines, without an echo; only then are keys handed on, while we are in front, nobody else has set the
//! terminal's modes (`fzf | gputop run less`), and nobody of the command has the terminal open.
//!
//! The kernel does not tell when modes change. Looking with each piece of output is enough: nobody takes a screen
//! without drawing on it.

use std::os::fd::AsFd;

use nix::sys::termios::{LocalFlags, OutputFlags, SetArg, Termios, tcgetattr, tcsetattr};

use super::terminal::Terminal;

pub(super) struct Mirror {
    /// The pty's, as they were last seen.
    seen: Termios,
    /// Where the command's input is not the terminal: the keyboard's modes as we left them.
    keyboard: Option<Termios>,
    is_read_inside: bool,
}

/// The terminal's modes for a pty whose output comes out as it went in: the terminal itself makes the line ends. That
/// there is processing at all stays set, so that switching it off is seen.
pub(super) fn plain(terminal: &Termios) -> Termios {
    let mut modes = terminal.clone();
    modes.output_flags = OutputFlags::OPOST;
    modes
}

impl Mirror {
    /// `has_keyboard`: that nobody reads the terminal as its standard input.
    pub(super) fn of(terminal: &Terminal, has_keyboard: bool) -> Self {
        Self {
            seen: plain(terminal.modes()),
            keyboard: has_keyboard.then(|| terminal.modes().clone()),
            is_read_inside: false,
        }
    }

    /// After a stop the terminal is as the shell has it, whatever the command set before; what the command sets now is
    /// followed anew, also where it is the same.
    pub(super) fn begin_anew(&mut self, terminal: &Terminal) {
        self.seen = plain(terminal.modes());
        if let (Some(keyboard), Ok(modes)) = (&mut self.keyboard, tcgetattr(terminal)) {
            *keyboard = modes;
        }
        self.is_read_inside = false;
    }

    pub(super) fn follow(&mut self, master: impl AsFd, terminal: &Terminal) {
        let Ok(now) = tcgetattr(master) else { return };
        if now == self.seen || !terminal.is_foreground() || self.is_anothers(terminal) {
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
        self.is_read_inside = false;
    }

    /// Whether the command wants keys from the pty, and whether those that are typed now are for it.
    pub(super) fn keys(&mut self, master: impl AsFd, terminal: &Terminal) -> (bool, bool) {
        let is_asked = |modes: &Termios| {
            let for_lines = LocalFlags::ICANON | LocalFlags::ECHO;
            !modes.local_flags.intersects(for_lines)
        };
        if self.keyboard.is_none() {
            return (false, false);
        }
        let now = tcgetattr(&master).ok();
        let Some(now) = now.filter(is_asked) else {
            return (false, false);
        };
        self.follow(master, terminal);
        let is_set = now == self.seen && !self.is_read_inside;
        let is_free = is_set && terminal.is_foreground() && !self.is_anothers(terminal);
        (!self.is_read_inside, is_free)
    }

    /// Somebody of the command reads the terminal itself, until the modes change again.
    pub(super) fn leave_keys(&mut self) {
        self.is_read_inside = true;
    }

    /// Somebody else has set the terminal's modes, and not back yet.
    fn is_anothers(&self, terminal: &Terminal) -> bool {
        let keyboard = self.keyboard.as_ref();
        keyboard.is_some_and(|own| tcgetattr(terminal).is_ok_and(|modes| modes != *own))
    }
}
