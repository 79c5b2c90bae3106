//! Where a process writes: what is behind its standard output and error.
//!
//! The kernel's links `/proc/PID/fd/1` and `2` say it: a path is a file, `pipe:[…]` has a reader somewhere,
//! `/dev/pts/3` is a terminal, `socket:[…]` may be the journal's. A place where nothing can be read has a reason that
//! a person can act on.
//!
//! Example: `python train.py 2>&1 | tee train.log` in tmux. Both descriptors are one pipe; `tee` has its other end,
//! writes one regular file, `train.log`, and a terminal. The file is followed; the terminal shows the same.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::pipe::{self, Descriptor};
use super::tail::{Credentials, FileId, LogLocation, NoFile};
use super::{Settings, journal};
use crate::collect::clock::boot_time;
use crate::collect::process::access::Access;
use crate::collect::process::container::docker_id;
use crate::collect::process::nul_list;
use crate::collect::process::stat::{StatBuffer, StatFile};
use crate::model::event::LogOrigin;
use crate::model::process::ProcessKey;
use crate::model::reading::{Missing, Reason};
use crate::model::text::visible;
use crate::model::units::{Millis, Mono, Pid, StartTicks};
use crate::redact;

/// Standard output and standard error.
const DESCRIPTORS: [u32; 2] = [1, 2];
const MAX_NAME: usize = 1_024;
/// The log of a process that was started so short a time ago, in a file that it (or its shell) made, is read from
/// its beginning: what went wrong in its first seconds is of the moment, too.
const YOUNG: Millis = Millis(10_000);
/// `python … | grep -v … | tee …`
const MAX_PIPES: u32 = 4;
const MAX_READERS: usize = 4;
/// A reader that writes more files than this is no copier of its input.
const MAX_FILES: usize = 4;
/// How far up `screen` is looked for.
const MAX_PARENTS: usize = 8;

/// A log that a process writes to.
#[derive(Debug)]
pub enum LogTarget {
    File(Box<FoundFile>),
    /// By its device.
    Terminal(u64, u64),
    Journal,
}

#[derive(Debug)]
pub struct FoundFile {
    pub name: String,
    pub origin: LogOrigin,
    pub place: LogLocation,
    pub open: (File, Metadata),
}

impl From<FoundFile> for LogTarget {
    fn from(file: FoundFile) -> Self {
        Self::File(Box::new(file))
    }
}

impl FoundFile {
    fn open(name: &Path, origin: LogOrigin, place: LogLocation) -> Result<Self, NoFile> {
        Ok(Self {
            name: file_name(name),
            origin,
            open: place.open()?,
            place,
        })
    }

    pub fn id(&self) -> FileId {
        FileId::of(&self.open.1)
    }
}

/// What a process writes to, each once, and why there is nothing to read at the rest.
#[derive(Debug, Default)]
pub struct Findings {
    pub found: Vec<LogTarget>,
    pub missing: Option<Missing>,
    /// When it was started, if that was a short time ago.
    pub young: Option<SystemTime>,
}

impl Findings {
    fn add(&mut self, found: LogTarget) {
        let is_same = |known: &LogTarget| match (known, &found) {
            (LogTarget::File(known), LogTarget::File(found)) => known.id() == found.id(),
            (LogTarget::Terminal(device, number), LogTarget::Terminal(d, n)) => {
                (device, number) == (d, n)
            }
            (LogTarget::Journal, LogTarget::Journal) => true,
            _ => false,
        };
        if !self.found.iter().any(is_same) {
            self.found.push(found);
        }
    }
}

/// # Errors
/// When the process has ended, or is another user's.
pub fn find(settings: &Settings, key: ProcessKey, now: Mono) -> Result<Findings, Missing> {
    let process = Process::of(settings, key);
    let mut findings = Findings {
        young: young(key, now),
        ..Findings::default()
    };
    for fd in DESCRIPTORS {
        match process.find(fd, MAX_PIPES) {
            Ok(found) => found.into_iter().for_each(|found| findings.add(found)),
            Err(missing) => findings.missing = findings.missing.take().or(Some(missing)),
        }
    }
    // The PID was this process's all the time, so what was opened is its.
    process.check(key)?;
    Ok(findings)
}

