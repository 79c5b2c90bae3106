//! Reads Python tracebacks: an error's location in the user's program, and exceptions that are not GPU errors.
//!
//! ```text
//! Traceback (most recent call last):
//!   File "train.py", line 57, in step        <- location: the innermost frame outside libraries
//!     loss.backward()
//!   File "…/site-packages/torch/_tensor.py", line 492, in backward
//! KeyError: 'labels'                         <- exception and message
//! ```
//!
//! IPython and notebooks print the name of the exception first, and several source lines for each frame. An arrow marks
//! the line:
//!
//! ```text
//! KeyError                                  Traceback (most recent call last)
//! Cell In[13], line 1
//! ----> 1 loss = step(batch)
//! File ~/train.py:57, in step(batch)
//!      56 model.train()
//! ---> 57 return model(batch["labels"])
//! ```

use std::sync::Arc;

use gputop_model::stack::is_users_file;

use super::text::{Flow, LogLine};

const MAX_LINES: usize = 400;
/// Number of lines at the start of a log that can belong to a traceback whose beginning is missing.
const MAX_CUT_LINES: usize = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracebackFrame {
    pub file: String,
    pub line: u32,
    pub function: String,
    /// Source line of the frame, if the traceback contains it.
    pub code: Option<String>,
    /// Source code of the function up to a few lines after this frame's line, read from the user's file.
    pub source: Option<Arc<str>>,
}

impl TracebackFrame {
    /// Returns true if the frame's file does not belong to Python or an installed package.
    #[must_use]
    pub fn is_users(&self) -> bool {
        is_users_file(&self.file)
    }

    /// Returns true if the frame is in a cell of a notebook.
    #[must_use]
    pub fn is_cell(&self) -> bool {
        self.file == CELL || self.file.starts_with("In[")
    }
}

/// File of a frame in a notebook's cell whose number is unknown.
const CELL: &str = "notebook cell";

/// Returns `file`, or [`CELL`] for a temporary file with the code of a notebook's cell: `/tmp/ipykernel_812/2209117764.py`,
/// `/tmp/ipython-input-3-941.py`, `/home/ana/.ipykernel/812/command-77-41`.
fn source_file(file: &str) -> &str {
    let mut folders = file.rsplit(['/', '\\']);
    let name = folders.next().unwrap_or_default();
    let is_kernel = |folder: &str| folder.starts_with("ipykernel_") || folder == ".ipykernel";
    if name.starts_with("ipython-input-") || folders.take(2).any(is_kernel) { CELL } else { file }
}

/// Exceptions that are harmless, or that only pass on a failure that happened elsewhere.
const NOT_CAUSES: &[&str] = &[
    "KeyboardInterrupt",
    "SystemExit",
    "BrokenPipeError",
    "ConnectionResetError",
    "EOFError",
    "ChildFailedError",
    "DistBackendError",
    "DistStoreError",
    "DistNetworkError",
    "ProcessExitedException",
    "ProcessRaisedException",
    "CalledProcessError",
    "SignalException",
    "RayTaskError",
    "ActorDiedError",
    "RayActorError",
    "WorkerCrashedError",
    "CancelledError",
    "TimeoutError",
    "Empty",
    "GeneratorExit",
    "StopIteration",
];

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Traceback {
    /// Type of the exception: `KeyError`, `torch.OutOfMemoryError`. Empty if the log ends before the exception's line.
    pub exception: String,
    pub message: String,
    /// Frames of the traceback, outermost first.
    pub frames: Vec<TracebackFrame>,
    pub first_line: u64,
    pub last_line: u64,
    pub rank: Option<u32>,
    pub writer: String,
    pub time: Option<String>,
    /// Byte range of the exception's line in the flow's text.
    pub exception_range: std::ops::Range<usize>,
}

impl Traceback {
    /// Returns true if the exception is harmless, or only passes on a failure that happened elsewhere.
    #[must_use]
    pub fn is_wrapper(&self) -> bool {
        NOT_CAUSES.contains(&self.name())
    }

    /// Returns the exception's name without its module.
    #[must_use]
    pub fn name(&self) -> &str {
        self.exception.rsplit('.').next().unwrap_or(&self.exception)
    }

    /// Returns the innermost frame in the user's program, or the innermost library frame if there is none.
    #[must_use]
    pub fn place(&self) -> Option<&TracebackFrame> {
        self.frames.iter().rev().find(|frame| frame.is_users()).or(self.frames.last())
    }
}

/// Returns the traceback frames directly before byte `at` of `flow`, outermost first.
#[must_use]
pub(crate) fn frames_before(flow: &Flow, lines: &[LogLine], at: usize) -> Vec<TracebackFrame> {
    let mut frames = Vec::new();
    let mut others = 0;
    let mut marked = None;
    let mut next = None;
    for index in flow.lines_back_from(at).take(MAX_LINES) {
        let line = &lines[index];
        let after = next.replace(line);
        if let Some(mut frame) = frame(&line.text) {
            frame.code = after.filter(|l| l.is_code).map(|l| l.text.trim().to_owned());
            frames.push(frame);
            others = 0;
        } else if let Some(mut frame) = notebook_frame(&line.text) {
            frame.mark(marked.take());
            frames.push(frame);
            others = 0;
        } else if let Some(line) = marked_line(&line.text) {
            marked = Some(line);
        } else if is_header(&line.text) {
            break;
        } else if !line.is_code && !is_numbered(&line.text) {
            // Tolerate a few other lines, because messages, assertions and progress bars can be printed between the
            // frames.
            others += 1;
            if others > if frames.is_empty() { 60 } else { 6 } {
                break;
            }
        }
    }
    frames.reverse();
    frames
}

