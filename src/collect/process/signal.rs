//! Sends a signal to exactly the intended process.
//!
//! A PID alone is subject to a race: after a user reads it and before `kill(2)` is called, another process may get the
//! same PID. This code therefore opens a pidfd for the PID, then compares the start time in /proc, and only then sends
//! the signal through the pidfd. The order matters: a start time that matches *after* the pidfd was opened proves that
//! the pidfd refers to the intended process.

use std::io;
use std::path::Path;

use gputop_model::{Missing, ProcessKey, Reason, RunState, Signal, StartTicks};
use gputop_peek::process::access::Access;
use gputop_peek::process::stat::{StatBuffer, StatFile};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal as Number, getpid, pidfd_open, pidfd_send_signal};

pub fn send(proc_root: &Path, key: ProcessKey, signal: Signal) -> Result<(), Missing> {
    if key.start == StartTicks(0) {
        return Err(rejected(
            "its start time is unknown, so its PID may belong to another process",
        ));
    }
    let pid = i32::try_from(key.pid.0).ok().and_then(Pid::from_raw);
    let Some(pid) = pid.filter(|pid| *pid != Pid::INIT) else {
        return Err(rejected("gputop does not send signals to PID 1"));
    };
    if pid == getpid() {
        return Err(rejected("the PID is gputop's own process"));
    }
    let Some(number) = Number::from_named_raw(signal.def().number) else {
        return Err(rejected("the system does not support this signal"));
    };
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|e| reason(e, key, signal))?;
    check_start_time(proc_root, key)?;
    pidfd_send_signal(process, number).map_err(|e| reason(e, key, signal))
}

fn check_start_time(proc_root: &Path, key: ProcessKey) -> Result<(), Missing> {
    let read = || -> io::Result<(StartTicks, RunState)> {
        let file = StatFile::of(proc_root, key.pid)?;
        let mut buffer = StatBuffer::default();
        let stat = file.read(&mut buffer)?;
        Ok((stat.start, stat.state))
    };
    match read() {
        Ok((start, _)) if start != key.start => Err(Missing::new(
            Reason::Gone,
            "it has exited, and its PID now belongs to another process",
        )),
        Ok((_, RunState::Zombie)) => {
            Err(Missing::new(Reason::Gone, "it has already exited and is a zombie"))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(Access::new(proc_root).missing("the start time", &error)),
    }
}

fn reason(error: Errno, key: ProcessKey, signal: Signal) -> Missing {
    match error {
        Errno::SRCH => Missing::new(Reason::Gone, "it has exited"),
        Errno::PERM => Missing::new(
            Reason::Denied,
            format!("it belongs to another user. Run sudo kill -{} {}", signal.name(), key.pid),
        ),
        Errno::NOSYS => rejected("sending a signal safely requires Linux 5.3 or later (pidfd)"),
        error => Missing::new(Reason::Unknown, error.to_string()),
    }
}

fn rejected(why: &'static str) -> Missing {
    Missing::new(Reason::Unsupported, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_peek::process::stat::start_time;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, Stdio};

    fn waiting() -> Child {
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command.spawn().expect("cat")
    }

    fn key(child: &Child) -> ProcessKey {
        let pid = gputop_model::units::Pid(child.id());
        let start = start_time(Path::new("/proc"), pid).expect("stat");
        ProcessKey { pid, start }
    }

    #[test]
    fn signals_the_intended_process() {
        let mut child = waiting();
        assert_eq!(send(Path::new("/proc"), key(&child), Signal::Usr2), Ok(()));
        assert_eq!(child.wait().expect("exited").signal(), Some(12));
    }

    #[test]
    fn does_not_signal_another_process_with_the_same_pid() {
        let mut child = waiting();
        let mut earlier = key(&child);
        earlier.start.0 -= 1;
        let missing = send(Path::new("/proc"), earlier, Signal::Kill).expect_err("not sent");
        assert_eq!(missing.reason, Reason::Gone);
        assert!(missing.to_string().contains("belongs to another process"));
        // `cat` runs until its input is closed.
        drop(child.stdin.take());
        assert_eq!(child.wait().expect("exited").code(), Some(0));
    }

    #[test]
    fn zombie_and_reaped_process_are_gone() {
        let mut child = waiting();
        let key = key(&child);
        child.kill().expect("killed");
        let outcome = |key| send(Path::new("/proc"), key, Signal::Term).map_err(|m| m.reason);
        while outcome(key) == Ok(()) {
            std::thread::yield_now();
        }
        assert_eq!(outcome(key), Err(Reason::Gone), "a zombie");
        child.wait().expect("reaped");
        assert_eq!(outcome(key), Err(Reason::Gone));
    }

    #[test]
    fn rejects_pid_1_own_process_and_unknown_start_time() {
        let of = |pid, start| ProcessKey::new(pid, start);
        for key in [of(1, 1), of(0, 1), of(std::process::id(), 1), of(418, 0), of(u32::MAX, 1)] {
            let missing = send(Path::new("/proc"), key, Signal::Kill).expect_err("rejected");
            assert_eq!(missing.reason, Reason::Unsupported, "{key:?}");
        }
    }
}
