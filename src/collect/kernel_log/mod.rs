//! Reads new kernel log lines about GPUs and about processes killed by the OOM killer.
//!
//! Each read of `/dev/kmsg` returns one record: `4,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, …`, followed by
//! indented lines about the device, which are ignored. The leading numbers are the priority and facility (0 for the
//! kernel; other programs use other facilities), the sequence number and a time in microseconds. The kernel escapes
//! unprintable characters. A reader that is too slow gets EPIPE once and continues with the oldest available record
//! (`Documentation/ABI/testing/dev-kmsg`).
//!
//! Reading the log never blocks. Callers wait on its descriptor ([`AsFd`]).

mod line;

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use gputop_model::{Missing, Reason};
use nix::errno::Errno;
use nix::fcntl::OFlag;

pub use self::line::{KernelLine, OomKill, XidLine};

/// Environment variable with the path of the kernel log to read instead of `/dev/kmsg`, for tests.
pub const KERNEL_LOG_VARIABLE: &str = "GPUTOP_KERNEL_LOG";
pub const KERNEL_LOG: &str = "/dev/kmsg";

/// Maximum size of a kernel record to read. The kernel's own limit is 8 KiB. Longer records are skipped.
const MAX_BYTES: usize = 16 << 10;
/// Maximum number of records to read per call, so that the call returns even if records arrive faster than they are
/// read.
const MAX_READS: usize = 1_024;

#[derive(Debug)]
pub struct KernelLog {
    file: File,
    path: PathBuf,
    /// Beginning of a line that has not been read completely.
    partial: Vec<u8>,
    /// True while skipping the remainder of a line that is too long.
    skipping: bool,
    has_missed: bool,
}

impl KernelLog {
    /// Opens the kernel log at its end. If the log is not readable, the error contains the reason, and [`fixes`]
    /// suggests what to do about it.
    pub fn open(path: &Path) -> Result<Self, Missing> {
        let file = open(path).map_err(|error| missing(path, &error))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            partial: Vec::new(),
            skipping: false,
            has_missed: false,
        })
    }

    /// Reads all lines logged since the last call. Returns false if more lines may be available.
    pub fn read(&mut self, mut take: impl FnMut(KernelLine)) -> Result<bool, Missing> {
        let mut chunk = [0; MAX_BYTES];
        for _ in 0..MAX_READS {
            match self.file.read(&mut chunk) {
                Ok(0) => return Err(Missing::new(Reason::Gone, "the kernel log was closed")),
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

    /// Returns true if, since the last call, records were overwritten before they could be read.
    pub fn take_missed(&mut self) -> bool {
        std::mem::take(&mut self.has_missed)
    }

    fn split(&mut self, mut bytes: &[u8], take: &mut impl FnMut(KernelLine)) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            self.extend(&bytes[..end]);
            if !std::mem::take(&mut self.skipping)
                && let Some(line) = KernelLine::of_record(&self.partial)
            {
                take(line);
            }
            self.partial.clear();
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes);
    }

    fn extend(&mut self, bytes: &[u8]) {
        if self.skipping || self.partial.len() + bytes.len() > MAX_BYTES {
            self.partial.clear();
            self.skipping = true;
            return;
        }
        self.partial.extend_from_slice(bytes);
    }
}

impl AsFd for KernelLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn open(path: &Path) -> io::Result<File> {
    // Do not follow links, because /dev/kmsg is a link to a terminal in some containers.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY;
    let mut file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
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
            "only root can read the kernel log (kernel.dmesg_restrict is 1)",
        ),
        Errno::EACCES => {
            Missing::new(Reason::Denied, format!("{path} is not readable by this user"))
        }
        Errno::ENOENT => Missing::new(
            Reason::Unsupported,
            format!("{path} does not exist, as in most containers"),
        ),
        Errno::ELOOP | Errno::ENODEV => {
            Missing::new(Reason::Unsupported, format!("{path} is not the kernel log"))
        }
        _ => Missing::new(Reason::Unknown, format!("cannot read {path}: {error}")),
    }
}

/// Returns fixes for an unreadable kernel log, best first. Each is a command or a piece of advice for this user.
pub fn fixes(missing: &Missing, user_is_root: bool) -> Vec<String> {
    match (missing.reason, user_is_root) {
        (Reason::Denied, true) => vec![
            "start the container with docker run --privileged …, or run gputop on the host"
                .into(),
        ],
        (Reason::Denied, false) => vec![
            "sudo sysctl kernel.dmesg_restrict=0    (lets every user of this host read the kernel log)".into(),
            "sudo setcap cap_syslog+ep \"$(command -v gputop)\"    (lets gputop read it)".into(),
            "or ask an administrator to run either command; without the log, the driver still reports Xids, but not their text".into(),
        ],
        (Reason::Unsupported, _) => {
            vec!["docker run --device /dev/kmsg …, or run gputop on the host".into()]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
