//! What the kernel logs about GPUs and about processes that it ended, from the moment of opening on.
//!
//! `/dev/kmsg` gives one record a read: `4,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, …` and then, indented, lines
//! about the device that are of no interest here. The numbers in front are the priority (its facility is 0 for the
//! kernel; what programs write there has another), the sequence, and microseconds. The kernel escapes what cannot be
//! printed. A reader that was too slow is told EPIPE once and goes on with the oldest record there is
//! (`Documentation/ABI/testing/dev-kmsg`).
//!
//! Nothing here waits: a descriptor to sleep on is given out ([`AsFd`]).

mod line;

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;

pub use self::line::{KernelLine, OomKill, XidLine};
use crate::model::reading::{Missing, Reason};

/// Names another file to read in place of `/dev/kmsg`: for tests.
pub const KERNEL_LOG_VARIABLE: &str = "GPUTOP_KERNEL_LOG";
pub const KERNEL_LOG: &str = "/dev/kmsg";

/// The kernel's own records have at most 8 KiB; what is longer is passed over.
const MAX_BYTES: usize = 16 << 10;
/// Records read in one go: whoever calls has other things to do as well.
const MAX_READS: usize = 1_024;

#[derive(Debug)]
pub struct KernelLog {
    file: File,
    path: PathBuf,
    /// The beginning of a line whose end has not come yet.
    begun: Vec<u8>,
    /// The present line is too long.
    skipping: bool,
    has_missed: bool,
}

impl KernelLog {
    /// Reads what is logged from now on.
    ///
    /// # Errors
    /// Why it cannot be read; [`fixes`] says what helps.
    pub fn open(path: &Path) -> Result<Self, Missing> {
        let file = open(path).map_err(|error| missing(path, &error))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            begun: Vec::new(),
            skipping: false,
            has_missed: false,
        })
    }

    /// Everything that was logged since; false when there may be more.
    ///
    /// # Errors
    /// Nothing more will come.
    pub fn read(&mut self, mut take: impl FnMut(KernelLine)) -> Result<bool, Missing> {
        let mut chunk = [0; MAX_BYTES];
        for _ in 0..MAX_READS {
            match self.file.read(&mut chunk) {
                Ok(0) => return Err(Missing::new(Reason::Gone, "the kernel log has ended")),
                Ok(n) => self.split(&chunk[..n], &mut take),
                Err(error) => match Errno::from_raw(error.raw_os_error().unwrap_or_default()) {
                    Errno::EAGAIN => return Ok(true),
                    Errno::EINTR => {}
                    Errno::EPIPE => self.has_missed = true,
                    _ => return Err(missing(&self.path, &error)),
                },
            }
        }
        Ok(false)
    }

    /// Whether records were overwritten before they were read, since this was asked before.
    pub fn take_missed(&mut self) -> bool {
        std::mem::take(&mut self.has_missed)
    }

    fn split(&mut self, mut bytes: &[u8], take: &mut impl FnMut(KernelLine)) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            self.extend(&bytes[..end]);
            if !std::mem::take(&mut self.skipping)
                && let Some(line) = KernelLine::of_record(&self.begun)
            {
                take(line);
            }
            self.begun.clear();
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes);
    }

    fn extend(&mut self, bytes: &[u8]) {
        if self.skipping || self.begun.len() + bytes.len() > MAX_BYTES {
            self.begun.clear();
            self.skipping = true;
            return;
        }
        self.begun.extend_from_slice(bytes);
    }
}

impl AsFd for KernelLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn open(path: &Path) -> io::Result<File> {
    // In some containers it is a link to a terminal.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY;
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_fifo() {
        return Ok(file);
    }
    if !kind.is_char_device() {
        return Err(Errno::ENODEV.into());
    }
    file.seek(SeekFrom::End(0))?;
    Ok(file)
}

fn missing(path: &Path, error: &io::Error) -> Missing {
    let path = path.display();
    match Errno::from_raw(error.raw_os_error().unwrap_or_default()) {
        Errno::EPERM => Missing::new(
            Reason::Denied,
            "the kernel log is for root alone here (kernel.dmesg_restrict is 1)",
        ),
        Errno::EACCES => Missing::new(
            Reason::Denied,
            format!("{path} may not be read by this user"),
        ),
        Errno::ENOENT => Missing::new(
            Reason::Unsupported,
            format!("there is no {path} here, as in most containers"),
        ),
        Errno::ELOOP | Errno::ENODEV => Missing::new(
            Reason::Unsupported,
            format!("{path} is not the kernel's log here"),
        ),
        _ => Missing::new(
            Reason::Unknown,
            format!("{path} could not be read: {error}"),
        ),
    }
}

/// What this user can do about a log that cannot be read: commands or clauses, best first.
pub fn fixes(missing: &Missing, user_is_root: bool) -> Vec<String> {
    match (missing.reason, user_is_root) {
        (Reason::Denied, true) => vec![
            "this container's root may not read it: docker run --privileged …, or run gputop on the host"
                .into(),
        ],
        (Reason::Denied, false) => vec![
            "sudo sysctl kernel.dmesg_restrict=0    (every user of this host may read the kernel's log then)".into(),
            "sudo setcap cap_syslog+ep \"$(command -v gputop)\"    (gputop may)".into(),
            "or ask an administrator for either; XIDs are still told by the driver, without their text".into(),
        ],
        (Reason::Unsupported, _) => {
            vec!["docker run --device /dev/kmsg …, or run gputop on the host".into()]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
