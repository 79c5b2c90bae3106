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

const MAX_INTERPRETERS: usize = 16;
/// Maximum number of threads whose addresses are read.
const MAX_LISTED: usize = 1 << 16;
/// Maximum number of threads whose stacks are read. Fewer are shown.
const MAX_THREADS: usize = 512;
/// Maximum number of frames per thread. Fewer are shown.
const MAX_FRAMES: usize = 128;
const MAX_TEXT: usize = 200;
const MAX_PATH: usize = 4_096;
const MAX_TABLE_BYTES: usize = 1 << 20;
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

fn with_reader<T>(memory: &Live, maps: &[Mapping], read: impl FnOnce(&Reader<'_>) -> T) -> T {
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
    let (reader, layout) = (python.reader, &python.layout);
    let code = python.frame_executable(frame)?;
    if python.kind_of(code)? != Kind::Code {
        return Some(None);
    }
    let object = |offset: u64| reader.pointer(code.checked_add(offset)?);
    let file = python.raw_text(object(layout.code_file)?, MAX_PATH)?;
    // Python 3.12 and later have code of their own for calls from C (`_Py_MakeShimCode`).
    if file == "<shim>" {
        return Some(None);
    }
    // Since Python 3.11, `co_qualname`, such as `Model.forward`, follows `co_name`.
    let name = if layout.minor >= 11 { layout.code_name + 8 } else { layout.code_name };
    Some(Some(StackFrame {
        function: python.read_text(object(name)?, MAX_TEXT)?,
        file: shortened(&file),
        line: line(python, frame, code)?,
    }))
}

/// Shortens a long path at its start, because the file name at its end is more informative.
fn shortened(path: &str) -> String {
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
    let first = i64::from(reader.int(code.checked_add(layout.code_line)?)?);
    let table = reader.pointer(code.checked_add(layout.code_line_table)?)?;
    let table = python.read_bytes(table, MAX_TABLE_BYTES)?;
    let at = frame.checked_add(layout.frame_instruction)?;
    let offset = match layout.code_start {
        Some(start) => reader.word(at)?.wrapping_sub(code.checked_add(start)?).cast_signed(),
        // Python 3.10 counts in code units of two bytes.
        None if layout.minor == 10 => i64::from(reader.int(at)?.cast_signed()) * 2,
        None => i64::from(reader.int(at)?.cast_signed()),
    };
    // The function has not begun.
    if offset < 0 {
        return u32::try_from(first).ok();
    }
    let line = match layout.minor {
        11.. => line_in_locations(&table, first, offset)?,
        10 => line_in_ranges(&table, first, offset)?,
        _ => line_in_increments(&table, first, offset),
    };
    u32::try_from(line).ok()
}

/// Finds the line in `co_lnotab` of Python 3.9 and earlier: pairs of the increments of offset and line. The last line
/// extends to the end of the code.
fn line_in_increments(table: &[u8], first: i64, offset: i64) -> i64 {
    let (mut line, mut end) = (first, 0);
    for [bytes, lines] in table.as_chunks::<2>().0 {
        end += i64::from(*bytes);
        if end > offset {
            break;
        }
        line += i64::from(lines.cast_signed());
    }
    line
}

/// Finds the line in `co_linetable` of Python 3.10 (PEP 626): pairs of the length of a range and the increment of the
/// line. -128 means that the range has no line. Returns `None` for an offset beyond the table.
fn line_in_ranges(table: &[u8], first: i64, offset: i64) -> Option<i64> {
    let (mut line, mut end) = (first, 0);
    for [bytes, lines] in table.as_chunks::<2>().0 {
        end += i64::from(*bytes);
        let lines = lines.cast_signed();
        line += i64::from(if lines == i8::MIN { 0 } else { lines });
        if end > offset {
            return Some(line);
        }
    }
    None
}

/// Finds the line in `co_linetable` of Python 3.11 and later (PEP 657, `Objects/locations.md` in CPython). Returns `None`
/// for an offset beyond the table. An entry begins with one byte: the low three bits are the number of code units minus
/// one, and the next four are the kind, which determines the fields that follow.
fn line_in_locations(table: &[u8], first: i64, offset: i64) -> Option<i64> {
    let mut bytes = table.iter().copied();
    let (mut line, mut end) = (first, 0);
    while let Some(head) = bytes.next() {
        end += i64::from((head & 7) + 1) * 2;
        match head >> 3 & 15 {
            // No line.
            15 => {}
            14 => {
                line += signed_number(&mut bytes);
                // The end line, and both columns.
                for _ in 0..3 {
                    number(&mut bytes);
                }
            }
            13 => line += signed_number(&mut bytes),
            kind @ 10..=12 => {
                line += i64::from(kind - 10);
                bytes.nth(1);
            }
            _ => {
                bytes.next();
            }
        }
        if end > offset {
            return Some(line);
        }
    }
    None
}

/// Reads a number in groups of six bits, lowest first. Another group follows if bit 6 is set. CPython's numbers have 32
/// bits; the maximum of six groups also keeps the sum of a damaged table within 64 bits.
fn number(bytes: &mut impl Iterator<Item = u8>) -> i64 {
    let mut value = 0;
    for group in 0..6 {
        let byte = bytes.next().unwrap_or_default();
        value |= i64::from(byte & 63) << (group * 6);
        if byte & 64 == 0 {
            break;
        }
    }
    value
}

/// Reads a number whose lowest bit is the sign.
fn signed_number(bytes: &mut impl Iterator<Item = u8>) -> i64 {
    let value = number(bytes);
    if value & 1 == 1 { -(value >> 1) } else { value >> 1 }
}

/// Returns the names in `threading._active` of an interpreter by thread ID.
fn thread_names(python: &Python<'_>, interpreter: u64) -> Option<HashMap<u64, String>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables and lines of CPython 3.8, 3.10 and 3.11 for a function that begins at line 5 and has a loop.
    #[test]
    fn finds_lines_in_the_tables_of_all_releases() {
        let increments = [0, 1, 8, 1, 14, 0xff];
        let lines = [-1, 0, 7, 8, 21, 22, 90].map(|at| line_in_increments(&increments, 5, at));
        assert_eq!(lines, [5, 6, 6, 7, 7, 6, 6]);
        let ranges = [8, 1, 4, 0x80, 10, 1, 6, 0xff];
        let lines = [0, 7, 8, 12, 21, 22, 28].map(|at| line_in_ranges(&ranges, 5, at));
        assert_eq!(lines, [Some(6), Some(6), Some(6), Some(7), Some(7), Some(6), None]);
        // One unit at line +0, two at +1, one without a line, two at -2 and one at +70.
        let locations = [
            0x80,
            0,
            0x80 | 11 << 3 | 1,
            4,
            9,
            0x80 | 15 << 3,
            0x80 | 13 << 3 | 1,
            5,
            0x80 | 14 << 3,
            0x40 | 12,
            2,
            0,
            1,
            9,
        ];
        let lines = [0, 2, 5, 6, 8, 11, 12, 14].map(|at| line_in_locations(&locations, 5, at));
        assert_eq!(lines[..4], [Some(5), Some(6), Some(6), Some(6)]);
        assert_eq!(lines[4..], [Some(4), Some(4), Some(74), None]);
    }

    #[test]
    fn damaged_tables_give_any_line_without_overflow() {
        assert_eq!(line_in_locations(&[0x80 | 14 << 3], 5, 0), Some(5));
        let mut largest = vec![0x80 | 13 << 3, 0x7e];
        largest.extend([0x7f; 6]);
        let table = largest.repeat(MAX_TABLE_BYTES / largest.len());
        assert_eq!(line_in_locations(&table, i64::from(u32::MAX), i64::MAX), None);
    }
}
