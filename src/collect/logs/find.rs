//! Finds the logs of a process, by following its standard output and standard error.
//!
//! The kernel's links `/proc/PID/fd/1` and `2` name the target: a path is a file, `pipe:[…]` has a reader in some
//! process, `/dev/pts/3` is a terminal, `socket:[…]` may belong to the journal. If a target cannot be read, the user
//! gets a reason that they can act on.
//!
//! Example: `python train.py 2>&1 | tee train.log` in tmux. Both descriptors are one pipe. `tee` reads from the pipe,
//! and writes one regular file, `train.log`, and a terminal. gputop follows the file, because the terminal shows the
//! same text.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use gputop_model::event::LogOrigin;
use gputop_model::redact;
use gputop_model::text::visible;
use gputop_model::{Millis, Missing, Mono, Pid, ProcessKey, Reason, StartTicks};
use gputop_peek::clock::{boot_time, now_mono};
use gputop_peek::process::access::Access;
use gputop_peek::process::stat::{start_time, with_ancestors};

use super::content::LogContent;
use super::journal::{Journal, JournalWriters, is_journal};
use super::pane::Pane;
use super::pipe::{self, Descriptor};
use super::stream::Stream;
use super::tail::{CREATION_UNCERTAINTY, Credentials, LogFileLocation, NoFile, Tail, start_offset};
use crate::collect::logs::settings::LogSettings;
use crate::collect::process::container::docker_id;
use crate::collect::process::nul_list;
use crate::collect::process::own_program::is_gputop;
use crate::user_files::FileId;

/// File descriptors of standard output and standard error.
const DESCRIPTORS: [u32; 2] = [1, 2];
const MAX_NAME: usize = 1_024;
/// Maximum age of a process whose log is read from the beginning, to find errors from the process's first seconds.
/// Applies only if the process or its shell also created the log file.
const MAX_YOUNG_AGE: Millis = Millis(10_000);
/// Maximum number of pipes to follow between a process and its log: `python … | grep -v … | tee …`
const MAX_PIPES: u32 = 4;
const MAX_READERS: usize = 4;
/// Maximum number of files written by a pipe reader. A reader that writes more files does more than copy its input.
const MAX_FILES: usize = 4;
const OPEN_FILES: &str = "its open files";

/// Identity of a log, for detecting duplicates.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogId {
    File(FileId),
    /// Device of the file system that contains the terminal's device file, and the terminal's own device number.
    Terminal(u64, u64),
    Journal(JournalWriters),
}

#[derive(Debug)]
pub struct FoundLog {
    pub id: LogId,
    pub name: String,
    pub origin: LogOrigin,
    pub content: Box<dyn LogContent>,
    /// Offset at which the process's text begins. `None` means the end of the log.
    pub from: Option<u64>,
}

/// Distinct logs of a process, and the reason why some output is not readable, if any.
#[derive(Debug, Default)]
pub struct Findings {
    pub found: Vec<FoundLog>,
    pub missing: Option<Missing>,
}

pub fn find(settings: &LogSettings, key: ProcessKey, now: Mono) -> Result<Findings, Missing> {
    let process = Process { young: young(key, now), ..Process::of(settings, key) };
    let mut findings = Findings::default();
    let link = |fd: u32| std::fs::read_link(process.dir.join("fd").join(fd.to_string())).ok();
    let is_shared = link(1).is_some() && link(1) == link(2);
    for fd in DESCRIPTORS.into_iter().take(if is_shared { 1 } else { 2 }) {
        match process.find(fd, MAX_PIPES) {
            Ok(found) => found.into_iter().for_each(|found| {
                if findings.found.iter().all(|known| known.id != found.id) {
                    findings.found.push(found);
                }
            }),
            Err(missing) => findings.missing = findings.missing.take().or(Some(missing)),
        }
    }
    // Check that the PID was not reused in the meantime, so that the opened files belong to this process.
    process.check(key)?;
    Ok(findings)
}

