//! Starts the command of `gputop run` and reports its state changes and exit status.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use gputop_model::process::ProcessKey;
use gputop_model::stat_line::Stat;
use gputop_model::text::visible;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use thiserror::Error;

use super::pipes::PipedStreams;
use super::signals::Signals;
use super::terminal::Streams;
use super::unsafe_calls::{self, Inheritance};

/// Program and arguments of the command, as typed after `gputop run`.
#[derive(Debug, Clone)]
pub struct CommandLine {
    pub program: OsString,
    pub args: Vec<OsString>,
    /// Variables added to the inherited environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Standard streams that were closed when gputop was started, and that the command must inherit closed.
    pub closed_streams: Vec<RawFd>,
    /// True if gputop was started with SIGPIPE ignored.
    pub ignores_sigpipe: bool,
}

/// Shells with job control.
const SHELLS: &[&str] =
    &["ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "xonsh", "zsh"];

/// Reason why a command could not be started: the message and the exit code that a shell would use.
#[derive(Debug, Error)]
pub enum NotStarted {
    #[error("{0}: command not found")]
    NotFound(String),
    #[error("{0}: no such file")]
    NoSuchFile(String),
    #[error("{0}: the interpreter named in its first line was not found")]
    NoInterpreter(String),
    #[error("{0}: is a directory")]
    Directory(String),
    #[error("{0}: permission denied")]
    NotExecutable(String),
    #[error("{0}: {1}")]
    Other(String, io::Error),
}

impl NotStarted {
    pub fn code(&self) -> u8 {
        match self {
            Self::NotFound(_) | Self::NoSuchFile(_) | Self::NoInterpreter(_) => 127,
            Self::Directory(_) | Self::NotExecutable(_) | Self::Other(..) => 126,
        }
    }
}

impl CommandLine {
    /// Returns the file name of the program, escaped for display.
    pub(super) fn name(&self) -> String {
        let path = Path::new(&self.program);
        let name = path.file_name().unwrap_or(&self.program);
        visible(name.as_encoded_bytes(), 60)
    }

    /// Returns true if the command is a shell that reads commands from the terminal: with `-i`, or without a script.
    pub(super) fn is_interactive_shell(&self) -> bool {
        let name = Path::new(&self.program).file_name().and_then(|name| name.to_str());
        let args = self.args.iter().map(|arg| arg.to_str().unwrap_or_default());
        let options: Vec<&str> = args.take_while(|arg| arg.starts_with(['-', '+'])).collect();
        let has = |letter: char| {
            let mut short = options.iter().filter(|option| !option.starts_with("--"));
            short.any(|option| option.starts_with('-') && option.contains(letter))
        };
        let is_script = options.len() < self.args.len() || has('c');
        name.is_some_and(|name| SHELLS.contains(&name)) && (has('i') || !is_script)
    }

    /// Starts the command in gputop's process group or, if that fails, replaces gputop with the command. Output streams
    /// that are terminals are replaced with the pty's slave end. Those that are pipes are replaced with gputop's pipes.
    /// If `is_session` is set, the slave end also replaces the input, and controls a new session.
    pub(super) fn spawn(
        &self,
        streams: &Streams,
        slave: Option<&File>,
        is_session: bool,
        pipes: &PipedStreams,
        signals: &Signals,
    ) -> Result<ChildCommand, NotStarted> {
        let mut command = self.command();
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(slave) = slave {
            let stdio = || slave.try_clone().map_err(|error| self.failed(&error));
            if is_session {
                command.stdin(stdio()?);
                unsafe_calls::start_session(&mut command);
            }
            if streams.replaces(1) {
                command.stdout(stdio()?);
            }
            if streams.replaces(2) {
                command.stderr(stdio()?);
            }
        }
        if let Some(pipe) = pipes.stdio(1) {
            command.stdout(pipe);
        }
        if let Some(pipe) = pipes.stdio(2) {
            command.stderr(pipe);
        }
        unsafe_calls::before_exec(&mut command, self.inheritance(Some(signals)), true);
        let child = signals.while_starting(|| command.spawn());
        let child = child.map_err(|_| self.exec(Some(signals)))?;
        Ok(ChildCommand { process: identity(child.id()), child, is_stopped: false })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        command
    }

    /// Replaces gputop with the command, which then runs without gputop. Returns only if the exec fails.
    pub(super) fn exec(&self, signals: Option<&Signals>) -> NotStarted {
        let mut command = self.command();
        unsafe_calls::before_exec(&mut command, self.inheritance(signals), false);
        self.failed(&command.exec())
    }

    fn inheritance(&self, signals: Option<&Signals>) -> Inheritance {
        let ignores_sigchld = signals.is_some_and(Signals::ignores_sigchld);
        let ignored = [(Signal::SIGPIPE, self.ignores_sigpipe), (Signal::SIGCHLD, ignores_sigchld)];
        Inheritance {
            mask: signals.map(Signals::inherited_mask),
            ignored: ignored
                .into_iter()
                .filter(|(_, is_ignored)| *is_ignored)
                .map(|(s, _)| s)
                .collect(),
            closed_streams: self.closed_streams.clone(),
        }
    }

    fn failed(&self, error: &io::Error) -> NotStarted {
        let name = visible(self.program.as_encoded_bytes(), 200);
        let path = Path::new(&self.program);
        let is_path = self.program.as_encoded_bytes().contains(&b'/');
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOENT) if is_path && path.exists() => NotStarted::NoInterpreter(name),
            Some(Errno::ENOENT | Errno::ENOTDIR) if is_path => NotStarted::NoSuchFile(name),
            Some(Errno::ENOENT | Errno::ENOTDIR) => NotStarted::NotFound(name),
            Some(Errno::EACCES) if is_path && path.is_dir() => NotStarted::Directory(name),
            Some(Errno::EACCES | Errno::EPERM) => NotStarted::NotExecutable(name),
            Some(errno) => NotStarted::Other(name, errno.into()),
            None => NotStarted::Other(name, io::Error::new(error.kind(), error.to_string())),
        }
    }
}

