//! Reads a log file as it grows. Polls size and inode, because network file systems send no change notifications.
//!
//! - *Truncated* (`copytruncate`): if the file is shorter than the part already read, it is read again from its
//!   beginning. gputop does not notice a truncation if the file grows past its previous size before the next poll.
//! - *Rotated*: if the path names a different file, the old file is read to its end, and then the new one from its
//!   beginning. The existing text of the new file is skipped if the file was created before gputop attached to the
//!   process.
//! - *Deleted*: gputop continues to read the open file.
//! - *Growing too fast*: only the latest text is read, and the rest is counted as skipped.
//! - *Sparse*: a gap in the file counts as text.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use gputop_model::{Millis, Mono, ProcessKey};
use gputop_peek::process::stat::start_time;
use nix::libc::{O_CLOEXEC, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

use super::content::{LogContent, TailRead};
use super::pipe::Descriptor;
use crate::open_files::{LongLivedFile, room_for};
use crate::user_files::FileId;

/// Maximum size of one read. If more text was written, some of it is skipped.
pub const MAX_AT_ONCE: u64 = 1 << 20;
/// Number of latest bytes to read when older text is skipped.
pub const MAX_AFTER_SKIP: u64 = 256 << 10;
/// Maximum time by which a file's recorded creation time may precede the actual one. The file system's clock ticks
/// every 4 ms on most kernels.
pub const CREATION_UNCERTAINTY: Duration = Duration::from_millis(10);
/// Interval for checking whether the path of a log now names a different file.
const ROTATION_INTERVAL: Millis = Millis(1_000);

/// Location of a log, for opening it again after a rotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogFileLocation {
    /// Link `/proc/PID/fd/N` to the open file, independent of paths and symbolic links. Valid only while the PID
    /// belongs to this process.
    Descriptor { link: PathBuf, proc_root: PathBuf, process: ProcessKey },
    /// Path that the user named or gputop derived. The file must not be a symbolic link, and must belong to one of
    /// `owners`.
    Path {
        path: PathBuf,
        owners: Vec<u32>,
        /// User whose permissions are used to open the file, if not gputop's own.
        reader: Option<Credentials>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    pub user: u32,
    pub group: u32,
}

impl Credentials {
    /// Runs `work` with this user's file permissions, on the calling thread only (setfsuid(2)). Only root can change
    /// these permissions. Without root, `work` runs with gputop's own permissions, which give the user no additional
    /// access.
    fn lend<T>(self, work: impl FnOnce() -> T) -> T {
        struct Restore(Uid, Gid);
        impl Drop for Restore {
            fn drop(&mut self) {
                setfsuid(self.0);
                setfsgid(self.1);
            }
        }
        let group = setfsgid(Gid::from_raw(self.group));
        let _restore = Restore(setfsuid(Uid::from_raw(self.user)), group);
        work()
    }
}

/// Reason why a file is not followed, as a phrase for the user.
#[derive(Debug, thiserror::Error)]
pub enum NoFile {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is a {0}, not a file")]
    Kind(&'static str),
    #[error(
        "it belongs to user {0}; gputop follows only files that belong to you, the owner of the process, or root"
    )]
    Owner(u32),
    #[error("it belongs to user {0}, not to the owner of the process")]
    NotOfProcess(u32),
    #[error("the process did not open it for writing")]
    NotWritten,
}

impl LogFileLocation {
    /// Opens the log. Never blocks on a pipe and never acquires a controlling terminal.
    pub fn open(&self) -> Result<(File, Metadata), NoFile> {
        match self.reader() {
            Some(reader) => reader.lend(|| self.open_with_current_rights()),
            None => self.open_with_current_rights(),
        }
    }

    fn reader(&self) -> Option<Credentials> {
        match self {
            Self::Path { reader, .. } => *reader,
            Self::Descriptor { .. } => None,
        }
    }

