//! Prevents simultaneous probes of one GPU. Together they would fill the GPU, because each probe respects only its own
//! headroom.
//!
//! The lock file is in a directory shared by all of this user's processes. The kernel releases the lock when the child
//! exits. The lock does not prevent simultaneous probes by different users.

use std::fs::{File, TryLockError};
use std::path::Path;

use gputop_model::units::GpuUuid;

use crate::user_files::append;

/// Locks a GPU for a probe. Returns an error phrase without a period if another probe is running or the lock file
/// cannot be locked.
pub fn lock(folder: &Path, gpu: &GpuUuid) -> Result<File, String> {
    let name: String =
        gpu.0.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(100).collect();
    let path = folder.join(format!("{name}.lock"));
    let describe = |error: std::io::Error| format!("cannot lock {}: {error}", path.display());
    let file = append(&path, 0).map_err(describe)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err("another probe of this GPU is running; wait until it finishes".into())
        }
        Err(TryLockError::Error(error)) => Err(describe(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_on_a_gpu_is_refused_until_the_first_is_released() {
        let folder = tempfile::tempdir().expect("a folder");
        let (one, two) = (GpuUuid("GPU-1/../x".into()), GpuUuid("GPU-2".into()));
        let held = lock(folder.path(), &one).expect("the first");
        assert!(lock(folder.path(), &one).is_err_and(|why| why.contains("is running")));
        lock(folder.path(), &two).expect("another GPU");
        drop(held);
        // Tests run in parallel. A child process started by another test inherits the open lock files and holds the
        // locks until it calls exec.
        let start = std::time::Instant::now();
        while lock(folder.path(), &one).is_err() {
            assert!(start.elapsed().as_secs() < 20, "still locked");
            std::thread::yield_now();
        }
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 2);
    }
}
