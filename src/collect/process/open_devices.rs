//! Finds the local processes with an open GPU device file, for use in a container.
//!
//! In a container, the driver reports the host's PIDs, which cannot be matched to the container's processes. However,
//! for processes of the same user as gputop, `/proc/PID/fd` shows the open device files, such as `/dev/nvidia3`. An
//! open device file is only an indication: a process may have a device open without a context on that GPU, and a forked
//! child inherits its parent's descriptors. Whether the process uses the GPU is determined later, from its allocator.
//! Processes of other users are skipped, because their descriptors are not readable.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use gputop_model::{GpuUuid, Mono, Pid};

/// Interval between scans for open GPU devices. Reading every descriptor of every process is expensive, and processes
/// rarely change GPUs.
const SCAN_INTERVAL_MS: u64 = 5_000;
const MAX_FILES: usize = 65_536;

pub struct OpenGpus {
    proc_root: PathBuf,
    own_pid: Pid,
    scanned: Option<Mono>,
    /// Minor numbers N of each process's open `/dev/nvidiaN` files, ascending.
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
        let is_due = self.scanned.is_none_or(|at| now.since(at).0 >= SCAN_INTERVAL_MS);
        if is_due {
            self.scanned = Some(now);
            self.minors = self.scan();
        }
    }

    pub fn pids(&self) -> Vec<Pid> {
        self.minors.keys().copied().collect()
    }

    pub fn gpus(&self, pid: Pid, gpu_minors: &[(u32, GpuUuid)]) -> Vec<GpuUuid> {
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
            // Skip gputop itself, which has the devices open through NVML.
            .filter(|&pid| pid != self.own_pid)
            .filter_map(|pid| Some((pid, open_minors(&self.proc_root.join(pid.to_string()))?)))
            .collect()
    }
}

pub fn numbers_in(dir: &Path) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the minor numbers of the GPUs that a process has open, or `None` if the process does not use CUDA or its
/// descriptors are not readable.
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
    // CUDA requires /dev/nvidia-uvm and keeps it open, but nvidia-smi and other monitors do not open it.
    let uses_cuda = files.iter().any(|file| file == Path::new("/dev/nvidia-uvm"));
    (uses_cuda && !minors.is_empty()).then_some(minors)
}

/// Returns a GPU's minor number: 3 for `/dev/nvidia3`, and `None` for `/dev/nvidiactl` and `/dev/nvidia-uvm`.
fn minor(path: &Path) -> Option<u32> {
    let digits = path.to_str()?.strip_prefix("/dev/nvidia")?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}
