//! `/proc/PID/stat`, the one file read of every process on every tick.
//!
//! The file is opened once and read again through the same descriptor: it stays bound to that process, so a
//! recycled PID can never be taken for it, and a read after its end says ESRCH.
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

pub use crate::model::stat_line::Stat;

/// 52 numbers of at most 20 digits and a name of at most 64 bytes fit twice.
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

    /// ESRCH once the process was collected by its parent.
    pub fn read<'a>(&self, buffer: &'a mut StatBuffer) -> io::Result<Stat<'a>> {
        let n = self.0.read_at(&mut buffer.0, 0)?;
        Stat::parse(&buffer.0[..n]).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_reads_as_the_procfs_crate_reads_it() {
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
