//! Finds the parts of a log that can contain errors, quickly and in bounded memory.
//!
//! The scanner searches for [`ANCHORS`]: every text that matches a signature contains one of these literals. It
//! extracts the complete lines around each anchor. Only such excerpts are decoded. In a log without errors, the scanner
//! only searches for anchors and counts line breaks.

use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, Span, packed};
use memchr::{memchr, memchr_iter, memrchr};

/// Number of bytes to include before an anchor in its excerpt, for a traceback and the lines of other threads.
const CONTEXT_BEFORE: usize = 12 * 1024;
const CONTEXT_AFTER: usize = 6 * 1024;
/// Maximum size of an excerpt with several anchors, in bytes.
const MAX_EXCERPT: usize = 256 * 1024;
/// Maximum size in bytes of a text that is read whole although it contains no anchor.
const MAX_SHORT: u64 = 16 << 10;
const MAX_ANCHORS_PER_SEARCH: usize = 64;
/// Maximum length of an anchor in bytes. An anchor can be split across two pieces of input.
const MAX_ANCHOR: usize = 32;

/// Literals to search for. Every text that matches a signature contains at least one; a test checks this for all
/// examples in the cards. Anchors are rare in ordinary logs.
pub const ANCHORS: &[&str] = &[
    "ut of memory",
    "OutOfMemory",
    "CUDA error",
    "CUDA driver",
    "uda runtime error",
    "CUDA runtime",
    "THCudaCheck",
    "CUDA_ERROR",
    "cudaError",
    "cublas",
    "CUDNN",
    "uDNN",
    "ASSERT FAILED",
    "Assertion ",
    "evice-side",
    "NVRM",
    "Xid (",
    "NCCL error",
    "ncclI",
    "atchdog",
    "NCCL WARN",
    "Killed",
    "\u{5df2}\u{6740}\u{6b7b}",
    "oom_kill",
    "oom-kill",
    "SIGKILL",
    "us error",
    "DataLoader worker",
    "egmentation fault",
    "emory access",
    "misaligned",
    "xhausted",
    "EXHAUSTED",
    "failed to alloc",
    "oo many open files",
    "NVML",
    "No CUDA",
    "no CUDA",
    "CUDA-capable",
    "CUDA-compatible",
    "could not be reset",
    "Driver was not detected",
    "scratch space",
    "of GPU memory (",
    "low free GPU memory",
    "NVIDIA driver",
    "kernel image",
    "device code",
    "evice lost",
    "DeviceLost",
    "DEVICE_LOST",
    "PagedKvCache",
    "ey was rejected",
    "enough of mig profile",
    "didn't have enough resources",
    "dynamically load CUDA",
    "nvenc API",
    "capable devices found",
    "OpenEncodeSession",
    "CMAKE_CUDA_COMPILER",
    "accelerator device",
    "GPL-incompatible",
    "nvgpu: ",
    "device ordinal",
    "capturing",
    "out of resource",
    "KV cache",
    "cache blocks",
    "bad_alloc",
    "annot allocate",
    "Traceback (most",
    "nvidia-",
    "exitcode",
    "endezvous",
    "unhandled",
    "nable to",
    "HIP error",
    "too many resources",
    "Recovery Action",
    "Blas ",
    "shared memory",
    "ot enough memory",
    "paging file",
    "exited with",
    "return code",
    "core dumped",
    "Aborted",
    "exit code",
    "exit status",
    "abruptly died",
    "\u{6bb5}\u{9519}\u{8bef}",
    "segfault",
    "Signals.SIG",
    "cache flushes",
    "Invalid __",
    "allocator config",
    "CachingAllocator",
    "ALLOC_CONF",
    "hipError",
    "HSA_STATUS",
    "NCCL failure",
    "Gloo",
    "imed out",
    "SIGSEGV",
    "SIGABRT",
    "SIGBUS",
    "requires reset",
    "GPU is lost",
    "GPU has",
    "ECC error",
    "device function",
    "PTX ",
    "system not yet",
    "no NVIDIA",
    "unspecified launch",
    "peer access",
    "Cannot re",
    "CUDA unknown",
    "CUDA graph",
    "graph capture",
    "[CUDA]",
    "CUDA device",
    "with CUDA",
    "uda capability",
    "CUDA capability",
    "NCCL Error",
    "NCCL communicator",
    "mismatch between",
    "monitoredBarrier",
    "ROCk module is NOT",
    "gloo",
    "server socket",
    "ddress already",
    "key-value store",
    "XidCritical",
    "mem-fraction",
    "Free memory on",
    "memory profiling",
    "GetDeviceCount",
    "library version mis",
    "NVSwitch",
    "dump signal",
    "failed with OOM",
    "ExpandableSegment",
    "ut of GPU memory",
    "cuInit",
    "cudaSuccess",
    "uda failure",
    "memory limit",
    "enforce fail",
    "BLAS",
    "terminated abruptly",
    "terminate called",
    "miopenStatus",
    "session crashed",
    "ould not allocate",
    " killed",
    "failed with error",
    "CUresult",
    "Myelin",
    "AllocateRawInternal",
    "cudnn_frontend",
    "API failed with",
    "kernel execution error",
    "worker process has died",
    "Xid=",
    "Xid:",
    "cannot open shared object",
    "is not found or cannot",
    "Could not locate",
    "undefined symbol",
    "CUDA Setup",
    "binary not found",
    "version not found",
    "symbol not found",
    "attribute 'c",
    "FlashAttention",
    "bf16 is not",
    "fp8e",
    "CUDA arch",
    "C compiler",
    "C++ compiler",
    "cannot find -l",
    "fatal error",
    "CUDA_HOME",
    "nvcc",
    "ptxas",
    "mismatches the",
    "GNU version",
    "CANCELLED",
    "walltime",
    "TERM_RUNLIMIT",
    "time limit",
    "active longer",
    "maximum execution",
    "interruption",
    "preempt",
    "death signal",
    "got signal",
    "Root Cause",
    "See root cause",
    "See stack trace",
    "WorkerProc",
    "sigquit",
    "Scheduler hit",
    "scheduler is dead",
    "see the error messages",
    "ShardCannot",
    "EngineCore e",
    "Process EngineCore",
    "Process SpawnProcess",
    "Process VllmWorker",
    "local vLLM worker",
    "Stub process",
    "DLL load failed",
    "load LLM engine",
    "not new enough",
    "triton/cache/",
    "SkipFrame",
    "EngineCore hit",
    "Worker failed",
    "not free after",
    "unbalanced",
    "GGML_",
    "Executor creation",
    "OUT_OF_",
    "No space left",
    "quota exceeded",
    "ephemeral-storage",
    "loss scale",
    "stopping training",
    "NaN in local",
    "Non-finite",
    "reclaimed",
    ": nan",
    "=nan",
    "encountered in cast",
    "No OpKernel was registered",
    "more other processes",
    "Failed to register memory",
    "Port module event[",
    "s nan",
    "inja",
    "Device does not",
    "re failed to",
    "ROCm-capable",
    "_dynamo.exc",
    "CUDA version",
    "building extension",
    "building wheel",
    "ailed to build",
    "terminated program",
    "llegal instruction",
    "SIGILL",
    "with signal 4",
    "compiled to use",
    "usable GPU",
    "compatible GPUs",
    "cuda driver library",
    "plan file",
    "Version tag",
    "ExecutionProvider",
    "onnxruntime_prov",
    "leak detected",
    "RPC call to",
    "reserved for KV",
    "required GPUs exceeds",
    "select device driver",
    "invalid runtime name",
    "CDI device",
    "strategy detected",
    ".com/gpu",
    "Allocate failed",
    "gres.conf",
    "gres/gpu",
    "node configuration",
    "autodetect nvml",
    "custom device",
    "could not insert",
    "load the kernel mod",
    "bitsandbytes CUDA",
    "Invalid CUDA dev",
    "bitsandbytes native",
    "module build on kernel",
    "Module nvidia",
    "Nouveau kernel driver",
    "MES failed",
    "MES(",
    "signaled seq",
    "GPU reset",
    "page fault (",
    "HW Exception by GPU",
    "Tensile host",
    "/dev/kfd",
    "invalid opcode",
    "DNN library",
    "failed to initialize:",
    "eneric resource",
    "low on resource",
    "restarting failed cont",
    "no runtime for",
    "nv-fabricmanager",
    "abric manager",
    "OpenCL device",
    "pthread_create failed",
    "temporarily unavail",
    "resource request",
    "subset of ranks",
    "libdevice",
    "cluster registration",
    "without CUDA",
    "LightGBM] [Fatal",
    "WatchTasks",
    "oordination service agent",
    "resolve Linux kernel",
    "worker died",
    "_Map_base::at",
    "Error:",
    "Error(",
    "during sampling",
    "Exception: ",
    "during processing",
    "Cuda error",
    "create stream",
    "runner process",
    "loading model",
    "ot load lib",
    "Failed to compile",
    "working triton",
    "gpu backend found",
    "DSO version",
    "dlopen some GPU",
    "-enabled jaxlib",
    "packs not expanded",
    "uda driver error",
    "rofiling module",
    "by a module of DCGM",
    "NVGPUCTRPERM",
    "CUPTI",
    "driver resource was",
    "IpcOpenMemHandle",
    "another client",
    "ufficient Resources",
    "MIGConfig",
    "dylib",
    "CUFFT",
    "cufft",
    "CUSOLVER",
    "CUSPARSE",
    "RuntimeHandler",
    "unmet dependencies",
    "NO_PUBKEY",
    "Tried to allocate",
    "because no GPU",
    "without GPU",
    "CUDA.jl",
    "nvshmem",
    "PhysX",
    "PxgCudaDevice",
    "DynamicsMemoryConfig",
    "GPU pipeline",
    "package repositories",
    "json.exception",
    "No importer",
    "Invalid Node",
    "find any impl",
    "find plugin",
    "optimization profile",
    "Static dimension",
    "Supplied binding",
    "Target GPU SM",
    "INCOMPATIBLE_DRIVER",
    "No device could",
    "available context",
    "exceeds maximum input",
    "platform detected",
    "model IR version",
    "memory allocation of",
    "ErrorIncompatible",
    "EGL ",
    "Vulkan Device",
    ": error",
    "invalid prompt",
    "requires flash_attn",
    "projector type",
    "Error #15",
    "invalid argument: -",
    "max_lora_rank",
    "validation error",
    "unrecognized arg",
    "(QOS",
    "(Assoc",
    "PartitionTimeLimit",
    "State=PENDING",
    "internal compiler",
    "PCIe Bus Error",
    "nfoROM is",
    "allocate all claims",
    "device class ",
    "dynamic resources",
    "UCX  ERROR",
    "DMAR: [DMA",
    "blocked for more than",
    "soft lockup",
    "handle page fault",
    "Docker daemon socket",
    "mutually exclusive",
    "IO_PAGE_FAULT",
    "returned error code",
    "ailed to pull image",
    "response from daemon",
    "RLIMIT_MEMLOCK",
    "not enough slots",
    "SLURM's PMI",
    "attempt to run as root",
    "connect to GCS",
    "container stack to be",
    ".singularity.d/",
    "FATAL: ",
    "InsufficientInstance",
    "LimitExceeded",
    "enough resources avail",
    "' exceeded",
    "vfio",
    "VFIO_MAP",
    "IOMMU not",
    "passthrough of host",
    "in use by driver",
    "Code 43",
    "cuFile",
    "cufio",
    "file register",
    "development tool",
    "ompiler version",
    "CC version check",
    "verify gcc",
    "Install of ",
    "enough space in",
    "kernel headers",
    "ib_register_peer",
    "unavailable key",
    "unsigned module",
    "runtime specified",
    "cannot stat",
    " MPS ",
    "fatal exception",
    "terminated by the server",
    "ibv_",
    "locked memory",
    "Remapped Rows",
    "Retired Pages",
    "RuntimeClass",
    "ONNXRuntimeError",
    "physical batch size",
    "text-format inference",
    "Poll failed for model",
    "the model expects",
    "unexpected inference",
    "unexpected shape for input",
    "mat1 and mat2 shapes",
    "Error occurred when executing",
    "supports batching but",
    "specified max-batch",
    "greater than the derived",
    "Every node should have",
    "maximum context length",
    "model's context length",
    "requires Flash Attention",
    "does not support tools",
];

