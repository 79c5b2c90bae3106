//! Reads Python objects: their types, strings and numbers, and the references in dictionaries and instances.
//!
//! A Python object begins with its reference count and, at +8, its type. Every type inherits the flags that distinguish
//! dictionaries, lists and strings. The layouts are those of CPython 3.8 to 3.15 on x86_64.

use std::mem;
use std::rc::Rc;

use gputop_model::text::visible;

use super::interpreter::PythonLayout;
use super::reader::{Cache, Reader};
use crate::memory::is_pointer;

const MAX_CACHED: usize = 50_000;
/// Maximum number of cached types, each of which needs up to 2 KiB.
const MAX_TYPES: usize = 16_384;
/// Maximum length of a key or attribute name in characters.
const MAX_TEXT: usize = 120;
const MAX_TYPE_NAME: usize = 120;
const MAX_BASES: usize = 12;
/// Maximum number of slots of a class and its bases, and of entries read in the table of each of them.
const MAX_MEMBERS: u64 = 64;
const ENTRIES_PER_READ: u64 = 2_048;

/// Maximum number of times that the frames of a thread are read.
const MAX_FRAME_READS: usize = 8;
/// Offset of the next thread in PyThreadState.
const NEXT_THREAD: u64 = 8;

const TYPE: u64 = 8;
const TYPE_NAME: u64 = 24;
const TYPE_BASIC_SIZE: usize = 4;
const TYPE_FLAGS: u64 = 168;
const TYPE_MEMBERS: u64 = 240;
const TYPE_BASE: u64 = 256;
const TYPE_DICT_OFFSET: usize = 36;
/// Number of words to read from a type object, up to `tp_dictoffset`.
const TYPE_WORDS: usize = 40;
const MEMBER_BYTES: u64 = 40;
/// Member types that refer to a Python object: T_OBJECT and T_OBJECT_EX.
const OBJECT_MEMBERS: [u32; 2] = [6, 16];

const INLINE_VALUES: u64 = 1 << 2;
const MANAGED_DICT: u64 = 1 << 4;
const HEAP_TYPE: u64 = 1 << 9;
const INT_SUBCLASS: u64 = 1 << 24;
const LIST_SUBCLASS: u64 = 1 << 25;
const TUPLE_SUBCLASS: u64 = 1 << 26;
const BYTES_SUBCLASS: u64 = 1 << 27;
const TEXT_SUBCLASS: u64 = 1 << 28;
const DICT_SUBCLASS: u64 = 1 << 29;
const EXCEPTION_SUBCLASS: u64 = 1 << 30;
const TYPE_SUBCLASS: u64 = 1 << 31;

/// Kinds of Python objects, distinguished by how they refer to other objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Dict,
    List,
    Tuple,
    Set,
    Text,
    Int,
    Type,
    Function,
    Cell,
    Method,
    Module,
    Generator,
    Frame,
    Traceback,
    Deque,
    Code,
    Tensor,
    JaxArray,
    CupyArray,
    /// An instance of any other class.
    Instance,
    /// An object that cannot refer to a tensor.
    Leaf,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TypeInfo {
    pub kind: Kind,
    pub name: String,
    flags: u64,
    pub basic_size: u64,
    dict_offset: u64,
    /// Offset of each slot that refers to an object, with the address of the slot's name.
    pub members: Vec<(u64, u64)>,
    /// Address of the attribute keys shared by all instances.
    cached_keys: u64,
    pub is_autograd_function: bool,
}

impl TypeInfo {
    pub fn is_exception(&self) -> bool {
        self.flags & EXCEPTION_SUBCLASS != 0
    }
}

const LEAVES: &[&str] = &[
    "builtin_function_or_method",
    "wrapper_descriptor",
    "method_descriptor",
    "classmethod_descriptor",
    "getset_descriptor",
    "member_descriptor",
    "weakref",
    "weakref.ReferenceType",
    "weakref.KeyedRef",
    "weakproxy",
    "float",
    "complex",
    "NoneType",
    "PyCapsule",
    "bytearray",
    "range",
    "slice",
    "_abc._abc_data",
    "torch.dtype",
    "torch.device",
    "torch.Generator",
    "numpy.ndarray",
];

