//! Sends a signal to the process that was meant, or to none.
//!
//! A PID alone would be a race: between the moment a person reads it and the moment of `kill(2)` it may have gone to
//! another process. So first a descriptor is bound to whoever has the PID now, then the start time under /proc is
//! compared, and only then the signal goes through the descriptor. The order matters: a start time that is right
//! *after* the descriptor was made says that the PID had not changed hands before.

use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal as Number, getpid, pidfd_open, pidfd_send_signal};

use super::access::Access;
use super::stat::{StatBuffer, StatFile};
use crate::model::process::{ProcessKey, RunState};
use crate::model::reading::{Missing, Reason};
use crate::model::signal::Signal;
use crate::model::units::StartTicks;

/// # Errors
/// With why the signal was not delivered: denied, gone, or not to be sent at all.
pub fn send(proc_root: &Path, key: ProcessKey, signal: Signal) -> Result<(), Missing> {
    if key.start == StartTicks(0) {
        return Err(refused(
            "nothing tells it from another process with the same PID",
        ));
    }
    let pid = i32::try_from(key.pid.0).ok().and_then(Pid::from_raw);
    let Some(pid) = pid.filter(|pid| *pid != Pid::INIT) else {
        return Err(refused("the first process is never signalled from here"));
    };
    if pid == getpid() {
        return Err(refused("it is gputop itself"));
    }
    let Some(number) = Number::from_named_raw(signal.def().number) else {
        return Err(refused("the system has no such signal"));
    };
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|e| why(e, key, signal))?;
    is_still(proc_root, key)?;
    pidfd_send_signal(process, number).map_err(|e| why(e, key, signal))
}

fn is_still(proc_root: &Path, key: ProcessKey) -> Result<(), Missing> {
    let read = || -> io::Result<(StartTicks, RunState)> {
        let file = StatFile::open(&proc_root.join(key.pid.to_string()).join("stat"))?;
        let mut buffer = StatBuffer::new();
        let stat = file.read(&mut buffer)?;
        Ok((stat.start, stat.state))
    };
    match read() {
        Ok((start, _)) if start != key.start => Err(Missing::new(
            Reason::Gone,
            "it has ended, and its PID belongs to another process now",
        )),
        Ok((_, RunState::Zombie)) => Err(Missing::new(
            Reason::Gone,
            "it has ended already, and waits for its parent to collect it",
        )),
        Ok(_) => Ok(()),
        Err(error) => Err(Access::new(proc_root).missing("the start time", &error)),
    }
}

fn why(error: Errno, key: ProcessKey, signal: Signal) -> Missing {
    match error {
        Errno::SRCH => Missing::new(Reason::Gone, "it has ended"),
        Errno::PERM => Missing::new(
            Reason::Denied,
            format!(
                "it is another user's; sudo kill -{} {}",
                signal.name(),
                key.pid
            ),
        ),
        Errno::NOSYS => refused("the kernel is older than 5.3 and cannot tell PIDs apart for ever"),
        error => Missing::new(Reason::Unknown, error.to_string()),
    }
}

fn refused(why: &'static str) -> Missing {
    Missing::new(Reason::Unsupported, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, Stdio};

    fn waiting() -> Child {
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command.spawn().expect("cat")
    }

    fn key(child: &Child) -> ProcessKey {
        let file = StatFile::open(Path::new(&format!("/proc/{}/stat", child.id())));
        let mut buffer = StatBuffer::new();
        let file = file.expect("stat");
        let stat = file.read(&mut buffer).expect("stat");
        ProcessKey {
            pid: crate::model::units::Pid(child.id()),
            start: stat.start,
        }
    }

    #[test]
    fn the_process_that_was_meant_gets_it() {
        let mut child = waiting();
        assert_eq!(send(Path::new("/proc"), key(&child), Signal::Usr2), Ok(()));
        assert_eq!(child.wait().expect("ended").signal(), Some(12));
    }

    #[test]
    fn another_one_with_its_pid_is_never_hit() {
        let mut child = waiting();
        let mut earlier = key(&child);
        earlier.start.0 -= 1;
        let missing = send(Path::new("/proc"), earlier, Signal::Kill).expect_err("not sent");
        assert_eq!(missing.reason, Reason::Gone);
        assert!(missing.to_string().contains("belongs to another process"));
        // It lives until its input ends.
        drop(child.stdin.take());
        assert_eq!(child.wait().expect("ended").code(), Some(0));
    }

    #[test]
    fn one_that_has_ended_is_gone_collected_or_not() {
        let mut child = waiting();
        let key = key(&child);
        child.kill().expect("killed");
        let outcome = |key| send(Path::new("/proc"), key, Signal::Term).map_err(|m| m.reason);
        while outcome(key) == Ok(()) {
            std::thread::yield_now();
        }
        assert_eq!(outcome(key), Err(Reason::Gone), "a zombie");
        child.wait().expect("collected");
        assert_eq!(outcome(key), Err(Reason::Gone));
    }

    #[test]
    fn the_first_process_oneself_and_the_unknown_are_refused() {
        let of = |pid, start| ProcessKey {
            pid: crate::model::units::Pid(pid),
            start: StartTicks(start),
        };
        for key in [
            of(1, 1),
            of(0, 1),
            of(std::process::id(), 1),
            of(418, 0),
            of(u32::MAX, 1),
        ] {
            let missing = send(Path::new("/proc"), key, Signal::Kill).expect_err("refused");
            assert_eq!(missing.reason, Reason::Unsupported, "{key:?}");
        }
    }
}