/// Part of a log that consists of complete lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excerpt {
    pub bytes: Vec<u8>,
    /// Line number of the excerpt's first line in the log, counted from 1.
    pub first_line: u64,
    /// Byte offset of the excerpt in the log.
    pub start: u64,
}

impl Excerpt {
    /// Returns both halves of the excerpt, split between two lines, or `None` for a single line.
    #[must_use]
    pub fn halves(&self) -> Option<[Self; 2]> {
        let middle = self.bytes.len() / 2;
        let before = memrchr(b'\n', &self.bytes[..middle]).map(|at| at + 1);
        let cut = before.unwrap_or_else(|| line_end(&self.bytes, middle));
        let (first, second) = self.bytes.split_at(cut);
        if second.is_empty() {
            return None;
        }
        let half = |bytes: &[u8], before: &[u8]| Self {
            bytes: bytes.to_vec(),
            first_line: self.first_line + memchr_iter(b'\n', before).count() as u64,
            start: self.start + before.len() as u64,
        };
        Some([half(first, &[]), half(second, first)])
    }
}

/// Reads a log piece by piece, and returns the excerpts around literals from [`ANCHORS`].
#[derive(Debug)]
pub struct Scanner {
    /// The newest piece of the log, and earlier bytes that may still become part of an excerpt.
    buffer: Vec<u8>,
    /// Line number of the first line in the buffer.
    line: u64,
    searched: usize,
    /// Range of the excerpt that is still open, as offsets in the buffer.
    open: Option<(usize, usize)>,
    /// End of the last returned excerpt, as an offset in the buffer.
    returned: usize,
    pub bytes: u64,
}

