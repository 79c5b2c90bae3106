//! The keeper: a copy of this process that leads the command's session and is its parent there.
//!
//! A stop signal of the terminal has no effect on a process group whose parents are all in other sessions (POSIX calls
//! it orphaned: nobody could continue it). So that Ctrl-Z works, the command's parent has to be in its session, and
//! as the leader of it be somebody else than the command. The keeper does nothing but wait and pass on; it ends when the
//! relay hangs up.

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
use super::exit::Ended;
use super::identity::identity;
use super::message::{LeaderCommand, Report};
use super::pty::Pty;
use super::signals::Signals;
use super::streams::Streams;
use super::unsafe_calls;

/// A keeper that was started, and has yet to say whether the command was.
pub(super) struct Keeper<'a> {
    command: &'a CommandLine,
    signals: &'a Signals,
    pid: Pid,
    line: UnixStream,
}

/// Forks the keeper. This process must have one thread only.
pub(super) fn start<'a>(
    command: &'a CommandLine,
    streams: &Streams,
    signals: &'a Signals,
    pty: &Pty,
) -> io::Result<Keeper<'a>> {
    let (line, far) = UnixStream::pair()?;
    match unsafe_calls::fork()? {
        ForkResult::Parent { child } => Ok(Keeper {
            command,
            signals,
            pid: child,
            line,
        }),
        ForkResult::Child => {
            drop(line);
            // The terminal hangs up when the relay closes this, and nobody else may hold it.
            let _ = close(pty.master.as_raw_fd());
            keep(command, streams, signals, pty, far);
            // Nothing of the relay's is to be flushed or dropped here.
            unsafe_calls::leave_at_once()
        }
    }
}

impl Keeper<'_> {
    pub(super) fn into_ward(mut self) -> Result<ChildCommand, NotStarted> {
        match Report::read(&mut self.line) {
            // For want of a descriptor, it may be; and where it is the command that is wrong, it will be so again.
            Ok(Report::NotStarted) => {
                let _ = waitpid(self.pid, None);
                Err(self.command.become_it(Some(self.signals)))
            }
            Ok(Report::Started(who)) => Ok(ChildCommand::kept(self.pid, self.line, who)),
            Ok(_) => Ok(ChildCommand::kept(self.pid, self.line, None)),
            Err(error) => Err(self.command.failed(&error)),
        }
    }
}

fn keep(
    command: &CommandLine,
    streams: &Streams,
    signals: &Signals,
    pty: &Pty,
    mut line: UnixStream,
) {
    match begin(command, streams, signals, pty) {
        Ok((terminal, child)) => {
            // Nobody has collected it yet, so its number is still its own.
            let _ = Report::Started(identity(child.id())).write(&mut line);
            let kept = LeaderChild {
                terminal,
                child,
                line,
                is_stopped: false,
                stops: 0,
                has_ended: false,
            };
            kept.watch(signals);
        }
        Err(_) => {
            let _ = Report::NotStarted.write(&mut line);
        }
    }
}

fn begin(
    command: &CommandLine,
    streams: &Streams,
    signals: &Signals,
    pty: &Pty,
) -> io::Result<(OwnedFd, Child)> {
    setsid()?;
    let terminal = pty.slave().control()?;
    // The keeper itself takes the terminal back from the background.
    let mut stop = SigSet::empty();
    stop.add(Signal::SIGTTOU);
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&stop), None)?;
    let prepared = command.prepared(streams, Some(pty.slave()));
    let mut prepared = prepared.map_err(|error| io::Error::other(error.to_string()))?;
    unsafe_calls::before_exec(&mut prepared, signals.before(), Some(terminal.as_raw_fd()));
    let child = prepared.spawn()?;
    Ok((terminal, child))
}

struct LeaderChild {
    terminal: OwnedFd,
    child: Child,
    line: UnixStream,
    is_stopped: bool,
    /// How often it was, which the relay counts as well.
    stops: i32,
    has_ended: bool,
}

impl LeaderChild {
    /// Until the relay hangs up.
    fn watch(mut self, signals: &Signals) {
        loop {
            let mut fds = [
                PollFd::new(signals.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.line.as_fd(), PollFlags::POLLIN),
            ];
            if poll(&mut fds, PollTimeout::NONE).is_err_and(|error| error != Errno::EINTR) {
                break;
            }
            let [_, is_ordered] = fds.map(|fd| fd.any().unwrap_or(false));
            while let Some(received) = signals.next() {
                // A terminal that goes away tells the leader of its session only; a shell passes it on to its jobs.
                if received.signal == Signal::SIGHUP && received.by_kernel {
                    self.hang_up();
                }
            }
            while !self.has_ended
                && let Some(change) = change(&mut self.child)
            {
                self.report(change);
            }
            if is_ordered {
                match LeaderCommand::read(&mut self.line) {
                    // From its end on its number may be another's.
                    Ok(order) if !self.has_ended => self.obey(order),
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        }
        // A relay that was killed took the terminal with it.
        self.hang_up();
        // The end of a session's leader hangs up on the foreground: that shall not be what the command left running.
        let _ = tcsetpgrp(&self.terminal, getpgrp());
    }

    fn hang_up(&self) {
        let group = pid(&self.child);
        if !self.has_ended {
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
                // By somebody who knows the command and not us; the relay is stopped with it.
                if std::mem::take(&mut self.is_stopped) {
                    let _ = kill(getppid(), Signal::SIGCONT);
                }
                return;
            }
            Change::Ended(ended) => {
                self.has_ended = true;
                match ended {
                    Ended::Exited(code) => Report::Exited(code),
                    Ended::Killed(signal) => Report::Killed(signal),
                }
            }
        };
        let _ = report.write(&mut self.line);
    }

    fn obey(&mut self, order: LeaderCommand) {
        let group = pid(&self.child);
        let front = tcgetpgrp(&self.terminal).ok();
        let known = match order {
            LeaderCommand::Signal(number) => {
                if let Ok(signal) = Signal::try_from(number) {
                    let _ = kill(group, signal);
                }
                return;
            }
            LeaderCommand::Foreground(known) => {
                // A shell that runs inside decides itself who has it.
                if front == Some(getpgrp()) {
                    let _ = tcsetpgrp(&self.terminal, group);
                }
                known
            }
            LeaderCommand::Background(known) => {
                if front == Some(group) {
                    let _ = tcsetpgrp(&self.terminal, getpgrp());
                }
                known
            }
        };
        if self.is_stopped && known == self.stops {
            self.is_stopped = false;
            let _ = killpg(group, Signal::SIGCONT);
        }
    }
}
