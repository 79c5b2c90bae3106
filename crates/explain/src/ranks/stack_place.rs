//! Where a rank is in its program, from its Python stack.

use std::fmt;

use gputop_model::stack::{PythonStack, StackFrame};
use gputop_model::text::visible;

const MAX_NAME_CHARS: usize = 32;
/// Maximum number of functions in a summary of a stack.
const MAX_CALLS: usize = 3;
/// Frames inside these files wait for the GPU or for other ranks, whatever called them.
const COLLECTIVES: &str = "distributed_c10d.py";

/// A well-known place in a stack.
#[derive(Debug, PartialEq, Eq)]
pub struct Activity {
    /// Part of the path of the file. Empty for any file.
    file: &'static str,
    /// Function, or empty for any function.
    function: &'static str,
    /// Predicate for one rank and for several ranks.
    pub(super) singular: &'static str,
    pub(super) plural: &'static str,
    pub kind: ActivityKind,
    /// True if the main thread waits for neither a GPU nor another rank, whatever works are pending.
    pub(super) is_cpu_only: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivityKind {
    Loader,
    Saves,
    Loads,
    Compiles,
    ShutsDown,
}

/// Functions of the standard library's garbage collector have no frame, so it is not recognized.
#[rustfmt::skip]
const ACTIVITIES: &[Activity] = &[
    Activity { file: "torch/utils/data/dataloader.py", function: "__next__", kind: ActivityKind::Loader, is_cpu_only: true,
        singular: "waits for its data loader", plural: "wait for their data loaders" },
    Activity { file: "", function: "save_checkpoint", kind: ActivityKind::Saves, is_cpu_only: false,
        singular: "saves a checkpoint", plural: "save a checkpoint" },
    Activity { file: "", function: "_save_checkpoint", kind: ActivityKind::Saves, is_cpu_only: false,
        singular: "saves a checkpoint", plural: "save a checkpoint" },
    Activity { file: "torch/serialization.py", function: "save", kind: ActivityKind::Saves, is_cpu_only: false,
        singular: "saves a file", plural: "save a file" },
    Activity { file: "safetensors/torch.py", function: "save_file", kind: ActivityKind::Saves, is_cpu_only: false,
        singular: "saves a file", plural: "save a file" },
    Activity { file: "torch/serialization.py", function: "load", kind: ActivityKind::Loads, is_cpu_only: false,
        singular: "loads a file", plural: "load a file" },
    Activity { file: "torch/_inductor/", function: "", kind: ActivityKind::Compiles, is_cpu_only: false,
        singular: "compiles code", plural: "compile code" },
    Activity { file: "triton/compiler/", function: "", kind: ActivityKind::Compiles, is_cpu_only: false,
        singular: "compiles code", plural: "compile code" },
];
/// Called by a program that is about to exit.
const SHUTDOWN: Activity = Activity {
    file: COLLECTIVES,
    function: "destroy_process_group",
    kind: ActivityKind::ShutsDown,
    is_cpu_only: true,
    singular: "destroys its process groups",
    plural: "destroy their process groups",
};

impl Activity {
    fn matches(&self, frame: &StackFrame) -> bool {
        // From Python 3.11 on, the name of a method includes its class.
        let function = frame.function.rsplit('.').next();
        let is_function = self.function.is_empty() || function == Some(self.function);
        is_function && frame.file.contains(self.file)
    }

    /// Returns the innermost activity. Frames are ordered innermost first.
    fn of(frames: &[StackFrame]) -> Option<&'static Self> {
        if frames.iter().any(|frame| SHUTDOWN.matches(frame)) {
            return Some(&SHUTDOWN);
        }
        let outside = frames.iter().take_while(|frame| !frame.file.ends_with(COLLECTIVES));
        outside.filter_map(|f| ACTIVITIES.iter().find(|a| a.matches(f))).next()
    }
}

/// The innermost line of the user's code in the main thread, or of any code if there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackPlace {
    pub activity: Option<&'static Activity>,
    pub function: String,
    /// File name without folders.
    pub file: String,
    /// Line number, or 0 if unknown.
    pub line: u32,
}

impl StackPlace {
    pub(super) fn of(stack: &PythonStack) -> Option<Self> {
        let frames = &stack.main()?.frames;
        let frame = frames.iter().find(|frame| frame.is_users()).or(frames.first())?;
        let bounded = |text: &str| visible(text.as_bytes(), MAX_NAME_CHARS);
        Some(Self {
            activity: Activity::of(frames),
            function: bounded(function_name(&frame.function)),
            file: bounded(frame.file_name()),
            line: frame.line,
        })
    }
}

/// Returns the name of a function without the functions around it: `sleep` for `run.<locals>.sleep`.
fn function_name(qualified: &str) -> &str {
    qualified.rsplit(".<locals>.").next().unwrap_or(qualified)
}

/// Formats the place as `train.py:88`.
impl fmt::Display for StackPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

/// Returns the innermost functions of the main thread, down to the user's code: `["all_reduce", "step"]`.
pub(super) fn calls(stack: &PythonStack) -> Vec<String> {
    let Some(thread) = stack.main() else { return Vec::new() };
    let frames = &thread.frames;
    let users = frames.iter().position(|frame| frame.is_users());
    let inner = frames.iter().take(users.unwrap_or(frames.len()).min(MAX_CALLS - 1));
    let shown = inner.chain(users.and_then(|at| frames.get(at)));
    shown.map(|frame| visible(function_name(&frame.function).as_bytes(), MAX_NAME_CHARS)).collect()
}
