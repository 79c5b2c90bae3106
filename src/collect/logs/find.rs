//! Where a process writes: what is behind its standard output and error.
//!
//! The kernel's links `/proc/PID/fd/1` and `2` say it: a path is a file, `pipe:[…]` has a reader somewhere,
//! `/dev/pts/3` is a terminal, `socket:[…]` may be the journal's. A place where nothing can be read has a reason that
//! a person can act on.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::Settings;
use super::tail::{FileId, NoFile, Place};
use crate::collect::clock::boot_moment;
use crate::collect::process::access::Access;
use crate::collect::process::stat::{StatBuffer, StatFile};
use crate::collect::redact;
use crate::model::event::LogOrigin;
use crate::model::process::ProcessKey;
use crate::model::reading::{Missing, Reason};
use crate::model::text::visible;
use crate::model::units::{Millis, Mono, StartTicks};

/// Standard output and standard error.
const DESCRIPTORS: [u32; 2] = [1, 2];
const MOST_NAME: usize = 1_024;
/// The log of a process that was started so short a time ago, in a file that it (or its shell) made, is read from
/// its beginning: what went wrong in the first second is of the moment, too.
const YOUNG: Millis = Millis(10_000);

/// A log that a process writes to.
#[derive(Debug)]
pub enum Found {
    File(FoundFile),
}

#[derive(Debug)]
pub struct FoundFile {
    pub name: String,
    pub origin: LogOrigin,
    pub place: Place,
    pub open: (File, Metadata),
}

impl FoundFile {
    pub fn id(&self) -> FileId {
        FileId::of(&self.open.1)
    }
}

/// What a process writes to, each once, and why there is nothing to read at the rest.
#[derive(Debug, Default)]
pub struct Findings {
    pub found: Vec<Found>,
    pub missing: Option<Missing>,
    /// When it was started, if that was a short time ago.
    pub young: Option<SystemTime>,
}

/// # Errors
/// When the process has ended, or is another user's.
pub fn find(settings: &Settings, key: ProcessKey, now: Mono) -> Result<Findings, Missing> {
    let dir = settings.proc_root.join(key.pid.to_string());
    let mut findings = Findings {
        young: young(key, now),
        ..Findings::default()
    };
    for fd in DESCRIPTORS {
        match find_descriptor(settings, &dir, fd) {
            Ok(found) => findings.add(found),
            Err(missing) => findings.missing = findings.missing.take().or(Some(missing)),
        }
    }
    // The PID was this process's all the time, so what was opened is its.
    check(&dir, key, settings)?;
    Ok(findings)
}

impl Findings {
    fn add(&mut self, found: Found) {
        let Found::File(file) = &found;
        let is_known = self.found.iter().any(|known| match known {
            Found::File(known) => known.id() == file.id(),
        });
        if !is_known {
            self.found.push(found);
        }
    }
}

fn check(dir: &Path, key: ProcessKey, settings: &Settings) -> Result<(), Missing> {
    let start = StatFile::open(&dir.join("stat"))
        .and_then(|file| Ok(file.read(&mut StatBuffer::new())?.start));
    match start {
        Ok(start) if start == key.start || key.start == StartTicks(0) => Ok(()),
        Ok(_) => Err(Missing::new(Reason::Gone, "the process has ended")),
        Err(error) => Err(Access::new(&settings.proc_root).missing("its open files", &error)),
    }
}

fn find_descriptor(settings: &Settings, dir: &Path, fd: u32) -> Result<Found, Missing> {
    let link = dir.join("fd").join(fd.to_string());
    let name = if fd == 1 { "stdout" } else { "stderr" };
    let target = match std::fs::read_link(&link) {
        Ok(target) => target,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Missing::new(
                Reason::Unsupported,
                format!("{name} is closed"),
            ));
        }
        Err(error) => {
            return Err(Access::new(&settings.proc_root).missing("its open files", &error));
        }
    };
    let place = Place::Descriptor(link);
    match place.open() {
        Ok(open) => Ok(Found::File(FoundFile {
            name: file_name(&target),
            origin: LogOrigin::Descriptor,
            place,
            open,
        })),
        Err(error) => Err(no_file(name, &target, &error)),
    }
}

fn no_file(name: &str, target: &Path, error: &NoFile) -> Missing {
    let shown = file_name(target);
    match error {
        NoFile::Kind(_) => Missing::new(Reason::Unsupported, format!("{name} is {shown}")),
        NoFile::Owner(_) => Missing::new(Reason::Denied, format!("{name}, {shown}: {error}")),
        NoFile::Io(io) if io.kind() == io::ErrorKind::PermissionDenied => Missing::new(
            Reason::Denied,
            format!("{name} is {shown}, which only its owner may read"),
        ),
        NoFile::Io(_) => Missing::new(Reason::Unknown, format!("{name}, {shown}: {error}")),
    }
}

/// As a user knows it: harmless, and without the kernel's remark on a deleted file.
pub fn file_name(path: &Path) -> String {
    visible(&redact::text(path.as_os_str().as_bytes()), MOST_NAME)
}

fn young(key: ProcessKey, now: Mono) -> Option<SystemTime> {
    let since_boot = key.start.0 * 1_000 / procfs::ticks_per_second();
    if now.since(Mono(since_boot)) >= YOUNG {
        return None;
    }
    let boot = u64::try_from(boot_moment().0).ok()?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_millis(boot + since_boot))
}
