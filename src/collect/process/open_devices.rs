//! Finds the local processes with an open GPU device file, for use in a container.
//!
//! In a container, the driver reports the host's PIDs, which cannot be matched to the container's processes. However,
//! for processes of the same user as gputop, `/proc/PID/fd` shows the open device files, such as `/dev/nvidia3`. An
//! open device file is only an indication: a process may have a device open without a context on that GPU, and a forked
//! child inherits its parent's descriptors. Whether the process uses the GPU is determined later, from its allocator.
//! Processes of other users are skipped, because their descriptors are not readable.
//!
//! A Linux distribution in WSL is such a container. Its device file `/dev/dxg` stands for all GPUs of the Windows host.

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
    open: BTreeMap<Pid, OpenFiles>,
}

/// The GPUs that a process has open.
#[derive(Debug, PartialEq, Eq)]
enum OpenFiles {
    /// Minor numbers N of `/dev/nvidiaN`, ascending.
    Minors(Vec<u32>),
    /// `/dev/dxg`.
    AllOfWindows,
}

impl OpenGpus {
    pub fn new(proc_root: &Path) -> Self {
        Self {
            proc_root: proc_root.to_owned(),
            own_pid: Pid(std::process::id()),
            scanned: None,
            open: BTreeMap::new(),
        }
    }

    pub fn scan_when_due(&mut self, now: Mono) {
        let is_due = self.scanned.is_none_or(|at| now.since(at).0 >= SCAN_INTERVAL_MS);
        if is_due {
            self.scanned = Some(now);
            self.open = self.scan();
        }
    }

    pub fn pids(&self) -> Vec<Pid> {
        self.open.keys().copied().collect()
    }

    /// Returns which of `gpus` a process has open. A GPU is given by its minor number, if it has one, and its UUID.
    pub fn gpus(&self, pid: Pid, gpus: &[(Option<u32>, GpuUuid)]) -> Vec<GpuUuid> {
        let is_open = |minor: Option<u32>| match self.open.get(&pid) {
            Some(OpenFiles::Minors(open)) => minor.is_some_and(|minor| open.contains(&minor)),
            Some(OpenFiles::AllOfWindows) => true,
            None => false,
        };
        let open = gpus.iter().filter(|(minor, _)| is_open(*minor));
        open.map(|(_, uuid)| uuid.clone()).collect()
    }

    fn scan(&self) -> BTreeMap<Pid, OpenFiles> {
        numbers_in(&self.proc_root)
            .map(Pid)
            // Skip gputop itself, which has the devices open through NVML.
            .filter(|&pid| pid != self.own_pid)
            .filter_map(|pid| Some((pid, open_files(&self.proc_root.join(pid.to_string()))?)))
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
    match open_files(dir)? {
        OpenFiles::Minors(minors) => Some(minors),
        OpenFiles::AllOfWindows => None,
    }
}

fn open_files(dir: &Path) -> Option<OpenFiles> {
    let files: Vec<PathBuf> = fs::read_dir(dir.join("fd"))
        .ok()?
        .flatten()
        .take(MAX_FILES)
        .filter_map(|fd| fs::read_link(fd.path()).ok())
        .collect();
    if files.iter().any(|file| file == Path::new("/dev/dxg")) {
        return Some(OpenFiles::AllOfWindows);
    }
    let mut minors: Vec<u32> = files.iter().filter_map(|file| minor(file)).collect();
    minors.sort_unstable();
    minors.dedup();
    // CUDA requires /dev/nvidia-uvm and keeps it open, but nvidia-smi and other monitors do not open it.
    let uses_cuda = files.iter().any(|file| file == Path::new("/dev/nvidia-uvm"));
    (uses_cuda && !minors.is_empty()).then_some(OpenFiles::Minors(minors))
}

/// Returns a GPU's minor number: 3 for `/dev/nvidia3`, and `None` for `/dev/nvidiactl` and `/dev/nvidia-uvm`.
fn minor(path: &Path) -> Option<u32> {
    let digits = path.to_str()?.strip_prefix("/dev/nvidia")?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}
