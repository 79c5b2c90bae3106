//! The file that a recorder writes: locked against other recorders, and watched for changes by other programs.
//!
//! The lock is a POSIX record lock. The kernel releases it when the process exits, however it exits, it works on NFS,
//! and it reports the PID of its holder, which flock(2) does not. It is also released when this process closes any
//! other descriptor of the file, so nothing else in a recorder opens the recording.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::layout::HELLO_MAGIC;
use super::record::RecordError;
use crate::user_files::FileId;

/// Maximum time to wait until a pipe can take one line of the recording. Meanwhile, the recorder does not respond to
/// signals or its time limit.
pub const PIPE_TIMEOUT: Duration = Duration::from_secs(5);

/// A change by another program to the file while it was recorded.
#[derive(Debug, thiserror::Error)]
pub enum FileChange {
    #[error("{} was deleted while gputop recorded it, so the recording is lost", .0.display())]
    Deleted(PathBuf),
    #[error("{} was truncated or overwritten by another program while gputop recorded it, so the recording is damaged", .0.display())]
    Overwritten(PathBuf),
    #[error("{} was moved or replaced while gputop recorded it. The recording is complete, but has another name", .0.display())]
    Moved(PathBuf),
}

pub struct RecordingFile {
    file: File,
    path: PathBuf,
    id: FileId,
    /// False for a pipe or `/dev/null`, which have no length and cannot be deleted.
    is_regular: bool,
    length: u64,
}

impl RecordingFile {
    /// Opens, locks and empties the file. Creates it if it does not exist. A recording is only replaced with `force`,
    /// and another file never.
    pub fn create(path: &Path, force: bool) -> Result<Self, RecordError> {
        let cannot = |source| RecordError::Create { path: path.into(), source };
        let file = open(path)?;
        let found = file.metadata().map_err(cannot)?;
        let id = FileId::of(&found);
        if found.is_file() {
            lock(&file, path)?;
            if !is_at(id, path) {
                // Another recorder deleted the file after it was opened here.
                return Err(RecordError::InUse { path: path.into(), pid: None });
            }
            match file.metadata().map_err(cannot)?.len() > 0 {
                true if !is_recording(&file) => return Err(RecordError::IsForeign(path.into())),
                true if !force => return Err(RecordError::IsRecording(path.into())),
                _ => file.set_len(0).map_err(cannot)?,
            }
        }
        Ok(Self { file, path: path.into(), id, is_regular: found.is_file(), length: 0 })
    }

    /// Deletes the file, unless its name leads to another file by now.
    pub fn discard(&self) {
        if self.is_regular {
            self.id.remove_at(&self.path);
        }
    }

    /// Checks that the whole recording is in the file, and that its name leads to it. Returns its length.
    pub fn close(self) -> io::Result<u64> {
        if self.is_regular {
            self.check()?;
            if !is_at(self.id, &self.path) {
                return Err(io::Error::other(FileChange::Moved(self.path)));
            }
        }
        Ok(self.length)
    }

    /// Fails with a [`FileChange`] if another program has changed the file since the last write.
    fn check(&self) -> io::Result<()> {
        let found = self.file.metadata()?;
        // Some file systems do not count links, so the name counts as well.
        if found.nlink() == 0 && !is_at(self.id, &self.path) {
            return Err(io::Error::other(FileChange::Deleted(self.path.clone())));
        }
        if found.len() != self.length {
            return Err(io::Error::other(FileChange::Overwritten(self.path.clone())));
        }
        Ok(())
    }
}

