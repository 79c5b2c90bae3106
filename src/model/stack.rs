//! Where a Python program stands: its threads and their functions, read on request or at a moment worth knowing.
//!
//! Read without stopping the program, so never quite at the moment itself: a stack says how long after it it was
//! taken at most. Text in here is already harmless and bounded.

use serde::{Deserialize, Serialize};

use super::process::ProcessKey;
use super::units::{Bytes, Millis, Mono};

/// The Python threads of a process at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PythonStack {
    pub process: ProcessKey,
    /// When the second of two reads that agree was done.
    pub at: Mono,
    pub why: StackWhy,
    /// The longest that can have passed between what it was taken for and `at`.
    pub lag: Millis,
    /// What was allocated on the device at a new maximum or when an allocation failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated: Option<Bytes>,
    /// The main thread first.
    pub threads: Vec<StackThread>,
    /// Threads of which no two reads agreed, or that are beyond the bound.
    pub left_out: u32,
}

/// What a stack was taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StackWhy {
    /// Somebody asked.
    Request,
    /// The allocated bytes of a pool rose to the most that was seen so far, or to within 1 % of it.
    NewMaximum,
    /// An allocation failed: `num_ooms` rose.
    Oom,
    #[default]
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StackThread {
    /// As Python's `threading` names it; empty when it could not be told.
    pub name: String,
    pub is_main: bool,
    /// Innermost first.
    pub frames: Vec<StackFrame>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StackFrame {
    pub function: String,
    /// As the program names it, often the whole path.
    pub file: String,
    /// 0 when it could not be told.
    pub line: u32,
}

impl PythonStack {
    /// The thread that runs the program: the main one, else the first.
    pub fn main(&self) -> Option<&StackThread> {
        self.threads
            .iter()
            .find(|thread| thread.is_main)
            .or(self.threads.first())
    }
}

/// What is in the path of a library's file: Python's own, and packages that were installed.
const LIBRARIES: &[&str] = &[
    "site-packages",
    "dist-packages",
    "/lib/python",
    "\\lib\\",
    "<frozen",
    "<string>",
    "/torch/",
    "importlib",
    ".pyx",
];
/// Those of C++, which torch names beside Python's.
const COMPILED: &[&str] = &[
    ".cpp", ".cc", ".c", ".cu", ".cuh", ".h", ".hpp", ".S", ".so",
];

/// A file is the user's own: not in an installed package or in Python itself.
pub fn is_users_file(file: &str) -> bool {
    !LIBRARIES.iter().any(|library| file.contains(library))
}

impl StackFrame {
    /// Of the user's own Python.
    pub fn is_users(&self) -> bool {
        let is_named = !matches!(&*self.file, "" | "??");
        let is_compiled = COMPILED.iter().any(|end| self.file.ends_with(end));
        is_named && !is_compiled && is_users_file(&self.file)
    }

    /// The last part of the path.
    pub fn file_name(&self) -> &str {
        self.file.rsplit('/').next().unwrap_or(&self.file)
    }
}

/// `train.py:57 step`
impl std::fmt::Display for StackFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.file_name())?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, " {}", self.function)
    }
}
