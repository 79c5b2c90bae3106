//! Ranks of a distributed job. If `gputop run` wraps each rank, the first rank that fails prints the explanation and
//! the others print one line.
//!
//! The ranks on a host share a file whose name identifies the job and its launcher. The first rank to fail creates the
//! file and writes its message into it. The name includes the launcher's start time, so a file from an earlier job is
//! never used.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gputop_model::text::visible;
use nix::unistd::getppid;

use super::command::identity;
use crate::user_files::{Base, create, directory, read, remove_regular};

/// Environment variables that contain the rank and the number of ranks, for each supported launcher.
const RANK_VARIABLES: [(&str, &str); 5] = [
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
];
/// Environment variables that identify a job in addition to its launcher. A restart counts as a new job, because it may
/// fail again.
const JOB_VARIABLES: [&str; 6] = [
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
];
/// Age at which a job file is deleted.
const MAX_FILE_AGE: Duration = Duration::from_hours(24);
const MAX_LINE_BYTES: u64 = 4096;

/// The rank of a process in a distributed job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rank {
    pub number: u32,
    job: String,
}

/// Which rank failed first: this one or another.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FirstFailedRank {
    This,
    /// Another rank failed first, with this message.
    Other(String),
}

impl Rank {
    /// Returns this process's rank, or `None` if the job has only one process.
    pub fn of_this_process() -> Option<Self> {
        let pid = getppid().as_raw();
        let launcher = u32::try_from(pid).ok().and_then(identity);
        let launcher = format!("{pid} {}", launcher.map_or(0, |launcher| launcher.start.0));
        Self::from_environment(|name| std::env::var(name).ok(), &launcher)
    }

    fn from_environment(get: impl Fn(&str) -> Option<String>, launcher: &str) -> Option<Self> {
        let number = RANK_VARIABLES.iter().find_map(|(rank, size)| {
            let size: u32 = get(size)?.parse().ok()?;
            let rank = get(rank)?.parse().ok()?;
            (size > 1).then_some(rank)
        })?;
        let parts = JOB_VARIABLES.iter().map(|name| get(name).unwrap_or_default());
        let parts: Vec<String> = parts.chain([launcher.to_owned()]).collect();
        Some(Self { number, job: file_name(&parts.join(" ")) })
    }

    /// Tries to register this rank as the first to fail. `line` is the message that the other ranks print. If the file
    /// cannot be created or read, this rank counts as the first.
    pub(super) fn claim(&self, folder: &Path, line: &str) -> FirstFailedRank {
        let path = folder.join(&self.job);
        let line = format!("rank {} failed first: {line}", self.number);
        delete_old_files(folder);
        match create(&path, line.as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let line = read(&path, MAX_LINE_BYTES);
                line.map_or(FirstFailedRank::This, |line| {
                    FirstFailedRank::Other(visible(&line, 300))
                })
            }
            _ => FirstFailedRank::This,
        }
    }
}

pub(super) fn folder() -> Option<PathBuf> {
    directory(Base::Runtime, "ranks").ok()
}

fn delete_old_files(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let age = entry.metadata().and_then(|file| file.modified());
        let age = age.ok().and_then(|time| time.elapsed().ok());
        if age.is_some_and(|age| age > MAX_FILE_AGE) {
            remove_regular(&entry.path());
        }
    }
}

/// Converts text to a file name by replacing special characters, which host names and run names may contain. If two
/// jobs get the same name this way, their files still differ, because each file name also identifies the launcher.
fn file_name(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(200).collect()
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
    fn is_a_rank_only_with_several_processes() {
        assert_eq!(rank(&[], ""), None);
        assert_eq!(rank(&[("RANK", "0"), ("WORLD_SIZE", "1")], ""), None);
        assert_eq!(rank(&[("RANK", "0")], ""), None);
        let number = |variables: &[(&str, &str)]| rank(variables, "").map(|rank| rank.number);
        assert_eq!(number(&[("RANK", "3"), ("WORLD_SIZE", "8")]), Some(3));
        assert_eq!(number(&[("SLURM_PROCID", "2"), ("SLURM_NTASKS", "4")]), Some(2));
    }

    #[test]
    fn reports_the_first_failed_rank_to_the_others() {
        let home = tempfile::tempdir().expect("a directory");
        let folder = home.path().join("gputop/ranks");
        let of = |number: &str, launcher: &str| {
            rank(&[("RANK", number), ("WORLD_SIZE", "8")], launcher).expect("a rank")
        };
        assert_eq!(of("3", "100 7").claim(&folder, "it broke"), FirstFailedRank::This);
        let other = FirstFailedRank::Other("rank 3 failed first: it broke".into());
        assert_eq!(of("5", "100 7").claim(&folder, "it broke too"), other);
        // Another launcher has reused the PID, but its start time differs.
        assert_eq!(of("5", "100 9").claim(&folder, "it broke"), FirstFailedRank::This);
    }

    #[test]
    fn every_rank_explains_without_a_shared_folder() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let rank = rank(&[("RANK", "0"), ("WORLD_SIZE", "2")], "").expect("a rank");
        assert_eq!(rank.claim(file.path(), "it broke"), FirstFailedRank::This);
    }
}
