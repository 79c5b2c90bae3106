//! The relay: copies the command's output from the pty to the terminal and forwards signals to the command until it
//! exits.
//!
//! The relay is one thread with one `poll`, so that signals are handled even if the terminal accepts no output.

use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::PtyMaster;
use nix::sys::signal::Signal;
use nix::unistd::{getpid, getsid, read, write};

use super::command::{ChildCommand, ExitOutcome, StateChange};
use super::output::CapturedOutput;
use super::signals::{Received, Signals, stop_by};
use super::terminal::{CommandTerminal, Mirror};
use super::unsafe_calls;

/// Maximum number of chunks to copy before signals and keys are handled again.
const MAX_CHUNKS_PER_TURN: usize = 16;
/// Interval at which gputop checks whether it is in the foreground again, while the command is waiting for keys.
/// Polling is needed because a shell sends no signal when it brings a running job to the foreground.
const FOREGROUND_CHECK_INTERVAL_MS: u16 = 250;

pub(super) struct Relay<'a> {
    /// Terminal and pty. `None` after the terminal was closed, or if no stream goes through a pty.
    ends: Option<Ends>,
    /// True while a process has the pty's slave end open.
    is_open: bool,
    screen: CopyBuffer,
    keys: CopyBuffer,
    output: &'a mut CapturedOutput,
}

/// The terminal and the pty between which bytes are copied.
struct Ends {
    terminal: CommandTerminal,
    master: PtyMaster,
    mirror: Mirror,
}

/// Events to handle after a `poll`.
#[derive(Debug)]
struct Ready {
    signals: bool,
    keys: bool,
    /// True if the terminal was closed.
    is_closed: bool,
}

impl<'a> Relay<'a> {
    pub(super) fn new(
        opened: Option<(CommandTerminal, PtyMaster, Mirror)>,
        output: &'a mut CapturedOutput,
    ) -> Self {
        Self {
            ends: opened.map(|(terminal, master, mirror)| Ends { terminal, master, mirror }),
            is_open: true,
            screen: CopyBuffer::new(),
            keys: CopyBuffer::new(),
            output,
        }
    }

    /// Relays output, keys and signals until the command has exited and its output is on the terminal.
    pub(super) fn run(mut self, signals: &Signals, child: &mut ChildCommand) -> ExitOutcome {
        // The window size may have changed while the pty was created.
        self.resize();
        let exit = loop {
            match self.handle_events(signals, child) {
                Ok(None) => {}
                Ok(Some(exit)) => break exit,
                // If poll fails, gputop can only wait for the command to exit.
                Err(_) => self.hang_up(),
            }
        };
        self.drain(signals);
        if let Some(ends) = &mut self.ends {
            ends.mirror.follow(&ends.master, &ends.terminal);
            // A shell resets the terminal modes only if a signal kills its job. gputop itself exits normally, so it
            // must reset them.
            if ends.mirror.is_session() || matches!(exit, ExitOutcome::Killed(_)) {
                ends.terminal.restore();
            }
        }
        exit
    }

    fn handle_events(
        &mut self,
        signals: &Signals,
        child: &mut ChildCommand,
    ) -> io::Result<Option<ExitOutcome>> {
        let ready = self.wait(signals)?;
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
        self.copy_keys(ready.keys);
        self.copy_output();
        Ok(None)
    }

    fn wait(&mut self, signals: &Signals) -> io::Result<Ready> {
        let mut fds = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        let mut timeout = PollTimeout::NONE;
        if let Some(ends) = &mut self.ends {
            let wants_keys = ends.mirror.wants_keys(&ends.master);
            if wants_keys {
                ends.mirror.follow(&ends.master, &ends.terminal);
            }
            let is_foreground = wants_keys && ends.terminal.is_foreground();
            if wants_keys && !is_foreground {
                timeout = PollTimeout::from(FOREGROUND_CHECK_INTERVAL_MS);
            }
            let mut to = PollFlags::empty();
            to.set(PollFlags::POLLIN, is_foreground && self.keys.is_empty());
            to.set(PollFlags::POLLOUT, !self.screen.is_empty());
            fds.push(PollFd::new(ends.terminal.as_fd(), to));
            let mut from = PollFlags::empty();
            from.set(PollFlags::POLLIN, self.is_open && self.screen.is_empty());
            from.set(PollFlags::POLLOUT, !self.keys.is_empty());
            // Omit the master if no events are requested, because poll would report a closed slave repeatedly.
            if !from.is_empty() {
                fds.push(PollFd::new(ends.master.as_fd(), from));
            }
        }
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let events =
            |index: usize| fds.get(index).and_then(PollFd::revents).unwrap_or(PollFlags::empty());
        Ok(Ready {
            signals: !events(0).is_empty(),
            keys: events(1).contains(PollFlags::POLLIN),
            is_closed: events(1).intersects(PollFlags::POLLHUP | PollFlags::POLLERR),
        })
    }

