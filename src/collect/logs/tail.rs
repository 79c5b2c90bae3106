//! One file, read as it grows: by size and inode, because a log on a network file system tells nobody that it changed.
//!
//! What is read survives a log's usual fates. *Truncated* (`copytruncate`): the file is shorter than what was read,
//! and is read again from its beginning; one that grows past that within one look is not noticed. *Rotated*: another
//! file is found in its place; the old one is read to its end, then the new one from its beginning, unless it was
//! there before. *Deleted*: the open file lives on. *Too fast*: the newest text only, and the rest is counted as
//! passed over. *Sparse*: a hole is as fast as any other growth.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::SystemTime;

use nix::libc::{O_CLOEXEC, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

use crate::collect::process::stat::{StatBuffer, StatFile};
use crate::model::units::{Millis, Mono, StartTicks};
use crate::open_files::{LongLivedFile, room_for};

/// Read of one log at one look; more than that is passed over.
pub const MAX_AT_ONCE: u64 = 1 << 20;
/// What is still read of a log that grows faster.
pub const NEWEST: u64 = 256 << 10;
/// How often it is looked whether another file is in its place.
const LOOK_FOR_ANOTHER: Millis = Millis(1_000);

/// Where a log is opened, again when another file is in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogLocation {
    /// `/proc/PID/fd/N`: the kernel's own link, which means the file that is open there, whatever its path leads to
    /// here and whoever made a symbolic link. Only as long as the PID is this process's: its next owner's output is
    /// another's words.
    Descriptor {
        link: PathBuf,
        /// `/proc/PID/stat`.
        stat: PathBuf,
        start: StartTicks,
    },
    /// A path that was said or derived. Its last part must be no symbolic link, and its owner one of these.
    Path {
        path: PathBuf,
        owners: Vec<u32>,
        /// Whose rights to open it with, if not our own.
        reader: Option<Credentials>,
    },
}

/// A user and their group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    pub user: u32,
    pub group: u32,
}

impl Credentials {
    /// Runs `work` with this user's file permissions, on the calling thread only (setfsuid(2)). Only root can change
    /// them; for everybody else `work` runs with their own, which are less.
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

/// A file, whatever its names are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

/// Why a file is not followed, a clause for the user.
#[derive(Debug, thiserror::Error)]
pub enum NoFile {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is a {0}, not a file")]
    Kind(&'static str),
    #[error("it belongs to user {0}, and is followed only if it is yours, the process's or root's")]
    Owner(u32),
    #[error("it belongs to user {0}, not to the owner of the process")]
    NotOfProcess(u32),
}

impl LogLocation {
    /// # Errors
    /// For anything but a regular file that may be followed. Never waits for a writer, never becomes a terminal.
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
        // Opening a device may already do something, so it is looked at first.
        self.check(&self.look()?)?;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(O_NONBLOCK | O_NOCTTY | O_CLOEXEC | follow)
            .open(path)?;
        room_for(LongLivedFile::Log, &file)?;
        let metadata = file.metadata()?;
        self.check(&metadata)?;
        self.check_process()?;
        Ok((file, metadata))
    }

    fn look(&self) -> io::Result<Metadata> {
        match self {
            Self::Descriptor { link, .. } => {
                let metadata = std::fs::metadata(link)?;
                self.check_process()?;
                Ok(metadata)
            }
            Self::Path { path, .. } => std::fs::symlink_metadata(path),
        }
    }

