//! Which process a PID is now: with the time it began it is named for ever.

use std::fs;

use crate::model::process::ProcessKey;
use crate::model::units::{Pid, StartTicks};

/// Of a process that nobody can have collected since. `None` without /proc.
pub(super) fn identity(pid: u32) -> Option<ProcessKey> {
    Some(ProcessKey {
        pid: Pid(pid),
        start: began(pid)?,
    })
}

/// When it began, as the kernel counts it.
pub(super) fn began(pid: u32) -> Option<StartTicks> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, so count from its closing bracket: the twentieth field after it.
    let behind = stat.rsplit(|byte| *byte == b')').next()?;
    let fields = std::str::from_utf8(behind).ok()?;
    let ticks = fields.split_whitespace().nth(19)?;
    ticks.parse().ok().map(StartTicks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_began_when_the_procfs_crate_says() {
        let theirs = procfs::process::Process::myself().and_then(|process| process.stat());
        let ours = identity(std::process::id()).expect("it runs");
        assert_eq!(ours.start.0, theirs.expect("stat").starttime);
        assert_eq!(identity(u32::MAX), None);
    }
}
