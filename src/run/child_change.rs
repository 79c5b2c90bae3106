//! State changes of a child process since the last check.

use std::process::Child;

use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::exit::ExitOutcome;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Stopped(Signal),
    Continued,
    Exited(ExitOutcome),
}

pub(super) fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

/// Returns the next state change, or `None` if there was none.
pub(super) fn change(child: &mut Child) -> Option<Change> {
    let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WCONTINUED | WaitPidFlag::WNOHANG;
    match waitid(Id::Pid(pid(child)), flags) {
        Ok(WaitStatus::Stopped(_, signal)) => return Some(Change::Stopped(signal)),
        Ok(WaitStatus::Continued(_)) => return Some(Change::Continued),
        _ => {}
    }
    let status = child.try_wait().ok().flatten()?;
    Some(Change::Exited(ExitOutcome::of(status)))
}
