//! Recognizes other processes of gputop.

use std::path::Path;

use crate::user_files::FileId;

/// Returns true if the process with this directory in `/proc` runs the same program file as gputop itself.
pub fn is_gputop(dir: &Path) -> bool {
    let identity = |path: &Path| std::fs::metadata(path).map(|file| FileId::of(&file));
    let (own, other) = (identity(Path::new("/proc/self/exe")), identity(&dir.join("exe")));
    matches!((own, other), (Ok(own), Ok(other)) if own == other)
}
