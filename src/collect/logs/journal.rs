//! Follows a service's output in systemd's journal.
//!
//! systemd sets `JOURNAL_STREAM` to the socket of the journal (systemd.exec(5)). For such a process, gputop runs one
//! `journalctl -f`, which uses no CPU while it waits. Polling the journal instead would open every journal file each
//! time. It is told a time rather than to show new entries only, because the process may fail before `journalctl` is ready.

use std::io::{self, Read};
use std::process::ChildStdout;
use std::time::SystemTime;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::command::{Running, start};
use crate::collect::logs::settings::Settings;
use crate::model::units::Pid;

/// Returns true if the socket with this device and inode is connected to the journal.
pub fn is_journal(environ: &[u8], device: u64, inode: u64) -> bool {
    let stream =
        environ.split(|&b| b == 0).find_map(|entry| entry.strip_prefix(b"JOURNAL_STREAM="));
    stream.is_some_and(|stream| stream == format!("{device}:{inode}").as_bytes())
}

/// Running `journalctl`, which is killed on drop.
#[derive(Debug)]
pub struct Journal {
    output: ChildStdout,
    _running: Running,
}

impl Journal {
    /// Starts to follow the output of the process since a time, which is rounded down to a second.
    pub fn follow(settings: &Settings, pid: Pid, since: SystemTime) -> io::Result<Self> {
        let since = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let since = format!("--since=@{}", since.as_secs());
        let process = format!("_PID={pid}");
        let args = ["-f", "-n", "all", &since, "-o", "cat", "-q", "--no-pager", &process];
        Self::of(start(&settings.journalctl, &args)?)
    }

    /// Reads the journal from the output of a running program.
    pub fn of(mut running: Running) -> io::Result<Self> {
        let output = running.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        fcntl(&output, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self { output, _running: running })
    }

    /// Reads the available output, at most `max_bytes`. Further output stays in the pipe.
    pub fn read(&mut self, buffer: &mut Vec<u8>, max_bytes: usize) {
        let mut chunk = [0; 16 << 10];
        while buffer.len() < max_bytes {
            let room = chunk.len().min(max_bytes - buffer.len());
            match self.output.read(&mut chunk[..room]) {
                Ok(n @ 1..) => buffer.extend_from_slice(&chunk[..n]),
                _ => return,
            }
        }
    }
}
