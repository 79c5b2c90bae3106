//! Opens files strictly beneath a directory.
//!
//! Container names are in files that a runtime has written as root, or as the user who runs gputop. A symbolic link in
//! the path or a file of another user may be an attempt to make gputop read another file, so both are rejected. A pipe in
//! place of a file does not block the reader.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;
use nix::unistd::geteuid;

/// Reads a regular file that is owned by root or by this user. A file longer than `limit` bytes is rejected, because a
/// truncated JSON document is useless.
pub fn read(root: &Path, path: &str, limit: u64) -> io::Result<Vec<u8>> {
    let file = File::from(descend(root, path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?);
    let metadata = file.metadata()?;
    let is_trusted = [0, geteuid().as_raw()].contains(&metadata.uid());
    if !metadata.is_file() || !is_trusted {
        return Err(Errno::EACCES.into());
    }
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(Errno::EFBIG.into());
    }
    Ok(bytes)
}

/// Returns up to `max` names in a directory.
pub fn names(root: &Path, path: &str, max: usize) -> io::Result<Vec<String>> {
    let directory = descend(root, path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    let opened = format!("/proc/self/fd/{}", directory.as_raw_fd());
    let entries = fs::read_dir(opened)?.flatten().take(max);
    Ok(entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect())
}

/// Opens a path one component at a time, so that none of them can be a symbolic link.
fn descend(root: &Path, path: &str, how: OFlag) -> io::Result<OwnedFd> {
    let always = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let step = OFlag::O_PATH | OFlag::O_DIRECTORY | always;
    let mut at = open(root, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty())?;
    let mut parts = Path::new(path).components().peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(name) = part else {
            return Err(Errno::EINVAL.into());
        };
        let how = if parts.peek().is_some() {
            step
        } else {
            how | always
        };
        at = openat(&at, name, how, Mode::empty())?;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn errno(result: io::Result<Vec<u8>>) -> Option<Errno> {
        result.err()?.raw_os_error().map(Errno::from_raw)
    }

    #[test]
    fn reads_only_regular_files_beneath_the_root() {
        let (root, outside) = (
            tempfile::tempdir().expect("test setup"),
            tempfile::tempdir().expect("test setup"),
        );
        let at = |name: &str| root.path().join(name);
        fs::write(outside.path().join("secret"), "secret").expect("test setup");
        fs::create_dir(at("a")).expect("test setup");
        fs::write(at("a/plain"), "text").expect("test setup");
        symlink(outside.path().join("secret"), at("a/link")).expect("test setup");
        symlink(outside.path(), at("b")).expect("test setup");
        nix::unistd::mkfifo(&at("a/pipe"), Mode::S_IRUSR).expect("test setup");

        let read = |path: &str, limit| read(root.path(), path, limit);
        assert_eq!(read("a/plain", 4).expect("test setup"), b"text");
        assert_eq!(errno(read("a/plain", 3)), Some(Errno::EFBIG));
        assert_eq!(errno(read("a/link", 99)), Some(Errno::ELOOP));
        assert_eq!(errno(read("b/secret", 99)), Some(Errno::ENOTDIR));
        assert_eq!(errno(read("a/../a/plain", 99)), Some(Errno::EINVAL));
        assert_eq!(errno(read("/a/plain", 99)), Some(Errno::EINVAL));
        assert_eq!(errno(read("a/pipe", 99)), Some(Errno::EACCES));
        assert_eq!(errno(read("a", 99)), Some(Errno::EACCES));
        assert_eq!(errno(read("c/plain", 99)), Some(Errno::ENOENT));
        if geteuid().is_root() {
            std::os::unix::fs::chown(at("a/plain"), Some(65_534), None).expect("test setup");
            assert_eq!(errno(read("a/plain", 4)), Some(Errno::EACCES));
        }
    }

    #[test]
    fn lists_directory_up_to_a_limit_and_rejects_links() {
        let root = tempfile::tempdir().expect("test setup");
        fs::create_dir(root.path().join("a")).expect("test setup");
        for name in 0..9 {
            fs::write(root.path().join(format!("a/{name}")), "").expect("test setup");
        }
        symlink("a", root.path().join("b")).expect("test setup");
        assert_eq!(names(root.path(), "a", 5).expect("test setup").len(), 5);
        assert_eq!(names(root.path(), "a", 99).expect("test setup").len(), 9);
        assert!(names(root.path(), "b", 99).is_err());
    }
}
