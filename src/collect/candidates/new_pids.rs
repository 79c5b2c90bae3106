//! Returns the PIDs that were assigned since the last call.
//!
//! The kernel assigns PIDs in ascending order, and `/proc/loadavg` ends with the last one. A list of all processes, which
//! takes 2 ms on a host with 2,000 of them, is therefore not needed.

use std::fs;
use std::path::{Path, PathBuf};

use gputop_model::Pid;

/// Maximum number of PIDs to return. Threads have PIDs too, so a few busy programs use thousands a second.
const MAX_PIDS: u32 = 16_384;

pub struct NewPids {
    path: PathBuf,
    last: Option<u32>,
}

impl NewPids {
    /// Starts after the newest PID.
    pub fn new(proc_root: &Path) -> Self {
        let mut pids = Self { path: proc_root.join("loadavg"), last: None };
        pids.last = pids.newest();
        pids
    }

    /// Returns a range that contains every new PID, or as many of the newest as the limit allows. After the kernel
    /// started again at the lowest PID, the range also contains older processes.
    pub fn take(&mut self) -> impl DoubleEndedIterator<Item = Pid> + use<> {
        let newest = self.newest().or(self.last).unwrap_or(0);
        let last = self.last.replace(newest).unwrap_or(newest);
        let first = if newest < last { 0 } else { last };
        (first.max(newest.saturating_sub(MAX_PIDS)) + 1..=newest).map(Pid)
    }

    /// Reads the last PID from a line such as `0.20 0.18 0.12 1/80 11206`.
    fn newest(&self) -> Option<u32> {
        fs::read_to_string(&self.path).ok()?.split_ascii_whitespace().nth(4)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_each_new_pid_once_and_the_lowest_ones_after_a_new_start() {
        let proc_root = tempfile::tempdir().expect("a folder");
        let set = |last: u32| {
            let line = format!("0.20 0.18 0.12 1/80 {last}\n");
            fs::write(proc_root.path().join("loadavg"), line).expect("a written file");
        };
        set(100);
        let mut pids = NewPids::new(proc_root.path());
        let mut take = || pids.take().map(|pid| pid.0).collect::<Vec<u32>>();
        assert!(take().is_empty());
        set(103);
        assert_eq!(take(), [101, 102, 103]);
        assert!(take().is_empty());
        set(2);
        assert_eq!(take(), [1, 2]);
        set(1_000_000);
        assert_eq!(take().len(), MAX_PIDS as usize);
        fs::remove_file(proc_root.path().join("loadavg")).expect("a removed file");
        assert!(take().is_empty());
    }
}
