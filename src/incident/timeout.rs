//! Runs file system work on a separate thread with a timeout, because a home directory on an unreachable server hangs
//! every call that uses it. On that thread, exceeding the file size limit (`ulimit -f`) causes an error instead of
//! SIGXFSZ.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow};

use crate::user_files::survive_file_limits;

/// Runs `work` on a separate thread and returns its result. Returns `None` if no thread could be started, or if `work`
/// takes longer than `limit`; `work` then continues in the background.
///
/// The new thread blocks all signals. Otherwise a signal that the caller has blocked on its own thread would be
/// delivered to the new thread and kill the process.
pub fn with_timeout<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).ok();
    let thread = thread::Builder::new().name("incidents".into()).spawn(move || {
        survive_file_limits();
        sender.send(work())
    });
    if let Some(before) = before {
        let _ = before.thread_set_mask();
    }
    let thread = thread.ok()?;
    let result = receiver.recv_timeout(limit).ok()?;
    // Wait for the thread to exit, so that it is gone before the caller forks.
    let _ = thread.join();
    Some(result)
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::Signal;

    use super::*;

    #[test]
    fn blocks_signals_on_the_worker_and_restores_the_callers_mask() {
        let before = SigSet::thread_get_mask().expect("a mask");
        let mask = with_timeout(Duration::from_secs(60), SigSet::thread_get_mask);
        let mask = mask.expect("in time").expect("a mask");
        assert!(mask.contains(Signal::SIGTERM));
        assert_eq!(SigSet::thread_get_mask().expect("a mask"), before);
    }
}
