//! What a service writes into systemd's journal.
//!
//! systemd says in `JOURNAL_STREAM` which socket leads there (systemd.exec(5)). The journal is then followed by one
//! `journalctl -f` for the process, which costs nothing while it waits; asking again every second would open every
//! file of the journal each time. It only shows entries that come after it was started.

use std::io::{self, Read};
use std::process::ChildStdout;

use super::Settings;
use super::command::start;
use super::piped_log::{Fed, Mailbox};
use crate::model::units::Pid;

/// Whether the descriptor with this device and inode is the journal's.
pub fn is_journal(environ: &[u8], device: u64, inode: u64) -> bool {
    let stream = environ
        .split(|&b| b == 0)
        .find_map(|entry| entry.strip_prefix(b"JOURNAL_STREAM="));
    stream.is_some_and(|stream| stream == format!("{device}:{inode}").as_bytes())
}

/// Follows what the process writes from now on. `brought` is called on another thread whenever there is something.
///
/// # Errors
/// When there is no journalctl, or the system gives no process or thread.
pub fn follow(
    settings: &Settings,
    pid: Pid,
    brought: impl Fn() + Send + 'static,
) -> io::Result<Fed> {
    let process = format!("_PID={pid}");
    let args = ["-f", "-n", "0", "-o", "cat", "-q", "--no-pager", &process];
    let mut running = start(&settings.journalctl, &args)?;
    let output = running.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let (fed, mailbox) = Fed::new(Some(running));
    std::thread::Builder::new()
        .name("journal".into())
        .spawn(move || bring(output, &mailbox, brought))?;
    Ok(fed)
}

fn bring(mut output: ChildStdout, mailbox: &Mailbox, brought: impl Fn()) {
    let mut piece = vec![0; 16 << 10];
    while let Ok(n @ 1..) = output.read(&mut piece) {
        if mailbox.put(&piece[..n]).is_err() {
            return;
        }
        brought();
    }
}
