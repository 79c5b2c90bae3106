//! Lets Ctrl-C or a termination signal cancel work that gputop does after the command has exited.
//!
//! The signals in [`signals`](super::signals) stay blocked after the command has exited, so without this they would
//! not interrupt the work.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};

const TERMINATION_SIGNALS: [Signal; 4] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
];
/// Maximum delay until the signal thread notices that the work is done.
const POLL_INTERVAL_MS: u8 = 20;

/// Runs `work` with a flag that becomes true when a signal requests termination. These signals do not end the process
/// meanwhile, because gputop must exit with the exit code of the command.
pub fn run_until_cancelled<T>(work: impl FnOnce(&Arc<AtomicBool>) -> T) -> T {
    let is_cancelled = Arc::new(AtomicBool::new(false));
    let Some(signals) = termination_signals() else {
        return work(&is_cancelled);
    };
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
        // If the thread cannot be started, the work still has its own time limit.
        let _ = thread::Builder::new().spawn_scoped(scope, watch);
        let result = work(&is_cancelled);
        is_done.store(true, Ordering::Relaxed);
        result
    })
}

/// Opens a signal descriptor. Signals that are already pending are discarded: they were meant for the command.
fn termination_signals() -> Option<SignalFd> {
    let set: SigSet = TERMINATION_SIGNALS.into_iter().collect();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), None).ok()?;
    let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
    let signals = SignalFd::with_flags(&set, flags).ok()?;
    while signals.read_signal().ok()?.is_some() {}
    Some(signals)
}
