//! The relay. It copies between the terminal and the pty, and passes signals to the command, until the command exits.
//!
//! One thread with one `poll`. Neither direction blocks the other: Ctrl-C works even if the terminal accepts no
//! output.

use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::PtyMaster;
use nix::sys::signal::Signal;
use nix::sys::termios::tcgetattr;

use super::captured_output::CapturedOutput;
use super::child_command::{ChildCommand, StateChange};
use super::copy_bytes::CopyBuffer;
use super::drain;
use super::exit::ExitOutcome;
use super::pty::Pty;
use super::signals::{Received, Signals, stop_by};
use super::terminal::Terminal;
use super::terminal_modes::Mirror;
use super::terminal_readers::has_reader;
use super::unread_input;
use super::unsafe_calls;
use crate::model::process::ProcessKey;

/// Maximum number of chunks copied before signals and keys are handled.
const MAX_CHUNKS_PER_TURN: usize = 16;
/// Interval at which a background command checks whether it is in the foreground again: a shell sends no signal when
/// it brings a running job to the foreground.
const FOREGROUND_CHECK_INTERVAL_MS: u16 = 250;

pub(super) struct Relay<'a> {
    /// `None` after the terminal was closed.
    terminal: Option<Terminal>,
    /// `None` after the terminal was closed, or if nothing goes through a pty.
    master: Option<PtyMaster>,
    /// True while a process has the slave open.
    is_open: bool,
    /// True if all keys are copied to the pty.
    has_keys: bool,
    /// Keyboard modes copied from the pty to the terminal, if keys are not copied to the pty.
    mirror: Option<Mirror>,
    /// True once the command has read keys from the pty that it writes to.
    has_copied_keys: bool,
    screen: CopyBuffer,
    keys: CopyBuffer,
    output: &'a mut CapturedOutput,
}

/// How keys typed on the terminal reach the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    /// Copied by the relay: the pty is the terminal of the command.
    Relayed,
    /// Read by the command directly: its stdin is the terminal.
    ReadDirectly,
    /// Not read until the command requests keys on its output terminal.
    OnRequest,
}

/// Events to handle after a wait.
#[derive(Debug, Default)]
struct Ready {
    signals: bool,
    leader: bool,
    keys: bool,
    /// The terminal was closed.
    is_closed: bool,
}

impl<'a> Relay<'a> {
    pub(super) fn new(
        terminal: Option<Terminal>,
        pty: Option<Pty>,
        keys: Keys,
        output: &'a mut CapturedOutput,
    ) -> Self {
        let has_keys = keys == Keys::Relayed;
        let mirror = terminal.as_ref().filter(|_| !has_keys);
        let mirror = mirror.map(|terminal| Mirror::of(terminal, keys == Keys::OnRequest));
        Self {
            mirror,
            terminal,
            master: pty.map(Pty::into_master),
            is_open: true,
            has_keys,
            has_copied_keys: false,
            screen: CopyBuffer::new(),
            keys: CopyBuffer::new(),
            output,
        }
    }

    /// Runs until the command has exited and its output is on the terminal.
    pub(super) fn run(mut self, signals: &Signals, child: &mut ChildCommand) -> ExitOutcome {
        // The window size may have changed while the pty was created.
        self.resize();
        let exit = loop {
            match self.handle_events(signals, child) {
                Ok(None) => {}
                Ok(Some(exit)) => break exit,
                // Without poll, gputop can only wait for the command to exit.
                Err(_) => self.hang_up(),
            }
        };
        child.release_leader();
        self.drain(signals);
        self.restore_terminal(exit);
        exit
    }

    fn handle_events(
        &mut self,
        signals: &Signals,
        child: &mut ChildCommand,
    ) -> io::Result<Option<ExitOutcome>> {
        let ready = self.wait(signals, child)?;
        if ready.is_closed {
            self.hang_up();
        }
        if ready.signals {
            while let Some(received) = signals.next() {
                let exit = self.signal(received, child);
                if exit.is_some() {
                    return Ok(exit);
                }
            }
        }
        if ready.leader {
            let change = child.read_leader_report();
            let exit = change.and_then(|change| self.handle_change(change, child));
            if exit.is_some() {
                return Ok(exit);
            }
        }
        self.copy_keys(ready.keys, child);
        self.copy_output();
        Ok(None)
    }

