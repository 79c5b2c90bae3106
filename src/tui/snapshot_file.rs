//! The file that a key writes: what is on screen, as JSON, into the current directory.
//!
//! It is always a new file. Nothing that lies there under its name is overwritten, and no link is followed: the
//! directory may be one that others write to.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::model::text::visible;

/// The same moment may be written of several screens.
const MAX_SAME: u32 = 99;

/// `gputop-node17-20261120-120431`, of the host's name, whatever that is, and a date.
pub fn stem(host: &str, date: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' {
            c
        } else {
            '_'
        }
    };
    // The rest of a full name says nothing that the screen says.
    let host = host.split('.').next().unwrap_or_default();
    let host: String = host.chars().take(40).map(plain).collect();
    let date: String = date.chars().take(20).map(plain).collect();
    match host.is_empty() {
        true => format!("gputop-{date}"),
        false => format!("gputop-{host}-{date}"),
    }
}

/// Writes the file and returns what to tell the user: the file's name, or why there is none.
pub fn write(directory: &Path, stem: &str, text: &str) -> String {
    for again in 1..=MAX_SAME {
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
        "not written: {stem}.json and {MAX_SAME} more of its name are there already; move them away"
    )
}

fn failure(directory: &Path, name: &str, error: &io::Error) -> String {
    let place = directory.display().to_string();
    let place = visible(place.as_bytes(), 60);
    let why = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            format!("you may not write in {place}; start gputop in a directory of yours")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("the disk of {place} is full; free some space there")
        }
        io::ErrorKind::NotFound => format!("{place} is gone; start gputop in another directory"),
        _ => error.to_string(),
    };
    format!("{name} was not written: {why}")
}

/// `create_new` is `O_CREAT | O_EXCL`, which fails on anything of that name, a dangling link too.
fn create(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes()).inspect_err(|_| {
        // Half a document is none. It is the file that was just made here.
        let _ = std::fs::remove_file(path);
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_hosts_name_cannot_lead_out_of_the_directory() {
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
    fn nothing_that_is_there_is_touched() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("it.json"), "mine").expect("a file");
        std::os::unix::fs::symlink(at("victim"), at("it-2.json")).expect("a link");
        assert_eq!(write(folder.path(), "it", "{}\n"), "wrote it-3.json (1 KB)");
        let read = |name: &str| std::fs::read_to_string(at(name)).expect("a file");
        assert_eq!(
            (read("it.json"), read("it-3.json")),
            ("mine".into(), "{}\n".into())
        );
        assert!(!at("victim").exists());
        let mode = std::fs::metadata(at("it-3.json"))
            .expect("a file")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let gone = write(&at("nowhere"), "it", "{}");
        assert!(gone.starts_with("it.json was not written: "), "{gone}");
        assert!(gone.contains("nowhere is gone"), "{gone}");
    }
}
