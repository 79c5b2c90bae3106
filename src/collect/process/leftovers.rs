//! Finds processes that may hold GPU memory not attributed to a running process: zombies, unlisted processes that have
//! a GPU's device file open, and the MPS server.
//!
//! A process whose main thread has exited is shown as a zombie (`ps` says defunct), although other threads may keep
//! running with its files open. `/proc/PID/fd` is then empty, but `/proc/PID/task/TID/fd` of a running thread is not. A
//! forked worker keeps its parent's descriptors open after the parent has exited. The parent's GPU memory then remains
//! allocated.
//!
//! The scan reads all of /proc. It therefore runs rarely, and only while there is unattributed memory.

use std::fs;
use std::path::Path;

use gputop_model::text::visible;
use gputop_model::{Mono, Pid, RunState};
use gputop_peek::process::stat::{StatBuffer, StatFile};

use super::nul_list::NulList;
use super::open_devices::{numbers_in, open_minors};

const SCAN_INTERVAL_MS: u64 = 15_000;
/// Maximum number of processes to return. A message to the user cannot list more.
const MAX_LEFTOVERS: usize = 64;
/// Maximum number of threads to check per process. A training process has hundreds.
const MAX_THREADS: usize = 4_096;
const MAX_NAME_CHARS: usize = 64;