/// Opens a log that the user named for a process. A relative path is resolved against the process's working directory.
pub fn named(settings: &LogSettings, key: ProcessKey, path: &Path) -> Result<FoundLog, Missing> {
    let process = Process::of(settings, key);
    let owner = process.owner().map_err(|error| process.denied(&error))?;
    let path = match std::fs::read_link(process.dir.join("cwd")) {
        Ok(cwd) => cwd.join(path),
        Err(error) if path.is_relative() => return Err(process.denied(&error)),
        Err(_) => path.to_owned(),
    };
    process.check(key)?;
    let location = LogFileLocation::Path {
        path: path.clone(),
        owners: if settings.is_remote {
            vec![owner.user]
        } else {
            vec![settings.user, owner.user, 0]
        },
        reader: settings.is_remote.then_some(owner),
    };
    let why = |error| Missing::new(Reason::Unsupported, format!("{}: {error}", file_name(&path)));
    let file = process.open(&path, LogOrigin::Named, location);
    file.map_err(why)
}

struct Process<'a> {
    settings: &'a LogSettings,
    pid: Pid,
    dir: PathBuf,
    /// Start time of the process, or 0 if it has already exited. If it is 0, none of the process's files can be opened.
    start: StartTicks,
    /// Start time of the watched process, if it started recently.
    young: Option<SystemTime>,
}

impl<'a> Process<'a> {
    fn new(settings: &'a LogSettings, pid: Pid) -> Self {
        let start = start_time(&settings.proc_root, pid).unwrap_or_default();
        Self::of(settings, ProcessKey { pid, start })
    }

    fn of(settings: &'a LogSettings, key: ProcessKey) -> Self {
        Self {
            settings,
            pid: key.pid,
            dir: settings.proc_root.join(key.pid.to_string()),
            start: key.start,
            young: None,
        }
    }

    fn open(
        &self,
        name: &Path,
        origin: LogOrigin,
        location: LogFileLocation,
    ) -> Result<FoundLog, NoFile> {
        let open = location.open()?;
        let from = start_offset(&open.1, self.young);
        Ok(FoundLog {
            id: LogId::File(FileId::of(&open.1)),
            name: file_name(name),
            origin,
            content: Box::new(Tail::new(location, open, from, now_mono())),
            from: Some(from),
        })
    }

    fn descriptor(&self, link: PathBuf) -> LogFileLocation {
        LogFileLocation::Descriptor {
            link,
            proc_root: self.settings.proc_root.clone(),
            process: ProcessKey { pid: self.pid, start: self.start },
        }
    }

