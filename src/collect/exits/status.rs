//! How a process ended: the wait status, from the two places that tell it to others than the parent.
//!
//! While the process is a zombie, `/proc/PID/stat` shows it to whoever may trace the process, and a 0 to everyone
//! else; once it is collected, the pidfd tells it ([`pidfd_info`](super::pidfd_info)), on kernels that do.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use super::pidfd_info;
use crate::collect::process::stat::{StatBuffer, StatFile};
use crate::model::process::{ProcessKey, RunState};
use crate::model::reading::{Reading, Reason};

const SIGKILL: i32 = nix::libc::SIGKILL;

/// The two parts of a wait status, as [`Exit`](crate::model::event::Exit) holds them.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    pub code: Reading<i32>,
    pub signal: Reading<i32>,
}

impl Status {
    /// `status` as `waitpid(2)` gives it: the signal in the low seven bits, else the exit code above eight.
    pub fn of_wait(status: i32) -> Self {
        match status & 0x7f {
            0 => Self {
                code: (status >> 8 & 0xff).into(),
                signal: Reading::missing(Reason::Unsupported, "no signal ended it"),
            },
            signal => Self {
                code: (128 + signal).into(),
                signal: signal.into(),
            },
        }
    }

    /// The killer sends SIGKILL; an end of which nothing is known may be one.
    pub fn may_be_oom_killed(&self) -> bool {
        match (self.code.get(), self.signal.get()) {
            (_, Some(signal)) => signal == SIGKILL,
            (code, None) => code.is_none(),
        }
    }

    /// `why` is a clause: `only its parent is told`.
    pub fn unknown(reason: Reason, why: &str) -> Self {
        Self {
            code: Reading::missing(reason, why),
            signal: Reading::missing(reason, why),
        }
    }
}

/// What there is of a process whose pidfd says that it has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ExitTrace {
    Told(i32),
    /// Still a zombie, whose status this user may not read.
    Hidden,
    /// Collected, and this kernel does not tell its status.
    Collected,
    /// It has not ended at all.
    Alive,
}

/// Looks at once: the parent may collect it at any moment.
pub fn look(proc_root: &Path, key: ProcessKey, pidfd: impl AsFd) -> ExitTrace {
    let shown = zombie(proc_root, key).unwrap_or(ExitTrace::Collected);
    // Start times are in hundredths of a second: another process may have its PID and its start. While this one is not
    // collected the PID is its own.
    let remains = match is_collected(&pidfd) {
        true => ExitTrace::Collected,
        false => shown,
    };
    match remains {
        ExitTrace::Told(_) | ExitTrace::Alive => remains,
        ExitTrace::Hidden | ExitTrace::Collected => {
            pidfd_info::wait_status(pidfd).map_or(remains, ExitTrace::Told)
        }
    }
}

/// The kernel shows the PID of what a pidfd is bound to, and -1 once that was collected.
fn is_collected(pidfd: impl AsFd) -> bool {
    let path = format!("/proc/self/fdinfo/{}", pidfd.as_fd().as_raw_fd());
    let info = std::fs::read_to_string(path).unwrap_or_default();
    let mut pids = info.lines().filter_map(|line| line.strip_prefix("Pid:"));
    pids.any(|pid| pid.trim() == "-1")
}

fn zombie(proc_root: &Path, key: ProcessKey) -> io::Result<ExitTrace> {
    let folder = proc_root.join(key.pid.to_string());
    let file = StatFile::open(&folder.join("stat"))?;
    // Before the status: both are refused by the same check of the kernel's, which shows a 0 in the one and says so
    // in the other.
    let may_know = may_trace(&folder);
    let mut buffer = StatBuffer::new();
    let stat = file.read(&mut buffer)?;
    if stat.start != key.start {
        return Ok(ExitTrace::Collected);
    }
    if stat.state != RunState::Zombie {
        return Ok(ExitTrace::Alive);
    }
    // A 0 may be the refusal; anything else is no 0 that was put in its place.
    let is_told = stat.wait_status != 0 || may_know;
    Ok(if is_told {
        ExitTrace::Told(stat.wait_status)
    } else {
        ExitTrace::Hidden
    })
}

/// Whether the kernel shows this user what it shows only to those who may trace (PTRACE_MODE_READ).
fn may_trace(folder: &Path) -> bool {
    let read = || File::open(folder.join("io"))?.read(&mut [0]);
    read().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_status_is_taken_apart_as_the_shell_does() {
        let parts = |wait| {
            let status = Status::of_wait(wait);
            (status.code.get(), status.signal.get())
        };
        assert_eq!(parts(0), (Some(0), None));
        assert_eq!(parts(7 << 8), (Some(7), None));
        assert_eq!(parts(255 << 8), (Some(255), None));
        assert_eq!(parts(9), (Some(137), Some(9)));
        // With a core dump.
        assert_eq!(parts(0x80 | 11), (Some(139), Some(11)));
    }
}
