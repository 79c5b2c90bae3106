//! The relay: between the terminal and our pty, between who sends signals and the command, until the command ends.
//!
//! One thread and one `poll`. Neither direction waits for the other: a terminal that takes no output still gives its
//! Ctrl-C.

use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::PtyMaster;
use nix::sys::signal::Signal;
use nix::sys::termios::tcgetattr;

use super::captured_output::Tape;
use super::child_command::{ChildCommand, News};
use super::copy_bytes::Passing;
use super::drain;
use super::exit::Ended;
use super::pty::Pty;
use super::signals::{Received, Signals, stop_by};
use super::terminal::Terminal;
use super::terminal_modes::Mirror;
use super::terminal_readers::has_reader;
use super::unread_input;
use super::unsafe_calls;
use crate::model::process::ProcessKey;

/// How many pieces are passed on before signals and keys are looked after again.
const PIECES: usize = 16;
/// How often a command in the background looks whether it is in front again: a shell that brings forward what runs
/// already sends no signal.
const LOOK_MS: u16 = 250;

pub(super) struct Relay<'a> {
    /// `None` once it has gone away.
    terminal: Option<Terminal>,
    /// `None` once the terminal has gone away, and where nothing goes through a pty.
    master: Option<PtyMaster>,
    /// Whether somebody has the other side.
    is_open: bool,
    /// Whether keys are passed on as well; where not,
    has_keys: bool,
    /// the modes that are meant for the keyboard.
    mirror: Option<Mirror>,
    /// Whether it ever asked for keys where it writes, and got some.
    hands_keys_on: bool,
    screen: Passing,
    keys: Passing,
    tape: &'a mut Tape,
}

/// Whose the keys are that are typed on the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    /// The command's: its terminal is the pty.
    Ours,
    /// Its input is the terminal itself: it reads them there.
    Its,
    /// Nobody's, until it asks for them where it writes.
    Nobodys,
}

/// What there is to do.
#[derive(Debug, Default)]
struct Ready {
    signals: bool,
    line: bool,
    keys: bool,
    /// The terminal has been closed.
    is_gone: bool,
}

impl<'a> Relay<'a> {
    pub(super) fn new(
        terminal: Option<Terminal>,
        pty: Option<Pty>,
        keys: Keys,
        tape: &'a mut Tape,
    ) -> Self {
        let has_keys = keys == Keys::Ours;
        let mirror = terminal.as_ref().filter(|_| !has_keys);
        let mirror = mirror.map(|terminal| Mirror::of(terminal, keys == Keys::Nobodys));
        Self {
            mirror,
            terminal,
            master: pty.map(Pty::into_master),
            is_open: true,
            has_keys,
            hands_keys_on: false,
            screen: Passing::new(),
            keys: Passing::new(),
            tape,
        }
    }

    /// Until the command has ended and what it wrote is on the terminal.
    pub(super) fn run(mut self, signals: &Signals, ward: &mut ChildCommand) -> Ended {
        // The window may have changed while the pty was made.
        self.resize();
        let ended = loop {
            match self.turn(signals, ward) {
                Ok(None) => {}
                Ok(Some(ended)) => break ended,
                // Without poll there is nothing left to do but wait.
                Err(_) => self.hang_up(),
            }
        };
        ward.dismiss();
        self.drain(signals);
        self.leave(ended);
        ended
    }

    fn turn(&mut self, signals: &Signals, ward: &mut ChildCommand) -> io::Result<Option<Ended>> {
        let ready = self.wait(signals, ward)?;
        if ready.is_gone {
            self.hang_up();
        }
        if ready.signals {
            while let Some(received) = signals.next() {
                let ended = self.signal(received, ward);
                if ended.is_some() {
                    return Ok(ended);
                }
            }
        }
        if ready.line {
            let news = ward.kept_news();
            let ended = news.and_then(|news| self.hear(news, ward));
            if ended.is_some() {
                return Ok(ended);
            }
        }
        self.pass_keys(ready.keys, ward);
        self.pass_output();
        Ok(None)
    }