    fn open_with_current_rights(&self) -> Result<(File, Metadata), NoFile> {
        let (path, follow) = match self {
            Self::Descriptor { link, .. } => (link, 0),
            Self::Path { path, .. } => (path, O_NOFOLLOW),
        };
        // Check the metadata first, because opening a device may have side effects.
        self.check(&self.metadata()?)?;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(O_NONBLOCK | O_NOCTTY | O_CLOEXEC | follow)
            .open(path)?;
        room_for(LongLivedFile::Log, &file)?;
        let metadata = file.metadata()?;
        self.check(&metadata)?;
        self.check_access(&metadata)?;
        self.check_process()?;
        Ok((file, metadata))
    }

    /// Checks that the process opened this file for writing. With `O_PATH`, a process can have a file as its standard
    /// output that it can neither read nor write, and root would read that file for it.
    fn check_access(&self, metadata: &Metadata) -> Result<(), NoFile> {
        let Self::Descriptor { link, .. } = self else { return Ok(()) };
        if Descriptor::is_written(link, metadata.ino())? { Ok(()) } else { Err(NoFile::NotWritten) }
    }

    fn metadata(&self) -> io::Result<Metadata> {
        match self {
            Self::Descriptor { link, .. } => {
                let metadata = std::fs::metadata(link)?;
                self.check_process()?;
                Ok(metadata)
            }
            Self::Path { path, .. } => std::fs::symlink_metadata(path),
        }
    }

    /// Checks that the PID still belongs to the process, so that data read before this check is known to belong to it.
    fn check_process(&self) -> io::Result<()> {
        match self {
            Self::Descriptor { proc_root, process, .. }
                if start_time(proc_root, process.pid)? != process.start =>
            {
                Err(io::ErrorKind::NotFound.into())
            }
            _ => Ok(()),
        }
    }

    fn check(&self, metadata: &Metadata) -> Result<(), NoFile> {
        use std::os::unix::fs::FileTypeExt;
        let kind = metadata.file_type();
        let kind_name = match () {
            () if kind.is_file() => None,
            () if kind.is_symlink() => Some("symbolic link"),
            () if kind.is_dir() => Some("directory"),
            () if kind.is_fifo() => Some("pipe"),
            () if kind.is_socket() => Some("socket"),
            () => Some("device"),
        };
        if let Some(kind_name) = kind_name {
            return Err(NoFile::Kind(kind_name));
        }
        match self {
            Self::Path { owners, reader, .. } if !owners.contains(&metadata.uid()) => {
                Err(match reader {
                    Some(_) => NoFile::NotOfProcess(metadata.uid()),
                    None => NoFile::Owner(metadata.uid()),
                })
            }
            _ => Ok(()),
        }
    }
}

#[derive(Debug)]
pub struct Tail {
    location: LogFileLocation,
    file: File,
    id: FileId,
    /// Offset up to which the file has been read.
    offset: u64,
    checked_at: Mono,
    attached: SystemTime,
}

impl Tail {
    pub fn new(
        location: LogFileLocation,
        (file, metadata): (File, Metadata),
        from: u64,
        now: Mono,
    ) -> Self {
        Self {
            location,
            file,
            id: FileId::of(&metadata),
            offset: from,
            checked_at: now,
            attached: SystemTime::now() - CREATION_UNCERTAINTY,
        }
    }

    fn read_file(&mut self, buffer: &mut Vec<u8>, max_bytes: u64) -> io::Result<TailRead> {
        let size = self.file.metadata()?.len();
        let mut result = TailRead::default();
        if size < self.offset {
            self.offset = 0;
            result.is_new_file = true;
        }
        let grown = size - self.offset;
        if grown > max_bytes {
            let newest = max_bytes.min(MAX_AFTER_SKIP);
            result.skipped = grown - newest;
            self.offset = size - newest;
        }
        read_at_most(&self.file, self.offset, size - self.offset, buffer)?;
        self.offset += buffer.len() as u64;
        result.bytes = buffer.len();
        Ok(result)
    }

