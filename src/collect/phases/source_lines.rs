//! Reads the lines and expressions that a program executes from its source files.
//!
//! The files are read as the program sees them, through `/proc/PID/root`. A file is used only if the user of the program may
//! read it, and if it has not changed since the program started.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use gputop_model::text::visible;
use gputop_model::{ProcessKey, redact};
use gputop_peek::clock::boot_time;
use gputop_peek::python::SourcePosition;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::libc::O_PATH;
use nix::sys::stat::Mode;

const MAX_FILES: usize = 512;
const MAX_FILE_BYTES: u64 = 2 << 20;
/// Maximum size of the files of one process together. Beyond it, they are read again.
const MAX_BYTES: usize = 8 << 20;
const MAX_QUOTED_CHARS: usize = 80;
/// Start times are rounded down to a clock tick of 10 ms.
const TOLERANCE_MS: i64 = 20;

/// Source files of one process.
#[derive(Debug)]
pub struct SourceFiles {
    folder: PathBuf,
    /// Start of the process in milliseconds since 1970.
    started: i64,
    files: HashMap<String, Option<SourceFile>>,
    bytes: usize,
}

#[derive(Debug)]
struct SourceFile {
    text: String,
    /// The text without secrets. Computed when a line is first quoted.
    redacted: Option<String>,
}

impl SourceFiles {
    pub fn new(proc_root: &Path, process: ProcessKey) -> Self {
        let started = process.start.since_boot().0;
        Self {
            folder: proc_root.join(process.pid.to_string()),
            started: boot_time().0.saturating_add_unsigned(started),
            files: HashMap::new(),
            bytes: 0,
        }
    }

    /// Returns the expression at a position, or the whole line, as it is in the file. Do not show it.
    pub fn raw(&mut self, path: &str, position: SourcePosition) -> Option<&str> {
        let file = self.file(path)?;
        let line = line(&file.text, position.line)?;
        Some(expression(line, position).unwrap_or(line.trim()))
    }

