//! Files in a directory of this user's: nothing else is opened, and what is written is whole or not there.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::libc::{ELOOP, O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::geteuid;

/// Makes the directory, for this user only.
///
/// # Errors
/// `PermissionDenied` also where it, or the one above it, is another user's: who owns it could put anything there.
pub(super) fn own_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    check_folder(folder)?;
    let above = folder.parent().unwrap_or(folder);
    if fs::metadata(above)?.uid() != geteuid().as_raw() {
        return Err(foreign());
    }
    if folder.symlink_metadata()?.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// # Errors
/// `NotFound`; `NotADirectory` where it is a link or a file; `PermissionDenied` where it is another user's.
pub(super) fn check_folder(folder: &Path) -> io::Result<()> {
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
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        "it belongs to another user",
    )
}

/// All of a file of this user's.
///
/// # Errors
/// Also for what is no file, is another user's, or holds more than `most` bytes: no link is followed, no pipe waited for.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    let file = match options.open(path) {
        // What O_NOFOLLOW says of a link.
        Err(error) if error.raw_os_error() == Some(ELOOP) => return Err(no_file()),
        other => other?,
    };
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(no_file());
    }
    if about.uid() != geteuid().as_raw() {
        return Err(foreign());
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it is larger than {} MiB", most >> 20),
        ));
    }
    Ok(bytes)
}

fn no_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is not a plain file")
}

/// Puts a file in place of what is at `path`, through one beside it: after a crash the old or the new one is there.
///
/// # Errors
/// Those of the file system; nothing is left behind then.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension(format!("{}.{PART}", std::process::id()));
    let written = write_new(&beside, bytes).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written?;
    // The name as well: without this a crash may lose the rename, which is no reason to fail after it.
    if let Some(folder) = path.parent() {
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
    }
    Ok(())
}

/// The ending of a file that is being written.
pub(super) const PART: &str = "part";

/// Beyond the limit on a file's size (ulimit -f) the kernel sends a signal beside the error, and it kills. For the rest
/// of this thread the error is all there is.
pub(super) fn survive_file_limits() {
    let mut too_large = SigSet::empty();
    too_large.add(Signal::SIGXFSZ);
    let _ = too_large.thread_block();
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    survive_file_limits();
    // Left there by a process of our number that was killed.
    let _ = fs::remove_file(path);
    let mut options = OpenOptions::new();
    options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(O_NOFOLLOW | O_CLOEXEC);
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
