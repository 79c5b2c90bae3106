//! The spool: a per-user directory with one file for each process that reported through the hook.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gputop_model::{HookEvent, ProcessKey};
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use nix::unistd::geteuid;

use super::spool_line::{self, Process, SpoolLine};
use crate::user_files::{Base, directory, remove_regular};

/// Maximum size of a spool file. The hook writes at most 256 KiB.
const MAX_BYTES: u64 = 512 << 10;
const MAX_LINE: usize = 64 << 10;
/// Maximum number of spool files. The hook creates at most half as many.
const MAX_FILES: usize = 1024;
/// Maximum number of events read from one spool file.
const MAX_EVENTS: usize = 500;
/// Maximum age of a spool file. Older files are deleted.
const MAX_AGE: Duration = Duration::from_hours(24);
/// Maximum age of a process's statistics page, which the hook overwrites each second. Older pages are ignored.
const MAX_PAGE_AGE: Duration = Duration::from_secs(5);
/// Maximum number of retained spool files. Beyond this limit, the oldest files are deleted to make room for new ones.
const MAX_RETAINED: usize = 256;

/// Returns the directory of this user's allocation traces. Traces are too large for the runtime directory, which is in
/// memory.
pub fn traces() -> Option<PathBuf> {
    directory(Base::State, "traces").ok()
}

#[derive(Debug, Clone)]
pub struct Spool {
    folder: PathBuf,
    owner: u32,
}

/// All hook reports of one process.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Process identity from the name of the spool file.
    pub key: ProcessKey,
    pub process: Process,
    pub events: Vec<HookEvent>,
}

/// Content of a spool file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// Events, one per line.
    Events,
    /// Statistics page that is overwritten each second.
    Now,
}

/// Parsed name of a spool file: `RUN.PID.START.jsonl`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Name {
    pub(super) key: ProcessKey,
    pub(super) kind: Kind,
    run: String,
    file: String,
}

impl Spool {
    /// Returns the spool of gputop's user, or `None` if the user has neither a runtime nor a home directory.
    pub fn own() -> Option<Self> {
        Some(Self::at(&directory(Base::Runtime, "hook").ok()?))
    }