/// The log that a person names for a process: relative to its working directory.
///
/// # Errors
/// For what is no file that may be followed, with the reason.
pub fn named(settings: &Settings, key: ProcessKey, path: &Path) -> Result<FoundFile, Missing> {
    let process = Process::of(settings, key);
    let owner = process.owner().map_err(|error| process.denied(&error))?;
    let path = match std::fs::read_link(process.dir.join("cwd")) {
        Ok(cwd) => cwd.join(path),
        Err(error) if path.is_relative() => return Err(process.denied(&error)),
        Err(_) => path.to_owned(),
    };
    process.check(key)?;
    let place = LogLocation::Path {
        path: path.clone(),
        owners: match settings.is_remote {
            true => vec![owner.user],
            false => vec![settings.user, owner.user, 0],
        },
        reader: settings.is_remote.then_some(owner),
    };
    let why = |error| {
        Missing::new(
            Reason::Unsupported,
            format!("{}: {error}", file_name(&path)),
        )
    };
    FoundFile::open(&path, LogOrigin::Named, place).map_err(why)
}

struct Process<'a> {
    settings: &'a Settings,
    pid: Pid,
    dir: PathBuf,
    /// 0 where it is gone already: then nothing of it can be opened.
    start: StartTicks,
}

impl<'a> Process<'a> {
    fn new(settings: &'a Settings, pid: Pid) -> Self {
        let stat = settings.proc_root.join(pid.to_string()).join("stat");
        let start =
            StatFile::open(&stat).and_then(|file| Ok(file.read(&mut StatBuffer::new())?.start));
        let start = start.unwrap_or_default();
        Self::of(settings, ProcessKey { pid, start })
    }

    fn of(settings: &'a Settings, key: ProcessKey) -> Self {
        Self {
            settings,
            pid: key.pid,
            dir: settings.proc_root.join(key.pid.to_string()),
            start: key.start,
        }
    }

    fn descriptor(&self, link: PathBuf) -> LogLocation {
        LogLocation::Descriptor {
            link,
            stat: self.dir.join("stat"),
            start: self.start,
        }
    }

