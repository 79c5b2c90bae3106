//! The identity of a running process: its PID and its start time.

use std::fs;

use crate::model::process::ProcessKey;
use crate::model::units::{Pid, StartTicks};

/// Returns the identity of a process that has not been reaped. Returns `None` without /proc.
pub(super) fn identity(pid: u32) -> Option<ProcessKey> {
    Some(ProcessKey {
        pid: Pid(pid),
        start: start_time(pid)?,
    })
}

/// Returns the start time in the clock ticks of the kernel.
pub(super) fn start_time(pid: u32) -> Option<StartTicks> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain any character, so count fields after its closing parenthesis: the start time is the
    // twentieth.
    let after_name = stat.rsplit(|byte| *byte == b')').next()?;
    let fields = std::str::from_utf8(after_name).ok()?;
    let ticks = fields.split_whitespace().nth(19)?;
    ticks.parse().ok().map(StartTicks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_agrees_with_the_procfs_crate() {
        let theirs = procfs::process::Process::myself().and_then(|process| process.stat());
        let ours = identity(std::process::id()).expect("it runs");
        assert_eq!(ours.start.0, theirs.expect("stat").starttime);
        assert_eq!(identity(u32::MAX), None);
    }
}
