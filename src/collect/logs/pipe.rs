//! Finds the readers of a pipe: `python train.py | tee train.log`.
//!
//! The kernel does not link the two ends of a pipe, so gputop searches the descriptors of other processes: those of the
//! same user, or all processes if gputop runs as root. The search has a time limit, and runs only once, when a process
//! is first watched.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gputop_model::units::Pid;
use nix::libc::{O_ACCMODE, O_PATH, O_RDONLY};

use crate::collect::logs::settings::LogSettings;
use crate::collect::process::nul_list;

const MAX_PROCESSES: usize = 32_768;
const MAX_DESCRIPTORS: usize = 1_024;
const SEARCH_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    pub link: PathBuf,
    pub number: u32,
    /// The kernel's name for the open file: `pipe:[4711]`.
    pub target: PathBuf,
}

impl Descriptor {
    /// Returns true if the file is open with the access `permission`, according to the mode of the descriptor's link in
    /// `/proc`.
    pub fn has_access(&self, permission: u32) -> bool {
        fs::symlink_metadata(&self.link).is_ok_and(|m| m.mode() & permission != 0)
    }

    /// Returns true if the descriptor with this link is open for writing and refers to this inode. Both come from one
    /// read of `fdinfo`, because the process may replace its descriptor at any time. Kernels before 5.14 report no
    /// inode.
    pub fn is_written(link: &Path, inode: u64) -> io::Result<bool> {
        let number = link.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let process = link.ancestors().nth(2).ok_or(io::ErrorKind::InvalidInput)?;
        let info = nul_list::read(File::open(process.join("fdinfo").join(number))?)?;
        let info = String::from_utf8_lossy(&info);
        let value = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
        let flags = value("flags:").and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
        let flags = flags.ok_or(io::ErrorKind::InvalidData)?;
        let is_same = value("ino:").is_none_or(|ino| ino.trim().parse() == Ok(inode));
        Ok(is_same && flags & O_PATH == 0 && flags & O_ACCMODE != O_RDONLY)
    }
}

pub const READ: u32 = 0o400;
pub const WRITE: u32 = 0o200;

/// Returns the processes, other than the writer, that hold the read end of this pipe open.
pub fn readers(settings: &LogSettings, writer: Pid, pipe: &Path) -> Vec<Pid> {
    let proc_root = &settings.proc_root;
    let deadline = Instant::now() + SEARCH_TIMEOUT;
    let user = user_of(proc_root, writer);
    let is_searched = |pid| settings.user == 0 || user_of(proc_root, pid) == user;
    let Ok(entries) = fs::read_dir(proc_root) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid))
        .take(MAX_PROCESSES)
        .take_while(|_| Instant::now() < deadline)
        .filter(|&pid| pid != writer && is_searched(pid))
        .filter(|&pid| {
            descriptors(proc_root, pid)
                .iter()
                .any(|descriptor| descriptor.target == pipe && descriptor.has_access(READ))
        })
        .collect()
}

fn user_of(proc_root: &Path, pid: Pid) -> Option<u32> {
    Some(fs::metadata(proc_root.join(pid.to_string())).ok()?.uid())
}

/// Returns the open file descriptors of a process, or none if the process belongs to a different user.
pub fn descriptors(proc_root: &Path, pid: Pid) -> Vec<Descriptor> {
    let folder = proc_root.join(pid.to_string()).join("fd");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let descriptor = |entry: fs::DirEntry| {
        let link = entry.path();
        Some(Descriptor {
            number: entry.file_name().to_str()?.parse().ok()?,
            target: fs::read_link(&link).ok()?,
            link,
        })
    };
    entries.take(MAX_DESCRIPTORS).filter_map(descriptor).collect()
}
