//! Where a rank is in its program, from its Python stack.

use std::fmt;

use gputop_model::stack::PythonStack;
use gputop_model::text::visible;

use crate::why::{Activity, PhaseTable};

const MAX_NAME_CHARS: usize = 32;
/// Maximum number of functions in a summary of a stack.
const MAX_CALLS: usize = 3;
/// Frames inside these files wait for the GPU or for other ranks, whatever called them.
const COLLECTIVES: &str = "distributed_c10d.py";

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
            activity: PhaseTable::get().activity(frames, |f| f.file.ends_with(COLLECTIVES)),
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