    /// Returns the real user and group of the process. The owner of `/proc/PID` is not suitable, because it is root for
    /// a process that is not dumpable.
    fn owner(&self) -> io::Result<Credentials> {
        let status = nul_list::read(File::open(self.dir.join("status"))?)?;
        let status = String::from_utf8_lossy(&status);
        let first = |name: &str| {
            let ids = status.lines().find_map(|line| line.strip_prefix(name))?;
            ids.split_whitespace().next()?.parse().ok()
        };
        let (user, group) = first("Uid:").zip(first("Gid:")).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Credentials { user, group })
    }

    fn denied(&self, error: &io::Error) -> Missing {
        Access::new(&self.settings.proc_root).missing(OPEN_FILES, error)
    }

    fn check(&self, key: ProcessKey) -> Result<(), Missing> {
        Access::new(&self.settings.proc_root).check(key, OPEN_FILES)
    }

    /// Finds the logs behind descriptor `fd`, following at most `pipes` pipes.
    fn find(&self, fd: u32, pipes: u32) -> Result<Vec<FoundLog>, Missing> {
        let stream = match fd {
            1 => "stdout",
            2 => "stderr",
            _ => "its output",
        };
        let link = self.dir.join("fd").join(fd.to_string());
        let target = match std::fs::read_link(&link) {
            Ok(target) => target,
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.dir.exists() => {
                let closed = format!("{stream} is closed");
                return Err(Missing::new(Reason::Unsupported, closed));
            }
            Err(error) => return Err(self.denied(&error)),
        };
        let location = self.descriptor(link.clone());
        let error = match self.open(&target, LogOrigin::Descriptor, location) {
            Ok(file) => return Ok(vec![file]),
            Err(error) => error,
        };
        let (Ok(metadata), NoFile::Kind(_)) = (std::fs::metadata(&link), &error) else {
            return Err(unreadable(stream, &target, &error));
        };
        let kind = metadata.file_type();
        let is_terminal = is_terminal(&metadata);
        if (kind.is_fifo() || is_terminal)
            && let Some(file) = self.docker()
        {
            return Ok(vec![file]);
        }
        if kind.is_fifo() {
            let found = self.through_pipe(stream, &target, pipes);
            return found.or_else(|why| Ok(vec![self.slurm().ok_or(why)?]));
        }
        if is_terminal {
            return match self.screen() {
                Some(logs) => Ok(logs),
                None => Ok(vec![self.pane(metadata.dev(), metadata.rdev())?]),
            };
        }
        if kind.is_socket() && is_journal(&self.environ(), metadata.dev(), metadata.ino()) {
            return Ok(vec![self.journal()?]);
        }
        Err(unreadable(stream, &target, &error))
    }

    fn pane(&self, device: u64, number: u64) -> Result<FoundLog, Missing> {
        let pane = Pane::find(self.settings, (device, number))?;
        Ok(FoundLog {
            id: LogId::Terminal(device, number),
            name: pane.name(),
            origin: LogOrigin::Pane,
            content: Box::new(Stream::of_pane(pane)),
            from: None,
        })
    }

    fn journal(&self) -> Result<FoundLog, Missing> {
        let since = self.young.unwrap_or_else(SystemTime::now);
        let owner = self.owner().map_err(|error| self.denied(&error))?;
        let writers = JournalWriters::of(self.pid, owner.user, &self.cgroup().unwrap_or_default());
        let journal =
            Journal::follow(self.settings, self.pid, &writers, since).map_err(|error| {
                Missing::new(Reason::Unsupported, format!("cannot read the journal: {error}"))
            })?;
        Ok(FoundLog {
            id: LogId::Journal(writers),
            name: "journal".into(),
            origin: LogOrigin::Journal,
            content: Box::new(Stream::of_journal(journal)),
            from: None,
        })
    }

    fn through_pipe(
        &self,
        stream: &str,
        pipe: &Path,
        pipes: u32,
    ) -> Result<Vec<FoundLog>, Missing> {
        let unsupported = |why: String| Err(Missing::new(Reason::Unsupported, why));
        if pipes == 0 {
            return unsupported(format!("{stream} goes through too many pipes"));
        }
        let readers = pipe::readers(self.settings, self.pid, pipe);
        let Some(first) = readers.first() else {
            return unsupported(format!("{stream} is a pipe whose reader gputop cannot see"));
        };
        let mut found = Vec::new();
        for &reader in readers.iter().take(MAX_READERS) {
            let reader = Process { young: self.young, ..Process::new(self.settings, reader) };
            found.extend(reader.copies(pipes));
        }
        if found.is_empty() {
            return unsupported(format!(
                "{stream} is a pipe to process {first}, which does not write it to a file"
            ));
        }
        Ok(found)
    }

    /// Returns the logs to which a pipe reader copies its input: the regular files that it writes, or the logs of its
    /// own output if it writes none.
    fn copies(&self, pipes: u32) -> Vec<FoundLog> {
        let mut descriptors = pipe::descriptors(&self.settings.proc_root, self.pid);
        // If the reader is a gputop process, consider only its stdout and stderr: its other files are not copies of its
        // input.
        if is_gputop(&self.dir) {
            descriptors.retain(|descriptor| DESCRIPTORS.contains(&descriptor.number));
        }
        let files = self.written(&descriptors);
        if !files.is_empty() {
            return files;
        }
        DESCRIPTORS.iter().find_map(|&fd| self.find(fd, pipes - 1).ok()).unwrap_or_default()
    }

    /// Returns the regular files that the process has open for writing. Returns no files if there are too many.
    fn written(&self, descriptors: &[Descriptor]) -> Vec<FoundLog> {
        let mut files: Vec<FoundLog> = Vec::new();
        // Skip standard error, which contains the reader's own messages.
        let is_output = |d: &&Descriptor| ![0, 2].contains(&d.number) && d.has_access(pipe::WRITE);
        for descriptor in descriptors.iter().filter(is_output) {
            let location = self.descriptor(descriptor.link.clone());
            let file = self.open(&descriptor.target, LogOrigin::PipeReader, location);
            if let Ok(file) = file
                && files.iter().all(|known| known.id != file.id)
            {
                files.push(file);
            }
        }
        if files.len() > MAX_FILES {
            files.clear();
        }
        files
    }

    /// Returns the log of GNU screen (`screen -L`), a file written by this process's ancestor, the screen process. The
    /// text is not requested from screen itself, because this would write a file and disturb the user.
    fn screen(&self) -> Option<Vec<FoundLog>> {
        let mut ancestors = with_ancestors(&self.settings.proc_root, self.pid);
        let (screen, _) = ancestors.find(|(_, name)| name.eq_ignore_ascii_case(b"screen"))?;
        let descriptors = pipe::descriptors(&self.settings.proc_root, screen.pid);
        let screen = Process { young: self.young, ..Process::of(self.settings, screen) };
        Some(screen.written(&descriptors)).filter(|files| !files.is_empty())
    }

    /// Returns Docker's log of the process's container, which only root can read.
    fn docker(&self) -> Option<FoundLog> {
        let id = docker_id(&self.cgroup().ok()?)?;
        let path = self.settings.docker_root.join(&id).join(format!("{id}-json.log"));
        let location = LogFileLocation::Path {
            path: path.clone(),
            owners: vec![0, self.settings.user],
            reader: None,
        };
        self.open(&path, LogOrigin::Docker, location).ok()
    }

    /// Returns the output file of a Slurm batch job, if it has the default name. The file must belong to the user of
    /// the process.
    fn slurm(&self) -> Option<FoundLog> {
        let environ = self.environ();
        let value = |name: &str| {
            let mut entries = environ.split(|&b| b == 0);
            entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
        };
        let number = |name| {
            let digits =
                value(name).filter(|v| !v.is_empty() && v.iter().all(u8::is_ascii_digit))?;
            String::from_utf8(digits.to_vec()).ok()
        };
        let name = match (number("SLURM_ARRAY_JOB_ID"), number("SLURM_ARRAY_TASK_ID")) {
            (Some(job), Some(task)) => format!("slurm-{job}_{task}.out"),
            _ => format!("slurm-{}.out", number("SLURM_JOB_ID")?),
        };
        let folder = std::ffi::OsString::from_vec(value("SLURM_SUBMIT_DIR")?.to_vec());
        let path = PathBuf::from(folder).join(name);
        let location = LogFileLocation::Path {
            path: path.clone(),
            owners: vec![self.owner().ok()?.user],
            reader: None,
        };
        self.open(&path, LogOrigin::Slurm, location).ok()
    }

    fn cgroup(&self) -> io::Result<String> {
        let cgroup = nul_list::read(File::open(self.dir.join("cgroup"))?)?;
        Ok(String::from_utf8_lossy(&cgroup).into_owned())
    }

    fn environ(&self) -> Vec<u8> {
        let file = File::open(self.dir.join("environ"));
        file.and_then(nul_list::read).unwrap_or_default()
    }
}