pub(super) struct ChildCommand {
    child: Child,
    is_stopped: bool,
    /// Identity of the command's process. `None` if /proc could not be read.
    pub(super) process: Option<ProcessKey>,
}

/// A state change of the command that the relay must handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StateChange {
    Stopped(Signal),
    Exited(ExitOutcome),
}

impl ChildCommand {
    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Sends a signal to the command. Ignores errors: if gputop is not permitted to signal the process (for example, a
    /// setuid program), neither is the user.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = kill(self.pid(), signal);
    }

    pub(super) fn resume(&mut self) {
        if std::mem::take(&mut self.is_stopped) {
            self.signal(Signal::SIGCONT);
        }
    }

    /// Returns the command's next state change. After SIGCHLD, must be called repeatedly until it returns `None`.
    pub(super) fn next_change(&mut self) -> Option<StateChange> {
        let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WCONTINUED | WaitPidFlag::WNOHANG;
        loop {
            match waitid(Id::Pid(self.pid()), flags) {
                Ok(WaitStatus::Stopped(_, signal)) => {
                    self.is_stopped = true;
                    return Some(StateChange::Stopped(signal));
                }
                Ok(WaitStatus::Continued(_)) => self.is_stopped = false,
                _ => {
                    let status = self.child.try_wait().ok().flatten()?;
                    return Some(StateChange::Exited(ExitOutcome::of(status)));
                }
            }
        }
    }
}

/// Returns the identity of an unreaped process, or `None` if /proc cannot be read.
pub(super) fn identity(pid: u32) -> Option<ProcessKey> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let Stat { pid, start, .. } = Stat::parse(&stat)?;
    Some(ProcessKey { pid, start })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitOutcome {
    Exited(i32),
    /// Killed by the signal with this number. It is stored as a number because real-time signals have no name.
    Killed(i32),
}

impl ExitOutcome {
    /// Returns the exit code that a shell would report: 128 plus the signal number if a signal killed the command.
    pub fn code(self) -> u8 {
        let code = match self {
            Self::Exited(code) => code,
            Self::Killed(signal) => 128 + signal,
        };
        u8::try_from(code & 0xff).unwrap_or(u8::MAX)
    }

    pub fn is_failure(self) -> bool {
        self != Self::Exited(0)
    }

    /// Returns true for signal 9, even if an intermediate shell reported it as exit code 137.
    pub(super) fn is_sigkill(self) -> bool {
        let kill = Signal::SIGKILL as i32;
        self == Self::Killed(kill) || self == Self::Exited(128 + kill)
    }

    fn of(status: ExitStatus) -> Self {
        match status.signal() {
            Some(signal) => Self::Killed(signal),
            None => Self::Exited(status.code().unwrap_or_default()),
        }
    }
}

impl std::fmt::Display for ExitOutcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exit {code}"),
            Self::Killed(signal) => match Signal::try_from(*signal) {
                Ok(signal) => write!(f, "{signal}"),
                Err(_) => write!(f, "signal {signal}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_without_a_script_is_interactive() {
        for (line, is_interactive) in [
            ("bash", true),
            ("/bin/bash --norc -i", true),
            ("zsh -il", true),
            ("sh -x", true),
            ("bash -ic 'exit 1'", true),
            ("bash -c exit", false),
            ("sh -xc exit", false),
            ("bash train.sh -i", false),
            ("python -i", false),
        ] {
            let mut words = line.split(' ').map(OsString::from);
            let command = CommandLine {
                program: words.next().unwrap_or_default(),
                args: words.collect(),
                environment: Vec::new(),
                closed_streams: Vec::new(),
                ignores_sigpipe: false,
            };
            assert_eq!(command.is_interactive_shell(), is_interactive, "{line}");
        }
    }

    #[test]
    fn exit_codes_match_those_of_a_shell() {
        for (ended, code, is_sigkill) in [
            (ExitOutcome::Exited(0), 0, false),
            (ExitOutcome::Exited(255), 255, false),
            (ExitOutcome::Exited(137), 137, true),
            (ExitOutcome::Killed(9), 137, true),
            (ExitOutcome::Killed(15), 143, false),
        ] {
            assert_eq!((ended.code(), ended.is_sigkill()), (code, is_sigkill));
        }
    }
}