    fn wait(&mut self, signals: &Signals, child: &mut ChildCommand) -> io::Result<Ready> {
        let mut fds = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        let mut indexes = PollIndexes::default();
        let mut add = |fd, flags| {
            fds.push(PollFd::new(fd, flags));
            Some(fds.len() - 1)
        };
        if let Some(leader) = child.socket() {
            indexes.leader = add(leader, PollFlags::POLLIN);
        }
        let mut is_background = false;
        if let (Some(terminal), Some(master)) = (&self.terminal, &self.master) {
            let mut from = PollFlags::empty();
            from.set(PollFlags::POLLIN, self.is_open && self.screen.is_empty());
            from.set(PollFlags::POLLOUT, !self.keys.is_empty());
            // Even with no events requested, poll would report the closed slave again and again.
            if !from.is_empty() {
                add(master.as_fd(), from);
            }
            let (wants, can_read) = match &mut self.mirror {
                None => (true, terminal.is_raw()),
                Some(mirror) => mirror.keys(master, terminal),
            };
            is_background = wants && !can_read;
            let can_read = can_read && self.keys.is_empty();
            let mut to = PollFlags::empty();
            to.set(PollFlags::POLLIN, can_read);
            to.set(PollFlags::POLLOUT, !self.screen.is_empty());
            indexes.terminal = add(terminal.as_fd(), to);
        }
        let timeout = if is_background {
            PollTimeout::from(FOREGROUND_CHECK_INTERVAL_MS)
        } else {
            PollTimeout::NONE
        };
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let events = |index: Option<usize>| {
            let fd = index.and_then(|index| fds.get(index));
            fd.and_then(PollFd::revents).unwrap_or(PollFlags::empty())
        };
        let ready = Ready {
            signals: !events(Some(0)).is_empty(),
            leader: !events(indexes.leader).is_empty(),
            keys: events(indexes.terminal).contains(PollFlags::POLLIN),
            is_closed: events(indexes.terminal).intersects(PollFlags::POLLHUP | PollFlags::POLLERR),
        };
        drop(fds);
        if is_background {
            self.resume_if_foreground(child);
        }
        Ok(ready)
    }

    fn resume_if_foreground(&mut self, child: &mut ChildCommand) {
        if self.has_keys && self.terminal.as_ref().is_some_and(Terminal::is_foreground) {
            self.resume(child);
        }
    }

    /// Handles a signal. Returns the exit status if the command has exited.
    fn signal(&mut self, received: Received, child: &mut ChildCommand) -> Option<ExitOutcome> {
        match received.signal {
            Signal::SIGCHLD => {
                while let Some(change) = child.next_change() {
                    let exit = self.handle_change(change, child);
                    if exit.is_some() {
                        return exit;
                    }
                }
            }
            Signal::SIGWINCH => self.resize(),
            Signal::SIGCONT => self.resume(child),
            // gputop owns the session's terminal, so it closes the pty to report the hang-up.
            Signal::SIGHUP if received.by_kernel && !child.shares_our_group() => self.hang_up(),
            _ if received.by_kernel && child.shares_our_group() => {}
            signal => child.signal(signal),
        }
        None
    }

    fn handle_change(
        &mut self,
        change: StateChange,
        child: &mut ChildCommand,
    ) -> Option<ExitOutcome> {
        match change {
            StateChange::Exited(exit) => return Some(exit),
            // A user who sends SIGSTOP to a direct child also continues it, and may not know about gputop.
            StateChange::Stopped(Signal::SIGSTOP) if child.shares_our_group() => {}
            StateChange::Stopped(signal) => {
                self.copy_output();
                if let Some(terminal) = &mut self.terminal {
                    terminal.restore();
                }
                stop_by(signal);
                self.resume(child);
            }
        }
        None
    }

    /// Continues after a stop. The command gets the terminal if the shell has put gputop in the foreground.
    fn resume(&mut self, child: &mut ChildCommand) {
        let mut is_foreground = false;
        if let Some(terminal) = &mut self.terminal {
            is_foreground = terminal.is_foreground();
            if self.has_keys {
                terminal.set_raw();
            }
            if let Some(mirror) = self.mirror.as_mut().filter(|_| is_foreground) {
                mirror.reset(terminal);
            }
        }
        self.resize();
        child.resume(is_foreground);
    }

