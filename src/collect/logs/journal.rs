//! Follows the output that a service writes to systemd's journal.
//!
//! systemd sets `JOURNAL_STREAM` to the socket of the journal (systemd.exec(5)). gputop then runs one `journalctl -f` for
//! the process, which costs nothing while it waits; polling would open every file of the journal each time. It shows only
//! entries that were written after it started.

use std::io::{self, Read};
use std::process::ChildStdout;

use super::Settings;
use super::command::start;
use super::piped_log::{Mailbox, PipedLog};
use crate::model::units::Pid;

/// Returns true if the descriptor with this device and inode leads to the journal.
pub fn is_journal(environ: &[u8], device: u64, inode: u64) -> bool {
    let stream = environ
        .split(|&b| b == 0)
        .find_map(|entry| entry.strip_prefix(b"JOURNAL_STREAM="));
    stream.is_some_and(|stream| stream == format!("{device}:{inode}").as_bytes())
}

/// Follows what the process writes from now on. `on_text` is called on another thread whenever there is new text.
pub fn follow(
    settings: &Settings,
    pid: Pid,
    on_text: impl Fn() + Send + 'static,
) -> io::Result<PipedLog> {
    let process = format!("_PID={pid}");
    let args = ["-f", "-n", "0", "-o", "cat", "-q", "--no-pager", &process];
    let mut running = start(&settings.journalctl, &args)?;
    let output = running.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let (log, mailbox) = PipedLog::new(Some(running));
    std::thread::Builder::new()
        .name("journal".into())
        .spawn(move || deliver(output, &mailbox, on_text))?;
    Ok(log)
}

fn deliver(mut output: ChildStdout, mailbox: &Mailbox, on_text: impl Fn()) {
    let mut chunk = vec![0; 16 << 10];
    while let Ok(n @ 1..) = output.read(&mut chunk) {
        if mailbox.put(&chunk[..n]).is_err() {
            return;
        }
        on_text();
    }
}
