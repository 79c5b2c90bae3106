//! The session leader: a fork of gputop that leads the command's session and is its parent there.
//!
//! A terminal stop signal has no effect on a process group whose parents are all in other sessions (POSIX calls it
//! orphaned: no process could continue it). For Ctrl-Z to work, the command's parent must be in its session and lead
//! it, without being the command. The session leader only waits and passes messages on. It exits when the relay
//! closes the socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Child;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, killpg, sigprocmask};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, close, getpgrp, getppid, setsid, tcgetpgrp, tcsetpgrp};

use super::child_change::{Change, change, pid};
use super::child_command::ChildCommand;
use super::command::{CommandLine, NotStarted};
use super::exit::ExitOutcome;
use super::identity::identity;
use super::message::{LeaderCommand, Report};
use super::pty::Pty;
use super::signals::Signals;
use super::streams::Streams;
use super::unsafe_calls;

/// A started session leader that has not yet reported whether the command started.
pub(super) struct SessionLeader<'a> {
    command: &'a CommandLine,
    signals: &'a Signals,
    pid: Pid,
    socket: UnixStream,
}

/// Forks the session leader. This process must have only one thread.
pub(super) fn start<'a>(
    command: &'a CommandLine,
    streams: &Streams,
    signals: &'a Signals,
    pty: &Pty,
) -> io::Result<SessionLeader<'a>> {
    let (socket, leader_end) = UnixStream::pair()?;
    match unsafe_calls::fork()? {
        ForkResult::Parent { child } => Ok(SessionLeader {
            command,
            signals,
            pid: child,
            socket,
        }),
        ForkResult::Child => {
            drop(socket);
            // The pty hangs up when the relay closes the master, so no other process may hold it.
            let _ = close(pty.master.as_raw_fd());
            lead_session(command, streams, signals, pty, leader_end);
            // Nothing that belongs to the relay may be flushed or dropped in this process.
            unsafe_calls::exit_immediately()
        }
    }
}

impl SessionLeader<'_> {
    pub(super) fn into_child_command(mut self) -> Result<ChildCommand, NotStarted> {
        match Report::read(&mut self.socket) {
            // A descriptor may have been missing. If the command itself is wrong, the next attempt fails too and
            // returns its error.
            Ok(Report::NotStarted) => {
                let _ = waitpid(self.pid, None);
                Err(self.command.exec(Some(self.signals)))
            }
            Ok(Report::Started(process)) => {
                Ok(ChildCommand::of_leader(self.pid, self.socket, process))
            }
            Ok(_) => Ok(ChildCommand::of_leader(self.pid, self.socket, None)),
            Err(error) => Err(self.command.failed(&error)),
        }
    }
}

fn lead_session(
    command: &CommandLine,
    streams: &Streams,
    signals: &Signals,
    pty: &Pty,
    mut socket: UnixStream,
) {
    match start_command(command, streams, signals, pty) {
        Ok((terminal, child)) => {
            // The child is not reaped yet, so its PID cannot have been reused.
            let _ = Report::Started(identity(child.id())).write(&mut socket);
            let leader_child = LeaderChild {
                terminal,
                child,
                socket,
                is_stopped: false,
                stops: 0,
                has_exited: false,
            };
            leader_child.run(signals);
        }
        Err(_) => {
            let _ = Report::NotStarted.write(&mut socket);
        }
    }
}

fn start_command(
    command: &CommandLine,
    streams: &Streams,
    signals: &Signals,
    pty: &Pty,
) -> io::Result<(OwnedFd, Child)> {
    setsid()?;
    let terminal = pty.slave().open_controlling()?;
    // The session leader itself takes the terminal while it is in the background.
    let mut stop = SigSet::empty();
    stop.add(Signal::SIGTTOU);
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&stop), None)?;
    let prepared = command.prepared(streams, Some(pty.slave()));
    let mut prepared = prepared.map_err(|error| io::Error::other(error.to_string()))?;
    unsafe_calls::before_exec(
        &mut prepared,
        signals.inherited_mask(),
        Some(terminal.as_raw_fd()),
    );
    let child = prepared.spawn()?;
    Ok((terminal, child))
}

struct LeaderChild {
    terminal: OwnedFd,
    child: Child,
    socket: UnixStream,
    is_stopped: bool,
    /// Number of times the command was stopped; the relay counts too.
    stops: i32,
    has_exited: bool,
}

impl LeaderChild {
    /// Runs until the relay closes the socket.
    fn run(mut self, signals: &Signals) {
        loop {
            let mut fds = [
                PollFd::new(signals.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
            ];
            if poll(&mut fds, PollTimeout::NONE).is_err_and(|error| error != Errno::EINTR) {
                break;
            }
            let [_, has_command] = fds.map(|fd| fd.any().unwrap_or(false));
            while let Some(received) = signals.next() {
                // The kernel sends the hang-up of a terminal only to the session leader; like a shell, pass it on to
                // the jobs.
                if received.signal == Signal::SIGHUP && received.by_kernel {
                    self.hang_up();
                }
            }
            while !self.has_exited
                && let Some(change) = change(&mut self.child)
            {
                self.report(change);
            }
            if has_command {
                match LeaderCommand::read(&mut self.socket) {
                    // After the command has exited, its PID may be reused.
                    Ok(command) if !self.has_exited => self.execute(command),
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        }
        // If the relay was killed, the terminal is closed too.
        self.hang_up();
        // When a session leader exits, the kernel sends SIGHUP to the foreground group. That must not be the
        // command's background processes.
        let _ = tcsetpgrp(&self.terminal, getpgrp());
    }

    fn hang_up(&self) {
        let group = pid(&self.child);
        if !self.has_exited {
            let _ = killpg(group, Signal::SIGHUP);
            let _ = killpg(group, Signal::SIGCONT);
        }
    }

    fn report(&mut self, change: Change) {
        let report = match change {
            Change::Stopped(signal) => {
                self.is_stopped = true;
                self.stops += 1;
                Report::Stopped(signal as i32)
            }
            Change::Continued => {
                // Another process continued the command; the relay is stopped too and must be continued.
                if std::mem::take(&mut self.is_stopped) {
                    let _ = kill(getppid(), Signal::SIGCONT);
                }
                return;
            }
            Change::Exited(exit) => {
                self.has_exited = true;
                match exit {
                    ExitOutcome::Exited(code) => Report::Exited(code),
                    ExitOutcome::Killed(signal) => Report::Killed(signal),
                }
            }
        };
        let _ = report.write(&mut self.socket);
    }

    fn execute(&mut self, command: LeaderCommand) {
        let group = pid(&self.child);
        let foreground = tcgetpgrp(&self.terminal).ok();
        let stops = match command {
            LeaderCommand::Signal(number) => {
                if let Ok(signal) = Signal::try_from(number) {
                    let _ = kill(group, signal);
                }
                return;
            }
            LeaderCommand::Foreground(stops) => {
                // A shell inside the session manages its own foreground group.
                if foreground == Some(getpgrp()) {
                    let _ = tcsetpgrp(&self.terminal, group);
                }
                stops
            }
            LeaderCommand::Background(stops) => {
                if foreground == Some(group) {
                    let _ = tcsetpgrp(&self.terminal, getpgrp());
                }
                stops
            }
        };
        if self.is_stopped && stops == self.stops {
            self.is_stopped = false;
            let _ = killpg(group, Signal::SIGCONT);
        }
    }
}