    fn wait(&mut self, signals: &Signals, ward: &mut ChildCommand) -> io::Result<Ready> {
        let mut fds = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        let mut places = Places::default();
        let mut add = |fd, flags| {
            fds.push(PollFd::new(fd, flags));
            Some(fds.len() - 1)
        };
        if let Some(line) = ward.line() {
            places.line = add(line, PollFlags::POLLIN);
        }
        let mut is_behind = false;
        if let (Some(terminal), Some(master)) = (&self.terminal, &self.master) {
            let mut from = PollFlags::empty();
            from.set(PollFlags::POLLIN, self.is_open && self.screen.is_empty());
            from.set(PollFlags::POLLOUT, !self.keys.is_empty());
            // With nothing asked the kernel would still tell, again and again, that the other side has closed.
            if !from.is_empty() {
                add(master.as_fd(), from);
            }
            let (wants, may_read) = match &mut self.mirror {
                None => (true, terminal.is_taken()),
                Some(mirror) => mirror.keys(master, terminal),
            };
            is_behind = wants && !may_read;
            let may_read = may_read && self.keys.is_empty();
            let mut to = PollFlags::empty();
            to.set(PollFlags::POLLIN, may_read);
            to.set(PollFlags::POLLOUT, !self.screen.is_empty());
            places.terminal = add(terminal.as_fd(), to);
        }
        let timeout = if is_behind {
            PollTimeout::from(LOOK_MS)
        } else {
            PollTimeout::NONE
        };
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let events = |place: Option<usize>| {
            let fd = place.and_then(|place| fds.get(place));
            fd.and_then(PollFd::revents).unwrap_or(PollFlags::empty())
        };
        let ready = Ready {
            signals: !events(Some(0)).is_empty(),
            line: !events(places.line).is_empty(),
            keys: events(places.terminal).contains(PollFlags::POLLIN),
            is_gone: events(places.terminal).intersects(PollFlags::POLLHUP | PollFlags::POLLERR),
        };
        drop(fds);
        if is_behind {
            self.look_whether_in_front(ward);
        }
        Ok(ready)
    }

    fn look_whether_in_front(&mut self, ward: &mut ChildCommand) {
        if self.has_keys && self.terminal.as_ref().is_some_and(Terminal::is_foreground) {
            self.go_on(ward);
        }
    }

    /// The command's end, if it is that.
    fn signal(&mut self, received: Received, ward: &mut ChildCommand) -> Option<Ended> {
        match received.signal {
            Signal::SIGCHLD => {
                while let Some(news) = ward.child_news() {
                    let ended = self.hear(news, ward);
                    if ended.is_some() {
                        return ended;
                    }
                }
            }
            Signal::SIGWINCH => self.resize(),
            Signal::SIGCONT => self.go_on(ward),
            // The terminal of the session is ours: its end is told by ending it.
            Signal::SIGHUP if received.by_kernel && !ward.is_in_our_group() => self.hang_up(),
            _ if received.by_kernel && ward.is_in_our_group() => {}
            signal => ward.signal(signal),
        }
        None
    }

    fn hear(&mut self, news: News, ward: &mut ChildCommand) -> Option<Ended> {
        match news {
            News::Ended(ended) => return Some(ended),
            // Who stops a child of ours by hand continues it by hand, and would not know of us.
            News::Stopped(Signal::SIGSTOP) if ward.is_in_our_group() => {}
            News::Stopped(signal) => {
                self.pass_output();
                if let Some(terminal) = &mut self.terminal {
                    terminal.give_back();
                }
                stop_by(signal);
                self.go_on(ward);
            }
        }
        None
    }

    /// After a stop: with the terminal if we are in front, which the shell has decided.
    fn go_on(&mut self, ward: &mut ChildCommand) {
        let mut is_in_front = false;
        if let Some(terminal) = &mut self.terminal {
            is_in_front = terminal.is_foreground();
            if self.has_keys {
                terminal.take();
            }
            if let Some(mirror) = self.mirror.as_mut().filter(|_| is_in_front) {
                mirror.begin_anew(terminal);
            }
        }
        self.resize();
        ward.go_on(is_in_front);
    }

    fn resize(&self) {
        if let (Some(terminal), Some(master)) = (&self.terminal, &self.master)
            && let Ok(size) = unsafe_calls::window_size(terminal)
        {
            let _ = unsafe_calls::set_window_size(master, &size);
        }
    }