    pub fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), owner: geteuid().as_raw() }
    }

    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Returns the hook reports of all processes of one run, ordered by start time.
    pub fn of_run(&self, run: &str) -> Vec<Report> {
        let mut names = self.names();
        names.retain(|name| name.run == run && name.kind == Kind::Events);
        names.sort_unstable();
        let reports = names.iter().map(|name| {
            let mut report =
                Report { key: name.key, process: Process::default(), events: Vec::new() };
            for line in self.lines(name, &mut 0) {
                match line {
                    SpoolLine::Process(process) => report.process = process,
                    SpoolLine::Event(event) => report.events.push(*event),
                }
            }
            report
        });
        reports.filter(|report| !report.events.is_empty()).collect()
    }

    /// Returns the names of the files in the spool, at most [`MAX_FILES`].
    pub(super) fn names(&self) -> Vec<Name> {
        let is_ours = self.folder.symlink_metadata().is_ok_and(|folder| {
            folder.is_dir() && folder.uid() == self.owner && folder.mode() & 0o022 == 0
        });
        if !is_ours {
            return Vec::new();
        }
        let entries = fs::read_dir(&self.folder).into_iter().flatten();
        let names = entries.flatten().take(MAX_FILES);
        names.filter_map(|entry| Name::of(entry.file_name().to_str()?)).collect()
    }

    /// Reads the complete lines of a spool file from byte `from` on, and advances `from` past them. Skips an incomplete
    /// last line: the process is still writing it, or was killed while writing it.
    pub(super) fn lines(&self, name: &Name, from: &mut u64) -> Vec<SpoolLine> {
        let bytes = self.read(&name.file, *from).unwrap_or_default();
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        *from += whole as u64;
        let lines = bytes[..whole].split(|byte| *byte == b'\n');
        lines
            .filter(|line| line.len() <= MAX_LINE)
            .filter_map(|line| spool_line::read(line, name.key))
            .take(MAX_EVENTS)
            .collect()
    }

    /// Reads the statistics page that a process overwrites each second. Returns `None` if the page is stale.
    pub(super) fn page(&self, name: &Name) -> Option<Vec<u8>> {
        let status = self.folder.join(&name.file).symlink_metadata().ok()?;
        let age = status.modified().ok()?.elapsed().unwrap_or_default();
        let is_new = age < MAX_PAGE_AGE;
        is_new.then(|| self.read(&name.file, 0).ok()).flatten()
    }

    /// Returns the length of a spool file without opening it, or 0 if the length is unknown.
    pub(super) fn length(&self, name: &Name) -> u64 {
        let status = self.folder.join(&name.file).symlink_metadata();
        status.map_or(0, |status| status.len())
    }

    fn read(&self, file: &str, from: u64) -> io::Result<Vec<u8>> {
        let mut file: File = OpenOptions::new()
            .read(true)
            // Never block on a pipe, and never follow a link.
            .custom_flags(O_NOFOLLOW | O_NONBLOCK)
            .open(self.folder.join(file))?;
        let status = file.metadata()?;
        if !status.is_file() || status.uid() != self.owner {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(MAX_BYTES.saturating_sub(from)).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Deletes spool files that are too old. If more than `MAX_RETAINED` remain, also deletes the oldest of them.
    pub fn sweep(&self) {
        let mut files: Vec<(Duration, PathBuf)> = Vec::new();
        for name in self.names() {
            let path = self.folder.join(&name.file);
            let Ok(status) = path.symlink_metadata() else { continue };
            let age = status.modified().ok().and_then(|time| time.elapsed().ok());
            files.push((age.unwrap_or_default(), path));
        }
        files.sort_unstable();
        for (n, (age, path)) in files.iter().enumerate() {
            if *age > MAX_AGE || n >= MAX_RETAINED {
                remove_regular(path);
            }
        }
    }
}

impl Name {
    fn of(file: &str) -> Option<Self> {
        let mut parts = file.split('.');
        let (run, pid, start, kind) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        // If the process has called `exec`, the new program has its own spool file: `START-1`.
        let start = start.split('-').next()?;
        let key = ProcessKey::new(pid.parse().ok()?, start.parse().ok()?);
        let kind = match kind {
            "jsonl" => Kind::Events,
            "now" => Kind::Now,
            _ => return None,
        };
        parts.next().is_none().then(|| Self {
            key,
            kind,
            run: run.to_owned(),
            file: file.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use std::os::unix::fs::{PermissionsExt, symlink};

    const LINE: &str = "{\"what\": \"exception\", \"type\": \"KeyError\"}\n";

    fn spool() -> (tempfile::TempDir, Spool) {
        let home = tempfile::tempdir().expect("a directory");
        let spool = Spool::at(home.path());
        (home, spool)
    }

    fn events_of(spool: &Spool) -> Vec<(u32, usize)> {
        let reports = spool.of_run("7-1");
        let count = |report: &Report| (report.key.pid.0, report.events.len());
        reports.iter().map(count).collect()
    }

    #[test]
    fn reads_only_complete_lines_of_own_regular_files() {
        let (home, spool) = spool();
        let at = |name: &str| home.path().join(name);
        let head = "{\"what\": \"process\", \"rank\": 3, \"python\": \"3.11.7\"}\n";
        fs::write(at("7-1.10.99.jsonl"), format!("{head}{LINE}{LINE}{{\"wh")).expect("written");
        fs::write(at("7-1.11.99-1.jsonl"), format!("\0\0\n{LINE}")).expect("written");
        // These files belong to a different run, are of a different kind, or have invalid names.
        for name in ["7-2.12.99.jsonl", "7-1.13.99.now", "7-1.x.99.jsonl", "7-1.14.jsonl"] {
            fs::write(at(name), LINE).expect("written");
        }
        fs::write(at("7-1.15.99.jsonl"), head).expect("written");
        // These are not regular files in the spool directory.
        fs::write(at("elsewhere"), LINE).expect("written");
        symlink(at("elsewhere"), at("7-1.16.99.jsonl")).expect("a link");
        nix::unistd::mkfifo(&at("7-1.17.99.jsonl"), Mode::S_IRUSR).expect("a pipe");
        fs::create_dir(at("7-1.18.99.jsonl")).expect("a directory");
        assert_eq!(events_of(&spool), [(10, 2), (11, 1)]);
        assert_eq!(spool.of_run("7-1")[0].process.rank, Some(3));
    }

    #[test]
    fn limits_what_is_read_of_a_huge_file() {
        let (home, spool) = spool();
        let path = home.path().join("7-1.10.99.jsonl");
        fs::write(&path, LINE.repeat(1_000_000)).expect("written");
        assert_eq!(events_of(&spool), [(10, MAX_EVENTS)]);
        fs::write(&path, "x".repeat(5 << 20)).expect("written");
        assert_eq!(events_of(&spool), []);
    }

    #[test]
    fn ignores_a_directory_that_others_can_write() {
        let (home, spool) = spool();
        fs::write(home.path().join("7-1.10.99.jsonl"), LINE).expect("written");
        assert_eq!(events_of(&spool).len(), 1);
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).expect("opened up");
        assert_eq!(events_of(&spool).len(), 0);
        assert_eq!(events_of(&Spool::at(Path::new("/no/such/directory"))).len(), 0);
    }

    #[test]
    fn does_not_read_a_line_twice() {
        let (home, spool) = spool();
        let path = home.path().join("7-1.10.99.jsonl");
        fs::write(&path, format!("{LINE}{{\"what\"")).expect("written");
        let name = &spool.names()[0];
        let mut from = 0;
        assert_eq!(spool.lines(name, &mut from).len(), 1);
        assert_eq!(spool.lines(name, &mut from).len(), 0);
        fs::write(&path, format!("{LINE}{LINE}")).expect("written");
        assert_eq!(spool.lines(name, &mut from).len(), 1);
    }

    #[test]
    fn sweep_keeps_the_newest_files_and_foreign_files() {
        let (home, spool) = spool();
        for pid in 0..MAX_RETAINED + 50 {
            fs::write(home.path().join(format!("0.{pid}.1.jsonl")), LINE).expect("written");
        }
        fs::write(home.path().join("foreign file"), LINE).expect("written");
        spool.sweep();
        assert_eq!(spool.names().len(), MAX_RETAINED);
        assert!(home.path().join("foreign file").exists());
    }
}
