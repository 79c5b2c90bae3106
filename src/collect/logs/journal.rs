//! Follows the output of a service in systemd's journal.
//!
//! systemd sets `JOURNAL_STREAM` to the socket of the journal (systemd.exec(5)). gputop then runs one `journalctl -f`
//! for the process, which uses no CPU while it waits. Polling would open every journal file each time. Only entries
//! written after `journalctl` started are shown.

use std::io::{self, Read};
use std::process::ChildStdout;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::Settings;
use super::command::{Running, start};
use crate::model::units::Pid;

/// Returns true if the descriptor with this device and inode is connected to the journal.
pub fn is_journal(environ: &[u8], device: u64, inode: u64) -> bool {
    let stream = environ
        .split(|&b| b == 0)
        .find_map(|entry| entry.strip_prefix(b"JOURNAL_STREAM="));
    stream.is_some_and(|stream| stream == format!("{device}:{inode}").as_bytes())
}

/// A running `journalctl`, which is killed on drop.
#[derive(Debug)]
pub struct Journal {
    output: ChildStdout,
    _running: Running,
}

impl Journal {
    /// Follows the process's output from now on.
    pub fn follow(settings: &Settings, pid: Pid) -> io::Result<Self> {
        let process = format!("_PID={pid}");
        let args = ["-f", "-n", "0", "-o", "cat", "-q", "--no-pager", &process];
        Self::of(start(&settings.journalctl, &args)?)
    }

    /// Reads the output of a running program.
    pub fn of(mut running: Running) -> io::Result<Self> {
        let output = running.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        fcntl(&output, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self {
            output,
            _running: running,
        })
    }

    /// Reads the available output, at most `max_bytes`. The rest stays in the pipe.
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
