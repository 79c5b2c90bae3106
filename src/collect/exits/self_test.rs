//! Uses a child process to test how much this kernel reports about exits.

use std::io;
use std::process::{Command, Stdio};

use gputop_model::{Missing, Reason};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::pidfd_info;

/// How much the kernel reports about the exit of a process.
#[derive(Debug, Clone, PartialEq)]
pub enum ExitSources {
    /// The kernel reports nothing. Only the process table detects exits.
    Nothing(Missing),
    /// The kernel reports the exit, but shows the status only while the process is a zombie that this user can trace.
    End,
    /// The kernel reports the exit and its status.
    Status,
}

/// Runs `gputop --version` and checks how the kernel reports its exit.
pub fn probe() -> ExitSources {
    match try_out() {
        Ok(true) => ExitSources::Status,
        Ok(false) => ExitSources::End,
        Err(error) => ExitSources::Nothing(match error.kind() {
            io::ErrorKind::Unsupported => Missing::new(
                Reason::Unsupported,
                "the kernel is older than 5.3 and does not support pidfds",
            ),
            _ => Missing::new(Reason::Unknown, error.to_string()),
        }),
    }
}

fn try_out() -> io::Result<bool> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pidfd = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    child.wait()?;
    let pidfd = pidfd.ok_or(io::ErrorKind::InvalidInput)??;
    Ok(pidfd_info::wait_status(pidfd).is_some())
}