impl Default for Scanner {
    fn default() -> Self {
        Self { buffer: Vec::new(), line: 1, searched: 0, open: None, returned: 0, bytes: 0 }
    }
}

impl Scanner {
    /// Adds a piece of the log and returns the completed excerpts.
    pub fn push(&mut self, piece: &[u8]) -> Vec<Excerpt> {
        self.bytes += piece.len() as u64;
        self.buffer.extend_from_slice(piece);
        let mut done = Vec::new();
        self.search(&mut done);
        if let Some((_, end)) = self.open
            && end <= self.buffer.len()
        {
            self.close(&mut done);
        }
        self.drop_unneeded();
        done
    }

    /// Makes a short text without any anchor an excerpt, because people paste the lines of an error without those around
    /// them.
    pub fn open_short_text(&mut self) {
        let is_unread = self.open.is_none() && self.returned == 0;
        if is_unread && self.bytes == self.buffer.len() as u64 && self.bytes <= MAX_SHORT {
            self.open = Some((0, self.buffer.len()));
        }
    }

    /// Marks the end of the log and returns the last excerpt, if one is open.
    pub fn finish(&mut self) -> Vec<Excerpt> {
        let mut done = Vec::new();
        if self.open.is_some() {
            self.close(&mut done);
        }
        done
    }

    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.is_some_and(|(start, end)| start < end.min(self.buffer.len()))
    }

    /// Returns the text of the open excerpt so far, for a log that is still being written. Text that arrives later
    /// becomes another excerpt. If `whole_lines` is true, an incomplete last line is not returned yet.
    pub fn flush(&mut self, whole_lines: bool) -> Option<Excerpt> {
        let (start, end) = self.open?;
        let available = end.min(self.buffer.len());
        let text = self.buffer.get(start..available).filter(|t| !t.is_empty())?;
        let cut = match memrchr(b'\n', text) {
            Some(newline) if whole_lines => start + newline,
            None if whole_lines => return None,
            _ => available,
        };
        let mut done = Vec::new();
        self.open = Some((start, cut));
        self.close(&mut done);
        if end > self.returned {
            self.open = Some((self.returned, end));
        }
        done.pop()
    }

    fn search(&mut self, done: &mut Vec<Excerpt>) {
        let from = self.searched.saturating_sub(MAX_ANCHOR);
        for anchor in find(&self.buffer[from..]) {
            self.add_anchor(from + anchor, done);
        }
        self.searched = self.buffer.len();
    }

    /// Opens or extends an excerpt around the anchor at offset `at`.
    fn add_anchor(&mut self, at: usize, done: &mut Vec<Excerpt>) {
        let start = at.saturating_sub(CONTEXT_BEFORE).max(self.returned);
        let end = at + CONTEXT_AFTER;
        match self.open {
            Some((first, last)) if start <= last && end - first <= MAX_EXCERPT => {
                self.open = Some((first, end));
            }
            Some((_, last)) if start <= last => {
                // The excerpt is full: close it, and start the next one at its end.
                self.open = self.open.map(|(first, _)| (first, at));
                self.close(done);
                self.open = Some((self.returned, end));
            }
            Some(_) => {
                self.close(done);
                self.open = Some((start.max(self.returned), end));
            }
            None => self.open = Some((start, end)),
        }
    }

    fn close(&mut self, done: &mut Vec<Excerpt>) {
        let Some((start, end)) = self.open.take() else {
            return;
        };
        let start = line_start(&self.buffer, start, self.returned);
        let end = line_end(&self.buffer, end.min(self.buffer.len()));
        if start >= end {
            return;
        }
        let before = memchr_iter(b'\n', &self.buffer[..start]).count() as u64;
        done.push(Excerpt {
            bytes: self.buffer[start..end].to_vec(),
            first_line: self.line + before,
            start: self.bytes - (self.buffer.len() - start) as u64,
        });
        self.returned = end;
    }

    /// Removes bytes that no excerpt needs from the start of the buffer.
    fn drop_unneeded(&mut self) {
        let keep = self.open.map_or_else(
            || {
                self.buffer
                    .len()
                    .saturating_sub(CONTEXT_BEFORE)
                    .max(self.returned.min(self.buffer.len()))
            },
            |(start, _)| start.saturating_sub(1024),
        );
        // Wait until more bytes can be dropped, because it is not worth moving the buffer for a few bytes.
        if keep < 64 * 1024 {
            return;
        }
        self.line += memchr_iter(b'\n', &self.buffer[..keep]).count() as u64;
        self.buffer.drain(..keep);
        self.searched -= keep;
        self.returned = self.returned.saturating_sub(keep);
        self.open = self.open.map(|(start, end)| (start - keep, end - keep));
    }
}