    /// Reads the real user and group. The owner of `/proc/PID` is root for a process that is not dumpable.
    fn owner(&self) -> io::Result<Credentials> {
        let status = nul_list::read(File::open(self.dir.join("status"))?)?;
        let status = String::from_utf8_lossy(&status);
        let first = |name: &str| {
            let mut lines = status.lines();
            let ids = lines.find_map(|line| line.strip_prefix(name))?;
            ids.split_whitespace().next()?.parse().ok()
        };
        let found = first("Uid:").zip(first("Gid:"));
        let (user, group) = found.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Credentials { user, group })
    }

    fn denied(&self, error: &io::Error) -> Missing {
        Access::new(&self.settings.proc_root).missing("its open files", error)
    }

    fn check(&self, key: ProcessKey) -> Result<(), Missing> {
        let start = StatFile::open(&self.dir.join("stat"))
            .and_then(|file| Ok(file.read(&mut StatBuffer::new())?.start));
        match start {
            Ok(start) if start == key.start => Ok(()),
            Ok(_) => Err(Missing::new(Reason::Gone, "the process has ended")),
            Err(error) => Err(self.denied(&error)),
        }
    }

    /// Where descriptor `fd` leads, over at most so many `pipes`.
    fn find(&self, fd: u32, pipes: u32) -> Result<Vec<LogTarget>, Missing> {
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
        let file = FoundFile::open(
            &target,
            LogOrigin::Descriptor,
            self.descriptor(link.clone()),
        );
        let error = match file {
            Ok(file) => return Ok(vec![file.into()]),
            Err(error) => error,
        };
        let (Ok(metadata), NoFile::Kind(_)) = (std::fs::metadata(&link), &error) else {
            return Err(no_file(stream, &target, &error));
        };
        let kind = metadata.file_type();
        let is_terminal = is_terminal(&metadata);
        if (kind.is_fifo() || is_terminal)
            && let Some(file) = self.docker()
        {
            return Ok(vec![file.into()]);
        }
        if kind.is_fifo() {
            let found = self.through_pipe(stream, &target, pipes);
            return found.or_else(|why| Ok(vec![self.slurm().ok_or(why)?.into()]));
        }
        if is_terminal {
            return Ok(self
                .screen()
                .unwrap_or_else(|| vec![LogTarget::Terminal(metadata.dev(), metadata.rdev())]));
        }
        if kind.is_socket() && journal::is_journal(&self.environ(), metadata.dev(), metadata.ino())
        {
            return Ok(vec![LogTarget::Journal]);
        }
        Err(no_file(stream, &target, &error))
    }

    fn through_pipe(
        &self,
        stream: &str,
        pipe: &Path,
        pipes: u32,
    ) -> Result<Vec<LogTarget>, Missing> {
        let nowhere = |why: String| Err(Missing::new(Reason::Unsupported, why));
        if pipes == 0 {
            return nowhere(format!("{stream} goes through too many pipes"));
        }
        let readers = pipe::readers(self.settings, self.pid, pipe);
        let Some(first) = readers.first() else {
            return nowhere(format!("{stream} is a pipe whose reader cannot be seen"));
        };
        let mut found = Vec::new();
        for &reader in readers.iter().take(MAX_READERS) {
            found.extend(Process::new(self.settings, reader).copies(pipes));
        }
        if found.is_empty() {
            return nowhere(format!(
                "{stream} is a pipe to process {first}, which keeps no file of it"
            ));
        }
        Ok(found)
    }

    /// Where a process that reads a pipe puts what it reads: the regular files that it writes, else where its own
    /// output goes.
    fn copies(&self, pipes: u32) -> Vec<LogTarget> {
        let mut descriptors = pipe::descriptors(&self.settings.proc_root, self.pid);
        // What another gputop writes besides is its own.
        if self.is_gputop() {
            descriptors.retain(|descriptor| DESCRIPTORS.contains(&descriptor.number));
        }
        let files = self.written(&descriptors);
        if !files.is_empty() {
            return files.into_iter().map(LogTarget::from).collect();
        }
        let others = DESCRIPTORS.iter().map(|&fd| self.find(fd, pipes - 1));
        others.flatten().next().unwrap_or_default()
    }

    /// The regular files that are open for writing; none of too many.
    fn written(&self, descriptors: &[Descriptor]) -> Vec<FoundFile> {
        let mut files: Vec<FoundFile> = Vec::new();
        // Standard error is where a copier complains, not where it copies to.
        let is_output = |d: &&Descriptor| ![0, 2].contains(&d.number) && d.may(pipe::WRITE);
        for descriptor in descriptors.iter().filter(is_output) {
            let place = self.descriptor(descriptor.link.clone());
            let file = FoundFile::open(&descriptor.target, LogOrigin::PipeReader, place);
            if let Ok(file) = file
                && !files.iter().any(|known| known.id() == file.id())
            {
                files.push(file);
            }
        }
        if files.len() > MAX_FILES {
            files.clear();
        }
        files
    }

    fn is_gputop(&self) -> bool {
        let own = std::fs::metadata("/proc/self/exe").map(|m| FileId::of(&m));
        let its = std::fs::metadata(self.dir.join("exe")).map(|m| FileId::of(&m));
        matches!((own, its), (Ok(own), Ok(its)) if own == its)
    }

    /// The log of GNU screen, where it keeps one (`screen -L`): a file that the screen above the process writes.
    /// Asking screen itself for its text would write a file and disturb its user.
    fn screen(&self) -> Option<Vec<LogTarget>> {
        let mut pid = self.pid;
        for _ in 0..MAX_PARENTS {
            let process = Process::new(self.settings, pid);
            let file = StatFile::open(&process.dir.join("stat")).ok()?;
            let mut buffer = StatBuffer::new();
            let stat = file.read(&mut buffer).ok()?;
            if stat.name.eq_ignore_ascii_case(b"screen") {
                let descriptors = pipe::descriptors(&self.settings.proc_root, pid);
                let files = process.written(&descriptors);
                let found: Vec<LogTarget> = files.into_iter().map(LogTarget::from).collect();
                return (!found.is_empty()).then_some(found);
            }
            pid = stat.parent;
        }
        None
    }

    /// Docker's log of the container that the process runs in, which root may read.
    fn docker(&self) -> Option<FoundFile> {
        let cgroup = nul_list::read(File::open(self.dir.join("cgroup")).ok()?).ok()?;
        let cgroup = String::from_utf8_lossy(&cgroup).into_owned();
        let id = docker_id(&cgroup)?;
        let path = self
            .settings
            .docker_root
            .join(&id)
            .join(format!("{id}-json.log"));
        let place = LogLocation::Path {
            path: path.clone(),
            owners: vec![0, self.settings.user],
            reader: None,
        };
        FoundFile::open(&path, LogOrigin::Docker, place).ok()
    }

    /// The output file of a Slurm batch job, under its usual name. It is the user's own, so nothing else is read.
    fn slurm(&self) -> Option<FoundFile> {
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
        let place = LogLocation::Path {
            path: path.clone(),
            owners: vec![std::fs::metadata(&self.dir).ok()?.uid()],
            reader: None,
        };
        FoundFile::open(&path, LogOrigin::Slurm, place).ok()
    }

    fn environ(&self) -> Vec<u8> {
        let file = File::open(self.dir.join("environ"));
        file.and_then(nul_list::read).unwrap_or_default()
    }
}

