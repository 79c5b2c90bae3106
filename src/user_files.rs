//! Directories and files of the user running gputop.
//!
//! [`directory`] decides which of the user's directories may be used. The other functions open files in these
//! directories. They refuse symbolic links and files of other users, create files with mode 0600, and replace files
//! atomically. [`replace_with`] and [`FileId`] also serve files elsewhere: only regular files are replaced, and only
//! files that gputop wrote are deleted.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;
use gputop_model::text::visible;
use nix::libc::{ELOOP, O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::geteuid;
use thiserror::Error;

/// A base directory from the XDG specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    Config,
    State,
    Cache,
    /// `$XDG_RUNTIME_DIR`, or the state directory if it is not set. The Python hook follows the same rule.
    Runtime,
}

/// The reason why a directory from the user's environment is not used.
#[derive(Debug, Error)]
pub enum DirectoryError {
    #[error("this user has no home directory. Set HOME")]
    NoHome,
    #[error(
        "{} belongs to another user ({owner}), but gputop runs as root. Run it with \"sudo -H\", or set HOME and the XDG variables to directories owned by root", visible(path.as_os_str().as_encoded_bytes(), MAX_SHOWN_PATH)
    )]
    OtherUser { path: PathBuf, owner: u32 },
}

const MAX_SHOWN_PATH: usize = 1_024;

/// Returns `BASE/gputop/NAME`. The directory may not exist.
pub fn directory(base: Base, name: &str) -> Result<PathBuf, DirectoryError> {
    let xdg = || etcetera::choose_base_strategy().map_err(|_| DirectoryError::NoHome);
    let folder = match base {
        Base::Config => xdg()?.config_dir(),
        Base::Cache => xdg()?.cache_dir(),
        Base::State => xdg()?.state_dir().ok_or(DirectoryError::NoHome)?,
        Base::Runtime => {
            let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
            let runtime = runtime
                .filter(|path| path.is_absolute() && path.is_dir())
                .map(|path| path.join("gputop").join(name))
                .filter(|path| refuse_other_users(path).is_ok());
            return runtime.map_or_else(|| directory(Base::State, name), Ok);
        }
    };
    let path = folder.join("gputop").join(name);
    refuse_other_users(&path)?;
    Ok(path)
}

/// Fails if gputop runs as root and this path or a directory above it is owned by another user.
///
/// `sudo -E` keeps the caller's HOME and XDG variables. Root must not write where that user can create a symbolic link,
/// and must not run the `on_incident` command from that user's configuration.
pub fn refuse_other_users(path: &Path) -> Result<(), DirectoryError> {
    if !geteuid().is_root() {
        return Ok(());
    }
    // In a user namespace, the owner of "/" may not be mapped to root, but "/" is still trusted.
    let system = fs::metadata("/").map_or(0, |root| root.uid());
    for ancestor in path.ancestors() {
        let owners = [ancestor.symlink_metadata(), ancestor.metadata()];
        let owner = owners
            .into_iter()
            .flatten()
            .map(|found| found.uid())
            .find(|owner| *owner != 0 && *owner != system);
        if let Some(owner) = owner {
            return Err(DirectoryError::OtherUser { path: ancestor.to_owned(), owner });
        }
    }
    Ok(())
}

/// Creates a directory that only this user can access. Fails if the directory or its parent is owned by anyone other
/// than root or this user, because the owner could place files there.
pub fn own_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    check_folder(folder)?;
    let above = folder.parent().unwrap_or(folder);
    let owner = fs::metadata(above)?.uid();
    if owner != geteuid().as_raw() && owner != 0 {
        return Err(foreign());
    }
    if folder.symlink_metadata()?.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Fails with `NotFound`, with `NotADirectory` for a link or a file, or with `PermissionDenied` for another user's
/// directory.
pub fn check_folder(folder: &Path) -> io::Result<()> {
    let found = folder.symlink_metadata()?;
    if !found.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    if found.uid() != geteuid().as_raw() {
        return Err(foreign());
    }
    Ok(())
}

