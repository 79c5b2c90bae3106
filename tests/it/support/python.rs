//! The Python interpreters of this machine, for tests of code that runs inside them.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::skip::available;

/// Returns every Python from 3.8 on that can be started, `python3` first. Without any, the test is skipped, or fails if
/// nothing may be skipped.
pub fn all() -> &'static [PathBuf] {
    static ALL: OnceLock<Vec<PathBuf>> = OnceLock::new();
    let all = ALL.get_or_init(find);
    available(!all.is_empty(), "python3 is not here");
    all
}

fn find() -> Vec<PathBuf> {
    let mut names = vec!["python3".to_owned()];
    names.extend((8..=15).map(|minor| format!("python3.{minor}")));
    let mut found = Vec::new();
    for name in names {
        if let Some(path) = executable(&name)
            && !found.contains(&path)
        {
            found.push(path);
        }
    }
    found
}

/// Returns the path that Python reports for itself, since a shim in front of it would have its own environment.
fn executable(name: &str) -> Option<PathBuf> {
    let message = Command::new(name)
        .args([
            "-I",
            "-c",
            "import sys; sys.version_info < (3, 8) and sys.exit(1); print(sys.executable)",
        ])
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let path = String::from_utf8(message.stdout).ok()?;
    let path = PathBuf::from(path.trim());
    (message.status.success() && path.is_absolute()).then_some(path)
}
