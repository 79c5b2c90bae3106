//! In a container: which local processes hold a GPU's device file open.
//!
//! The driver reports PIDs of the host, which mean nothing here, but `/proc/PID/fd` of an own process shows
//! `/dev/nvidia3`. That is a hint, not proof: a process may hold the device of a GPU on which it has no context, and
//! a forked child holds its parent's; what it really uses, its allocator tells. Other users' descriptors cannot be
//! read and are passed over: they belong to what the screen calls outside.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::model::units::{GpuUuid, Mono, Pid};

/// Looking through every descriptor of every process is dear, and a process seldom changes its GPUs.
const SCAN_EVERY_MS: u64 = 5_000;
/// A process with more open files than this is not looked at to the end.
const MAX_FILES: usize = 65_536;

pub struct OpenGpus {
    proc_root: PathBuf,
    own_pid: Pid,
    scanned: Option<Mono>,
    /// The minor numbers N of the open `/dev/nvidiaN`, ascending.
    minors: BTreeMap<Pid, Vec<u32>>,
}

impl OpenGpus {
    pub fn new(proc_root: &Path) -> Self {
        Self {
            proc_root: proc_root.to_owned(),
            own_pid: Pid(std::process::id()),
            scanned: None,
            minors: BTreeMap::new(),
        }
    }

    pub fn scan_when_due(&mut self, now: Mono) {
        let is_due = self
            .scanned
            .is_none_or(|at| now.since(at).0 >= SCAN_EVERY_MS);
        if is_due {
            self.scanned = Some(now);
            self.minors = self.scan();
        }
    }

    pub fn pids(&self) -> Vec<Pid> {
        self.minors.keys().copied().collect()
    }

    pub fn of(&self, pid: Pid, gpu_minors: &[(u32, GpuUuid)]) -> Vec<GpuUuid> {
        let open = self.minors.get(&pid).map_or(&[][..], Vec::as_slice);
        gpu_minors
            .iter()
            .filter(|(minor, _)| open.contains(minor))
            .map(|(_, uuid)| uuid.clone())
            .collect()
    }

    fn scan(&self) -> BTreeMap<Pid, Vec<u32>> {
        numbers_in(&self.proc_root)
            .map(Pid)
            // This process holds the devices open itself, through NVML.
            .filter(|&pid| pid != self.own_pid)
            .filter_map(|pid| Some((pid, open_minors(&self.proc_root.join(pid.to_string()))?)))
            .collect()
    }
}

/// The numbers among the names in a directory: processes, threads.
pub fn numbers_in(dir: &Path) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// None for a process that computes on no GPU, or whose descriptors are hidden.
pub fn open_minors(dir: &Path) -> Option<Vec<u32>> {
    let files: Vec<PathBuf> = fs::read_dir(dir.join("fd"))
        .ok()?
        .flatten()
        .take(MAX_FILES)
        .filter_map(|fd| fs::read_link(fd.path()).ok())
        .collect();
    let mut minors: Vec<u32> = files.iter().filter_map(|file| minor(file)).collect();
    minors.sort_unstable();
    minors.dedup();
    // CUDA cannot start without it and keeps it open; nvidia-smi and other monitors never open it.
    let computes = files
        .iter()
        .any(|file| file == Path::new("/dev/nvidia-uvm"));
    (computes && !minors.is_empty()).then_some(minors)
}

/// `/dev/nvidia3` is 3; `/dev/nvidiactl` and `/dev/nvidia-uvm` are no GPU.
fn minor(path: &Path) -> Option<u32> {
    let digits = path.to_str()?.strip_prefix("/dev/nvidia")?;
    digits
        .bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| digits.parse().ok())?
}
