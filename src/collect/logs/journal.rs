//! Follows a service's output in systemd's journal.
//!
//! systemd sets `JOURNAL_STREAM` to the socket of the journal (systemd.exec(5)). For such a process, gputop runs one
//! `journalctl -f`, which uses no CPU while it waits. Polling the journal instead would open every journal file each
//! time. It is told a time rather than to show new entries only, because the process may fail before `journalctl` is ready.
//!
//! The journal records the PID of whoever wrote an entry, so the entries of a forked child do not have the PID of the
//! service's process. They have the same control group, which only one service has, and the same user.

use std::io::{self, Read};
use std::process::ChildStdout;
use std::time::SystemTime;

use gputop_model::units::Pid;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::command::{Running, start};
use crate::collect::logs::settings::LogSettings;

/// Returns true if the socket with this device and inode is connected to the journal.
pub fn is_journal(environ: &[u8], device: u64, inode: u64) -> bool {
    let stream =
        environ.split(|&b| b == 0).find_map(|entry| entry.strip_prefix(b"JOURNAL_STREAM="));
    stream.is_some_and(|stream| stream == format!("{device}:{inode}").as_bytes())
}

/// The processes whose entries are read. Processes of one service share a journal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum JournalWriters {
    Process(Pid),
    /// All processes of a user in a control group.
    Service {
        cgroup: String,
        user: u32,
    },
}

impl JournalWriters {
    /// Finds the service of a process from the content of `/proc/PID/cgroup`. The journal records the path in the
    /// unified hierarchy or, with version 1, in systemd's own.
    pub fn of(pid: Pid, user: u32, cgroup: &str) -> Self {
        let path_of = |line| {
            let mut parts = str::splitn(line, 3, ':');
            match (parts.next()?, parts.next()?, parts.next()?) {
                ("0", "", path) | (_, "name=systemd", path) => Some(path),
                _ => None,
            }
        };
        // A session of a user is a scope, whose programs have nothing to do with each other. Outside its cgroup
        // namespace, a process has a path with `..`, which the journal does not know.
        let is_service = |path: &&str| path.ends_with(".service") && !path.contains("/..");
        match cgroup.lines().filter_map(path_of).find(is_service) {
            Some(cgroup) => Self::Service { cgroup: cgroup.into(), user },
            None => Self::Process(pid),
        }
    }

    /// Returns the matches for `journalctl`. Those of `pid` are included in any case.
    fn matches(&self, pid: Pid) -> Vec<String> {
        let mut matches = vec![format!("_PID={pid}")];
        if let Self::Service { cgroup, user } = self {
            // `+` means or. Matches of different fields are combined with and.
            matches.push("+".into());
            matches.extend([format!("_SYSTEMD_CGROUP={cgroup}"), format!("_UID={user}")]);
        }
        matches
    }
}

/// Running `journalctl`, which is killed on drop.
#[derive(Debug)]
pub struct Journal {
    output: ChildStdout,
    _running: Running,
}

impl Journal {
    /// Starts to follow the output of the process and its service since a time, which is rounded down to a second.
    pub fn follow(
        settings: &LogSettings,
        pid: Pid,
        writers: &JournalWriters,
        since: SystemTime,
    ) -> io::Result<Self> {
        let since = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let since = format!("--since=@{}", since.as_secs());
        let matches = writers.matches(pid);
        let mut args = vec!["-f", "-n", "all", &since, "-o", "cat", "-q", "--no-pager"];
        args.extend(matches.iter().map(String::as_str));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_of_a_process_is_its_control_group_and_user() {
        let writers = |cgroup: &str| JournalWriters::of(Pid(7), 1000, cgroup);
        let service = |cgroup: &str| JournalWriters::Service { cgroup: cgroup.into(), user: 1000 };
        let path = "/system.slice/train.service";
        assert_eq!(writers(&format!("0::{path}\n")), service(path));
        let first = format!("4:memory:/a\n1:name=systemd:{path}\n0::/\n");
        assert_eq!(writers(&first), service(path));
        let session = "0::/user.slice/user-1000.slice/session-3.scope\n";
        let misleading = "4:memory:/a0::/system.slice/other.service\n";
        for other in ["", "0::/\n", "0::/../other.service\n", "4:memory:/a\n", session, misleading]
        {
            assert_eq!(writers(other), JournalWriters::Process(Pid(7)), "{other}");
        }
    }
}
