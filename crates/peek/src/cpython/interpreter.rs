//! Finds a process's CPython interpreter and its memory layout.
//!
//! ```text
//! maps ─► libpython3.12.so or the executable ─► symbol _PyRuntime ─► +40 the first interpreter ─► +944 sys.modules
//! ```
//!
//! The offsets were measured with C programs that include the internal headers of each release, for x86_64 with the
//! GIL. Since Python 3.13, `_PyRuntime` begins with `_Py_DebugOffsets`, which override offsets changed by a micro
//! release.

use super::reader::Reader;
use crate::memory::elf::Image;
use crate::memory::is_pointer;
use crate::memory::maps::{Mapping, images};

const MAX_IMAGES: usize = 16;
const DEBUG_COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");
/// Maximum offset accepted from `_Py_DebugOffsets`.
const MAX_OFFSET: u64 = 1 << 20;

/// Offsets in CPython's structs that differ between releases.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PythonLayout {
    /// Minor Python version: 12 for CPython 3.12.
    pub minor: u32,
    /// `_PyRuntime.interpreters.head`.
    head: u64,
    /// Offsets in PyInterpreterState.
    pub next: u64,
    pub threads: u64,
    pub modules: u64,
    /// Offset in PyThreadState of the current frame or, in Python 3.11 and 3.12, of the C frame that points to it.
    pub thread_frame: u64,
    /// Offset of the frame pointer in a C frame.
    pub c_frame: Option<u64>,
    pub previous_frame: u64,
    pub frame_code: u64,
    pub frame_locals: u64,
    /// Offsets in PyCodeObject of the tuples with the names of local variables, in the same order as the variables'
    /// values.
    pub local_names: &'static [u64],
    pub code_name: u64,
    pub code_file: u64,
    /// Offset of the number of the function's first line.
    pub code_line: u64,
    pub code_line_table: u64,
    /// Offset of the instructions, or `None` in Python 3.10 and earlier, where a frame contains the index of its
    /// instruction instead of a pointer.
    pub code_start: Option<u64>,
    pub frame_instruction: u64,
    /// Offset in PyThreadState of the ID by which the `threading` module knows the thread.
    pub thread_id: u64,
    /// Offset of the frame in a generator object: a pointer in Python 3.10 and earlier, embedded since 3.11.
    pub generator_frame: u64,
    pub cached_keys: u64,
    pub tuple_items: u64,
    pub function_closure: u64,
}

const UP_TO_3_10: PythonLayout = PythonLayout {
    minor: 8,
    head: 32,
    next: 0,
    threads: 8,
    modules: 56,
    thread_frame: 24,
    c_frame: None,
    previous_frame: 24,
    frame_code: 32,
    frame_locals: 360,
    local_names: &[72, 88, 80],
    code_name: 112,
    code_file: 104,
    code_line: 40,
    code_line_table: 120,
    code_start: None,
    frame_instruction: 104,
    thread_id: 176,
    generator_frame: 16,
    cached_keys: 872,
    tuple_items: 24,
    function_closure: 48,
};

const FROM_3_11: PythonLayout = PythonLayout {
    minor: 11,
    head: 40,
    threads: 16,
    modules: 888,
    thread_frame: 56,
    c_frame: Some(8),
    previous_frame: 48,
    frame_locals: 72,
    local_names: &[96],
    code_name: 120,
    code_file: 112,
    code_line: 72,
    code_line_table: 136,
    code_start: Some(184),
    frame_instruction: 56,
    thread_id: 152,
    generator_frame: 80,
    function_closure: 72,
    ..UP_TO_3_10
};

const FROM_3_12: PythonLayout = PythonLayout {
    minor: 12,
    threads: 72,
    modules: 944,
    c_frame: Some(0),
    previous_frame: 8,
    frame_code: 0,
    code_line: 68,
    code_start: Some(192),
    thread_id: 136,
    generator_frame: 72,
    cached_keys: 880,
    ..FROM_3_11
};

const FROM_3_13: PythonLayout = PythonLayout {
    minor: 13,
    head: 632,
    next: 7_264,
    threads: 7_344,
    modules: 7_656,
    thread_frame: 72,
    c_frame: None,
    code_start: Some(200),
    thread_id: 152,
    ..FROM_3_12
};

