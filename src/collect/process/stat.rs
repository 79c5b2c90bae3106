//! `/proc/PID/stat`, the only file that is read for every process on every tick.
//!
//! The file is opened once and read again through the same descriptor. The descriptor stays bound to that process: it
//! never returns data of another process with the same PID, and a read after the process has exited returns ESRCH.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

pub use crate::model::stat_line::Stat;

/// Size of the buffer, which is large enough for 52 numbers of up to 20 digits and a name of up to 64 bytes.
const STAT_BYTES: usize = 2048;

/// An open stat file.
pub struct StatFile(File);

pub struct StatBuffer([u8; STAT_BYTES]);

impl StatBuffer {
    pub fn new() -> Self {
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

    /// Reads the file. Returns ESRCH once the process was reaped by its parent.
    pub fn read<'a>(&self, buffer: &'a mut StatBuffer) -> io::Result<Stat<'a>> {
        let n = self.0.read_at(&mut buffer.0, 0)?;
        Stat::parse(&buffer.0[..n]).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_stat_equals_result_of_procfs_crate() {
        let file = StatFile::open(Path::new("/proc/self/stat")).expect("open");
        let mut buffer = StatBuffer::new();
        let ours = file.read(&mut buffer).expect("read");
        let theirs = procfs::process::Process::myself()
            .and_then(|p| p.stat())
            .expect("procfs");
        assert_eq!(ours.name, theirs.comm.as_bytes());
        assert_eq!(ours.start.0, theirs.starttime);
        assert_eq!(i64::from(ours.parent.0), i64::from(theirs.ppid));
        assert_eq!(Some(ours.arguments), theirs.arg_start);
    }
}
