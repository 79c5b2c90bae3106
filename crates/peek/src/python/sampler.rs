//! Reads the stack of one thread many times a second.
//!
//! A resident reader keeps what does not change: the mappings, the addresses of the threads, and the functions and tables of
//! lines of code objects. A sample then takes a few system calls: the current frame, the frames, which are next to each
//! other from Python 3.11 on, and the headers of their code objects.
//!
//! A program that runs Python code fast changes its stack during a read. From Python 3.11 on, frames stay in memory after
//! they have returned, so a chain that ends at the outermost frame of its thread was valid a moment ago. Any other stack is
//! read again. If it still cannot be read, the sample says so: dropping it would favour code that waits.

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use gputop_model::{Missing, Pid, Reason};

use super::gil::GlobalLock;
use super::line_table::{LineTable, SourcePosition, instruction_offset};
use super::stacks::{
    MAX_INTERPRETERS, MAX_LISTED, PythonProcess, code_names, shortened, thread_names,
};
use crate::cpython::interpreter::Interpreter;
use crate::cpython::limits::Options;
use crate::cpython::objects::Python;
use crate::cpython::reader::{Budget, Reader, readable};
use crate::memory::live::Live;
use crate::memory::view::View;
use crate::memory::{Memory, Range, is_pointer};

/// Maximum number of times that a stack is read for one sample.
const MAX_TRIES: usize = 4;
/// Time after which mappings are read again.
const MAPPINGS_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of frames. Compilers are deep.
const MAX_FRAMES: usize = 1_000;
const MAX_CODES: usize = 20_000;
const MAX_THREADS: usize = 64;
const MAX_CACHED_BYTES: usize = 1 << 20;
/// Limit for one sample.
const TIME_LIMIT: Duration = Duration::from_millis(100);
/// Offset of the type in a Python object.
const TYPE: u64 = 8;

/// A function of the program. The same function has the same ID in all samples.
#[derive(Debug, PartialEq, Eq)]
pub struct Code {
    pub id: u32,
    /// Qualified name from Python 3.11 on, escaped.
    pub function: String,
    /// Path of the file, escaped and shortened at its start.
    pub file: String,
    /// The path as the program reports it.
    pub path: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampledFrame {
    pub code: Rc<Code>,
    pub position: SourcePosition,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampledThread {
    /// ID of the thread in the `threading` module.
    pub id: u64,
    /// ID of the thread in its own PID namespace. `None` before Python 3.11.
    pub native_id: Option<u32>,
    /// Name in the `threading` module. Empty if unknown to it.
    pub name: String,
    pub is_main: bool,
    address: u64,
}

/// Holder of the global interpreter lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockHolder {
    Nobody,
    /// ID of the thread in the `threading` module.
    Thread(u64),
}

/// A Python program whose stacks are sampled.
#[derive(Debug)]
pub struct StackSampler {
    memory: Live,
    interpreter: Interpreter,
    mappings: Rc<[(u64, u64)]>,
    mapped_at: Instant,
    threads: Vec<SampledThread>,
    lock: Option<GlobalLock>,
    codes: HashMap<u64, KnownCode>,
    next_code: u32,
    /// Address of the outermost frame of each thread by the address of the thread.
    outermost: HashMap<u64, u64>,
}

/// A code object, and the header by which it is recognized. Its address may be used again.
#[derive(Debug)]
struct KnownCode {
    header: CodeHeader,
    /// `None` for code of the interpreter itself.
    code: Option<(Rc<Code>, LineTable)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CodeHeader {
    class: u64,
    name: u64,
    file: u64,
    table: u64,
    first_line: u32,
}

/// A frame before its code object is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RawFrame {
    executable: u64,
    offset: i64,
}

/// The frames of a thread, innermost first.
#[derive(Debug)]
struct FrameChain {
    frames: Vec<RawFrame>,
    /// Address of the last frame.
    outermost: u64,
    /// True if the thread had the same current frame before and after the read.
    is_unchanged: bool,
}

impl StackSampler {
    pub fn attach(proc_root: &Path, pid: Pid) -> Result<Self, Missing> {
        let (memory, interpreter) = PythonProcess::attach(proc_root, pid)?.into_parts();
        let maps = memory.maps().map_err(|error| error.missing())?;
        Ok(Self {
            memory,
            interpreter,
            mappings: readable(&maps),
            mapped_at: Instant::now(),
            threads: Vec::new(),
            lock: None,
            codes: HashMap::new(),
            next_code: 0,
            outermost: HashMap::new(),
        })
    }