/// Returns true for the slave end of a pseudo-terminal (`UNIX98_PTY_SLAVE_MAJOR` and the 7 majors after it).
fn is_terminal(metadata: &Metadata) -> bool {
    let major = nix::sys::stat::major(metadata.rdev());
    metadata.file_type().is_char_device() && (136..144).contains(&major)
}

fn unreadable(stream: &str, target: &Path, error: &NoFile) -> Missing {
    let shown = file_name(target);
    match error {
        NoFile::Kind(_) if shown.starts_with("socket:") => {
            Missing::new(Reason::Unsupported, format!("{stream} is a socket"))
        }
        NoFile::Kind(_) => Missing::new(Reason::Unsupported, format!("{stream} is {shown}")),
        NoFile::NotWritten => {
            Missing::new(Reason::Unsupported, format!("{stream} is {shown}, but {error}"))
        }
        NoFile::Owner(_) | NoFile::NotOfProcess(_) => {
            Missing::new(Reason::Denied, format!("{stream}, {shown}: {error}"))
        }
        NoFile::Io(io) if io.kind() == io::ErrorKind::PermissionDenied => Missing::new(
            Reason::Denied,
            format!("{stream} is {shown}, which only its owner can read"),
        ),
        NoFile::Io(_) => Missing::new(Reason::Unknown, format!("{stream}, {shown}: {error}")),
    }
}

fn file_name(path: &Path) -> String {
    visible(&redact::text(path.as_os_str().as_bytes()), MAX_NAME)
}

fn young(key: ProcessKey, now: Mono) -> Option<SystemTime> {
    let since_boot = key.start.0 * 1_000 / procfs::ticks_per_second();
    if now.since(Mono(since_boot)) >= MAX_YOUNG_AGE {
        return None;
    }
    let boot = u64::try_from(boot_time().0).ok()?;
    let started = Duration::from_millis(boot + since_boot);
    Some(SystemTime::UNIX_EPOCH + started - CREATION_UNCERTAINTY)
}
