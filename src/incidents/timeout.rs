//! Waiting for a file system only so long: a home on a server that is away hangs every call that names it. A limit on
//! the size of files is an error there, and no signal.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow};

use crate::user_files::survive_file_limits;

/// What `work` returns, on a thread of its own; `None` where it took longer than `limit` or could not be begun. It goes
/// on in the background then.
///
/// That thread takes no signals: one that is sent to the process is for those who wait for signals, and who block it on
/// their own thread would else be ended by it on this one.
pub fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).ok();
    let thread = thread::Builder::new()
        .name("incidents".into())
        .spawn(move || {
            survive_file_limits();
            sender.send(work())
        });
    if let Some(before) = before {
        let _ = before.thread_set_mask();
    }
    let thread = thread.ok()?;
    let result = receiver.recv_timeout(limit).ok()?;
    // All that is left to it is to end: then whoever forks next is alone.
    let _ = thread.join();
    Some(result)
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::Signal;

    use super::*;

    #[test]
    fn the_thread_that_works_takes_no_signal_and_the_one_that_waits_takes_what_it_took() {
        let before = SigSet::thread_get_mask().expect("a mask");
        let at_work = within(Duration::from_secs(60), SigSet::thread_get_mask);
        let at_work = at_work.expect("in time").expect("a mask");
        assert!(at_work.contains(Signal::SIGTERM));
        assert_eq!(SigSet::thread_get_mask().expect("a mask"), before);
    }
}
