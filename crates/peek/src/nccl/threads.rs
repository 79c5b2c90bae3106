//! The threads of a process, which tell when a group was created: each has a watchdog.
//!
//! The watchdogs are named in torch 2.5 and later, except those of `nccl2`. Otherwise any new thread may be one.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gputop_model::Pid;

/// Name of a group's watchdog, as the kernel truncates it.
const WATCHDOG: &str = "pt_nccl_watchdg";
/// Number of checks after which the threads are listed even if their number has not changed, because one may have replaced
/// another. A list of 150 threads takes 50 µs, their number 2 µs.
const MAX_SKIPPED: u32 = 5;

/// Returns true if a process has a group with a named watchdog. Every user can read the names of threads.
pub fn has_watchdog(proc_root: &Path, pid: Pid) -> bool {
    Threads::new(proc_root, pid).count_watchdogs() > 0
}

#[derive(Debug)]
pub struct Threads {
    folder: PathBuf,
    /// IDs of the threads at the last check.
    known: BTreeSet<u32>,
    /// Threads that were new at the last check. A thread gets its name a moment after it starts.
    young: BTreeSet<u32>,
    has_watchdogs: bool,
    /// Number of links of the folder when the threads were last listed: one for each thread.
    links: Option<u64>,
    /// Number of checks since then.
    skipped: u32,
}

impl Threads {
    pub fn new(proc_root: &Path, pid: Pid) -> Self {
        let folder = proc_root.join(pid.to_string()).join("task");
        let (known, young) = (BTreeSet::new(), BTreeSet::new());
        Self { folder, known, young, has_watchdogs: false, links: None, skipped: 0 }
    }

    /// Counts the watchdogs before a search.
    pub fn count_watchdogs(&mut self) -> usize {
        self.known = self.list();
        let watchdogs = self.known.iter().filter(|thread| self.is_watchdog(**thread)).count();
        self.has_watchdogs = watchdogs > 0;
        watchdogs
    }

    /// Returns true if a group may have been created since the last search or check.
    pub fn has_new_group(&mut self) -> bool {
        // Some file systems do not count the folders in a folder.
        let links = fs::metadata(&self.folder).ok().map(|folder| folder.nlink());
        let is_same = links > Some(2) && links == self.links && self.young.is_empty();
        self.skipped += 1;
        if is_same && self.skipped < MAX_SKIPPED {
            return false;
        }
        (self.links, self.skipped) = (links, 0);
        let threads = self.list();
        let new: BTreeSet<u32> = threads.difference(&self.known).copied().collect();
        let has_new_watchdog = new.union(&self.young).any(|thread| self.is_watchdog(*thread));
        let is_new_group = has_new_watchdog || (!self.has_watchdogs && !new.is_empty());
        (self.known, self.young) = (threads, new);
        is_new_group
    }

    /// Returns the IDs of the threads. There are none if the process no longer exists.
    fn list(&self) -> BTreeSet<u32> {
        let threads = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok()).collect()
    }

    fn is_watchdog(&self, thread: u32) -> bool {
        let name = fs::read_to_string(self.folder.join(format!("{thread}/comm")));
        name.is_ok_and(|name| name.trim_end() == WATCHDOG)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(root: &Path, thread: u32, name: &str) {
        let folder = root.join(format!("7/task/{thread}"));
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("comm"), format!("{name}\n")).expect("a file");
    }

    #[test]
    fn new_threads_tell_of_groups() {
        let root = tempfile::tempdir().expect("a folder");
        let mut threads = Threads::new(root.path(), Pid(7));
        name(root.path(), 7, "python3");
        assert_eq!(threads.count_watchdogs(), 0);
        assert!(!threads.has_new_group());
        // Any thread may be a watchdog. A thread that replaces another one counts, too, but is found later.
        name(root.path(), 8, "python3");
        assert!(threads.has_new_group());
        assert!(!threads.has_new_group());
        fs::remove_dir_all(root.path().join("7/task/8")).expect("a folder");
        name(root.path(), 9, "python3");
        assert!((0..MAX_SKIPPED).any(|_| threads.has_new_group()));
        // The thread has its name only at the next check.
        name(root.path(), 9, WATCHDOG);
        assert!(threads.has_new_group());
        assert_eq!(threads.count_watchdogs(), 1);
        // Once watchdogs have names, other threads do not count.
        name(root.path(), 10, "pt_autograd_0");
        assert!(!threads.has_new_group());
        name(root.path(), 11, WATCHDOG);
        assert!(threads.has_new_group());
    }
}