/// The near end of a pseudo-terminal (`UNIX98_PTY_SLAVE_MAJOR` and the seven behind it).
fn is_terminal(metadata: &Metadata) -> bool {
    let major = nix::sys::stat::major(metadata.rdev());
    metadata.file_type().is_char_device() && (136..144).contains(&major)
}

fn no_file(stream: &str, target: &Path, error: &NoFile) -> Missing {
    let shown = file_name(target);
    match error {
        NoFile::Kind(_) if shown.starts_with("socket:") => {
            Missing::new(Reason::Unsupported, format!("{stream} is a socket"))
        }
        NoFile::Kind(_) => Missing::new(Reason::Unsupported, format!("{stream} is {shown}")),
        NoFile::Owner(_) | NoFile::NotOfProcess(_) => {
            Missing::new(Reason::Denied, format!("{stream}, {shown}: {error}"))
        }
        NoFile::Io(io) if io.kind() == io::ErrorKind::PermissionDenied => Missing::new(
            Reason::Denied,
            format!("{stream} is {shown}, which only its owner may read"),
        ),
        NoFile::Io(_) => Missing::new(Reason::Unknown, format!("{stream}, {shown}: {error}")),
    }
}

fn file_name(path: &Path) -> String {
    visible(&redact::text(path.as_os_str().as_bytes()), MAX_NAME)
}

fn young(key: ProcessKey, now: Mono) -> Option<SystemTime> {
    let since_boot = key.start.0 * 1_000 / procfs::ticks_per_second();
    if now.since(Mono(since_boot)) >= YOUNG {
        return None;
    }
    // File systems tell a birth by a clock that ticks every 4 ms, and ours are cut to whole milliseconds.
    const UNCERTAIN: Duration = Duration::from_millis(10);
    let boot = u64::try_from(boot_time().0).ok()?;
    let started = Duration::from_millis(boot + since_boot);
    Some(SystemTime::UNIX_EPOCH + started - UNCERTAIN)
}
