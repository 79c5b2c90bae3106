//! Reads `/proc/PID/stat`, the only file read for every process on every tick.
//!
//! The file is opened once, and every read uses the same descriptor. The descriptor is bound to one process: it never
//! returns data from another process with the same PID, and reads return ESRCH after the process has exited.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

pub use gputop_model::stat_line::Stat;
use gputop_model::{Pid, ProcessKey, StartTicks};

/// Buffer size for a stat file, enough for 52 numbers of up to 20 digits and a name of up to 64 bytes.
const STAT_BYTES: usize = 2048;
/// Maximum number of ancestors to follow from a process. No real process tree is deeper, but a fake /proc may contain a
/// cycle.
const MAX_ANCESTORS: usize = 64;

pub struct StatFile(File);

pub struct StatBuffer([u8; STAT_BYTES]);

impl Default for StatBuffer {
    fn default() -> Self {
        Self([0; STAT_BYTES])
    }
}

impl AsFd for StatFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl StatFile {
    pub fn open(path: &Path) -> io::Result<Self> {
        File::open(path).map(Self)
    }

    pub fn of(proc_root: &Path, pid: Pid) -> io::Result<Self> {
        Self::open(&proc_root.join(pid.to_string()).join("stat"))
    }

    /// Reads the stat file. Returns ESRCH after the parent has reaped the process.
    pub fn read<'a>(&self, buffer: &'a mut StatBuffer) -> io::Result<Stat<'a>> {
        let n = self.0.read_at(&mut buffer.0, 0)?;
        Stat::parse(&buffer.0[..n]).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }
}

pub fn start_time(proc_root: &Path, pid: Pid) -> io::Result<StartTicks> {
    let file = StatFile::of(proc_root, pid)?;
    Ok(file.read(&mut StatBuffer::default())?.start)
}

/// Returns true if the process is still running, that is, if its PID still has the same start time.
pub fn is_running(proc_root: &Path, key: ProcessKey) -> bool {
    start_time(proc_root, key.pid).is_ok_and(|start| start == key.start)
}

/// Returns a process and its ancestors with their names, nearest first. Stops at PID 1 or at the first process that
/// this user cannot read.
pub fn with_ancestors(proc_root: &Path, pid: Pid) -> impl Iterator<Item = (ProcessKey, Vec<u8>)> {
    let (mut next, mut seen, mut buffer) = (pid, HashSet::new(), StatBuffer::default());
    std::iter::from_fn(move || {
        if next == Pid(0) || seen.len() == MAX_ANCESTORS || !seen.insert(next) {
            return None;
        }
        let stat = StatFile::of(proc_root, next).ok()?.read(&mut buffer).ok()?;
        let pid = std::mem::replace(&mut next, stat.parent);
        let start = stat.start;
        Some((ProcessKey { pid, start }, stat.name.to_vec()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_stat_equals_result_of_procfs_crate() {
        let file = StatFile::open(Path::new("/proc/self/stat")).expect("open");
        let mut buffer = StatBuffer::default();
        let ours = file.read(&mut buffer).expect("read");
        let theirs = procfs::process::Process::myself().and_then(|p| p.stat()).expect("procfs");
        assert_eq!(ours.name, theirs.comm.as_bytes());
        assert_eq!(ours.start.0, theirs.starttime);
        assert_eq!(i64::from(ours.parent.0), i64::from(theirs.ppid));
        assert_eq!(Some(ours.arguments), theirs.arg_start);
    }
}
