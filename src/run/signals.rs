//! The signals that are sent to us: taken from their default effect, read one by one, passed on.

use std::os::fd::{AsFd, BorrowedFd};

use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, raise, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::unsafe_calls;

/// All that mean something to a command or to a terminal; the others do to us what they would do to it.
const TAKEN: [Signal; 11] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGTERM,
    Signal::SIGCONT,
    Signal::SIGTSTP,
    Signal::SIGWINCH,
    Signal::SIGCHLD,
];

pub(super) struct Signals {
    fd: SignalFd,
    before: SigSet,
}

/// One that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) signal: Signal,
    /// From a terminal: to its whole foreground group, the command included where it is in it.
    pub(super) by_kernel: bool,
}

impl Signals {
    pub(super) fn take() -> nix::Result<Self> {
        unsafe_calls::keep_ended_children()?;
        let taken: SigSet = TAKEN.into_iter().collect();
        let fd = SignalFd::with_flags(&taken, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&taken), Some(&mut before))?;
        Ok(Self { fd, before })
    }

    /// The signals that were blocked before.
    pub(super) fn before(&self) -> SigSet {
        self.before
    }

    pub(super) fn next(&self) -> Option<Received> {
        let info = self.fd.read_signal().ok()??;
        let number = i32::try_from(info.ssi_signo).ok()?;
        Some(Received {
            signal: Signal::try_from(number).ok()?,
            by_kernel: info.ssi_code == libc::SI_KERNEL,
        })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Stops this process as `signal` does, until it is continued. Returns at once where a stop would have nobody to end
/// it (no shell above): the kernel drops it there.
pub(super) fn stop_by(signal: Signal) {
    let mut one = SigSet::empty();
    one.add(signal);
    let _ = raise(signal);
    let mut before = SigSet::empty();
    let _ = sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&one), Some(&mut before));
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
}