impl Write for RecordingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_regular {
            self.check()?;
            self.file.write_all(bytes)?;
        } else {
            write_to_pipe(&mut self.file, bytes, Instant::now() + PIPE_TIMEOUT)?;
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes to a non-blocking pipe. Fails with `TimedOut` if its reader does not take all bytes before the deadline.
fn write_to_pipe(pipe: &mut File, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        match pipe.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = deadline.saturating_duration_since(Instant::now());
                let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
                let mut ready = [PollFd::new(pipe.as_fd(), PollFlags::POLLOUT)];
                if poll(&mut ready, timeout).is_ok_and(|count| count == 0) {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Fails if another process is recording to the file. Does not lock it.
pub fn check_unlocked(path: &Path) -> Result<(), RecordError> {
    if !fs::metadata(path).is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    let mut options = OpenOptions::new();
    match options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path) {
        Ok(file) => check_holder(&file, path),
        Err(_) => Ok(()),
    }
}

/// Opens a file for recording. Never waits, unlike a plain open of a named pipe.
fn open(path: &Path) -> Result<File, RecordError> {
    let cannot = |source| RecordError::Create { path: path.into(), source };
    let is_regular = match fs::metadata(path) {
        Ok(found) => check_kind(&found, path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(cannot(error)),
    };
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC);
    if is_regular {
        // Only the owner may read a recording, because it contains command lines and log text.
        options.read(true).create(true).truncate(false).mode(0o600);
    }
    let file = options.open(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ENXIO) => RecordError::NoReader(path.into()),
        _ => cannot(error),
    })?;
    // The file may have been exchanged since its kind was checked.
    check_kind(&file.metadata().map_err(cannot)?, path)?;
    Ok(file)
}

/// Returns true for a regular file, and false for a pipe or `/dev/null`. Fails for other devices: writing to a disk or a
/// watchdog does harm.
fn check_kind(found: &Metadata, path: &Path) -> Result<bool, RecordError> {
    let kind = found.file_type();
    let is_null = || fs::metadata("/dev/null").is_ok_and(|null| null.rdev() == found.rdev());
    if kind.is_file() {
        Ok(true)
    } else if kind.is_fifo() || kind.is_char_device() && is_null() {
        Ok(false)
    } else if kind.is_dir() {
        Err(RecordError::Create { path: path.into(), source: Errno::EISDIR.into() })
    } else {
        Err(RecordError::IsDevice(path.into()))
    }
}

fn is_recording(file: &File) -> bool {
    let mut magic = [0; 4];
    file.read_exact_at(&mut magic, 0).is_ok() && u32::from_le_bytes(magic) == HELLO_MAGIC
}

/// Returns true if `path` leads to the file, also through a link.
fn is_at(id: FileId, path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| FileId::of(&found) == id)
}

/// Locks the file until this process closes it. Fails if another process has locked it. Some file systems support no
/// locks; the checks of each write must then be enough.
fn lock(file: &File, path: &Path) -> Result<(), RecordError> {
    match fcntl(file, FcntlArg::F_SETLK(&write_lock())) {
        Err(Errno::EACCES | Errno::EAGAIN) => {
            check_holder(file, path)?;
            Err(RecordError::InUse { path: path.into(), pid: None })
        }
        _ => Ok(()),
    }
}

/// Fails with the PID of the process that has locked the file.
fn check_holder(file: &File, path: &Path) -> Result<(), RecordError> {
    let mut lock = write_lock();
    let found = fcntl(file, FcntlArg::F_GETLK(&mut lock));
    if found.is_err() || lock.l_type == libc::F_UNLCK as libc::c_short {
        return Ok(());
    }
    // The kernel reports 0 for a process in another container, and a negative number for one on another host.
    let pid = u32::try_from(lock.l_pid).ok().filter(|pid| *pid > 0);
    Err(RecordError::InUse { path: path.into(), pid })
}

fn write_lock() -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_that_nobody_reads_delays_a_write_only_until_the_deadline() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        assert!(matches!(RecordingFile::create(&path, false), Err(RecordError::NoReader(_))));
        let mut options = OpenOptions::new();
        let reader = options.read(true).custom_flags(libc::O_NONBLOCK).open(&path);
        let mut pipe = RecordingFile::create(&path, false).expect("a reader");
        let deadline = Instant::now() + Duration::from_millis(50);
        let error = write_to_pipe(&mut pipe.file, &[0; 4 << 20], deadline).expect_err("full");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(reader);
        let deadline = Instant::now() + Duration::from_secs(600);
        let error = write_to_pipe(&mut pipe.file, &[0], deadline).expect_err("closed");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        pipe.discard();
        assert!(path.exists());
    }

    #[test]
    fn deletes_only_the_file_that_it_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.gpt.zst");
        let file = RecordingFile::create(&path, false).expect("a file");
        fs::rename(&path, folder.path().join("b")).expect("moved");
        fs::write(&path, "mine").expect("written");
        file.discard();
        assert_eq!(fs::read(&path).expect("read"), b"mine");
        fs::rename(folder.path().join("b"), &path).expect("moved back");
        file.discard();
        assert!(!path.exists());
    }
}