    /// Reads the list of threads again, main thread first, and returns it. Call it about once a second.
    pub fn list(&mut self) -> Result<&[SampledThread], Missing> {
        if self.mapped_at.elapsed() >= MAPPINGS_INTERVAL {
            self.read_mappings()?;
        }
        let (threads, lock) = self.with_reader(|sampler, reader| {
            let python = Python::new(reader, sampler.interpreter.layout);
            let (interpreters, _) = python.interpreters(sampler.interpreter.head, MAX_INTERPRETERS);
            let threads = sampled_threads(&python, &interpreters);
            let addresses: Vec<u64> = threads.iter().map(|thread| thread.address).collect();
            let places = [interpreters, vec![sampler.interpreter.runtime]].concat();
            let locate = || GlobalLock::locate(reader, &places, &addresses);
            (threads, sampler.lock.or_else(locate))
        });
        if threads.is_empty() {
            self.read_mappings()?;
            return Err(Missing::new(Reason::Unknown, "no Python thread could be read"));
        }
        self.outermost.retain(|address, _| threads.iter().any(|t| t.address == *address));
        (self.threads, self.lock) = (threads, lock);
        Ok(&self.threads)
    }

    fn read_mappings(&mut self) -> Result<(), Missing> {
        let maps = self.memory.maps().map_err(|error| error.missing())?;
        (self.mappings, self.mapped_at) = (readable(&maps), Instant::now());
        Ok(())
    }

    /// Returns the threads of the last list.
    pub fn threads(&self) -> &[SampledThread] {
        &self.threads
    }

    /// Reads the stack of a thread, innermost frame first. `None` if it changed during every read, so that the thread runs,
    /// or if the thread no longer exists.
    pub fn stack(&mut self, thread: u64) -> Option<Vec<SampledFrame>> {
        let thread = self.threads.iter().find(|known| known.id == thread)?.address;
        (0..MAX_TRIES).find_map(|_| {
            let chain = self.with_reader(|sampler, reader| sampler.chain(reader, thread))?;
            let known = self.outermost.insert(thread, chain.outermost);
            let is_complete = known == Some(chain.outermost);
            if chain.is_unchanged || is_complete { self.resolve(&chain.frames) } else { None }
        })
    }

    /// Returns who holds the global interpreter lock, or `None` if that cannot be read.
    pub fn lock_holder(&self) -> Option<LockHolder> {
        let lock = self.lock?;
        let holder = self.with_reader(|_, reader| lock.holder(&reader.uncached()))?;
        if holder == 0 {
            return Some(LockHolder::Nobody);
        }
        let thread = self.threads.iter().find(|thread| thread.address == holder)?;
        Some(LockHolder::Thread(thread.id))
    }

