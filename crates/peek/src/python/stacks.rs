//! Reads the stacks of all threads from the structures of CPython.
//!
//! ```text
//! interpreter ─► PyThreadState ─► frame ─► code object ─► function, file, table of lines
//!                     └─► thread ID ─► threading._active ─► name
//! ```

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use gputop_model::text::visible;
use gputop_model::{Missing, Pid, Reason, StackFrame};

use crate::cpython::interpreter::{Interpreter, NoInterpreter};
use crate::cpython::limits::Options;
use crate::cpython::objects::{Kind, Python};
use crate::cpython::reader::{Budget, Reader};
use crate::memory::Memory;
use crate::memory::live::Live;
use crate::memory::maps::Mapping;
use crate::python::line_table::{LineTable, instruction_offset};

pub(super) const MAX_INTERPRETERS: usize = 16;
/// Maximum number of threads whose addresses are read.
pub(super) const MAX_LISTED: usize = 1 << 16;
/// Maximum number of threads whose stacks are read. Fewer are shown.
const MAX_THREADS: usize = 512;
/// Maximum number of frames per thread. Fewer are shown.
const MAX_FRAMES: usize = 128;
const MAX_TEXT: usize = 200;
const MAX_PATH: usize = 4_096;
const MAX_CACHED_BYTES: usize = 1 << 20;
const TIME_LIMIT: Duration = Duration::from_secs(1);

/// A thread of a Python program, and its frames, innermost first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    pub id: u64,
    /// Name in the `threading` module, or an empty string for a thread unknown to that module.
    pub name: String,
    pub frames: Vec<StackFrame>,
}

/// The threads of a process at one read, newest first.
#[derive(Debug, Default)]
pub struct Threads {
    pub threads: Vec<Thread>,
    /// ID of the main thread, which may not be among the threads.
    pub main: u64,
    /// Number of threads whose stacks could not be read, usually because they changed during the read.
    pub failed: usize,
    /// Number of threads beyond the maximum, which are the newest.
    pub left_out: usize,
}

/// A process with a Python interpreter.
#[derive(Debug)]
pub struct PythonProcess {
    memory: Live,
    interpreter: Interpreter,
}

impl PythonProcess {
    pub fn attach(proc_root: &Path, pid: Pid) -> Result<Self, Missing> {
        let memory = Live::new(proc_root, pid);
        let maps = memory.maps().map_err(|error| error.missing())?;
        // The mappings may be readable although the memory is not.
        memory.check_access().map_err(|error| error.missing())?;
        let interpreter = with_reader(&memory, &maps, |reader| Interpreter::locate(reader, &maps));
        let interpreter = interpreter.map_err(|why| {
            let why = match why {
                NoInterpreter::NotFound => "no Python interpreter found in this process".to_owned(),
                other => other.to_string(),
            };
            Missing::new(Reason::Unsupported, why)
        })?;
        Ok(Self { memory, interpreter })
    }

    pub(super) fn into_parts(self) -> (Live, Interpreter) {
        (self.memory, self.interpreter)
    }

    /// Reads the stacks once. A stack that changed during the read may be wrong.
    pub fn threads(&self) -> Result<Threads, Missing> {
        // The program may have mapped more memory since the previous read.
        let maps = self.memory.maps().map_err(|error| error.missing())?;
        Ok(with_reader(&self.memory, &maps, |reader| {
            let python = Python::new(reader, self.interpreter.layout);
            let threads = read_threads(&python, self.interpreter.head);
            if reader.budget.is_beyond(100) { Threads::default() } else { threads }
        }))
    }
}