/// Returns the offsets of anchors in `text` in order, at most one per line from each searcher.
fn find(text: &[u8]) -> Vec<usize> {
    let mut offsets: Vec<usize> =
        searchers().iter().flat_map(|searcher| searcher.lines(text)).collect();
    offsets.sort_unstable();
    offsets
}

/// A search for up to [`MAX_ANCHORS_PER_SEARCH`] anchors.
enum Searcher {
    Vector(packed::Searcher),
    /// Searcher for processors without vector instructions.
    Plain(Box<AhoCorasick>),
    Nothing,
}

impl Searcher {
    fn of(anchors: &[&str]) -> Self {
        match (packed::Searcher::new(anchors), AhoCorasick::new(anchors)) {
            (Some(searcher), _) => Self::Vector(searcher),
            (None, Ok(plain)) => Self::Plain(Box::new(plain)),
            // Building a searcher from these literals never fails; a test verifies this.
            (None, Err(_)) => Self::Nothing,
        }
    }

    /// Returns the offset of the first anchor in each line that contains one.
    fn lines(&self, text: &[u8]) -> Vec<usize> {
        let mut offsets = Vec::new();
        let mut at = 0;
        while let Some(found) = self.next(text, at) {
            offsets.push(found);
            let Some(end) = memchr(b'\n', &text[found..]) else {
                break;
            };
            at = found + end;
        }
        offsets
    }