#[derive(Debug, Clone, PartialEq)]
pub struct Leftover {
    pub pid: Pid,
    pub parent: Pid,
    pub name: String,
    pub what: LeftoverKind,
    /// Minor numbers N of the open `/dev/nvidiaN` files that this user can see, in ascending order.
    pub minors: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftoverKind {
    /// The main thread has exited, but `threads` other threads are running.
    Zombie {
        threads: usize,
    },
    /// Running with an open GPU device file, but not on the driver's list.
    HoldsOpen,
    MpsServer,
}

#[derive(Debug, Default)]
pub struct Leftovers {
    scanned: Option<Mono>,
    found: Vec<Leftover>,
}

impl Leftovers {
    /// Returns the processes found by the last scan. Scans again if the last scan is too old.
    pub fn read(&mut self, proc_root: &Path, listed: &[Pid], now: Mono) -> Vec<Leftover> {
        if self.scanned.is_none_or(|at| now.since(at).0 >= SCAN_INTERVAL_MS) {
            (self.scanned, self.found) = (Some(now), scan(proc_root, listed));
        }
        self.found.clone()
    }
}

fn scan(proc_root: &Path, listed: &[Pid]) -> Vec<Leftover> {
    let mut buffer = StatBuffer::default();
    let own = std::process::id();
    let pids = numbers_in(proc_root).filter(|pid| *pid != own);
    pids.filter_map(|pid| leftover(proc_root, Pid(pid), listed, &mut buffer))
        .take(MAX_LEFTOVERS)
        .collect()
}

fn leftover(
    proc_root: &Path,
    pid: Pid,
    listed: &[Pid],
    buffer: &mut StatBuffer,
) -> Option<Leftover> {
    let dir = proc_root.join(pid.to_string());
    let file = StatFile::open(&dir.join("stat")).ok()?;
    let stat = file.read(buffer).ok()?;
    let (parent, name) = (stat.parent, visible(stat.name, MAX_NAME_CHARS));
    let leftover = |what, minors| Leftover { pid, parent, name, what, minors };
    if stat.state == RunState::Zombie {
        let (threads, minors) = running_threads(&dir, buffer);
        return Some(leftover(LeftoverKind::Zombie { threads }, minors));
    }
    // The kernel truncates a process name to 15 bytes.
    if stat.name == b"nvidia-cuda-mps" && is_server(&dir) {
        return Some(leftover(LeftoverKind::MpsServer, Vec::new()));
    }
    if listed.contains(&pid) || listed.contains(&parent) {
        return None;
    }
    Some(leftover(LeftoverKind::HoldsOpen, open_minors(&dir)?))
}

/// Returns true for the MPS server, and false for the MPS control daemon, which has the same short name.
fn is_server(dir: &Path) -> bool {
    let arguments = fs::File::open(dir.join("cmdline")).and_then(NulList::read);
    arguments.is_ok_and(|list| {
        list.entries().next().unwrap_or_default().ends_with(b"nvidia-cuda-mps-server")
    })
}

/// Returns the number of running threads in a process, and the minor numbers of the GPUs that they have open.
fn running_threads(dir: &Path, buffer: &mut StatBuffer) -> (usize, Vec<u32>) {
    let tasks = dir.join("task");
    let (mut running, mut minors) = (0, Vec::new());
    for tid in numbers_in(&tasks).take(MAX_THREADS) {
        let task = tasks.join(tid.to_string());
        let stat = StatFile::open(&task.join("stat")).and_then(|file| Ok(file.read(buffer)?.state));
        if stat.is_ok_and(|state| state != RunState::Zombie) {
            running += 1;
            // All threads of a process share one file table.
            if minors.is_empty() {
                minors = open_minors(&task).unwrap_or_default();
            }
        }
    }
    (running, minors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    struct Root(tempfile::TempDir);

    impl Root {
        fn add(&self, directory: &str, pid: u32, state: char, parent: u32, devices: &[&str]) {
            let dir = self.0.path().join(directory);
            fs::create_dir_all(dir.join("fd")).expect("dir");
            let stat = format!(
                "{pid} (python) {state} {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 6000 9 25 1 1 1\n"
            );
            fs::write(dir.join("stat"), stat).expect("stat");
            for (fd, device) in devices.iter().enumerate() {
                symlink(device, dir.join(format!("fd/{fd}"))).expect("link");
            }
        }

        fn found(&self, listed: &[u32]) -> Vec<(u32, LeftoverKind, Vec<u32>)> {
            let listed: Vec<Pid> = listed.iter().map(|&pid| Pid(pid)).collect();
            let mut found: Vec<_> = scan(self.0.path(), &listed)
                .into_iter()
                .map(|leftover| (leftover.pid.0, leftover.what, leftover.minors))
                .collect();
            found.sort_by_key(|(pid, _, _)| *pid);
            found
        }
    }

    const BOTH: &[&str] = &["/dev/nvidia1", "/dev/nvidia-uvm"];

    #[test]
    fn finds_zombies_and_unlisted_processes_with_open_devices() {
        let root = Root(tempfile::tempdir().expect("tempdir"));
        root.add("10", 10, 'S', 1, BOTH);
        // PID 11 is a worker of a listed process; PID 12 is a worker whose parent has exited.
        root.add("11", 11, 'S', 10, BOTH);
        root.add("12", 12, 'S', 1, BOTH);
        // PID 13 is a monitor; PID 14 has no devices open.
        root.add("13", 13, 'S', 1, &["/dev/nvidia1"]);
        root.add("14", 14, 'S', 1, &[]);
        // PID 20 is a zombie with a running thread; PID 30 is a zombie without one.
        root.add("20", 20, 'Z', 1, &[]);
        root.add("20/task/20", 20, 'Z', 1, &[]);
        root.add("20/task/21", 21, 'S', 1, BOTH);
        root.add("30", 30, 'Z', 1, &[]);
        root.add("30/task/30", 30, 'Z', 1, &[]);
        let zombies = [
            (20, LeftoverKind::Zombie { threads: 1 }, vec![1]),
            (30, LeftoverKind::Zombie { threads: 0 }, vec![]),
        ];
        let orphan = (12, LeftoverKind::HoldsOpen, vec![1]);
        let expected: Vec<_> = std::iter::once(orphan).chain(zombies.clone()).collect();
        assert_eq!(root.found(&[10]), expected);
        assert_eq!(root.found(&[10, 12]), zombies);
    }

    #[test]
    fn scans_again_after_the_interval() {
        let root = Root(tempfile::tempdir().expect("tempdir"));
        let mut leftovers = Leftovers::default();
        let mut count = |now| leftovers.read(root.0.path(), &[], Mono(now)).len();
        assert_eq!(count(0), 0);
        root.add("12", 12, 'S', 1, BOTH);
        assert_eq!((count(14_999), count(15_000)), (0, 1));
    }
}