    /// Handles a signal. Returns the exit status if the command has exited.
    fn signal(&mut self, received: Received, child: &mut ChildCommand) -> Option<ExitOutcome> {
        match received.signal {
            Signal::SIGCHLD => {
                while let Some(change) = child.next_change() {
                    match change {
                        StateChange::Exited(exit) => return Some(exit),
                        // Ignore SIGSTOP: the user who sent it will also send SIGCONT to the command, and may not know
                        // about gputop.
                        StateChange::Stopped(Signal::SIGSTOP) if !self.is_session() => {}
                        StateChange::Stopped(signal) => {
                            self.copy_output();
                            // A shell that suspends itself sends SIGSTOP.
                            let ends = self.ends.as_ref().filter(|ends| ends.mirror.is_session());
                            ends.inspect(|ends| ends.terminal.restore());
                            stop_by(if ends.is_some() { Signal::SIGTSTP } else { signal });
                            self.resume(child);
                        }
                    }
                }
            }
            Signal::SIGWINCH => {
                self.resize();
                // Notify the command, because it may have read the old window size.
                child.signal(Signal::SIGWINCH);
            }
            Signal::SIGCONT => self.resume(child),
            // Forward a terminal's SIGHUP. gputop is the session leader here, and the kernel sends the signal only to
            // the leader.
            Signal::SIGHUP if received.by_kernel && leads_session() => {
                child.signal(received.signal);
            }
            // The command is in the same process group and has also received the signal.
            _ if received.by_kernel && !self.is_session() => {}
            signal => child.signal(signal),
        }
        None
    }

    /// Updates the window size and discards the copied terminal modes after a stop, then continues the command.
    fn resume(&mut self, child: &mut ChildCommand) {
        if let Some(ends) = self.ends.as_mut().filter(|ends| ends.terminal.is_foreground()) {
            ends.mirror.reset();
        }
        self.resize();
        child.resume();
    }

    /// Returns true if the command is not in gputop's process group, but in a session of its own.
    fn is_session(&self) -> bool {
        self.ends.as_ref().is_some_and(|ends| ends.mirror.is_session())
    }

    fn resize(&self) {
        if let Some(ends) = &self.ends {
            unsafe_calls::copy_window_size(&ends.terminal, &ends.master);
        }
    }

    fn copy_keys(&mut self, are_available: bool) {
        let Some(ends) = &self.ends else { return };
        // Ignore errors, because another user's terminal may not be readable.
        if are_available {
            let _ = self.keys.read_from(&ends.terminal);
        }
        // Drop the keys if no process has the slave open to read them.
        if self.keys.write_to(&ends.master).is_err() {
            self.keys.clear();
        }
    }

    /// Copies as much of the available output as the terminal accepts.
    fn copy_output(&mut self) {
        for _ in 0..MAX_CHUNKS_PER_TURN {
            if !self.copy_chunk() {
                return;
            }
        }
    }

    /// Copies one chunk of output. Returns true if more output may be available.
    fn copy_chunk(&mut self) -> bool {
        let Some(ends) = &mut self.ends else { return false };
        let mut is_new = false;
        match self.screen.read_from(&ends.master) {
            Ok([]) => {}
            Ok(chunk) => {
                is_new = true;
                self.output.push(chunk);
                ends.mirror.follow(&ends.master, &ends.terminal);
            }
            Err(_) => {
                self.is_open = false;
                return false;
            }
        }
        if self.screen.write_to(&ends.terminal).is_err() {
            self.hang_up();
            return false;
        }
        is_new && self.screen.is_empty()
    }

    /// Closes the pty, for example after the terminal was closed. The command's writes then fail.
    fn hang_up(&mut self) {
        self.ends = None;
    }

    /// Copies the remaining output to the terminal, unless a termination signal arrives.
    fn drain(&mut self, signals: &Signals) {
        loop {
            self.copy_output();
            let Some(ends) = &self.ends else { return };
            if self.screen.is_empty() && !self.has_more_output(&ends.master) {
                return;
            }
            let mut fds = [
                PollFd::new(signals.as_fd(), PollFlags::POLLIN),
                PollFd::new(ends.terminal.as_fd(), PollFlags::POLLOUT),
            ];
            let _ = poll(&mut fds, PollTimeout::NONE);
            while let Some(received) = signals.next() {
                if received.ends_the_wait() {
                    return self.hang_up();
                }
            }
        }
    }

    /// Returns true if more output is available. The kernel moves pending output to the master before poll returns.
    fn has_more_output(&self, master: &PtyMaster) -> bool {
        let mut fds = [PollFd::new(master.as_fd(), PollFlags::POLLIN)];
        self.is_open && poll(&mut fds, PollTimeout::ZERO).is_ok() && fds[0].any().unwrap_or(false)
    }
}

fn leads_session() -> bool {
    getsid(None).is_ok_and(|session| session == getpid())
}

/// Size of a copy buffer. It exceeds the maximum that one terminal read returns (one byte less than a page, see
/// `n_tty`). Each chunk is passed on immediately, because collecting more would delay the writer and the terminal.
const CHUNK_BYTES: usize = 8 << 10;

struct CopyBuffer {
    bytes: Box<[u8; CHUNK_BYTES]>,
    begin: usize,
    end: usize,
}

impl CopyBuffer {
    fn new() -> Self {
        Self { bytes: Box::new([0; CHUNK_BYTES]), begin: 0, end: 0 }
    }

    fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    fn pending(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    fn clear(&mut self) {
        (self.begin, self.end) = (0, 0);
    }

    /// Reads available bytes if the buffer is empty. Returns an error if no more data will arrive.
    fn read_from(&mut self, from: impl AsFd) -> Result<&[u8], Errno> {
        if !self.is_empty() {
            return Ok(&[]);
        }
        self.clear();
        loop {
            match read(&from, &mut *self.bytes) {
                Ok(0) => return Err(Errno::EIO),
                Ok(n) => {
                    self.end = n;
                    return Ok(self.pending());
                }
                Err(Errno::EAGAIN) => return Ok(&[]),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes as much as the descriptor accepts. Returns an error if the descriptor will accept no more data.
    fn write_to(&mut self, to: impl AsFd) -> Result<(), Errno> {
        while !self.is_empty() {
            match write(&to, self.pending()) {
                Ok(n) => self.begin += n,
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
