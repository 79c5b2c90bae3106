//! The command line to run, and the errors of starting it.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

use nix::errno::Errno;
use thiserror::Error;

use super::pty::Slave;
use super::signals::Signals;
use super::streams::Streams;
use super::unsafe_calls;
use crate::model::text::visible;

/// Program and arguments, as typed.
#[derive(Debug, Clone)]
pub struct CommandLine {
    pub program: OsString,
    pub args: Vec<OsString>,
    /// Variables added to the inherited environment.
    pub environment: Vec<(OsString, OsString)>,
}

/// Reason why a command could not be started, worded as a shell would, with the exit code of a shell.
#[derive(Debug, Error)]
pub enum NotStarted {
    #[error("{0}: command not found")]
    NotFound(String),
    #[error("{0}: no such file")]
    NoSuchFile(String),
    #[error("{0}: the interpreter in its first line was not found")]
    NoInterpreter(String),
    #[error("{0}: is a directory")]
    Directory(String),
    #[error("{0}: permission denied")]
    NotExecutable(String),
    #[error("{0}: {1}")]
    Other(String, io::Error),
}

impl NotStarted {
    #[must_use]
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

    /// Returns a command that is ready to spawn. Streams that were the terminal are replaced with the slave of the
    /// pty.
    pub(super) fn prepared(
        &self,
        streams: &Streams,
        slave: Option<&Slave>,
    ) -> Result<Command, NotStarted> {
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let Some(slave) = slave else {
            return Ok(command);
        };
        let stdio = || slave.stdio().map_err(|error| self.failed(&error));
        if streams.replaces(0) {
            command.stdin(stdio()?);
        }
        if streams.replaces(1) {
            command.stdout(stdio()?);
        }
        if streams.replaces(2) {
            command.stderr(stdio()?);
        }
        Ok(command)
    }

    /// Starts the command in the process group of gputop, or replaces gputop with it.
    pub(super) fn spawn(
        &self,
        streams: &Streams,
        slave: Option<&Slave>,
        signals: &Signals,
    ) -> Result<Child, NotStarted> {
        let mut command = self.prepared(streams, slave)?;
        unsafe_calls::before_exec(&mut command, signals.inherited_mask(), None);
        command.spawn().map_err(|_| self.exec(Some(signals)))
    }

    /// Replaces this process with the command, which then runs without gputop. Returns only if that fails too.
    pub(super) fn exec(&self, signals: Option<&Signals>) -> NotStarted {
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        if let Some(signals) = signals {
            unsafe_calls::before_exec(&mut command, signals.inherited_mask(), None);
        }
        self.failed(&command.exec())
    }

    pub(super) fn failed(&self, error: &io::Error) -> NotStarted {
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