    /// What was looked at before was the process's if it still lives.
    fn check_process(&self) -> io::Result<()> {
        let Self::Descriptor { stat, start, .. } = self else {
            return Ok(());
        };
        let now = StatFile::open(stat)?.read(&mut StatBuffer::new())?.start;
        match now == *start {
            true => Ok(()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn check(&self, metadata: &Metadata) -> Result<(), NoFile> {
        use std::os::unix::fs::FileTypeExt;
        let kind = metadata.file_type();
        let words = match () {
            () if kind.is_file() => None,
            () if kind.is_symlink() => Some("symbolic link"),
            () if kind.is_dir() => Some("directory"),
            () if kind.is_fifo() => Some("pipe"),
            () if kind.is_socket() => Some("socket"),
            () => Some("device"),
        };
        if let Some(words) = words {
            return Err(NoFile::Kind(words));
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

/// What a look at a file brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct News {
    /// The file begins anew: what was read is of another one, or was cut off.
    pub is_new: bool,
    /// Bytes that were passed over before this text.
    pub passed_over: u64,
    pub bytes: usize,
}

#[derive(Debug)]
pub struct Tail {
    place: LogLocation,
    file: File,
    id: FileId,
    /// Up to where it was read.
    offset: u64,
    looked: Mono,
    attached: SystemTime,
}

impl Tail {
    /// Follows what is open; `from` is where the text begins that counts.
    pub fn new(
        place: LogLocation,
        (file, metadata): (File, Metadata),
        from: u64,
        now: Mono,
    ) -> Self {
        Self {
            place,
            file,
            id: FileId::of(&metadata),
            offset: from,
            looked: now,
            attached: SystemTime::now(),
        }
    }

    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The text that was written since the last look, into `buffer`; of more than `most` bytes only the newest.
    ///
    /// # Errors
    /// When the file cannot be read: a disk or a server that fails.
    pub fn read(&mut self, buffer: &mut Vec<u8>, most: u64, now: Mono) -> io::Result<News> {
        buffer.clear();
        let mut news = self.read_file(buffer, most)?;
        if news.bytes == 0 && !news.is_new && now.since(self.looked) >= LOOK_FOR_ANOTHER {
            self.looked = now;
            if self.take_another() {
                news = self.read_file(buffer, most)?;
                news.is_new = true;
            }
        }
        Ok(news)
    }

    fn read_file(&mut self, buffer: &mut Vec<u8>, most: u64) -> io::Result<News> {
        let size = self.file.metadata()?.len();
        let mut news = News::default();
        if size < self.offset {
            self.offset = 0;
            news.is_new = true;
        }
        let grown = size - self.offset;
        if grown > most {
            let newest = most.min(NEWEST);
            news.passed_over = grown - newest;
            self.offset = size - newest;
        }
        read_at_most(&self.file, self.offset, size - self.offset, buffer)?;
        self.offset += buffer.len() as u64;
        news.bytes = buffer.len();
        Ok(news)
    }

    /// Whether another file is in its place, which is read from then on.
    fn take_another(&mut self) -> bool {
        // While a log is rotated there is none for a moment.
        if !matches!(self.place.look(), Ok(m) if FileId::of(&m) != self.id) {
            return false;
        }
        let Ok((file, metadata)) = self.place.open() else {
            return false;
        };
        // A file that was put there, not begun there, holds what is older.
        let is_older = is_born_before(&metadata, self.attached, SystemTime::now());
        self.id = FileId::of(&metadata);
        self.offset = if is_older == Some(true) {
            metadata.len()
        } else {
            0
        };
        self.file = file;
        true
    }

    /// The text between two places of the file.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn between(&self, from: u64, to: u64) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        read_at_most(&self.file, from, to.saturating_sub(from), &mut text)?;
        Ok(text)
    }

    /// The number of the line that begins or goes on at `offset`, if that is no great way into the file.
    pub fn line_at(&self, offset: u64) -> Option<u64> {
        const MAX_COUNTED: u64 = 16 << 20;
        if offset > MAX_COUNTED {
            return None;
        }
        let (mut at, mut breaks) = (0, 0);
        while at < offset {
            let piece = self.between(at, offset.min(at + NEWEST)).ok()?;
            if piece.is_empty() {
                return None;
            }
            at += piece.len() as u64;
            breaks += memchr::memchr_iter(b'\n', &piece).count() as u64;
        }
        Some(breaks + 1)
    }
}

fn read_at_most(file: &File, from: u64, length: u64, buffer: &mut Vec<u8>) -> io::Result<()> {
    buffer.resize(usize::try_from(length).unwrap_or(usize::MAX), 0);
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], from + done as u64) {
            // Cut off meanwhile.
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer.truncate(done);
    Ok(())
}

/// Where the text begins that counts: the end, or the beginning of a file that a young process began itself.
pub fn beginning(metadata: &Metadata, process_started: Option<SystemTime>) -> u64 {
    let is_older =
        process_started.and_then(|started| is_born_before(metadata, started, SystemTime::now()));
    if is_older == Some(false) {
        0
    } else {
        metadata.len()
    }
}

/// Whether a file is older than a moment, where its file system tells. Births are told by the wall clock alone: one
/// that lies in the future was told before that clock was set back, and may be of any time.
fn is_born_before(metadata: &Metadata, moment: SystemTime, now: SystemTime) -> Option<bool> {
    let born = metadata.created().ok()?;
    Some(born < moment || born > now)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_birth_in_the_future_is_of_before_the_clock_was_set_back() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let metadata = file.as_file().metadata().expect("its facts");
        let Ok(born) = metadata.created() else {
            return;
        };
        let hour = Duration::from_hours(1);
        assert_eq!(is_born_before(&metadata, born, born), Some(false));
        assert_eq!(
            is_born_before(&metadata, born + hour, born + hour),
            Some(true)
        );
        // The same file, the same process, after the clock was set back by two hours.
        let (started, now) = (born - 2 * hour, born - hour);
        assert_eq!(is_born_before(&metadata, started, now), Some(true));
    }
}