    fn resize(&self) {
        if let (Some(terminal), Some(master)) = (&self.terminal, &self.master)
            && let Ok(size) = unsafe_calls::window_size(terminal)
        {
            let _ = unsafe_calls::set_window_size(master, &size);
        }
    }

    fn copy_keys(&mut self, are_available: bool, child: &ChildCommand) {
        let (Some(terminal), Some(master)) = (&self.terminal, &self.master) else {
            return;
        };
        if are_available && let Some(mirror) = &mut self.mirror {
            let has_reader = |key: ProcessKey| has_reader(key.pid.0, terminal);
            // A terminal that cannot be read, such as another user's, has no keys either.
            if child.process().is_some_and(has_reader) || self.keys.read_from(terminal).is_err() {
                return mirror.ignore_keys();
            }
        } else if are_available && self.keys.read_from(terminal).is_err() {
            return self.hang_up();
        }
        self.has_copied_keys |= self.mirror.is_some() && !self.keys.is_empty();
        // No process has the slave open, so no process can read these keys.
        if self.keys.write_to(master).is_err() {
            self.keys.clear();
        }
    }

    /// Copies available output, as far as the terminal accepts it.
    fn copy_output(&mut self) {
        for _ in 0..MAX_CHUNKS_PER_TURN {
            if !self.copy_chunk() {
                return;
            }
        }
    }

    /// Copies one chunk. Returns true if more output may be available.
    fn copy_chunk(&mut self) -> bool {
        let (Some(terminal), Some(master)) = (&self.terminal, &self.master) else {
            return false;
        };
        let mut is_new = false;
        match self.screen.read_from(master) {
            Ok([]) => {}
            Ok(chunk) => {
                is_new = true;
                self.output.push(chunk);
                if let Some(mirror) = &mut self.mirror {
                    mirror.follow(master, terminal);
                }
            }
            Err(_) => {
                self.is_open = false;
                return false;
            }
        }
        if self.screen.write_to(terminal).is_err() {
            self.hang_up();
            return false;
        }
        is_new && self.screen.is_empty()
    }

    /// Closes the pty after the terminal was closed: the kernel then reports the hang-up to the command.
    fn hang_up(&mut self) {
        self.terminal = None;
        self.master = None;
    }

    /// Copies the remaining output to the terminal. Stops at a termination signal.
    fn drain(&mut self, signals: &Signals) {
        loop {
            self.copy_output();
            let (Some(terminal), Some(_)) = (&self.terminal, &self.master) else {
                return;
            };
            if self.screen.is_empty() && !self.has_more_output() {
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

    /// Returns true if more output is available. The kernel moves pending output to the master before poll returns.
    fn has_more_output(&self) -> bool {
        let Some(master) = self.master.as_ref().filter(|_| self.is_open) else {
            return false;
        };
        let mut fds = [PollFd::new(master.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok() && fds[0].any().unwrap_or(false)
    }

    /// Returns the terminal to the shell with the modes that the command left on the pty, as if it had set them on
    /// the terminal. A shell resets the modes only if a job dies by a signal, which it does not see here.
    fn restore_terminal(mut self, exit: ExitOutcome) {
        let Some(mut terminal) = self.terminal else {
            return;
        };
        if let (Some(mirror), Some(master)) = (&mut self.mirror, &self.master) {
            mirror.follow(master, &terminal);
        }
        let modes_left = self
            .master
            .as_ref()
            .and_then(|master| tcgetattr(master).ok());
        let had_keys = terminal.is_raw() || self.has_copied_keys;
        if let Some(master) = self.master.as_ref().filter(|_| had_keys) {
            unread_input::put_back(master, self.keys.pending(), &terminal);
        }
        match (exit, modes_left) {
            (ExitOutcome::Exited(_), Some(modes)) if self.has_keys => {
                terminal.restore_modes(&modes);
            }
            _ => terminal.restore(),
        }
        if let Some(master) = self.master.filter(|_| self.is_open) {
            drain::fork_forwarder(&master, &terminal);
        }
    }
}

/// Indexes of the descriptors in the poll list.
#[derive(Default)]
struct PollIndexes {
    leader: Option<usize>,
    terminal: Option<usize>,
}