    fn with_reader<T>(&self, read: impl FnOnce(&Self, &Reader<'_>) -> T) -> T {
        let (start, cancelled) = (Instant::now(), AtomicBool::new(false));
        let clock = || start.elapsed();
        let options = Options { time_limit: TIME_LIMIT, ..Options::default() };
        let budget = Budget::new(&options, &clock, &cancelled);
        let mappings = Rc::clone(&self.mappings);
        read(self, &Reader::with_mappings(&self.memory, mappings, MAX_CACHED_BYTES, &budget))
    }

    /// Reads the frames of a thread.
    fn chain(&self, reader: &Reader<'_>, thread: u64) -> Option<FrameChain> {
        let layout = &self.interpreter.layout;
        let uncached = reader.uncached();
        let current = || {
            let frame = uncached.word(thread.checked_add(layout.thread_frame)?)?;
            match layout.c_frame {
                Some(offset) => uncached.word(frame.checked_add(offset)?),
                None => Some(frame),
            }
        };
        let first = current()?;
        let (mut frame, mut outermost, mut frames) = (first, 0, Vec::new());
        while is_pointer(frame) && frames.len() < MAX_FRAMES {
            let executable = reader.word(frame.checked_add(layout.frame_code)?)? & !7;
            let at = frame.checked_add(layout.frame_instruction)?;
            let offset =
                instruction_offset(layout, executable, || reader.word(at), || reader.int(at))?;
            frames.push(RawFrame { executable, offset });
            outermost = frame;
            frame = reader.word(frame.checked_add(layout.previous_frame)?)?;
        }
        Some(FrameChain { frames, outermost, is_unchanged: current()? == first })
    }

    /// Looks up the code objects of all frames.
    fn resolve(&mut self, raw: &[RawFrame]) -> Option<Vec<SampledFrame>> {
        let headers = self.headers(raw)?;
        let mut frames = Vec::with_capacity(raw.len());
        for (frame, header) in raw.iter().zip(headers) {
            let is_known = |known: &KnownCode| known.header == header;
            if !self.codes.get(&frame.executable).is_some_and(is_known) {
                let known = self.read_code(frame.executable, header)?;
                if self.codes.len() >= MAX_CODES {
                    self.codes.clear();
                }
                self.codes.insert(frame.executable, known);
            }
            let known = self.codes.get(&frame.executable)?;
            if let Some((code, table)) = &known.code {
                let position = table.position(frame.offset)?;
                frames.push(SampledFrame { code: Rc::clone(code), position });
            }
        }
        Some(frames)
    }

    /// Reads the headers of all code objects at once.
    fn headers(&self, raw: &[RawFrame]) -> Option<Vec<CodeHeader>> {
        let layout = &self.interpreter.layout;
        let offsets = [TYPE, layout.code_name, layout.code_file, layout.code_line_table];
        let len = usize::try_from(offsets.iter().max()? + 8).ok()?;
        if !raw.iter().all(|frame| self.is_mapped(frame.executable)) {
            return None;
        }
        let ranges: Vec<Range> =
            raw.iter().map(|frame| Range { address: frame.executable, len }).collect();
        let mut bytes = Vec::new();
        self.memory.read(&ranges, &mut bytes).ok()?;
        if bytes.len() < len * raw.len() {
            return None;
        }
        let header = |bytes: &[u8]| {
            let word = |offset: u64| View(bytes).word(usize::try_from(offset).ok()?);
            Some(CodeHeader {
                class: word(TYPE)?,
                name: word(layout.code_name)?,
                file: word(layout.code_file)?,
                table: word(layout.code_line_table)?,
                first_line: u32::try_from(word(layout.code_line)? & 0xffff_ffff).ok()?,
            })
        };
        bytes.chunks(len).take(raw.len()).map(header).collect()
    }

    fn is_mapped(&self, address: u64) -> bool {
        let index = self.mappings.partition_point(|&(_, end)| end <= address);
        self.mappings.get(index).is_some_and(|&(start, _)| start <= address)
    }

    fn read_code(&mut self, address: u64, header: CodeHeader) -> Option<KnownCode> {
        let id = self.next_code;
        let code = self.with_reader(|sampler, reader| {
            let python = Python::new(reader, sampler.interpreter.layout);
            let Some((function, path)) = code_names(&python, address)? else { return Some(None) };
            let code = Code { id, function, file: shortened(&path), path };
            Some(Some((Rc::new(code), LineTable::read(&python, address)?)))
        })?;
        self.next_code = self.next_code.wrapping_add(1);
        Some(KnownCode { header, code })
    }
}

/// Returns the threads of all interpreters, main thread first, then the newest.
fn sampled_threads(python: &Python<'_>, interpreters: &[u64]) -> Vec<SampledThread> {
    let (reader, layout) = (python.reader, &python.layout);
    let mut threads = Vec::new();
    for interpreter in interpreters {
        let names = thread_names(python, *interpreter).unwrap_or_default();
        for address in python.threads(*interpreter, MAX_LISTED).0 {
            let Some(id) = reader.word(address.wrapping_add(layout.thread_id)) else { continue };
            // Since Python 3.11, `native_thread_id` follows `thread_id`.
            let native = || reader.word(address.wrapping_add(layout.thread_id + 8));
            let native_id = (layout.minor >= 11).then(native).flatten();
            let name = names.get(&id).cloned().unwrap_or_default();
            threads.push(SampledThread {
                id,
                native_id: native_id.and_then(|id| u32::try_from(id).ok()),
                is_main: name == "MainThread",
                name,
                address,
            });
        }
    }
    // The main thread is the oldest one, if the `threading` module was not imported.
    if !threads.iter().any(|thread| thread.is_main)
        && let Some(oldest) = threads.last_mut()
    {
        oldest.is_main = true;
    }
    threads.sort_by_key(|thread| !thread.is_main);
    threads.truncate(MAX_THREADS);
    threads
}