    fn pass_keys(&mut self, are_there: bool, ward: &ChildCommand) {
        let (Some(terminal), Some(master)) = (&self.terminal, &self.master) else {
            return;
        };
        if are_there && let Some(mirror) = &mut self.mirror {
            let has_reader = |key: ProcessKey| has_reader(key.pid.0, terminal);
            // One that cannot be read, such as another user's, has no keys either.
            if ward.who().is_some_and(has_reader) || self.keys.fill(terminal).is_err() {
                return mirror.leave_keys();
            }
        } else if are_there && self.keys.fill(terminal).is_err() {
            return self.hang_up();
        }
        self.hands_keys_on |= self.mirror.is_some() && !self.keys.is_empty();
        // Keys for a slave that nobody has open are for nobody.
        if self.keys.pass(master).is_err() {
            self.keys.clear();
        }
    }

    /// What is there to read, as far as the terminal takes it.
    fn pass_output(&mut self) {
        for _ in 0..PIECES {
            if !self.pass_piece() {
                return;
            }
        }
    }

    /// Whether there may be more to pass on at once.
    fn pass_piece(&mut self) -> bool {
        let (Some(terminal), Some(master)) = (&self.terminal, &self.master) else {
            return false;
        };
        let mut is_new = false;
        match self.screen.fill(master) {
            Ok([]) => {}
            Ok(piece) => {
                is_new = true;
                self.tape.push(piece);
                if let Some(mirror) = &mut self.mirror {
                    mirror.follow(master, terminal);
                }
            }
            Err(_) => {
                self.is_open = false;
                return false;
            }
        }
        if self.screen.pass(terminal).is_err() {
            self.hang_up();
            return false;
        }
        is_new && self.screen.is_empty()
    }

    /// The terminal is gone: closing the pty tells it to the command as the kernel would have.
    fn hang_up(&mut self) {
        self.terminal = None;
        self.master = None;
    }

    /// Brings to the terminal what was written before the end. A signal that asks us to leave is obeyed.
    fn drain(&mut self, signals: &Signals) {
        loop {
            self.pass_output();
            let (Some(terminal), Some(_)) = (&self.terminal, &self.master) else {
                return;
            };
            if self.screen.is_empty() && !self.has_more() {
                return;
            }
            let mut fds = [
                PollFd::new(signals.as_fd(), PollFlags::POLLIN),
                PollFd::new(terminal.as_fd(), PollFlags::POLLOUT),
            ];
            let _ = poll(&mut fds, PollTimeout::NONE);
            while let Some(received) = signals.next() {
                let is_harmless = [Signal::SIGCHLD, Signal::SIGWINCH, Signal::SIGCONT];
                if !is_harmless.contains(&received.signal) {
                    return self.hang_up();
                }
            }
        }
    }

    /// Whether there is something to read. The kernel brings what is under way before it answers.
    fn has_more(&self) -> bool {
        let Some(master) = self.master.as_ref().filter(|_| self.is_open) else {
            return false;
        };
        let mut fds = [PollFd::new(master.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok() && fds[0].any().unwrap_or(false)
    }

    /// The terminal goes back to the shell, with the modes that the command left on the pty, as it would have left them
    /// on the terminal; a shell repairs them only after a death by signal, which it will not see.
    fn leave(mut self, ended: Ended) {
        let Some(mut terminal) = self.terminal else {
            return;
        };
        if let (Some(mirror), Some(master)) = (&mut self.mirror, &self.master) {
            mirror.follow(master, &terminal);
        }
        let left = self
            .master
            .as_ref()
            .and_then(|master| tcgetattr(master).ok());
        let had_keys = terminal.is_taken() || self.hands_keys_on;
        if let Some(master) = self.master.as_ref().filter(|_| had_keys) {
            unread_input::put_back(master, self.keys.rest(), &terminal);
        }
        match (ended, left) {
            (Ended::Exited(_), Some(modes)) if self.has_keys => terminal.leave(&modes),
            _ => terminal.give_back(),
        }
        if let Some(master) = self.master.filter(|_| self.is_open) {
            drain::stay(&master, &terminal);
        }
    }
}

/// Where the descriptors of one wait are in its list.
#[derive(Default)]
struct Places {
    line: Option<usize>,
    terminal: Option<usize>,
}
