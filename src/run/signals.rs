//! Signals sent to gputop. They are blocked, read from a descriptor and forwarded to the command.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, raise, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::unsafe_calls;

/// Signals relevant to a command or a terminal. All others have their default effect on gputop, as they would on the
/// command.
const HANDLED_SIGNALS: [Signal; 11] = [
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

/// Signals that a terminal sends to its foreground group. They are not blocked while the command is started.
const TERMINAL_SIGNALS: [Signal; 3] = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTSTP];

pub(super) struct Signals {
    fd: SignalFd,
    inherited_mask: SigSet,
    ignores_sigchld: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) signal: Signal,
    /// True if the terminal sent the signal. In that case its whole foreground group received the signal, including the
    /// command if it is in that group.
    pub(super) by_kernel: bool,
}

impl Received {
    /// Returns true if this signal makes gputop stop waiting for the reader of the command's output. Applies only after
    /// the command has exited.
    pub(super) fn ends_the_wait(self) -> bool {
        ![Signal::SIGCHLD, Signal::SIGWINCH, Signal::SIGCONT].contains(&self.signal)
    }
}

impl Signals {
    pub(super) fn block() -> nix::Result<Self> {
        let ignores_sigchld = unsafe_calls::restore_sigchld_default()?;
        let handled: SigSet = HANDLED_SIGNALS.into_iter().collect();
        let fd = SignalFd::with_flags(&handled, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let mut inherited_mask = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&handled), Some(&mut inherited_mask))?;
        Ok(Self { fd, inherited_mask, ignores_sigchld })
    }

    /// Starts the command with `start`. Meanwhile, signals of the terminal take their default effect on gputop. Otherwise
    /// a Ctrl-Z or Ctrl-C would be lost: before the fork, the command does not receive it, and gputop forwards no signal
    /// that its group received. A command that is stopped before its exec also requires that gputop stops, because gputop
    /// waits for the exec.
    pub(super) fn while_starting<T>(&self, start: impl FnOnce() -> T) -> T {
        let mut before = SigSet::empty();
        let terminal: SigSet = TERMINAL_SIGNALS.into_iter().collect();
        // A signal that was blocked when gputop started stays blocked, as it would for the command.
        let unblocked =
            terminal.iter().filter(|signal| !self.inherited_mask.contains(*signal)).collect();
        let _ = sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&unblocked), Some(&mut before));
        let result = start();
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
        result
    }

    /// Returns the signals that were blocked when gputop started.
    pub(super) fn inherited_mask(&self) -> SigSet {
        self.inherited_mask
    }

    /// Returns true if gputop was started with SIGCHLD ignored.
    pub(super) fn ignores_sigchld(&self) -> bool {
        self.ignores_sigchld
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

/// Raises `signal` to stop this process, and returns once the process is continued. Returns immediately if no shell
/// could continue the process, because the kernel then discards the signal.
pub(super) fn stop_by(signal: Signal) {
    let mut one = SigSet::empty();
    one.add(signal);
    let _ = raise(signal);
    let mut inherited_mask = SigSet::empty();
    let _ = sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&one), Some(&mut inherited_mask));
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&inherited_mask), None);
}

const TERMINATION_SIGNALS: [Signal; 4] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
/// Maximum delay before the signal thread notices that the work is done.
const POLL_INTERVAL_MS: u8 = 20;

/// Runs `work` with a flag that becomes true when a signal requests termination. Called after the command has exited.
/// Termination signals stay blocked, because gputop must exit with the command's exit code.
pub fn run_until_cancelled<T>(work: impl FnOnce(&Arc<AtomicBool>) -> T) -> T {
    let is_cancelled = Arc::new(AtomicBool::new(false));
    let Some(signals) = termination_signals() else { return work(&is_cancelled) };
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = || {
            while !is_done.load(Ordering::Relaxed) && !is_cancelled.load(Ordering::Relaxed) {
                let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
                let _ = poll(&mut fds, PollTimeout::from(POLL_INTERVAL_MS));
                if signals.read_signal().is_ok_and(|signal| signal.is_some()) {
                    is_cancelled.store(true, Ordering::Relaxed);
                }
            }
        };
        // If the thread cannot be started, `work` cannot be cancelled, but its own time limit still applies.
        let _ = thread::Builder::new().spawn_scoped(scope, watch);
        let result = work(&is_cancelled);
        is_done.store(true, Ordering::Relaxed);
        result
    })
}

/// Opens a descriptor for termination signals. Discards pending signals, because they were meant for the command.
fn termination_signals() -> Option<SignalFd> {
    let set: SigSet = TERMINATION_SIGNALS.into_iter().collect();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), None).ok()?;
    let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
    let signals = SignalFd::with_flags(&set, flags).ok()?;
    while signals.read_signal().ok()?.is_some() {}
    Some(signals)
}
