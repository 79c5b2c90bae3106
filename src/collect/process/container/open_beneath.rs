//! Opening what lies beneath a directory and nowhere else.
//!
//! Names of containers are in files that a runtime wrote as root, or as the user who runs gputop. A link on the way, or
//! a file of anybody else, is somebody's attempt to have another file read: neither is followed. A pipe in a file's
//! place does not hold up the reader.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;
use nix::unistd::geteuid;

/// The whole of a plain file of root's or one's own, at most `limit` bytes long: a longer one is refused, since half a
/// JSON document says nothing.
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

/// The names in a directory, at most `most` of them.
pub fn names(root: &Path, path: &str, most: usize) -> io::Result<Vec<String>> {
    let directory = descend(root, path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    let opened = format!("/proc/self/fd/{}", directory.as_raw_fd());
    let entries = fs::read_dir(opened)?.flatten().take(most);
    Ok(entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect())
}

/// Step by step, so that no component is a link.
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
    fn only_plain_files_beneath_the_root_are_read() {
        let (root, outside) = (
            tempfile::tempdir().expect("as laid out"),
            tempfile::tempdir().expect("as laid out"),
        );
        let at = |name: &str| root.path().join(name);
        fs::write(outside.path().join("secret"), "secret").expect("as laid out");
        fs::create_dir(at("a")).expect("as laid out");
        fs::write(at("a/plain"), "text").expect("as laid out");
        symlink(outside.path().join("secret"), at("a/link")).expect("as laid out");
        symlink(outside.path(), at("b")).expect("as laid out");
        nix::unistd::mkfifo(&at("a/pipe"), Mode::S_IRUSR).expect("as laid out");

        let read = |path: &str, limit| read(root.path(), path, limit);
        assert_eq!(read("a/plain", 4).expect("as laid out"), b"text");
        assert_eq!(errno(read("a/plain", 3)), Some(Errno::EFBIG));
        assert_eq!(errno(read("a/link", 99)), Some(Errno::ELOOP));
        assert_eq!(errno(read("b/secret", 99)), Some(Errno::ENOTDIR));
        assert_eq!(errno(read("a/../a/plain", 99)), Some(Errno::EINVAL));
        assert_eq!(errno(read("/a/plain", 99)), Some(Errno::EINVAL));
        assert_eq!(errno(read("a/pipe", 99)), Some(Errno::EACCES));
        assert_eq!(errno(read("a", 99)), Some(Errno::EACCES));
        assert_eq!(errno(read("c/plain", 99)), Some(Errno::ENOENT));
        if geteuid().is_root() {
            std::os::unix::fs::chown(at("a/plain"), Some(65_534), None).expect("as laid out");
            assert_eq!(errno(read("a/plain", 4)), Some(Errno::EACCES));
        }
    }

    #[test]
    fn a_directory_is_listed_up_to_a_bound_and_not_through_a_link() {
        let root = tempfile::tempdir().expect("as laid out");
        fs::create_dir(root.path().join("a")).expect("as laid out");
        for name in 0..9 {
            fs::write(root.path().join(format!("a/{name}")), "").expect("as laid out");
        }
        symlink("a", root.path().join("b")).expect("as laid out");
        assert_eq!(names(root.path(), "a", 5).expect("as laid out").len(), 5);
        assert_eq!(names(root.path(), "a", 99).expect("as laid out").len(), 9);
        assert!(names(root.path(), "b", 99).is_err());
    }
}
