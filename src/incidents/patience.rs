//! Waiting for a file system only so long: a home on a server that is away hangs every call that names it. A limit on
//! the size of files is an error there, and no signal.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::files::survive_file_limits;

/// What `work` returns, on a thread of its own; `None` where it took longer than `limit` or could not be begun. It goes
/// on in the background then.
pub fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new()
        .name("incidents".into())
        .spawn(move || {
            survive_file_limits();
            sender.send(work())
        })
        .ok()?;
    receiver.recv_timeout(limit).ok()
}