/// Returns the kind of a Python type from its flags, its name and its bases' names.
fn kind(flags: u64, names: &[String]) -> Kind {
    let has = |name: &str| names.iter().any(|base| base == name);
    let by_flag = [
        (TYPE_SUBCLASS, Kind::Type),
        (DICT_SUBCLASS, Kind::Dict),
        (LIST_SUBCLASS, Kind::List),
        (TUPLE_SUBCLASS, Kind::Tuple),
        (TEXT_SUBCLASS, Kind::Text),
        (INT_SUBCLASS, Kind::Int),
        (BYTES_SUBCLASS, Kind::Leaf),
    ];
    let by_name = [
        ("set", Kind::Set),
        ("frozenset", Kind::Set),
        ("function", Kind::Function),
        ("cell", Kind::Cell),
        ("method", Kind::Method),
        ("module", Kind::Module),
        ("generator", Kind::Generator),
        ("coroutine", Kind::Generator),
        ("async_generator", Kind::Generator),
        ("frame", Kind::Frame),
        ("traceback", Kind::Traceback),
        ("collections.deque", Kind::Deque),
        ("code", Kind::Code),
        ("jaxlib._jax.ArrayImpl", Kind::JaxArray),
        ("jaxlib.xla_extension.ArrayImpl", Kind::JaxArray),
        ("cupy._core.core._ndarray_base", Kind::CupyArray),
    ];
    if names.iter().any(|name| name.ends_with("TensorBase")) {
        return Kind::Tensor;
    }
    let flag = by_flag.iter().find(|(bit, _)| flags & bit != 0);
    let name = by_name.iter().find(|(name, _)| has(name));
    let leaf = LEAVES.iter().any(|leaf| has(leaf));
    match flag.map(|(_, kind)| *kind) {
        Some(kind) => kind,
        None if leaf => Kind::Leaf,
        None => name.map_or(Kind::Instance, |(_, kind)| *kind),
    }
}

#[derive(Debug)]
pub struct Python<'a> {
    pub reader: &'a Reader<'a>,
    pub layout: PythonLayout,
    types: Cache<Rc<TypeInfo>>,
    texts: Cache<Rc<str>>,
}

impl<'a> Python<'a> {
    pub fn new(reader: &'a Reader<'a>, layout: PythonLayout) -> Self {
        Self { reader, layout, types: Cache::default(), texts: Cache::default() }
    }

    pub fn type_at(&self, address: u64) -> Option<Rc<TypeInfo>> {
        self.types.get(address, MAX_TYPES, || self.read_type(address).map(Rc::new))
    }

    pub fn type_of(&self, object: u64) -> Option<Rc<TypeInfo>> {
        if !is_pointer(object) {
            return None;
        }
        self.type_at(self.reader.word(object + TYPE)?)
    }

    pub fn kind_of(&self, object: u64) -> Option<Kind> {
        self.type_of(object).map(|found| found.kind)
    }