fn foreign() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "owned by another user")
}

/// Reads a file owned by this user. Fails if it is larger than `max_bytes`.
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let (file, _) = open(path, OpenOptions::new().read(true))?;
    let mut bytes = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {} MiB", max_bytes >> 20),
        ));
    }
    Ok(bytes)
}

/// Reads up to `max_bytes` from the start of a file owned by this user.
pub fn read_start(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let (file, _) = open(path, OpenOptions::new().read(true))?;
    let mut bytes = Vec::new();
    file.take(max_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a file owned by this user for appending, with mode 0600. Empties the file first if it is larger than
/// `max_bytes`.
pub fn append(path: &Path, max_bytes: u64) -> io::Result<File> {
    own_folder(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
    let mut options = OpenOptions::new();
    let (file, found) = open(path, options.append(true).create(true).mode(0o600))?;
    if found.mode() & 0o077 != 0 {
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
    }
    if found.len() > max_bytes {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Opens a regular file owned by this user. Never follows a symbolic link, and never blocks on a named pipe.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<(File, Metadata)> {
    let file = match options.custom_flags(O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC).open(path) {
        // O_NOFOLLOW reports a symbolic link as ELOOP.
        Err(error) if error.raw_os_error() == Some(ELOOP) => return Err(not_regular()),
        other => other?,
    };
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(not_regular());
    }
    if found.uid() != geteuid().as_raw() {
        return Err(foreign());
    }
    Ok((file, found))
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

/// Identity of a file, independent of its names. A name may lead to another file by the time it is used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub fn of(file: &Metadata) -> Self {
        Self { device: file.dev(), inode: file.ino() }
    }

    /// Deletes the file at `path` if it is this file.
    pub fn remove_at(self, path: &Path) {
        if path.symlink_metadata().is_ok_and(|found| Self::of(&found) == self) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Deletes a regular file. Leaves links, pipes and devices alone, because gputop creates none.
pub fn remove_regular(path: &Path) {
    if path.symlink_metadata().is_ok_and(|found| found.is_file()) {
        let _ = fs::remove_file(path);
    }
}

/// Replaces a file of this user atomically. After a crash, either the old or the new file exists.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(path, 0o600, |file| {
        file.write_all(bytes)?;
        file.sync_all()
    })?;
    // Without this sync, a crash may lose the rename. Errors are ignored, because the file is complete either way.
    if let Some(folder) = path.parent() {
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
    }
    Ok(())
}

/// Replaces the file at `path`, or creates it, by renaming a temporary file that `write` has written. Fails if `path`
/// is a link, a pipe or a device, because a rename would destroy it. On failure, the temporary file is removed.
pub fn replace_with(
    path: &Path,
    mode: u32,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<FileId> {
    match path.symlink_metadata() {
        Ok(found) if !found.is_file() => return Err(not_regular()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let beside = path.with_extension(format!("{}.{PART}", std::process::id()));
    // An earlier process with the same PID may have been killed and left the file behind.
    remove_regular(&beside);
    let mut file = create_new(&beside, mode)?;
    let id = FileId::of(&file.metadata()?);
    let written = write(&mut file).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        id.remove_at(&beside);
    }
    written.map(|()| id)
}

/// The extension of an incomplete file.
pub const PART: &str = "part";

/// Blocks SIGXFSZ in this thread from now on. A write beyond the file size limit (`ulimit -f`) then returns an error;
/// without this, the signal would kill the process.
pub fn survive_file_limits() {
    let mut too_large = SigSet::empty();
    too_large.add(Signal::SIGXFSZ);
    let _ = too_large.thread_block();
}

/// Creates a file with mode 0600. Fails with `AlreadyExists` if the file exists.
pub fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    own_folder(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
    let mut file = create_new(path, 0o600)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    survive_file_limits();
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode).custom_flags(O_NOFOLLOW | O_CLOEXEC);
    options.open(path)
}

#[cfg(test)]
mod tests;
