//! Work after the command's end that somebody waits for, and may be tired of waiting for: Ctrl-C, or who ends us.
//!
//! The signals of [`signals`](super::signals) stay blocked when the command has ended, so without this they would wait
//! for the end as well.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};

const ENDING: [Signal; 4] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
];
/// How long the end of the work may go unnoticed.
const LOOK_MS: u8 = 20;

/// Does `work`, which looks at what it is given: it becomes true when a signal asks us to end. The process ends
/// by no signal meanwhile, since its exit code is the command's.
pub fn while_wanted<T>(work: impl FnOnce(&Arc<AtomicBool>) -> T) -> T {
    let is_enough = Arc::new(AtomicBool::new(false));
    let Some(signals) = ending() else {
        return work(&is_enough);
    };
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = || {
            while !is_done.load(Ordering::Relaxed) && !is_enough.load(Ordering::Relaxed) {
                let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
                let _ = poll(&mut fds, PollTimeout::from(LOOK_MS));
                if signals.read_signal().is_ok_and(|signal| signal.is_some()) {
                    is_enough.store(true, Ordering::Relaxed);
                }
            }
        };
        // Without a thread the work has its own limit.
        let _ = thread::Builder::new().spawn_scoped(scope, watch);
        let done = work(&is_enough);
        is_done.store(true, Ordering::Relaxed);
        done
    })
}

/// Without those that came before: they were for the command.
fn ending() -> Option<SignalFd> {
    let set: SigSet = ENDING.into_iter().collect();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), None).ok()?;
    let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
    let signals = SignalFd::with_flags(&set, flags).ok()?;
    while signals.read_signal().ok()?.is_some() {}
    Some(signals)
}
