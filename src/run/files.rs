//! Standard output and standard error where they are files: what the command wrote there, read after a failure.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::diagnose::{Catalogue, LogFindings, LogReader};
use crate::model::text::visible;

/// What is read of one at most, from its end: a failure is told there, and nobody wants to wait for more.
const MAX_READ: u64 = 256 << 20;
const PIECE: usize = 1 << 20;

/// Where a file ended before the command began.
pub(super) struct Mark {
    /// Of this process, which is the command's as well.
    fd: u32,
    name: String,
    from: u64,
}

impl Mark {
    /// Of standard output and standard error; once, where both are the same file.
    pub(super) fn now() -> Vec<Self> {
        let both = [
            Self::of(1, io::stdout().as_fd()),
            Self::of(2, io::stderr().as_fd()),
        ];
        let mut marks = Vec::new();
        let mut files = Vec::new();
        for (mark, file) in both.into_iter().flatten() {
            if !files.contains(&file) {
                files.push(file);
                marks.push(mark);
            }
        }
        marks
    }

    /// With what tells the file from others.
    fn of(number: u32, fd: BorrowedFd<'_>) -> Option<(Self, (u64, u64))> {
        let mut file = File::from(fd.try_clone_to_owned().ok()?);
        let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        let flags = OFlag::from_bits_truncate(fcntl(fd, FcntlArg::F_GETFL).ok()?);
        let from = if flags.contains(OFlag::O_APPEND) {
            metadata.len()
        } else {
            file.stream_position().ok()?
        };
        let path = std::fs::read_link(path(number)).ok()?;
        let mark = Self {
            fd: number,
            name: visible(path.as_os_str().as_encoded_bytes(), 200),
            from,
        };
        Some((mark, (metadata.dev(), metadata.ino())))
    }

    /// What was written since. `None` when it may not be read.
    pub(super) fn read(&self, catalogue: &Catalogue) -> Option<LogFindings> {
        let mut file = File::open(path(self.fd)).ok()?;
        let end = file.metadata().ok()?.len();
        // It may have been emptied and begun anew.
        let from = if self.from > end { 0 } else { self.from };
        file.seek(SeekFrom::Start(from.max(end.saturating_sub(MAX_READ))))
            .ok()?;
        let mut log = LogReader::new(catalogue, &self.name);
        let mut rest = file.take(MAX_READ);
        let mut piece = vec![0; PIECE];
        while let Ok(n @ 1..) = rest.read(&mut piece) {
            log.push(&piece[..n]);
        }
        Some(log.finish())
    }
}

fn path(fd: u32) -> impl AsRef<Path> {
    format!("/proc/self/fd/{fd}")
}
