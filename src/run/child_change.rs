//! What became of a child since it was last asked about.

use std::process::Child;

use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::exit::Ended;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Stopped(Signal),
    Continued,
    Ended(Ended),
}

pub(super) fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

/// `None` when nothing new is to be told.
pub(super) fn change(child: &mut Child) -> Option<Change> {
    let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WCONTINUED | WaitPidFlag::WNOHANG;
    match waitid(Id::Pid(pid(child)), flags) {
        Ok(WaitStatus::Stopped(_, signal)) => return Some(Change::Stopped(signal)),
        Ok(WaitStatus::Continued(_)) => return Some(Change::Continued),
        _ => {}
    }
    let ended = child.try_wait().ok().flatten()?;
    Some(Change::Ended(Ended::of(ended)))
}