/// Lines between the tracebacks of chained exceptions.
const CHAIN_LINKS: [&str; 2] = [
    "The above exception was the direct cause of the following exception",
    "During handling of the above exception, another exception occurred",
];
/// Maximum number of lines between an exception and the link to the next one.
const MAX_LINK_DISTANCE: usize = 6;

/// Returns the frames of the traceback that the exception at byte `at` led to, outermost first. If a library caught the
/// first exception, only this traceback shows the user's line.
#[must_use]
pub(crate) fn frames_of_next_exception(
    flow: &Flow,
    lines: &[LogLine],
    at: usize,
) -> Vec<TracebackFrame> {
    let mut after = lines_after(flow, lines, at);
    let is_link = |line: &LogLine| CHAIN_LINKS.iter().any(|link| line.text.starts_with(link));
    if after.by_ref().take(MAX_LINK_DISTANCE).any(is_link) { frames_in(after) } else { Vec::new() }
}

/// Returns the frames that follow the message at byte `at`, outermost first: in a notebook, whose header contains the
/// name of the exception, and in VS Code's debugger, which prints the innermost frame first.
#[must_use]
pub fn frames_after(flow: &Flow, lines: &[LogLine], at: usize) -> Vec<TracebackFrame> {
    let mut before = flow.lines_back_from(at).map(|index| lines[index].text.trim_start());
    if before.next().is_some_and(is_header) {
        return frames_in(lines_after(flow, lines, at));
    }
    if !before.next().is_some_and(|line| line.starts_with("Exception has occurred: ")) {
        return Vec::new();
    }
    let mut frames = frames_in(lines_after(flow, lines, at));
    frames.reverse();
    frames
}

fn lines_after<'a>(
    flow: &'a Flow,
    lines: &'a [LogLine],
    at: usize,
) -> impl Iterator<Item = &'a LogLine> {
    let after = flow.lines().filter(move |(_, start)| *start > at);
    after.map(|(index, _)| &lines[index]).take(MAX_LINES)
}

/// Returns the frames of a traceback up to its exception, in the order of the lines.
fn frames_in<'a>(lines: impl Iterator<Item = &'a LogLine>) -> Vec<TracebackFrame> {
    let mut lines = lines.peekable();
    let mut frames: Vec<TracebackFrame> = Vec::new();
    while let Some(line) = lines.next() {
        if let Some(mut frame) = frame(&line.text) {
            frame.code = lines.peek().filter(|l| l.is_code).map(|l| l.text.trim().to_owned());
            frames.push(frame);
        } else if let Some(frame) = notebook_frame(&line.text) {
            frames.push(frame);
        } else if let Some(last) = frames.last_mut() {
            last.mark(marked_line(&line.text));
            if exception(&line.text).is_some() {
                break;
            }
        }
    }
    frames
}

#[must_use]
pub fn all(flow: &Flow, lines: &[LogLine]) -> Vec<Traceback> {
    let mut found = Vec::new();
    let mut open: Option<Traceback> = None;
    let places: Vec<(usize, usize)> = flow.lines().collect();
    for (n, &(index, start)) in places.iter().enumerate() {
        let line = &lines[index];
        if is_header(&line.text) {
            // Skip exceptions in destructors or at exit, which follow the exception that terminated the program.
            let before = n.checked_sub(1).and_then(|n| lines.get(places[n].0));
            if before
                .is_some_and(|before| before.text.trim_start().starts_with("Exception ignored in"))
            {
                open = None;
                continue;
            }
            open = Some(started(line));
            continue;
        }
        // Pasted logs often begin in the middle of a traceback.
        if open.is_none() && n < MAX_CUT_LINES && found.is_empty() && frame(&line.text).is_some() {
            open = Some(started(line));
        }
        let Some(traceback) = &mut open else { continue };
        if let Some(last) = traceback.frames.last_mut() {
            last.mark(marked_line(&line.text));
        }
        if let Some(mut frame) = frame(&line.text) {
            let after = places.get(n + 1).map(|&(i, _)| &lines[i]);
            frame.code = after.filter(|l| l.is_code).map(|l| l.text.trim().to_owned());
            traceback.frames.push(frame);
        } else if let Some(frame) = notebook_frame(&line.text) {
            traceback.frames.push(frame);
        } else if let Some((exception, message)) =
            exception(&line.text).filter(|_| !traceback.frames.is_empty())
        {
            exception.clone_into(&mut traceback.exception);
            message.clone_into(&mut traceback.message);
            traceback.last_line = line.number;
            traceback.exception_range = start..start + line.text.len();
            found.extend(open.take());
        }
    }
    found
}

