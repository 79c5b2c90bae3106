//! Saves a screen's data as JSON in the current directory.
//!
//! Always creates a new file. Existing files are not overwritten and symbolic links are not followed, because other
//! users may be able to write to the directory.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use gputop_model::text::visible;

use crate::user_files::FileId;

/// Maximum number of files whose names contain the same time.
const MAX_SAME_TIME: u32 = 99;

/// Returns the file name without extension: `gputop-node17-20261120-120431`. The host name is sanitized, because it is
/// not trusted.
pub fn stem(host: &str, date: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }
    };
    // The domain is omitted to keep the name short.
    let host = host.split('.').next().unwrap_or_default();
    let host: String = host.chars().take(40).map(plain).collect();
    let date: String = date.chars().take(20).map(plain).collect();
    if host.is_empty() { format!("gputop-{date}") } else { format!("gputop-{host}-{date}") }
}

/// Writes the file and returns a message for the user: the file name, or the error.
pub fn write(directory: &Path, stem: &str, text: &str) -> String {
    for again in 1..=MAX_SAME_TIME {
        let name = match again {
            1 => format!("{stem}.json"),
            again => format!("{stem}-{again}.json"),
        };
        return match create(&directory.join(&name), text) {
            Ok(()) => format!("wrote {name} ({} KB)", text.len().div_ceil(1_000)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => failure(directory, &name, &error),
        };
    }
    format!(
        "cannot write {stem}.json: {MAX_SAME_TIME} files with this name and time already exist; move or delete them"
    )
}

fn failure(directory: &Path, name: &str, error: &io::Error) -> String {
    let place = directory.display().to_string();
    let place = visible(place.as_bytes(), 60);
    let why = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            format!(
                "permission denied in {place}; start gputop in a directory that you can write to"
            )
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("the disk that contains {place} is full; free some space")
        }
        io::ErrorKind::NotFound => {
            format!("{place} does not exist; start gputop in another directory")
        }
        _ => error.to_string(),
    };
    format!("cannot write {name}: {why}")
}

/// Creates and writes a file. `create_new` means `O_CREAT | O_EXCL`, which fails if the name exists, even as a dangling
/// link.
fn create(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    let id = FileId::of(&file.metadata()?);
    // Remove the incomplete file that was created above.
    file.write_all(text.as_bytes()).inspect_err(|_| id.remove_at(path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_host_name_cannot_leave_the_directory() {
        let date = "20261120-120431";
        let table = [
            ("node17.example.org", "gputop-node17-20261120-120431"),
            ("../../etc/passwd", "gputop-20261120-120431"),
            ("a/b\n\x1b", "gputop-a_b__-20261120-120431"),
            ("", "gputop-20261120-120431"),
        ];
        for (host, expected) in table {
            assert_eq!(stem(host, date), expected);
        }
    }

    #[test]
    fn existing_files_and_links_are_not_changed() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("it.json"), "mine").expect("a file");
        std::os::unix::fs::symlink(at("victim"), at("it-2.json")).expect("a link");
        assert_eq!(write(folder.path(), "it", "{}\n"), "wrote it-3.json (1 KB)");
        let read = |name: &str| std::fs::read_to_string(at(name)).expect("a file");
        assert_eq!((read("it.json"), read("it-3.json")), ("mine".into(), "{}\n".into()));
        assert!(!at("victim").exists());
        let mode = std::fs::metadata(at("it-3.json")).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let failed = write(&at("nowhere"), "it", "{}");
        assert!(failed.starts_with("cannot write it.json: "), "{failed}");
        assert!(failed.contains("nowhere does not exist"), "{failed}");
    }
}