    fn read_type(&self, address: u64) -> Option<TypeInfo> {
        if !is_pointer(address) {
            return None;
        }
        let reader = self.reader;
        let words = reader.words(address, TYPE_WORDS)?;
        // Check that the object at the address is a type: its own type must be derived from `type`.
        let meta = reader.word(words.get(1)?.checked_add(TYPE_FLAGS)?)?;
        if meta & TYPE_SUBCLASS == 0 {
            return None;
        }
        let at = |offset: u64| words.get(usize::try_from(offset / 8).ok()?).copied();
        let name = reader.text(at(TYPE_NAME)?, MAX_TYPE_NAME)?;
        if name.is_empty() {
            return None;
        }
        let flags = at(TYPE_FLAGS)?;
        let mut names = vec![name.clone()];
        let mut members = Vec::new();
        let mut base = address;
        for _ in 0..MAX_BASES {
            self.read_members(base, &mut members);
            base = match reader.pointer(base.wrapping_add(TYPE_BASE)) {
                Some(base) => base,
                None => break,
            };
            let base_name = reader.word(base.wrapping_add(TYPE_NAME));
            names.push(base_name.and_then(|at| reader.text(at, MAX_TYPE_NAME)).unwrap_or_default());
        }
        let cached_keys = match flags & HEAP_TYPE {
            0 => 0,
            _ => reader.word(address.wrapping_add(self.layout.cached_keys)).unwrap_or(0),
        };
        Some(TypeInfo {
            kind: kind(flags, &names),
            name,
            flags,
            basic_size: words.get(TYPE_BASIC_SIZE).copied()?,
            dict_offset: words.get(TYPE_DICT_OFFSET).copied()?,
            members,
            cached_keys,
            is_autograd_function: names.iter().any(|name| name.ends_with("_FunctionBase")),
        })
    }

    /// Reads the `__slots__` that a class defines in addition to those of its bases.
    fn read_members(&self, class: u64, into: &mut Vec<(u64, u64)>) {
        let Some(list) = self.reader.pointer(class.wrapping_add(TYPE_MEMBERS)) else { return };
        for index in 0..MAX_MEMBERS {
            let member = list.wrapping_add(index * MEMBER_BYTES);
            let Some(words) = self.reader.words(member, 3).filter(|words| words[0] != 0) else {
                return;
            };
            let is_object =
                OBJECT_MEMBERS.iter().any(|&kind| u64::from(kind) == words[1] & 0xffff_ffff);
            if is_object && words[2] < 4_096 && (into.len() as u64) < MAX_MEMBERS {
                into.push((words[2], words[0]));
            }
        }
    }

    /// Reads a Python `str`, and escapes and shortens it for display.
    pub fn text(&self, object: u64) -> Option<Rc<str>> {
        self.texts.get(object, MAX_CACHED, || self.read_text(object, MAX_TEXT).map(Rc::from))
    }

    /// Reads a Python `str`, and escapes and shortens it for display.
    pub fn read_text(&self, object: u64, max_chars: usize) -> Option<String> {
        Some(visible(self.raw_text(object, max_chars)?.as_bytes(), max_chars))
    }