/// Returns true if a traceback starts on this line. SGLang prints `Scheduler hit an exception: Traceback (…`, and
/// notebooks the name of the exception and blanks.
fn is_header(line: &str) -> bool {
    let header = "Traceback (most recent call last)";
    let line = line.trim_start();
    let is_notebook = || {
        let name = line.trim_end().strip_suffix(header);
        name.is_some_and(|name| name.ends_with("  ") && exception(name.trim_end()).is_some())
    };
    line.starts_with(header)
        || is_notebook()
        || line
            .split_once(": ")
            .is_some_and(|(before, rest)| before.ends_with("exception") && rest.starts_with(header))
}

fn started(line: &LogLine) -> Traceback {
    Traceback {
        first_line: line.number,
        rank: line.rank,
        writer: line.writer.clone(),
        time: line.time.clone(),
        ..Traceback::default()
    }
}

/// Parses a traceback frame: `  File "train.py", line 57, in step`.
fn frame(line: &str) -> Option<TracebackFrame> {
    let rest = line.trim_start().strip_prefix("File \"")?;
    let (file, rest) = rest.split_once("\", line ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some(TracebackFrame {
        file: source_file(file).to_owned(),
        line: rest[..digits].parse().ok()?,
        function: rest[digits..].strip_prefix(", in ").unwrap_or_default().to_owned(),
        code: None,
        source: None,
    })
}

impl TracebackFrame {
    /// Sets the line that an arrow marks, unless the frame has one.
    fn mark(&mut self, marked: Option<(u32, &str)>) {
        let Some((line, code)) = marked.filter(|_| self.code.is_none()) else { return };
        self.line = line;
        self.code = Some(code.to_owned());
    }
}

/// Parses a frame of IPython: `File ~/train.py:57, in step(batch)`, `Cell In[13], line 1`, and before IPython 8
/// `~/train.py in step(batch)`, `<ipython-input-13-0b3c> in <module>`.
fn notebook_frame(line: &str) -> Option<TracebackFrame> {
    let of = |file: &str, line: u32, function: &str| {
        // IPython prints a method with its class, unlike other tracebacks.
        let name = function.split('(').next().unwrap_or_default();
        let name = name.rsplit('.').next().unwrap_or_default();
        let file = source_file(file).to_owned();
        TracebackFrame { file, line, function: name.to_owned(), code: None, source: None }
    };
    let line = line.trim_end();
    if let Some(cell) = line.strip_prefix("Cell ").or(Some(line)).filter(|l| l.starts_with("In")) {
        let (cell, rest) = cell.strip_prefix("Input ").unwrap_or(cell).split_once(']')?;
        let number = cell.strip_prefix("In")?.trim_start().strip_prefix('[')?;
        let is_place = rest.starts_with(", line ") || rest.starts_with(", in ");
        let is_cell = is_place && number.bytes().all(|b| b.is_ascii_digit());
        let place = rest.strip_prefix(", line ").and_then(|n| n.parse().ok()).unwrap_or(0);
        return is_cell.then(|| of(&format!("In[{number}]"), place, ""));
    }
    if let Some((file, rest)) = line.strip_prefix("File ").and_then(|l| l.rsplit_once(", in ")) {
        let (file, number) = file.rsplit_once(':')?;
        return Some(of(file, number.parse().ok()?, rest));
    }
    let (file, function) = line.split_once(" in ")?;
    if let Some(cell) = file.strip_prefix("<ipython-input-") {
        let number = cell.split('-').next()?;
        return Some(of(&format!("In[{number}]"), 0, function));
    }
    let is_path = file.starts_with(['/', '~']) && file.ends_with(".py") && !file.contains(' ');
    is_path.then(|| of(file, 0, function))
}

/// Parses the source line that an arrow marks: `---> 57 loss.backward()`.
fn marked_line(line: &str) -> Option<(u32, &str)> {
    let rest = line.trim_start().strip_prefix('-')?.trim_start_matches('-').strip_prefix("> ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((rest[..digits].parse().ok()?, rest[digits..].trim()))
}

/// Returns true for a source line that is not marked: `     56 model.train()`.
fn is_numbered(line: &str) -> bool {
    line.starts_with(' ') && line.trim_start().starts_with(|c: char| c.is_ascii_digit())
}

/// Parses an exception: `KeyError: 'labels'`. The name must be unindented and end like the name of an exception.
fn exception(line: &str) -> Option<(&str, &str)> {
    let (name, message) = line.split_once(": ").unwrap_or((line.trim_end_matches(':'), ""));
    let is_name = !name.is_empty()
        && name.len() < 120
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'_');
    let last = name.rsplit('.').next().unwrap_or(name);
    let is_exception = ["Error", "Exception", "Interrupt", "Exit", "Warning", "Stop", "Timeout"]
        .iter()
        .any(|end| last.ends_with(end))
        || (last.starts_with(|c: char| c.is_ascii_uppercase()) && name.contains('.'));
    (is_name && is_exception).then_some((name, message))
}

#[cfg(test)]
mod tests;