pub const LAYOUTS: &[PythonLayout] = &[
    UP_TO_3_10,
    PythonLayout { minor: 9, modules: 856, cached_keys: 864, ..UP_TO_3_10 },
    PythonLayout {
        minor: 10,
        modules: 856,
        frame_locals: 352,
        frame_instruction: 96,
        function_closure: 72,
        ..UP_TO_3_10
    },
    FROM_3_11,
    FROM_3_12,
    FROM_3_13,
    PythonLayout {
        minor: 14,
        head: 808,
        next: 7_272,
        modules: 7_688,
        frame_locals: 80,
        code_start: Some(208),
        tuple_items: 32,
        ..FROM_3_13
    },
    PythonLayout {
        minor: 15,
        head: 936,
        threads: 7_336,
        modules: 7_592,
        frame_locals: 80,
        code_start: Some(208),
        thread_id: 176,
        cached_keys: 888,
        tuple_items: 32,
        ..FROM_3_13
    },
];

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interpreter {
    pub layout: PythonLayout,
    /// Address of `_PyRuntime`.
    pub runtime: u64,
    /// Address of the first PyInterpreterState.
    pub head: u64,
    /// CPython's own structures have the same offsets on aarch64 (py-spy uses one set for both), C++ objects may not.
    pub is_x86_64: bool,
}

/// Reason why the Python objects of a process cannot be read, as a phrase.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoInterpreter {
    #[error("no Python interpreter found")]
    NotFound,
    #[error("Python 3.{0} is not supported")]
    UnknownVersion(u32),
    #[error("free-threaded Python is not supported")]
    FreeThreaded,
    #[error("Python on this processor architecture is not supported")]
    UnknownMachine,
}

/// ELF machine number of x86_64.
const X86_64: u16 = 62;

impl Interpreter {
    pub fn locate(reader: &Reader<'_>, maps: &[Mapping]) -> Result<Self, NoInterpreter> {
        let is_candidate = |map: &Mapping| {
            let name = map.file_name();
            name.starts_with("libpython3")
                || !name.contains(".so") && map.file.starts_with('/') && !map.file.contains("/dev/")
        };
        let mut bases = images(maps, is_candidate);
        bases.truncate(MAX_IMAGES);
        for base in bases {
            let Ok(image) = Image::read(reader.memory(), base) else { continue };
            let Ok(Some(runtime)) = image.symbol(reader.memory(), "_PyRuntime") else { continue };
            let version = image.symbol(reader.memory(), "Py_Version");
            let version = version.ok().flatten().and_then(|at| reader.int(at));
            let minor = version
                .map(|version| version >> 16 & 0xff)
                .or_else(|| minor_from_files(maps))
                .ok_or(NoInterpreter::NotFound)?;
            return Self::at(reader, runtime, minor, image.machine == X86_64);
        }
        Err(NoInterpreter::NotFound)
    }

    fn at(
        reader: &Reader<'_>,
        runtime: u64,
        minor: u32,
        is_x86_64: bool,
    ) -> Result<Self, NoInterpreter> {
        let layout = LAYOUTS.iter().find(|layout| layout.minor == minor);
        let mut layout = *layout.ok_or(NoInterpreter::UnknownVersion(minor))?;
        if minor >= 13 {
            // Words of `_Py_DebugOffsets`: cookie, version, free_threaded, runtime_state {size, finalizing,
            // interpreters_head}, interpreter_state {size, id, next, threads_head, (3.14: threads_main,) gc,
            // imports_modules}
            let words = reader.words(runtime, 13).ok_or(NoInterpreter::NotFound)?;
            if words.first() != Some(&DEBUG_COOKIE) {
                return Err(NoInterpreter::UnknownVersion(minor));
            }
            if words.get(2) != Some(&0) {
                return Err(NoInterpreter::FreeThreaded);
            }
            let offset = |index: usize| {
                let offset = words.get(index).copied();
                offset
                    .filter(|&offset| offset < MAX_OFFSET && offset.is_multiple_of(8))
                    .ok_or(NoInterpreter::UnknownVersion(minor))
            };
            layout.head = offset(5)?;
            layout.next = offset(8)?;
            layout.threads = offset(9)?;
            layout.modules = offset(if minor == 13 { 11 } else { 12 })?;
        }
        let head = reader.word(runtime.wrapping_add(layout.head));
        let head = head.filter(|&head| is_pointer(head)).ok_or(NoInterpreter::NotFound)?;
        Ok(Self { layout, runtime, head, is_x86_64 })
    }
}

/// Returns Python's minor version from a path such as `/usr/lib/python3.10/lib-dynload/_json.so`. Needed because
/// CPython exports its version only in 3.11 and later.
fn minor_from_files(maps: &[Mapping]) -> Option<u32> {
    maps.iter().find_map(|map| {
        let (_, rest) = map.file.split_once("python3.")?;
        let end = rest.find(|c: char| !c.is_ascii_digit());
        rest.get(..end.unwrap_or(rest.len()))?.parse().ok()
    })
}