    /// Returns the expression at a position, or the whole line, without secrets and escaped.
    pub fn quoted(&mut self, path: &str, position: SourcePosition) -> Option<String> {
        let file = self.file(path)?;
        let redacted = file.redacted.get_or_insert_with(|| {
            let bytes = redact::text(file.text.as_bytes());
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let (raw, clean) = (line(&file.text, position.line)?, line(redacted, position.line)?);
        // The columns are those of the original line.
        let part = if raw == clean { expression(raw, position) } else { None };
        let text = part.unwrap_or(clean.trim());
        (!text.is_empty()).then(|| visible(text.as_bytes(), MAX_QUOTED_CHARS))
    }

    fn file(&mut self, path: &str) -> Option<&mut SourceFile> {
        if !self.files.contains_key(path) {
            let text = self.read(path);
            let bytes = text.as_ref().map_or(0, String::len);
            if self.files.len() >= MAX_FILES || self.bytes + bytes > MAX_BYTES {
                self.files.clear();
                self.bytes = 0;
            }
            self.bytes += bytes;
            let file = text.map(|text| SourceFile { text, redacted: None });
            self.files.insert(path.to_owned(), file);
        }
        self.files.get_mut(path)?.as_mut()
    }

    /// Opens a file as the program would. Neither `..` nor a symbolic link leads out of its root.
    fn open(&self, path: &Path) -> Option<File> {
        let (folder, inside, bounds) = match path.strip_prefix("/") {
            Ok(inside) => ("root", inside, ResolveFlag::RESOLVE_IN_ROOT),
            Err(_) => ("cwd", path, ResolveFlag::RESOLVE_BENEATH),
        };
        // The folder need not be readable.
        let mut options = File::options();
        let folder = options.read(true).custom_flags(O_PATH).open(self.folder.join(folder)).ok()?;
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let opened = match openat2(&folder, inside, OpenHow::new().flags(flags).resolve(bounds)) {
            // Before Linux 5.6, and in containers of that time.
            Err(Errno::ENOSYS | Errno::EPERM) => {
                let is_plain = !inside.components().any(|part| part == Component::ParentDir);
                let open = || openat(&folder, inside, flags, Mode::empty()).ok();
                is_plain.then(open).flatten()
            }
            opened => opened.ok(),
        };
        opened.map(File::from)
    }

    fn read(&self, path: &str) -> Option<String> {
        let path = Path::new(path);
        // A path such as `<string>` is no file.
        if path.extension().is_none_or(|extension| extension != "py") {
            return None;
        }
        let file = self.open(path)?;
        let found = file.metadata().ok()?;
        // Root can read files that the user of the program cannot.
        let owner = self.folder.metadata().ok()?.uid();
        let is_readable = found.uid() == owner || found.mode() & 0o004 != 0;
        let changed = found.mtime().saturating_mul(1_000) + found.mtime_nsec() / 1_000_000;
        let is_unchanged = changed <= self.started.saturating_add(TOLERANCE_MS);
        let is_usable = found.is_file() && found.len() <= MAX_FILE_BYTES;
        if !is_usable || !is_readable || !is_unchanged {
            return None;
        }
        let mut text = String::new();
        file.take(MAX_FILE_BYTES).read_to_string(&mut text).ok()?;
        Some(text)
    }
}

fn line(text: &str, number: u32) -> Option<&str> {
    text.lines().nth(usize::try_from(number).ok()?.checked_sub(1)?)
}

/// Returns the part of a line in the columns of a position.
fn expression(line: &str, position: SourcePosition) -> Option<&str> {
    let (start, end) = position.columns?;
    let part = line.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)?;
    (!part.is_empty()).then_some(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_model::{Pid, StartTicks};

    const SOURCE: &str = "import torch\n    seen.append((1.0, loss.item(0.3)))\nlogin(token='hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ012345')\n";

    /// Returns the files of a process that started at `start`, and the path of its source file.
    fn files(start: StartTicks) -> (tempfile::TempDir, SourceFiles, String) {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("7/root/home");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("train.py"), SOURCE).expect("a file");
        let files = SourceFiles::new(root.path(), ProcessKey { pid: Pid(7), start });
        (root, files, "/home/train.py".to_owned())
    }

    fn at(line: u32, columns: Option<(u32, u32)>) -> SourcePosition {
        SourcePosition { line, columns }
    }

    #[test]
    fn quotes_the_expression_or_the_line_without_secrets() {
        let (_root, mut files, path) = files(StartTicks(u64::MAX));
        let expression = at(2, Some((22, 36)));
        assert_eq!(files.raw(&path, expression), Some("loss.item(0.3)"));
        assert_eq!(files.quoted(&path, expression).as_deref(), Some("loss.item(0.3)"));
        let whole = "seen.append((1.0, loss.item(0.3)))";
        assert_eq!(files.quoted(&path, at(2, None)).as_deref(), Some(whole));
        assert_eq!(files.quoted(&path, at(2, Some((22, 900)))).as_deref(), Some(whole));
        let secret = files.quoted(&path, at(3, Some((0, 20)))).expect("a line");
        assert!(secret.starts_with("login(token=") && !secret.contains("aBcDeF"), "{secret}");
        assert_eq!(files.quoted(&path, at(9, None)), None);
    }

    #[test]
    fn does_not_use_a_file_that_changed_since_the_start() {
        let (_root, mut files, path) = files(StartTicks(0));
        assert_eq!(files.raw(&path, at(1, None)), None);
        assert_eq!(files.quoted(&path, at(1, None)), None);
    }

    #[test]
    fn reads_only_python_files_inside_the_root_of_the_process() {
        let (root, mut files, _) = files(StartTicks(u64::MAX));
        let inside = root.path().join("7/root/home");
        std::os::unix::fs::symlink(inside.join("train.py"), inside.join("link.py"))
            .expect("a link");
        std::fs::write(root.path().join("7/other.py"), SOURCE).expect("a file");
        std::fs::create_dir_all(inside.join("scripts")).expect("a folder");
        // A link leads to a folder of the process, not of the host.
        std::os::unix::fs::symlink("/home", inside.join("folder")).expect("a link");
        for path in ["/home/scripts/../train.py", "/home/folder/train.py"] {
            assert!(files.raw(path, at(1, None)).is_some(), "{path}");
        }
        std::fs::write(inside.join("secrets.txt"), SOURCE).expect("a file");
        for path in ["/home/link.py", "/../other.py", "/home/secrets.txt", "<string>", "/home"] {
            assert_eq!(files.raw(path, at(1, None)), None, "{path}");
        }
    }
}
