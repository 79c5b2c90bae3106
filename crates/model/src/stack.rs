//! Python stacks of a process, read on request or after a trigger such as a failed allocation.
//!
//! A stack is read without stopping the program, so it may be slightly older or newer than its trigger. The maximum
//! delay is stored with the stack. Text is already escaped for display and limited in length.

use serde::{Deserialize, Deserializer, Serialize};

use super::process::ProcessKey;
use super::units::{Bytes, Millis, Mono};

/// Python threads of a process at one point in time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PythonStack {
    pub process: ProcessKey,
    /// Time of the second of two reads that returned the same stack.
    pub at: Mono,
    pub why: StackTrigger,
    /// Maximum delay between the trigger and `at`.
    pub lag: Millis,
    /// Bytes allocated on the device, if the trigger is a new maximum or a failed allocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated: Option<Bytes>,
    /// Python threads, main thread first.
    pub threads: Vec<StackThread>,
    /// Number of omitted threads: those whose stack was not the same in any two reads, and those beyond the maximum.
    pub left_out: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StackTrigger {
    Request,
    /// The allocated bytes of a pool reached a new maximum, or came within 1 % of the earlier maximum.
    NewMaximum,
    /// An allocation failed: `num_ooms` increased.
    Oom,
    #[default]
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StackThread {
    /// Thread name in Python's `threading`. Empty if unknown.
    pub name: String,
    pub is_main: bool,
    /// Stack frames, innermost first, without those of gputop's hook.
    #[serde(deserialize_with = "without_hook")]
    pub frames: Vec<StackFrame>,
}

/// File name of gputop's Python hook, which runs in the program's threads and in its own thread.
const HOOK: &str = "/gputop_hook.py";

/// Returns the number of innermost frames that belong to the hook or were called by it. `file` returns a frame's file.
pub fn hook_frames<T>(frames: &[T], file: impl Fn(&T) -> &str) -> usize {
    frames.iter().rposition(|frame| file(frame).ends_with(HOOK)).map_or(0, |at| at + 1)
}

/// Reads the frames of a recording, incident or remote host, which may come from a gputop that recorded its hook.
fn without_hook<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<StackFrame>, D::Error> {
    let mut frames = Vec::<StackFrame>::deserialize(deserializer)?;
    frames.drain(..hook_frames(&frames, |frame| &frame.file));
    Ok(frames)
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StackFrame {
    pub function: String,
    /// Path of the source file as the program reports it, often absolute.
    pub file: String,
    /// Line number, or 0 if unknown.
    pub line: u32,
}

impl PythonStack {
    /// Returns the main thread, or the first thread if there is no main thread.
    pub fn main(&self) -> Option<&StackThread> {
        self.threads.iter().find(|thread| thread.is_main).or(self.threads.first())
    }
}

/// Path fragments that identify library files: Python's own and those of installed packages.
#[rustfmt::skip]
const LIBRARIES: &[&str] = &[
    "site-packages", "dist-packages", "/lib/python", "\\lib\\", "\\Lib\\", "torch/utils/",
    "torch/distributed/", "torch/nn/", "torch/multiprocessing/", "multiprocessing/", "concurrent/futures/",
    "/bin/", "triton/runtime/", "triton/compiler/", "triton/backends/", "triton/language/",
    "triton\\runtime\\", "triton\\compiler\\", "triton\\backends\\", "vllm/v1/", "vllm/model_executor/",
    "vllm/compilation/", "vllm/distributed/", "vllm/attention/", "vllm/lora/", "vllm/engine/", "vllm/worker/",
    "vllm/executor/", "vllm/entrypoints/", "sglang/srt/", "tensorrt_llm/", "<frozen", "<string>", "/torch/",
    "importlib", ".pyx", "torchinductor_", "unsloth_compiled_cache", "huggingface/modules/",
];
/// File extensions of native code: sources and shared libraries. Torch tracebacks mix compiled frames with Python
/// frames.
const COMPILED: &[&str] = &[".cpp", ".cc", ".c", ".cu", ".cuh", ".h", ".hpp", ".S", ".so"];

/// Returns true if the file is known, and belongs to the user, not to Python or an installed package.
pub fn is_users_file(file: &str) -> bool {
    !matches!(file, "" | "??") && !LIBRARIES.iter().any(|library| file.contains(library))
}

impl StackFrame {
    /// Returns true if the stack frame is in the user's Python code.
    pub fn is_users(&self) -> bool {
        let is_compiled = COMPILED.iter().any(|end| self.file.ends_with(end));
        !is_compiled && is_users_file(&self.file)
    }

    pub fn file_name(&self) -> &str {
        self.file.rsplit('/').next().unwrap_or(&self.file)
    }
}

/// Formats the frame as `train.py:57 step`.
impl std::fmt::Display for StackFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.file_name())?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, " {}", self.function)
    }
}
