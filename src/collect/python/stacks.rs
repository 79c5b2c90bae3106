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

use crate::collect::cpython::interpreter::{Interpreter, NoInterpreter};
use crate::collect::cpython::limits::Options;
use crate::collect::cpython::objects::Python;
use crate::collect::cpython::reader::{Budget, Reader};
use crate::collect::memory::live::Live;
use crate::collect::memory::maps::Mapping;
use crate::collect::memory::{Memory, MemoryError};
use crate::collect::torch::Failure;
use crate::model::text::visible;
use crate::model::{Missing, Pid, Reason, StackFrame};

/// Maximum number of threads and of frames per thread that are read. Fewer are shown.
const MAX_THREADS: usize = 512;
const MAX_FRAMES: usize = 512;
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

/// A process with a Python interpreter.
#[derive(Debug)]
pub struct PythonProcess {
    memory: Live,
    maps: Vec<Mapping>,
    interpreter: Interpreter,
}

impl PythonProcess {
    pub fn attach(proc_root: &Path, pid: Pid) -> Result<Self, Missing> {
        let memory = Live::new(proc_root, pid);
        let maps = memory.maps().map_err(missing)?;
        // Reading fails in a process that this user may not read, although its mappings are known.
        memory.check_access().map_err(missing)?;
        let interpreter = with_reader(&memory, &maps, |reader| Interpreter::locate(reader, &maps));
        let interpreter = interpreter.map_err(|why| {
            let why = match why {
                NoInterpreter::NotFound => "no Python interpreter found in this process".to_owned(),
                other => other.to_string(),
            };
            Missing::new(Reason::Unsupported, why)
        })?;
        Ok(Self { memory, maps, interpreter })
    }

    /// Returns all threads, newest first. Returns `None` if a part of a stack cannot be read, usually because it changed
    /// during the read.
    pub fn threads(&mut self) -> Result<Option<Vec<Thread>>, Missing> {
        let read = with_reader(&self.memory, &self.maps, |reader| {
            let python = Python::new(reader, self.interpreter.layout);
            let names = thread_names(&python, &self.interpreter).unwrap_or_default();
            let (threads, _) = python.threads(self.interpreter.head, MAX_THREADS);
            let threads: Option<Vec<_>> =
                threads.into_iter().map(|thread| read_thread(&python, thread, &names)).collect();
            threads.filter(|threads| !threads.is_empty())
        });
        if read.is_none() {
            // The program may have mapped more memory since.
            self.maps = self.memory.maps().map_err(missing)?;
        }
        Ok(read)
    }
}

fn missing(error: MemoryError) -> Missing {
    Failure::Memory(error).missing()
}

fn with_reader<T>(memory: &Live, maps: &[Mapping], read: impl FnOnce(&Reader<'_>) -> T) -> T {
    let (start, cancelled) = (Instant::now(), AtomicBool::new(false));
    let clock = || start.elapsed();
    let options = Options { time_limit: TIME_LIMIT, ..Options::default() };
    let budget = Budget::new(&options, &clock, &cancelled);
    read(&Reader::new(memory, maps, MAX_CACHED_BYTES, &budget))
}

fn read_thread(python: &Python<'_>, thread: u64, names: &HashMap<u64, String>) -> Option<Thread> {
    let id = python.reader.word(thread.checked_add(python.layout.thread_id)?)?;
    let (frames, _) = python.frames(thread, MAX_FRAMES);
    let frames = frames.into_iter().filter_map(|frame| read_frame(python, frame)).collect();
    Some(Thread { id, name: names.get(&id).cloned().unwrap_or_default(), frames })
}

/// Returns the function, file and line of a frame, or `None` for a frame of the interpreter itself.
fn read_frame(python: &Python<'_>, frame: u64) -> Option<StackFrame> {
    let (reader, layout) = (python.reader, &python.layout);
    let code = python.frame_code(frame)?;
    let object = |offset: u64| reader.pointer(code.checked_add(offset)?);
    let file = python.read_text(object(layout.code_file)?, MAX_PATH)?;
    // The interpreter has code of its own for calls from C.
    if file == "<shim>" || file.is_empty() {
        return None;
    }
    // Since Python 3.11, the name after the function's is the qualified one, such as `Model.forward`.
    let name = if layout.minor >= 11 { layout.code_name + 8 } else { layout.code_name };
    Some(StackFrame {
        function: python.read_text(object(name)?, MAX_TEXT)?,
        file: shortened(&file),
        line: line(python, frame, code).unwrap_or_default(),
    })
}

/// Shortens a long path at its start, because the file name at its end is more informative.
fn shortened(path: &str) -> String {
    let beyond = path.chars().count().saturating_sub(MAX_TEXT - 1);
    if beyond == 0 {
        return path.to_owned();
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
    let line = match layout.code_start {
        Some(start) => {
            let start = code.checked_add(start)?;
            let offset = reader.word(at)?.wrapping_sub(start).cast_signed();
            line_in_locations(&table, first, offset)
        }
        None => {
            let offset = i64::from(reader.int(at)?.cast_signed());
            match layout.minor {
                10 => line_in_ranges(&table, first, offset * 2),
                _ => line_in_increments(&table, first, offset),
            }
        }
    };
    u32::try_from(line).ok()
}

/// Finds the line in `co_lnotab` of Python 3.9 and earlier: pairs of the increments of offset and line.
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
/// line. -128 means that the range has no line.
fn line_in_ranges(table: &[u8], first: i64, offset: i64) -> i64 {
    let (mut line, mut end) = (first, 0);
    for [bytes, lines] in table.as_chunks::<2>().0 {
        end += i64::from(*bytes);
        let lines = lines.cast_signed();
        line += i64::from(if lines == i8::MIN { 0 } else { lines });
        if end > offset {
            break;
        }
    }
    line
}

/// Finds the line in `co_linetable` of Python 3.11 and later (PEP 657, `Objects/locations.md` in CPython). An entry is
/// one byte, of which three bits are the number of code units less one and four bits are the kind, and then numbers.
fn line_in_locations(table: &[u8], first: i64, offset: i64) -> i64 {
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
            break;
        }
    }
    line
}

/// Reads a number in groups of six bits, lowest first. Another group follows if bit 6 is set.
fn number(bytes: &mut impl Iterator<Item = u8>) -> i64 {
    let mut value = 0;
    for group in 0..8 {
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

/// Returns the names in `threading._active` by thread ID.
fn thread_names(python: &Python<'_>, interpreter: &Interpreter) -> Option<HashMap<u64, String>> {
    let modules = interpreter.head.checked_add(python.layout.modules)?;
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
        let lines = [0, 7, 8, 12, 21, 22].map(|at| line_in_ranges(&ranges, 5, at));
        assert_eq!(lines, [6, 6, 6, 7, 7, 6]);
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
        let lines = [0, 2, 5, 6, 8, 11, 12].map(|at| line_in_locations(&locations, 5, at));
        assert_eq!(lines, [5, 6, 6, 6, 4, 4, 74]);
        assert_eq!(line_in_locations(&[0x80 | 14 << 3], 5, 0), 5);
    }
}