    /// Switches to a new file if the path now names a different one. Returns true if it did.
    fn switch_to_new_file(&mut self) -> bool {
        // Keep the old file if the path does not exist, which may happen briefly during a rotation.
        if !matches!(self.location.metadata(), Ok(m) if FileId::of(&m) != self.id) {
            return false;
        }
        let Ok((file, metadata)) = self.location.open() else { return false };
        // Skip the text of a file that was moved to this path, because it is older.
        let is_older = is_created_before(&metadata, self.attached, SystemTime::now());
        self.id = FileId::of(&metadata);
        self.offset = if is_older == Some(true) { metadata.len() } else { 0 };
        self.file = file;
        true
    }
}

impl LogContent for Tail {
    fn offset(&self) -> u64 {
        self.offset
    }

    fn read(&mut self, buffer: &mut Vec<u8>, max_bytes: u64, now: Mono) -> io::Result<TailRead> {
        buffer.clear();
        let mut result = self.read_file(buffer, max_bytes)?;
        if result.bytes == 0
            && !result.is_new_file
            && now.since(self.checked_at) >= ROTATION_INTERVAL
        {
            self.checked_at = now;
            if self.switch_to_new_file() {
                result = self.read_file(buffer, max_bytes)?;
                result.is_new_file = true;
            }
        }
        Ok(result)
    }

    fn between(&self, from: u64, to: u64) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        read_at_most(&self.file, from, to.saturating_sub(from), &mut text)?;
        Ok(text)
    }

    /// Returns the line number at an offset. `None` if counting lines up to the offset would take too long.
    fn line_at(&self, offset: u64) -> Option<u64> {
        const MAX_COUNTED: u64 = 16 << 20;
        if offset > MAX_COUNTED {
            return None;
        }
        let (mut at, mut breaks) = (0, 0);
        while at < offset {
            let chunk = self.between(at, offset.min(at + MAX_AFTER_SKIP)).ok()?;
            if chunk.is_empty() {
                return None;
            }
            at += chunk.len() as u64;
            breaks += memchr::memchr_iter(b'\n', &chunk).count() as u64;
        }
        Some(breaks + 1)
    }
}

fn read_at_most(file: &File, from: u64, length: u64, buffer: &mut Vec<u8>) -> io::Result<()> {
    buffer.resize(usize::try_from(length).unwrap_or(usize::MAX), 0);
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], from + done as u64) {
            // The file was truncated in the meantime.
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer.truncate(done);
    Ok(())
}

/// Returns the offset from which to follow a file: 0 if the file was created after the recently started process, and
/// its end in all other cases.
pub fn start_offset(metadata: &Metadata, process_started: Option<SystemTime>) -> u64 {
    let is_older =
        process_started.and_then(|started| is_created_before(metadata, started, SystemTime::now()));
    if is_older == Some(false) { 0 } else { metadata.len() }
}

/// Returns true if a file was created before `time`, or `None` if the file system does not record creation times.
/// Creation times use the wall clock. A creation time in the future means that the clock was set back after the file
/// was created, so the file is treated as older.
fn is_created_before(metadata: &Metadata, time: SystemTime, now: SystemTime) -> Option<bool> {
    let created = metadata.created().ok()?;
    Some(created < time || created > now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_creation_time_in_the_future_counts_as_older() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let metadata = file.as_file().metadata().expect("metadata");
        let Ok(created) = metadata.created() else { return };
        let hour = Duration::from_hours(1);
        assert_eq!(is_created_before(&metadata, created, created), Some(false));
        assert_eq!(is_created_before(&metadata, created + hour, created + hour), Some(true));
        // Check the same file and process after the clock was set back by 2 hours.
        let (started, now) = (created - 2 * hour, created - hour);
        assert_eq!(is_created_before(&metadata, started, now), Some(true));
    }
}
