//! Reads files in `/proc/PID` with the procfs crate, but returns the kernel's error codes.
//!
//! The directory is opened once, and every file is opened relative to its descriptor. If the PID is reused in the
//! meantime, reads fail instead of returning another process's data.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use procfs::process::{Limits, Process, Status};
use procfs::{FromRead, ProcError};

use super::nul_list::{self, NulList};

pub struct Dir(Process);

impl Dir {
    pub fn open(path: &Path) -> io::Result<Self> {
        Process::new_with_root(path.to_owned()).map(Self).map_err(as_io)
    }

    pub fn file(&self, name: &str) -> io::Result<File> {
        self.0.open_relative(name).map_err(as_io)
    }

    pub fn list(&self, name: &str) -> io::Result<NulList> {
        NulList::read(self.file(name)?)
    }

    pub fn cgroup(&self) -> io::Result<String> {
        let bytes = nul_list::read(self.file("cgroup")?)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the inode of a process's mount namespace. Requires permission to read the process.
    pub fn mount_namespace(&self) -> io::Result<u64> {
        Ok(self.file("ns/mnt")?.metadata()?.ino())
    }

    /// Reads `status`, in which the process's name may be cut inside a character, or not be UTF-8 at all.
    pub fn status(&self) -> io::Result<Status> {
        let bytes = nul_list::read(self.file("status")?)?;
        Status::from_read(String::from_utf8_lossy(&bytes).as_bytes()).map_err(as_io)
    }

    pub fn limits(&self) -> io::Result<Limits> {
        self.0.limits().map_err(as_io)
    }

    pub fn cwd(&self) -> io::Result<PathBuf> {
        self.0.cwd().map_err(as_io)
    }

    pub fn executable(&self) -> io::Result<PathBuf> {
        self.0.exe().map_err(as_io)
    }

    pub fn open_files(&self) -> io::Result<usize> {
        self.0.fd_count().map_err(as_io)
    }
}

/// Converts a procfs error to an I/O error with the errno, so that callers can distinguish the reasons.
fn as_io(error: ProcError) -> io::Error {
    match error {
        ProcError::PermissionDenied(_) => Errno::EACCES.into(),
        ProcError::NotFound(_) => Errno::ENOENT.into(),
        ProcError::Io(error, _) => error,
        other => io::Error::other(other.to_string()),
    }
}