    fn next(&self, text: &[u8], at: usize) -> Option<usize> {
        match self {
            Self::Vector(searcher) => {
                let span = Span::from(at..text.len());
                searcher.find_in(text, span).map(|m| m.start())
            }
            Self::Plain(searcher) => searcher.find(&text[at..]).map(|m| m.start() + at),
            Self::Nothing => None,
        }
    }
}

fn searchers() -> &'static [Searcher] {
    static SEARCHERS: OnceLock<Vec<Searcher>> = OnceLock::new();
    SEARCHERS.get_or_init(|| {
        // Split the anchors into parts of nearly equal size. Otherwise, the last search could be left with only a few
        // anchors, but would take as long as one with many.
        let searches = ANCHORS.len().div_ceil(MAX_ANCHORS_PER_SEARCH);
        // The vector search compares the lower halves of the first four bytes. Similar anchors share a search, which then
        // has fewer false candidates. This halves the time.
        let mut anchors = ANCHORS.to_vec();
        anchors.sort_unstable_by_key(|anchor| -> [u8; 4] {
            std::array::from_fn(|i| anchor.as_bytes().get(i).map_or(0, |byte| byte & 0xf))
        });
        let parts = anchors.chunks(anchors.len().div_ceil(searches));
        parts.map(Searcher::of).collect()
    })
}

#[must_use]
pub fn has_anchor(text: &[u8]) -> bool {
    !find(text).is_empty()
}

/// Returns the start of the line that contains offset `at`, but not before `from`. In a very long line, returns an
/// offset at most 4096 bytes before `at`.
fn line_start(text: &[u8], at: usize, from: usize) -> usize {
    let at = at.min(text.len());
    let from = from.min(at).max(at.saturating_sub(4096));
    memrchr(b'\n', &text[from..at]).map_or(from, |n| from + n + 1)
}

fn line_end(text: &[u8], at: usize) -> usize {
    let near = &text[at..(at + 4096).min(text.len())];
    memchr(b'\n', near).map_or(at + near.len(), |n| at + n + 1)
}

#[cfg(test)]
mod tests;
