//! Reads the wait status of a process from the two sources that are readable by processes other than the parent.
//!
//! While the process is a zombie, `/proc/PID/stat` shows the status to users who can trace the process, and 0 to all
//! others. Once the process is reaped, newer kernels report the status through the pidfd
//! ([`pidfd_info`](super::pidfd_info)).

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use gputop_model::{ProcessKey, Reading, Reason, RunState};
use gputop_peek::process::stat::{StatBuffer, StatFile};

use super::pidfd_info;

const SIGKILL: i32 = nix::libc::SIGKILL;

/// Exit code and signal from a wait status, as in an [`Exit`](gputop_model::event::Exit) event.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    pub code: Reading<i32>,
    pub signal: Reading<i32>,
}

impl Status {
    /// Splits a `waitpid(2)` status. Bits 0 to 6 are the signal, and bits 8 to 15 are the exit code.
    pub fn of_wait(status: i32) -> Self {
        match status & 0x7f {
            0 => Self {
                code: (status >> 8 & 0xff).into(),
                signal: Reading::missing(Reason::Unsupported, "it was not killed by a signal"),
            },
            signal => Self { code: (128 + signal).into(), signal: signal.into() },
        }
    }

    /// Returns true if the process was killed by SIGKILL, which the OOM killer sends, or if its status is unknown.
    pub fn may_be_oom_killed(&self) -> bool {
        match (self.code.get(), self.signal.get()) {
            (_, Some(signal)) => signal == SIGKILL,
            (code, None) => code.is_none(),
        }
    }

    /// Returns an unknown status. `why` is a phrase, such as `only the parent process received the exit status`.
    pub fn unknown(reason: Reason, why: &str) -> Self {
        Self { code: Reading::missing(reason, why), signal: Reading::missing(reason, why) }
    }
}

/// Data read about a process whose pidfd signalled an exit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ExitTrace {
    Status(i32),
    /// The process is still a zombie, and this user cannot read its exit status.
    Hidden,
    /// The process was reaped, and this kernel does not report its status.
    Collected,
    /// The process is still running.
    Alive,
}

/// Reads the available data about an exit. Call it immediately, because the parent may reap the process at any time.
pub fn read_trace(proc_root: &Path, key: ProcessKey, pidfd: impl AsFd) -> ExitTrace {
    let shown = zombie(proc_root, key).unwrap_or(ExitTrace::Collected);
    // Ignore the /proc entry if the process was reaped: it may belong to a later process with the same PID and start
    // time, because start times have a resolution of 10 ms. The PID cannot be reused before the process is reaped.
    let trace = if is_collected(&pidfd) { ExitTrace::Collected } else { shown };
    match trace {
        ExitTrace::Status(_) | ExitTrace::Alive => trace,
        ExitTrace::Hidden | ExitTrace::Collected => {
            pidfd_info::wait_status(pidfd).map_or(trace, ExitTrace::Status)
        }
    }
}

/// Returns true if the process was reaped. The kernel then shows PID -1 for the pidfd.
fn is_collected(pidfd: impl AsFd) -> bool {
    let path = format!("/proc/self/fdinfo/{}", pidfd.as_fd().as_raw_fd());
    let info = std::fs::read_to_string(path).unwrap_or_default();
    info.lines().filter_map(|line| line.strip_prefix("Pid:")).any(|pid| pid.trim() == "-1")
}

fn zombie(proc_root: &Path, key: ProcessKey) -> io::Result<ExitTrace> {
    let folder = proc_root.join(key.pid.to_string());
    let file = StatFile::open(&folder.join("stat"))?;
    // Before reading the status, check whether this user may trace the process. The status requires the same
    // permission, but without it the kernel reports status 0 instead of an error.
    let can_trace = can_trace(&folder);
    let mut buffer = StatBuffer::default();
    let stat = file.read(&mut buffer)?;
    if stat.start != key.start {
        return Ok(ExitTrace::Collected);
    }
    if stat.state != RunState::Zombie {
        return Ok(ExitTrace::Alive);
    }
    // Status 0 may mean that access was denied. Any other value is the actual status.
    let is_known = stat.wait_status != 0 || can_trace;
    Ok(if is_known { ExitTrace::Status(stat.wait_status) } else { ExitTrace::Hidden })
}

/// Returns true if this user can trace the process (PTRACE_MODE_READ).
fn can_trace(folder: &Path) -> bool {
    let read = || File::open(folder.join("io"))?.read(&mut [0]);
    read().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_a_wait_status_like_a_shell() {
        let parts = |wait| {
            let status = Status::of_wait(wait);
            (status.code.get(), status.signal.get())
        };
        assert_eq!(parts(0), (Some(0), None));
        assert_eq!(parts(7 << 8), (Some(7), None));
        assert_eq!(parts(255 << 8), (Some(255), None));
        assert_eq!(parts(9), (Some(137), Some(9)));
        // The process was killed by a signal and dumped core.
        assert_eq!(parts(0x80 | 11), (Some(139), Some(11)));
    }
}