pub(super) fn with_reader<T>(
    memory: &Live,
    maps: &[Mapping],
    read: impl FnOnce(&Reader<'_>) -> T,
) -> T {
    let (start, cancelled) = (Instant::now(), AtomicBool::new(false));
    let clock = || start.elapsed();
    let options = Options { time_limit: TIME_LIMIT, ..Options::default() };
    let budget = Budget::new(&options, &clock, &cancelled);
    read(&Reader::new(memory, maps, MAX_CACHED_BYTES, &budget))
}

fn read_threads(python: &Python<'_>, head: u64) -> Threads {
    let mut addresses = Vec::new();
    let mut names = HashMap::new();
    let mut main = None;
    // The main interpreter is the oldest one, and so is the main thread.
    for interpreter in python.interpreters(head, MAX_INTERPRETERS).0 {
        addresses.extend(python.threads(interpreter, MAX_LISTED).0);
        let known = thread_names(python, interpreter).unwrap_or_default();
        main = known.iter().find(|(_, name)| *name == "MainThread").map(|(id, _)| *id);
        names.extend(known);
    }
    let oldest = addresses.last().and_then(|&thread| thread_id(python, thread));
    let left_out = addresses.len().saturating_sub(MAX_THREADS);
    let read = &addresses[left_out..];
    let threads: Vec<_> =
        read.iter().filter_map(|&thread| read_thread(python, thread, &names)).collect();
    let failed = read.len() - threads.len();
    Threads { threads, main: main.or(oldest).unwrap_or_default(), failed, left_out }
}

fn thread_id(python: &Python<'_>, thread: u64) -> Option<u64> {
    python.reader.word(thread.checked_add(python.layout.thread_id)?)
}

fn read_thread(python: &Python<'_>, thread: u64, names: &HashMap<u64, String>) -> Option<Thread> {
    let id = thread_id(python, thread)?;
    let (frames, _) = python.frames(thread, MAX_FRAMES)?;
    let frames = frames.into_iter().map(|frame| read_frame(python, frame));
    let frames: Vec<Option<StackFrame>> = frames.collect::<Option<_>>()?;
    let name = names.get(&id).cloned().unwrap_or_default();
    Some(Thread { id, name, frames: frames.into_iter().flatten().collect() })
}

/// Returns the function, file and line of a frame, or `None` if they cannot be read. The inner value is `None` for a
/// frame of the interpreter itself.
fn read_frame(python: &Python<'_>, frame: u64) -> Option<Option<StackFrame>> {
    let code = python.frame_executable(frame)?;
    let Some((function, path)) = code_names(python, code)? else { return Some(None) };
    let line = line(python, frame, code)?;
    Some(Some(StackFrame { function, file: shortened(&path), line }))
}

/// Returns the function of a code object, escaped, and the path of its file. The inner value is `None` for code of the
/// interpreter itself.
pub(super) fn code_names(python: &Python<'_>, code: u64) -> Option<Option<(String, String)>> {
    let (reader, layout) = (python.reader, &python.layout);
    if python.kind_of(code)? != Kind::Code {
        return Some(None);
    }
    let object = |offset: u64| reader.pointer(code.checked_add(offset)?);
    let path = python.raw_text(object(layout.code_file)?, MAX_PATH)?;
    // Python 3.12 and later have code of their own for calls from C (`_Py_MakeShimCode`). From 3.13 on, the frame that
    // calls an `__init__` may have some as well, without a file or line (`_Py_InitCleanup` in Python/specialize.c).
    if matches!(&*path, "<shim>" | "__init__") {
        return Some(None);
    }
    // Since Python 3.11, `co_qualname`, such as `Model.forward`, follows `co_name`.
    let name = if layout.minor >= 11 { layout.code_name + 8 } else { layout.code_name };
    Some(Some((python.read_text(object(name)?, MAX_TEXT)?, path)))
}

/// Shortens a long path at its start, because the file name at its end is more informative.
pub(super) fn shortened(path: &str) -> String {
    let beyond = path.chars().count().saturating_sub(MAX_TEXT - 1);
    if beyond == 0 {
        return visible(path.as_bytes(), MAX_TEXT);
    }
    let end: String = path.chars().skip(beyond).collect();
    visible(format!("…{end}").as_bytes(), MAX_TEXT)
}

/// Returns the line that a frame executes.
fn line(python: &Python<'_>, frame: u64, code: u64) -> Option<u32> {
    let (reader, layout) = (python.reader, &python.layout);
    let table = LineTable::read(python, code)?;
    let at = frame.checked_add(layout.frame_instruction)?;
    let offset = instruction_offset(layout, code, || reader.word(at), || reader.int(at))?;
    Some(table.position(offset)?.line)
}

/// Returns the names in `threading._active` of an interpreter by thread ID.
pub(super) fn thread_names(python: &Python<'_>, interpreter: u64) -> Option<HashMap<u64, String>> {
    let modules = interpreter.checked_add(python.layout.modules)?;
    let module = python.value_of(python.reader.pointer(modules)?, "threading")?;
    let active = attribute(python, module, "_active")?;
    let mut threads = Vec::new();
    python.dict_entries(active, &mut |id, thread| {
        threads.push((id, thread));
        threads.len() < MAX_THREADS
    });
    let name = |(id, thread)| {
        let id = u64::try_from(python.int(id)?).ok()?;
        Some((id, python.read_text(attribute(python, thread, "_name")?, MAX_TEXT)?))
    };
    Some(threads.into_iter().filter_map(name).collect())
}

fn attribute(python: &Python<'_>, object: u64, wanted: &str) -> Option<u64> {
    let mut found = None;
    python.attributes(object, &*python.type_of(object)?, &mut |name, value| {
        if python.text(name).as_deref() == Some(wanted) {
            found = Some(value);
        }
        found.is_none()
    });
    found
}
