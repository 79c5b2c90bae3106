//! After a failure, reads the command's output: the end of the text captured from the pty or a pipe, and the files to
//! which standard streams were redirected.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use gputop_explain::{Catalogue, LogFindings, LogReader, TextSource};
use gputop_model::text::visible;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

/// Maximum size of the text retained from the pty or a pipe. The oldest text is dropped, because failures are reported
/// at the end of a log.
const MAX_CAPTURED_BYTES: usize = 16 << 20;

/// Text captured from the pty or a pipe.
#[derive(Default)]
pub(super) struct CapturedOutput {
    text: VecDeque<u8>,
    has_dropped: bool,
}

impl CapturedOutput {
    pub(super) fn push(&mut self, chunk: &[u8]) {
        let surplus = (self.text.len() + chunk.len()).saturating_sub(MAX_CAPTURED_BYTES);
        self.has_dropped |= surplus > 0;
        self.text.drain(..surplus.min(self.text.len()));
        self.text.extend(chunk);
    }

    pub(super) fn read(&self, catalogue: &Catalogue) -> LogFindings {
        let mut log = LogReader::of(catalogue, TextSource::Log);
        let (older, newer) = self.text.as_slices();
        log.push(older);
        log.push(newer);
        log.finish()
    }

    /// Returns true if no text was dropped. Line numbers are correct only in that case.
    pub(super) fn is_whole(&self) -> bool {
        !self.has_dropped
    }
}

/// Maximum number of bytes read from the end of an output file, where failures are reported. Reading more would delay
/// the explanation.
const MAX_READ_BYTES: u64 = 256 << 20;
const CHUNK_BYTES: usize = 1 << 20;

/// An output file of the command, and the position where the command's output begins.
pub(super) struct FilePosition {
    /// Descriptor number, the same in gputop and in the command.
    fd: u32,
    name: String,
    from: u64,
}

impl FilePosition {
    /// Returns the positions of standard output and standard error, or a single position if both refer to the same
    /// file.
    pub(super) fn current() -> Vec<Self> {
        let both = [Self::of(1, io::stdout().as_fd()), Self::of(2, io::stderr().as_fd())];
        let mut positions = Vec::new();
        let mut files = Vec::new();
        for (position, file) in both.into_iter().flatten() {
            if !files.contains(&file) {
                files.push(file);
                positions.push(position);
            }
        }
        positions
    }

    /// Returns a stream's file position and the identity of its file (device and inode).
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
        let position =
            Self { fd: number, name: visible(path.as_os_str().as_encoded_bytes(), 200), from };
        Some((position, (metadata.dev(), metadata.ino())))
    }

    /// Parses the text written since the command started. Returns `None` if the file cannot be read.
    pub(super) fn read(&self, catalogue: &Catalogue) -> Option<LogFindings> {
        let mut file = File::open(path(self.fd)).ok()?;
        let end = file.metadata().ok()?.len();
        // Start at 0 if the file has been truncated.
        let from = if self.from > end { 0 } else { self.from };
        file.seek(SeekFrom::Start(from.max(end.saturating_sub(MAX_READ_BYTES)))).ok()?;
        let mut log = LogReader::new(catalogue, &self.name);
        let mut rest = file.take(MAX_READ_BYTES);
        let mut chunk = vec![0; CHUNK_BYTES];
        while let Ok(n @ 1..) = rest.read(&mut chunk) {
            log.push(&chunk[..n]);
        }
        Some(log.finish())
    }
}

fn path(fd: u32) -> impl AsRef<Path> {
    format!("/proc/self/fd/{fd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OOM: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total \
        capacity of 23.69 GiB of which 1.06 GiB is free.\n";

    #[test]
    fn finds_an_error_pushed_in_small_chunks_after_dropped_text() {
        let mut output = CapturedOutput::default();
        for chunk in OOM.as_bytes().chunks(7) {
            output.push(chunk);
        }
        let sightings =
            |output: &CapturedOutput| output.read(Catalogue::embedded()).sightings.len();
        assert_eq!((sightings(&output), output.is_whole()), (1, true));
        output.push(&vec![b'.'; MAX_CAPTURED_BYTES]);
        output.push(format!("\n{OOM}").as_bytes());
        assert_eq!((sightings(&output), output.is_whole()), (1, false));
        assert_eq!(output.text.len(), MAX_CAPTURED_BYTES);
    }
}
