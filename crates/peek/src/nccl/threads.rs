//! The threads of a process, which tell when a group was created: each has a watchdog.
//!
//! The watchdogs are named in torch 2.5 and later, except those of `nccl2`. Otherwise any new thread may be one.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gputop_model::Pid;

/// Name of a group's watchdog, as the kernel truncates it.
const WATCHDOG: &str = "pt_nccl_watchdg";
/// Number of links of a folder without subfolders.
const OWN_LINKS: u64 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Counts {
    all: u64,
    watchdogs: usize,
}

#[derive(Debug)]
pub struct Threads {
    folder: PathBuf,
    /// The threads at the time of the last search.
    searched: Counts,
    /// The number of threads at the last check.
    checked: u64,
}

impl Threads {
    pub fn new(proc_root: &Path, pid: Pid) -> Self {
        let folder = proc_root.join(pid.to_string()).join("task");
        Self { folder, searched: Counts::default(), checked: 0 }
    }

    /// Counts the threads before a search, and returns the number of watchdogs.
    pub fn count_for_search(&mut self) -> usize {
        self.searched = self.count();
        self.checked = self.searched.all;
        self.searched.watchdogs
    }

    /// Returns true if a group may have been created since the last search.
    pub fn has_new_group(&mut self) -> bool {
        // The names are read only if the number of threads has changed.
        let all = self.all();
        if all == self.checked {
            return false;
        }
        let now = self.count();
        self.checked = now.all;
        if now.watchdogs > 0 || self.searched.watchdogs > 0 {
            now.watchdogs > self.searched.watchdogs
        } else {
            now.all > self.searched.all
        }
    }

    /// Returns the number of threads, each of which is a subfolder. Returns 0 if the process no longer exists.
    fn all(&self) -> u64 {
        fs::metadata(&self.folder).map_or(0, |folder| folder.nlink().saturating_sub(OWN_LINKS))
    }

    fn count(&self) -> Counts {
        let threads = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = threads.map(|thread| fs::read_to_string(thread.path().join("comm")));
        let is_watchdog = |name: &String| name.trim_end() == WATCHDOG;
        let watchdogs = names.filter(|name| name.as_ref().is_ok_and(is_watchdog)).count();
        Counts { all: self.all(), watchdogs }
    }
}
