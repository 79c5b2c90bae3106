//! What the thread that drives a GPU does, from samples of its Python stack at random times, and the figures of `/proc`
//! that say why it is slow.
//!
//! The host of the process counts the samples by phase. Readers conclude from the counts, so that a recording can be
//! judged again.

use serde::{Deserialize, Serialize};
use serde_with::{apply, skip_serializing_none};

use super::process::ProcessKey;
use super::reading::{Missing, Reading};
use super::units::{Bytes, BytesPerSecond, Millis, Mono, Percent};

crate::named! {
    /// What a thread does at one time. The names are part of the JSON contract, and of the table of frames
    /// (`crates/explain/assets/phases.toml`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Phase {
        LoaderWait = "waits for loader workers",
        LoaderInline = "loads data itself",
        LoaderStart = "starts or stops loader workers",
        Forward = "forward",
        Backward = "backward",
        Optimizer = "optimizer",
        Sync = "waits for the GPU",
        Copy = "copies to the GPU",
        Collective = "collective",
        Checkpoint = "checkpoint",
        Load = "loads a model",
        Evaluation = "evaluation",
        Log = "logging",
        ChildProcess = "waits for another program",
        Compile = "compiles",
        Import = "imports",
        Disk = "reads or writes files",
        EventLoop = "event loop",
        Sleep = "sleep",
        QueueWait = "waits for a thread or process",
        /// Python code that no other phase describes.
        Python = "other Python code",
        /// The thread has no Python frames.
        Native = "no Python code",
        /// The stack changed during every read, so the thread runs.
        Unreadable = "running, unreadable",
        #[default]
        #[serde(other)]
        Unknown = "unknown",
    }
    /// Returns the phase as a label.
    fn label;
}

impl Phase {
    /// Returns true for everything about a data loader.
    pub fn is_loader(self) -> bool {
        matches!(self, Self::LoaderWait | Self::LoaderInline | Self::LoaderStart)
    }
}

/// Maximum number of places in a window.
pub const MAX_PLACES: usize = 8;

/// What a process did in a time window.
#[skip_serializing_none]
#[apply(Reading => #[serde(skip_serializing_if = "Reading::is_not_read")])]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PhaseWindow {
    pub process: ProcessKey,
    /// End of the window.
    pub at: Mono,
    pub length: Millis,
    /// Time since the start of the process.
    pub age: Millis,
    /// Number of samples by phase, most frequent first. Phases that did not occur are left out.
    pub phases: Vec<PhaseCount>,
    /// The lines with the most samples, most frequent first.
    pub places: Vec<PhasePlace>,
    /// Why no stack could be read, if none could.
    pub no_stacks: Option<Missing>,
    pub thread: ThreadLoad,
    /// Holder of the global interpreter lock.
    pub gil: Option<GilHolder>,
    /// CPU time of PyTorch's autograd threads, in percent of one core.
    pub autograd_cpu: Reading<Percent>,
    /// CPU time of the other threads.
    pub other_cpu: Reading<Percent>,
    pub workers: WorkerLoad,
    /// Share of the window in which the CPU quota of the cgroup stopped the process.
    pub quota_stopped: Reading<Percent>,
    /// CPU quota in percent of one core.
    pub quota: Reading<Percent>,
    /// Data read from storage. Reads from the page cache are not counted.
    #[serde(rename = "read_bytes_per_second")]
    pub read: Reading<BytesPerSecond>,
    /// Data written with system calls.
    #[serde(rename = "written_bytes_per_second")]
    pub written: Reading<BytesPerSecond>,
    /// Page faults per second that had to wait for storage.
    pub major_faults: Reading<u64>,
    /// Growth of the swapped memory of the process within the window.
    #[serde(rename = "swapped_bytes")]
    pub swapped: Reading<Bytes>,
    /// True if a thread of NCCL exists.
    pub has_nccl: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PhaseCount {
    pub phase: Phase,
    pub count: u32,
}

/// A line of the program, and how often it ran.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PhasePlace {
    pub phase: Phase,
    pub count: u32,
    pub function: String,
    /// Path of the file as the program reports it, shortened at its start.
    pub file: String,
    pub line: u32,
    /// The expression that ran, or its whole line, without secrets. `None` if the file has changed since the program
    /// started, or cannot be read.
    pub text: Option<String>,
}

/// The thread that drives the GPU.
#[apply(Reading => #[serde(skip_serializing_if = "Reading::is_not_read")])]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadLoad {
    /// Name in Python's `threading`, or the kernel's name without Python. Empty if unknown.
    pub name: String,
    pub is_main: bool,
    /// System calls in which the thread was found, most frequent first. Read only for a process without Python.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<CallCount>,
    /// CPU time in percent of one core.
    pub cpu: Reading<Percent>,
    /// Share of the time in which the thread could run, but had no core.
    pub run_delay: Reading<Percent>,
    /// Share of the samples in which the thread waited in the kernel for storage (state D).
    pub blocked: Reading<Percent>,
    /// CPUs on which the thread may run: `0-15`.
    pub cpus: Reading<String>,
    /// Number of these CPUs.
    pub cpu_count: Reading<u32>,
}

/// Number of times that a thread was found in a system call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CallCount {
    /// Name of the system call, or empty if the thread ran.
    pub call: String,
    pub count: u32,
}

/// Child processes, such as the workers of a data loader.
#[apply(Reading => #[serde(skip_serializing_if = "Reading::is_not_read")])]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerLoad {
    pub count: u32,
    /// Mean CPU time of a worker, in percent of one core.
    pub cpu: Reading<Percent>,
    /// Mean share of the time in which a worker could run, but had no core.
    pub run_delay: Reading<Percent>,
    /// Number of workers that waited for storage at the last look.
    pub blocked: u32,
    /// Number of CPUs on which all workers together may run.
    pub cpu_count: Reading<u32>,
    /// Names of children that are not Python, such as `nvcc`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<String>,
}

/// Who holds the global interpreter lock.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GilHolder {
    /// Number of samples in which the lock was read.
    pub samples: u32,
    /// Number of these in which another thread than the one that drives the GPU held it.
    pub others: u32,
    /// Name of the other thread that held it most often.
    pub name: String,
    /// Where that thread was: `worker.py:12 spin`. Empty if unknown.
    pub place: String,
}

/// Asks for windows of this length, one a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PhaseRequest {
    pub process: ProcessKey,
    pub window: Millis,
}

impl PhaseWindow {
    /// Returns the number of samples.
    pub fn samples(&self) -> u32 {
        self.phases.iter().map(|count| count.count).fold(0, u32::saturating_add)
    }

    /// Returns the number of samples in any of these phases.
    pub fn count(&self, phases: &[Phase]) -> u32 {
        let counted = self.phases.iter().filter(|count| phases.contains(&count.phase));
        counted.map(|count| count.count).fold(0, u32::saturating_add)
    }

    /// Returns the most frequent place in any of these phases.
    pub fn place(&self, phases: &[Phase]) -> Option<&PhasePlace> {
        self.places.iter().find(|place| phases.contains(&place.phase))
    }
}

impl PhaseWindow {
    /// Returns the window as it is recorded: without the text of the user's source files.
    #[must_use]
    pub fn recorded(mut self) -> Self {
        self.places.iter_mut().for_each(|place| place.text = None);
        self
    }
}

impl PhasePlace {
    pub fn file_name(&self) -> &str {
        self.file.rsplit('/').next().unwrap_or(&self.file)
    }
}
