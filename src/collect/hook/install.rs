//! Installs the hook's files where Python can import them. The files are embedded in gputop.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use crate::user_files::{Base, directory, replace_with};

/// Name and text of each file of the hook.
const FILES: &[(&str, &str)] = &[
    ("sitecustomize.py", include_str!("../../../assets/hook/sitecustomize.py")),
    ("gputop_hook.py", include_str!("../../../assets/hook/gputop_hook.py")),
];

/// Writes the hook's files if needed, and returns their directory, which belongs on `PYTHONPATH`. The directory is in
/// the user's cache directory or, if that is not writable, in the user's state directory. Its name depends on the
/// content of the files, so that a running program keeps the version that it started with.
pub fn install() -> io::Result<PathBuf> {
    let install_in = |base| install_below(&directory(base, "hook").map_err(io::Error::other)?);
    install_in(Base::Cache).or_else(|_| install_in(Base::State))
}

fn install_below(folder: &Path) -> io::Result<PathBuf> {
    let path = folder.join(name());
    // Reject a colon, because an entry of PYTHONPATH cannot contain one.
    if path.as_os_str().as_encoded_bytes().contains(&b':') {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
    let status = path.symlink_metadata()?;
    if !status.is_dir() || status.uid() != geteuid().as_raw() || status.mode() & 0o022 != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    for (name, text) in FILES {
        write(&path, name, text)?;
    }
    Ok(path)
}

/// Returns a name for the hook directory that depends on the content of its files.
fn name() -> String {
    let mut hash = DefaultHasher::new();
    FILES.hash(&mut hash);
    format!("{:016x}", hash.finish())
}

/// Replaces a file atomically, so that concurrent installs are safe.
fn write(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    let path = folder.join(name);
    let has_length = path.symlink_metadata().is_ok_and(|file| {
        file.is_file() && file.uid() == geteuid().as_raw() && file.len() == text.len() as u64
    });
    if has_length && fs::read(&path).is_ok_and(|content| content == text.as_bytes()) {
        return Ok(());
    }
    replace_with(&path, 0o600, |file| file.write_all(text.as_bytes())).map(drop)
}

/// Returns the new value of `PYTHONPATH`: the hook directory, followed by the previous entries.
pub fn python_path(hook: &Path, own: Option<&OsStr>) -> std::ffi::OsString {
    let mut path = hook.as_os_str().to_owned();
    // Drop an empty value, because Python treats an empty entry as the working directory.
    let own = own.filter(|own| !own.is_empty());
    let Some(own) = own else { return path };
    let is_first = std::env::split_paths(own).next().as_deref() == Some(hook);
    if is_first {
        return own.to_owned();
    }
    path.push(":");
    path.push(own);
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn writes_the_files_once_and_repairs_them() {
        let home = tempfile::tempdir().expect("a directory");
        let path = install_below(home.path()).expect("a hook directory");
        let inode = |name: &str| fs::metadata(path.join(name)).expect("a file").ino();
        let before = inode("gputop_hook.py");
        assert_eq!(install_below(home.path()).expect("again"), path);
        assert_eq!(inode("gputop_hook.py"), before);
        fs::write(path.join("gputop_hook.py"), "half").expect("damaged");
        install_below(home.path()).expect("repaired");
        for (name, text) in FILES {
            assert_eq!(fs::read_to_string(path.join(name)).expect("read"), *text);
        }
        let mode = |path: &Path| fs::metadata(path).expect("a file").mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&path.join("sitecustomize.py")), 0o600);
        assert_eq!(fs::read_dir(&path).expect("listed").count(), FILES.len());
    }

    #[test]
    fn refuses_a_directory_that_others_can_write() {
        let home = tempfile::tempdir().expect("a directory");
        let path = install_below(home.path()).expect("a hook directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("opened up");
        assert!(install_below(home.path()).is_err());
        fs::remove_dir_all(&path).expect("removed");
        symlink("/tmp", &path).expect("a link");
        assert!(install_below(home.path()).is_err());
    }

    #[test]
    fn keeps_the_order_of_the_users_path() {
        let hook = Path::new("/hook");
        let path = |own: Option<&str>| python_path(hook, own.map(OsStr::new));
        assert_eq!(path(None), "/hook");
        assert_eq!(path(Some("")), "/hook");
        assert_eq!(path(Some("/b:/a::")), "/hook:/b:/a::");
        assert_eq!(path(Some("/hook:/b")), "/hook:/b");
    }
}