    /// Reads the first characters of a Python `str`, one more than `max_chars` if it has more.
    pub fn raw_text(&self, object: u64, max_chars: usize) -> Option<String> {
        if self.kind_of(object)? != Kind::Text {
            return None;
        }
        let chars = self.reader.word(object.checked_add(16)?)?;
        let chars = usize::try_from(chars).ok()?.min(max_chars + 1);
        // The word contains bit fields: interned (2 bits), kind (3), compact (1), ascii (1).
        let state = self.reader.int(object.checked_add(32)?)?;
        let width = match state >> 2 & 7 {
            1 => 1,
            2 => 2,
            4 => 4,
            _ => return None,
        };
        let is_compact = state >> 5 & 1 == 1;
        let is_ascii = state >> 6 & 1 == 1;
        if !is_compact {
            return None;
        }
        let header = match (self.layout.minor >= 12, is_ascii) {
            (true, true) => 40,
            (true, false) => 56,
            (false, true) => 48,
            (false, false) => 72,
        };
        let bytes = self.reader.bytes(object.checked_add(header)?, chars * width)?;
        Some(match width {
            1 => bytes.iter().map(|&byte| char::from(byte)).collect(),
            2 => {
                let units = bytes.as_chunks::<2>().0.iter().map(|unit| u16::from_le_bytes(*unit));
                char::decode_utf16(units)
                    .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
                    .collect()
            }
            _ => {
                let units = bytes.as_chunks::<4>().0.iter().map(|unit| u32::from_le_bytes(*unit));
                units
                    .map(|unit| char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER))
                    .collect()
            }
        })
    }

    /// Reads a Python `bytes` object of at most `max_bytes`.
    pub fn read_bytes(&self, object: u64, max_bytes: usize) -> Option<Vec<u8>> {
        let len = usize::try_from(self.len(object)?).ok()?;
        (len <= max_bytes).then(|| self.reader.bytes(object.checked_add(32)?, len))?
    }

    /// Reads a Python `int` of at most 60 bits.
    pub fn int(&self, object: u64) -> Option<i64> {
        let size = self.reader.word(object.checked_add(16)?)?;
        let digits = self.reader.words(object.checked_add(24)?, 1)?;
        let (low, high) = (digits[0] & 0xffff_ffff, digits[0] >> 32);
        let (count, is_negative) = if self.layout.minor >= 12 {
            // The lowest two bits of the size are the sign: 0 positive, 1 zero, 2 negative.
            (if size & 3 == 1 { 0 } else { size >> 3 }, size & 3 == 2)
        } else {
            (size.cast_signed().unsigned_abs(), size.cast_signed() < 0)
        };
        let value = match count {
            0 => 0,
            1 => low,
            2 => low | high << 30,
            _ => return None,
        };
        let value = i64::try_from(value).ok()?;
        Some(if is_negative { -value } else { value })
    }

    /// Returns the number of items in a dictionary, or 0 if the dictionary is not readable.
    pub fn dict_len(&self, dict: u64) -> u64 {
        self.reader.word(dict.wrapping_add(16)).unwrap_or(0)
    }

    /// Calls `visit` with each key and value of a dictionary until it returns false.
    pub fn dict_entries(&self, dict: u64, visit: &mut dyn FnMut(u64, u64) -> bool) -> Option<()> {
        if self.dict_len(dict) == 0 {
            return None;
        }
        let keys = self.reader.pointer(dict.checked_add(32)?)?;
        let values = self.reader.word(dict.checked_add(40)?)?;
        self.entries(keys, values, visit)
    }

    /// Calls `visit` for each entry of a dictionary's key table. The values of a split table are in a separate array.
    fn entries(
        &self,
        keys: u64,
        values: u64,
        visit: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Option<()> {
        let header = self.reader.words(keys, 5)?;
        let (first, count, is_unicode) = if self.layout.minor >= 11 {
            let (log2_size, log2_index) = (header[1] & 0xff, header[1] >> 8 & 0xff);
            if log2_size > 40 || log2_index > 45 || header[3] > 1 << log2_size {
                return None;
            }
            let kind = header[1] >> 16 & 0xff;
            (32 + (1 << log2_index), header[3], kind != 0)
        } else {
            let (size, count) = (header[1], header[4]);
            if !size.is_power_of_two() || size > 1 << 40 || count > size {
                return None;
            }
            let width = match size {
                0..=0xff => 1,
                0x100..=0xffff => 2,
                0x1_0000..=0xffff_ffff => 4,
                _ => 8,
            };
            (40 + size * width, count, false)
        };
        let first = keys.checked_add(first)?;
        let (all, count) = (count, count.min(self.max_items()));
        // A dictionary entry is {key, value}, or {hash, key, value}.
        let entry_words: u64 = if is_unicode { 2 } else { 3 };
        let values_start = match values {
            0 => 0,
            _ => values.checked_add(if self.layout.minor >= 13 { 8 } else { 0 })?,
        };
        let mut done = 0;
        while done < count {
            self.within_time()?;
            let batch = ENTRIES_PER_READ.min(count - done);
            let len = usize::try_from(batch).ok()?;
            let at = first.checked_add(done * entry_words * 8)?;
            let entries = self.reader.words(at, len * if is_unicode { 2 } else { 3 })?;
            let split = match values_start {
                0 => None,
                start => Some(self.reader.words(start.checked_add(done * 8)?, len)?),
            };
            for (index, entry) in entries.chunks_exact(if is_unicode { 2 } else { 3 }).enumerate() {
                let [.., key, in_table] = entry else { continue };
                let value = split.as_ref().map_or(*in_table, |values| values[index]);
                if is_pointer(*key) && is_pointer(value) && !visit(*key, value) {
                    return Some(());
                }
            }
            done += batch;
        }
        self.note_items(all);
        Some(())
    }

    /// Returns `None` if the time limit is reached. Reads from the cache succeed even then, so a loop over the items of
    /// a container must check the limit itself.
    fn within_time(&self) -> Option<()> {
        (!self.reader.budget.is_over()).then_some(())
    }

    fn max_items(&self) -> u64 {
        self.reader.budget.options.maximums.items
    }

    /// Adds a message about the limit if a container has more items than the maximum.
    fn note_items(&self, count: u64) {
        let max = self.max_items();
        if count > max {
            let limits = &self.reader.budget.limits;
            limits.add_end(format!("Only {max} items of each container were searched."));
        }
    }

    /// Calls `visit` with the name and value of each attribute of an instance, for all layouts of instance
    /// dictionaries.
    pub fn attributes(
        &self,
        object: u64,
        class: &TypeInfo,
        visit: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Option<()> {
        let minor = self.layout.minor;
        if minor < 11 || class.flags & MANAGED_DICT == 0 {
            if class.dict_offset == 0 || class.dict_offset > 1 << 20 {
                return None;
            }
            let dict = self.reader.pointer(object.checked_add(class.dict_offset)?)?;
            return self.dict_of_instance(dict, visit);
        }
        let word = self.reader.word(object.checked_sub(24)?)?;
        let keys = Some(class.cached_keys).filter(|&keys| is_pointer(keys));
        match minor {
            11 if word == 0 => {
                let values = self.reader.pointer(object.checked_sub(32)?)?;
                self.entries(keys?, values, visit)
            }
            12 if word & 1 == 1 => self.entries(keys?, word.checked_add(1)?, visit),
            13.. if word == 0 => {
                let values = object.checked_add(class.basic_size)?;
                let is_inline = class.flags & INLINE_VALUES != 0
                    && self.reader.byte(values.checked_add(3)?)? == 1;
                is_inline.then(|| self.entries(keys?, values, visit))?
            }
            _ => self.dict_of_instance(word, visit),
        }
    }

    fn dict_of_instance(&self, dict: u64, visit: &mut dyn FnMut(u64, u64) -> bool) -> Option<()> {
        (self.kind_of(dict)? == Kind::Dict).then(|| self.dict_entries(dict, visit))?
    }

    /// Calls `visit` with each item of a list or tuple, and its index.
    pub fn items(&self, object: u64, kind: Kind, visit: &mut dyn FnMut(u64, u64)) -> Option<()> {
        let all = self.len(object)?;
        let count = all.min(self.max_items());
        let first = match kind {
            Kind::List => self.reader.pointer(object.checked_add(24)?)?,
            _ => object.checked_add(self.layout.tuple_items)?,
        };
        let mut done = 0;
        while done < count {
            self.within_time()?;
            let batch = ENTRIES_PER_READ.min(count - done);
            let at = first.checked_add(done * 8)?;
            for item in self.reader.words(at, usize::try_from(batch).ok()?)? {
                visit(item & !3, done);
                done += 1;
            }
        }
        self.note_items(all);
        Some(())
    }

    pub fn len(&self, object: u64) -> Option<u64> {
        self.reader.word(object.checked_add(16)?)
    }

    pub fn set_members(&self, set: u64, visit: &mut dyn FnMut(u64)) -> Option<()> {
        let all = self.reader.word(set.checked_add(32)?)?.saturating_add(1);
        let slots = all.min(self.max_items());
        let table = self.reader.pointer(set.checked_add(40)?)?;
        let mut done = 0;
        while done < slots {
            self.within_time()?;
            let batch = ENTRIES_PER_READ.min(slots - done);
            let at = table.checked_add(done * 16)?;
            let words = self.reader.words(at, usize::try_from(batch * 2).ok()?)?;
            for entry in words.as_chunks::<2>().0 {
                visit(entry[0]);
            }
            done += batch;
        }
        self.note_items(all);
        Some(())
    }

    /// Calls `visit` with each item of a deque, and its index.
    pub fn deque_items(&self, deque: u64, visit: &mut dyn FnMut(u64, u64)) -> Option<()> {
        // A deque consists of blocks: {left link, 64 items, right link}.
        const BLOCK_ITEMS: u64 = 64;
        let words = self.reader.words(deque.checked_add(24)?, 4)?;
        let [mut block, last, mut index, last_index] = words[..] else { return None };
        let mut count = 0;
        while count < self.max_items() && is_pointer(block) {
            self.within_time()?;
            let end = if block == last { last_index.wrapping_add(1) } else { BLOCK_ITEMS };
            while index < end.min(BLOCK_ITEMS) {
                visit(self.reader.word(block.checked_add(8 + index * 8)?)?, count);
                (index, count) = (index + 1, count + 1);
            }
            if block == last {
                break;
            }
            block = self.reader.word(block.checked_add(8 + BLOCK_ITEMS * 8)?)?;
            index = 0;
            // Count empty blocks too, so that the loop terminates even if the deque is corrupted.
            count += 1;
        }
        self.note_items(count.saturating_add(u64::from(block != last)));
        Some(())
    }

    /// Returns a dictionary's value for a string key.
    pub fn value_of(&self, dict: u64, wanted: &str) -> Option<u64> {
        let mut found = None;
        self.dict_entries(dict, &mut |key, value| {
            if self.text(key).as_deref() == Some(wanted) {
                found = Some(value);
            }
            found.is_none()
        });
        found
    }

    /// Calls `visit` with the name and value of each local variable of a frame. The name is `None` if it is unreadable.
    pub fn frame_locals(&self, frame: u64, visit: &mut dyn FnMut(Option<u64>, u64)) -> Option<()> {
        let code = self.frame_code(frame)?;
        let mut slot = frame.checked_add(self.layout.frame_locals)?;
        for &names in self.layout.local_names {
            let names = self.reader.pointer(code.checked_add(names)?)?;
            let count = self.len(names)?;
            let budget = self.reader.budget;
            let max = budget.options.maximums.locals;
            if count > max {
                let sentence =
                    format!("Only {max} local variables of each function were searched.");
                budget.limits.add_end(sentence);
            }
            let count = count.min(max);
            for index in 0..count {
                let name = names.checked_add(self.layout.tuple_items + 8 * index)?;
                let value = self.reader.word(slot)? & !3;
                if is_pointer(value) {
                    visit(self.reader.pointer(name), value);
                }
                slot = slot.checked_add(8)?;
            }
        }
        Some(())
    }

    /// Returns the frames of a thread, innermost first, and true if there are more than `max`.
    ///
    /// Until Python 3.10, a function that returns during a read cuts off all of its callers. Therefore, the frames are
    /// read again until the outermost frame is the same in two consecutive reads.
    pub fn frames(&self, thread: u64, max: usize) -> Option<(Vec<u64>, bool)> {
        let reader = self.reader.uncached();
        let outermost = |frames: &Option<(Vec<u64>, bool)>| Some(*frames.as_ref()?.0.last()?);
        let mut frames = self.read_frames(&reader, thread, max);
        for _ in 1..MAX_FRAME_READS {
            let before = mem::replace(&mut frames, self.read_frames(&reader, thread, max));
            if frames.is_some() && outermost(&before) == outermost(&frames) {
                break;
            }
        }
        frames
    }

    fn read_frames(
        &self,
        reader: &Reader<'_>,
        thread: u64,
        max: usize,
    ) -> Option<(Vec<u64>, bool)> {
        let layout = &self.layout;
        let mut frame = reader.word(thread.checked_add(layout.thread_frame)?)?;
        if let Some(in_c_frame) = layout.c_frame {
            frame = reader.word(frame.checked_add(in_c_frame)?)?;
        }
        let mut frames = Vec::new();
        while is_pointer(frame) && frames.len() < max {
            frames.push(frame);
            frame = reader.word(frame.checked_add(layout.previous_frame)?)?;
        }
        Some((frames, is_pointer(frame)))
    }

    /// Returns the interpreters of a process, newest first, and true if there are more than `max`.
    pub fn interpreters(&self, head: u64, max: usize) -> (Vec<u64>, bool) {
        self.chain(head, self.layout.next, max)
    }

    /// Returns the threads of an interpreter, newest first, and true if there are more than `max`.
    pub fn threads(&self, interpreter: u64, max: usize) -> (Vec<u64>, bool) {
        let first = self.reader.word(interpreter.wrapping_add(self.layout.threads));
        self.chain(first.unwrap_or(0), NEXT_THREAD, max)
    }

    /// Follows pointers at the offset `next`.
    fn chain(&self, first: u64, next: u64, max: usize) -> (Vec<u64>, bool) {
        let mut found = Vec::new();
        let mut at = first;
        while is_pointer(at) && found.len() < max {
            found.push(at);
            at = self.reader.word(at.wrapping_add(next)).unwrap_or(0);
        }
        (found, is_pointer(at))
    }

    /// Returns a frame's code object, or `None` for a frame of the interpreter itself.
    fn frame_code(&self, frame: u64) -> Option<u64> {
        let code = self.frame_executable(frame)?;
        (self.kind_of(code)? == Kind::Code).then_some(code)
    }

    /// Returns the object that a frame executes, usually a code object.
    pub fn frame_executable(&self, frame: u64) -> Option<u64> {
        Some(self.reader.word(frame.checked_add(self.layout.frame_code)?)? & !7)
    }

    pub fn frame_function(&self, frame: u64) -> Option<Rc<str>> {
        let code = self.frame_code(frame)?;
        self.text(self.reader.pointer(code.checked_add(self.layout.code_name)?)?)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::*;
    use crate::cpython::interpreter::LAYOUTS;
    use crate::cpython::limits::Options;
    use crate::cpython::reader::Budget;
    use crate::memory::maps::Mapping;
    use crate::memory::{Memory, MemoryError, Range};

    const THREAD: u64 = 0x10_0000;
    const FRAMES: [u64; 3] = [0x20_0000, 0x30_0000, 0x40_0000];

    /// A thread with three frames. At first, the innermost function returns while its frame is read.
    #[derive(Debug)]
    struct Returning {
        layout: PythonLayout,
        reads_while_returning: Cell<u32>,
    }

    impl Memory for Returning {
        fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError> {
            let at = ranges[0].address;
            let callers = FRAMES.windows(2).find(|pair| pair[0] + self.layout.previous_frame == at);
            let caller = callers.map_or(0, |pair| pair[1]);
            let left = self.reads_while_returning.get();
            let word = if at == THREAD + self.layout.thread_frame {
                FRAMES[0]
            } else if caller == FRAMES[1] && left > 0 {
                self.reads_while_returning.set(left - 1);
                0
            } else {
                caller
            };
            into.extend(word.to_le_bytes());
            Ok(())
        }

        fn maps(&self) -> Result<Vec<Mapping>, MemoryError> {
            Ok(Vec::new())
        }
    }

    fn frames_after(reads_while_returning: u32) -> Vec<u64> {
        let layout = LAYOUTS[0];
        let reads_while_returning = Cell::new(reads_while_returning);
        let memory = Returning { layout, reads_while_returning };
        let all = Mapping { start: 0x1000, end: 1 << 40, ..Mapping::default() };
        let (clock, is_cancelled) = (|| Duration::ZERO, AtomicBool::new(false));
        let options = Options::default();
        let budget = Budget::new(&options, &clock, &is_cancelled);
        let reader = Reader::new(&memory, &[all], 0, &budget);
        Python::new(&reader, layout).frames(THREAD, 100).unwrap_or_default().0
    }

    #[test]
    fn callers_that_a_return_cut_off_are_read_again() {
        assert_eq!(frames_after(0), FRAMES);
        assert_eq!(frames_after(1), FRAMES);
    }
}
