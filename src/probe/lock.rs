//! One probe of a card at a time: two would fill it together, each within its own headroom.
//!
//! A file is locked, in the folder where processes of this user meet, for as long as the child lives; a lock goes with
//! its process. Probes of two users do not see each other.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use nix::libc::{O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK};

use crate::model::units::GpuUuid;

/// # Errors
/// With a clause: another probe is under way, or the file cannot be made.
pub fn lock(folder: &Path, gpu: &GpuUuid) -> Result<File, String> {
    let name: String = gpu
        .0
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(100)
        .collect();
    let path = folder.join(format!("{name}.lock"));
    let say = |error: std::io::Error| format!("{} cannot be locked: {error}", path.display());
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(say)?;
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
        .open(&path)
        .map_err(say)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err("another probe of this GPU is under way; wait until it has ended".into())
        }
        Err(TryLockError::Error(error)) => Err(say(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_of_the_same_card_is_refused_until_the_first_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let (one, two) = (GpuUuid("GPU-1/../x".into()), GpuUuid("GPU-2".into()));
        let held = lock(folder.path(), &one).expect("the first");
        assert!(lock(folder.path(), &one).is_err_and(|why| why.contains("under way")));
        lock(folder.path(), &two).expect("another card");
        drop(held);
        // A process that another test is starting has our files until it is what it is to become.
        let start = std::time::Instant::now();
        while lock(folder.path(), &one).is_err() {
            assert!(start.elapsed().as_secs() < 20, "still locked");
            std::thread::yield_now();
        }
        assert_eq!(
            std::fs::read_dir(folder.path())
                .expect("the folder")
                .count(),
            2
        );
    }
}
