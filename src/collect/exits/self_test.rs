//! What this kernel tells of the end of a process, tried out on a child.

use std::io;
use std::process::{Command, Stdio};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::pidfd_info;
use crate::model::reading::{Missing, Reason};

#[derive(Debug, Clone, PartialEq)]
pub enum ExitSources {
    /// Ends are found by the process table.
    Nothing(Missing),
    /// That it ended; how, only while it is a zombie that this user may trace.
    End,
    Status,
}

/// Starts this program, which says its version, and looks at its end.
pub fn probe() -> ExitSources {
    match try_out() {
        Ok(true) => ExitSources::Status,
        Ok(false) => ExitSources::End,
        Err(error) => ExitSources::Nothing(match error.kind() {
            io::ErrorKind::Unsupported => Missing::new(
                Reason::Unsupported,
                "the kernel is older than 5.3 and has no pidfd",
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
