//! One of many: with `gputop run` around each rank of a job, the first that fails explains, the others say a line.
//!
//! The ranks of a host find each other through a file whose name tells the job and its launcher. Who creates it was
//! first and says in it what happened; the name holds when the launcher began, so what an old job left behind is never
//! taken for this one's.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc::O_NOFOLLOW;
use nix::unistd::{geteuid, getppid};

use super::identity::began;
use crate::model::text::visible;
use crate::user_files::{Base, directory};

/// Its number, and how many there are, as each launcher tells it.
const NUMBERS: [(&str, &str); 5] = [
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
];
/// What tells one job from another, beside its launcher. A restart is another job: it fails anew.
const JOB: [&str; 6] = [
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
];
/// After this long nobody of that job will ask any more.
const OLD: Duration = Duration::from_hours(24);
const MAX_LINE: u64 = 400;

/// This rank of a job of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rank {
    pub number: u32,
    job: String,
}

/// Who failed first.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum First {
    This,
    /// What it said.
    Other(String),
}

impl Rank {
    /// `None` where this is no rank of many.
    #[must_use]
    pub fn of_this_process() -> Option<Self> {
        let pid = getppid().as_raw();
        let start = u32::try_from(pid).ok().and_then(began).unwrap_or_default();
        let launcher = format!("{pid} {}", start.0);
        Self::from_environment(|name| std::env::var(name).ok(), &launcher)
    }

    fn from_environment(get: impl Fn(&str) -> Option<String>, launcher: &str) -> Option<Self> {
        let number = NUMBERS.iter().find_map(|(rank, size)| {
            let size: u32 = get(size)?.parse().ok()?;
            let rank = get(rank)?.parse().ok()?;
            (size > 1).then_some(rank)
        })?;
        let parts = JOB.iter().map(|name| get(name).unwrap_or_default());
        let parts: Vec<String> = parts.chain([launcher.to_owned()]).collect();
        Some(Self {
            number,
            job: file_name(&parts.join(" ")),
        })
    }

    /// Whether this is the first of its job to fail; then `line` is what the others will know of it. Where that cannot be
    /// found out it is.
    pub(super) fn claim(&self, folder: &Path, line: &str) -> First {
        let path = folder.join(&self.job);
        let line = format!("rank {} failed first: {line}", self.number);
        match create(folder, &path, &line) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                read(&path).map_or(First::This, First::Other)
            }
            _ => First::This,
        }
    }
}

/// Where the ranks of this user meet.
pub(super) fn folder() -> Option<PathBuf> {
    directory(Base::Runtime, "ranks").ok()
}

fn create(folder: &Path, path: &Path, line: &str) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    if folder.symlink_metadata()?.uid() != geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    sweep(folder);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(path)?.write_all(line.as_bytes())
}

fn read(path: &Path) -> Option<String> {
    let mut options = OpenOptions::new();
    let file: File = options
        .read(true)
        .custom_flags(O_NOFOLLOW)
        .open(path)
        .ok()?;
    let is_ours = file
        .metadata()
        .is_ok_and(|file| file.is_file() && file.uid() == geteuid().as_raw());
    let mut line = Vec::new();
    file.take(MAX_LINE).read_to_end(&mut line).ok()?;
    is_ours.then(|| visible(&line, 300))
}

fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let age = entry.metadata().and_then(|file| file.modified());
        let age = age.ok().and_then(|time| time.elapsed().ok());
        if age.is_some_and(|age| age > OLD) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Names of hosts and runs may hold anything; two that differ in that only are still told apart by their launcher.
fn file_name(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    text.chars().map(plain).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(variables: &[(&str, &str)], launcher: &str) -> Option<Rank> {
        let get = |name: &str| {
            let found = variables.iter().find(|(n, _)| *n == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Rank::from_environment(get, launcher)
    }

    #[test]
    fn only_one_of_several_is_a_rank() {
        assert_eq!(rank(&[], ""), None);
        assert_eq!(rank(&[("RANK", "0"), ("WORLD_SIZE", "1")], ""), None);
        assert_eq!(rank(&[("RANK", "0")], ""), None);
        let number = |variables: &[(&str, &str)]| rank(variables, "").map(|rank| rank.number);
        assert_eq!(number(&[("RANK", "3"), ("WORLD_SIZE", "8")]), Some(3));
        assert_eq!(
            number(&[("SLURM_PROCID", "2"), ("SLURM_NTASKS", "4")]),
            Some(2)
        );
    }

    #[test]
    fn the_first_of_a_job_is_told_to_the_others() {
        let home = tempfile::tempdir().expect("a directory");
        let folder = home.path().join("gputop/ranks");
        let of = |number: &str, launcher: &str| {
            rank(&[("RANK", number), ("WORLD_SIZE", "8")], launcher).expect("a rank")
        };
        assert_eq!(of("3", "100 7").claim(&folder, "it broke"), First::This);
        let said = First::Other("rank 3 failed first: it broke".into());
        assert_eq!(of("5", "100 7").claim(&folder, "it broke too"), said);
        // The same numbers in a later life of the launcher's PID.
        assert_eq!(of("5", "100 9").claim(&folder, "it broke"), First::This);
    }

    #[test]
    fn where_nobody_can_meet_everyone_explains() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let rank = rank(&[("RANK", "0"), ("WORLD_SIZE", "2")], "").expect("a rank");
        assert_eq!(rank.claim(file.path(), "it broke"), First::This);
    }
}
