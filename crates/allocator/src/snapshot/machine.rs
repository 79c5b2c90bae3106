//! The virtual machine that executes a pickle. Instructions that import, call or build objects are rejected; the
//! remaining ones create only plain data. `Lib/pickletools.py` of CPython documents each instruction.
//!
//! Example: `80 04 5d 94 4b 01 61 2e` means protocol 4, empty list, memoize it as number 0, integer 1, append, stop.
//! The result is `[1]`.
//!
//! Nothing in this module recurses, so deep nesting cannot overflow the stack. The sizes of the stack, nesting, memo
//! and strings are limited.

use std::cmp::Ordering;
use std::io::Read;

use super::error::{Result, SnapshotError};
use super::input::PickleInput;
use super::opcode::*;
use super::record::{ObjectId, PickleValue};
use super::store::{Fault, Object, PickleStore};
use super::text::TextId;

/// Maximum number of values on the stack. Picklers push at most 1000 per level before they add them to a container.
const MAX_WAITING: usize = 1 << 22;
/// Maximum nesting depth. Python itself stops at 1000 levels.
const MAX_LEVELS: usize = 10_000;
const MAX_MEMO: usize = 100_000_000;
/// Memory limit: a base amount for any file, plus a multiple of the file size. PyTorch's pickles need about three times
/// their size.
const MIN_MEMORY: u64 = 24 << 20;
const MEMORY_PER_BYTE: u64 = 20;
/// Limit on uncompressed bytes: a base amount, plus a multiple of the file size. PyTorch's pickles compress to a tenth
/// of their size.
const MIN_UNPACKED: u64 = 32 << 20;
const UNPACKED_PER_BYTE: u64 = 40;
/// Number of instructions between two budget checks. An instruction takes about 100 bytes of memory unless it creates a
/// long string.
const STEPS: u32 = 4_096;
/// Minimum string length that triggers a budget check before the string is read.
const LARGE_TEXT: usize = 64 << 10;
/// The newest supported pickle protocol, introduced in Python 3.8. Protocols 0 and 1, which contain numbers and strings
/// as lines of text, are not supported: Python 3 writes them only on request.
const NEWEST: u8 = 5;

/// A memo entry. It takes only 8 bytes, because there is one for nearly every object.
#[derive(Debug, Clone, Copy)]
enum MemoValue {
    Text(TextId),
    Object(ObjectId),
}

/// [`Store::set`] or [`Store::append`].
type AddItems = fn(&mut PickleStore, PickleValue, &[PickleValue]) -> std::result::Result<(), Fault>;

pub struct Machine<R> {
    input: PickleInput<R>,
    store: PickleStore,
    stack: Vec<PickleValue>,
    /// Stack height at each mark.
    marks: Vec<usize>,
    memo: Vec<MemoValue>,
    budget: Budget,
}

/// Memory and decompression limits for a file of a given size.
#[derive(Debug, Clone, Copy)]
struct Budget {
    /// Size of the file in bytes, before decompression.
    size: u64,
    max_memory: usize,
    /// Limit on the uncompressed bytes of the pickle.
    max_unpacked: u64,
    /// Number of instructions left until the next budget check.
    steps: u32,
}

impl Budget {
    fn of(size: u64) -> Self {
        let memory = MIN_MEMORY.saturating_add(size.saturating_mul(MEMORY_PER_BYTE));
        Self {
            size,
            max_memory: usize::try_from(memory).unwrap_or(usize::MAX),
            max_unpacked: MIN_UNPACKED.saturating_add(size.saturating_mul(UNPACKED_PER_BYTE)),
            steps: STEPS,
        }
    }
}

/// Reads one pickle from a file of `size` bytes and ignores anything after it.
pub fn read(input: impl Read, size: u64) -> Result<(PickleStore, PickleValue)> {
    let budget = Budget::of(size);
    let mut machine = Machine {
        input: PickleInput::new(input, budget.max_memory),
        store: PickleStore::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        budget,
    };
    machine.check_header()?;
    let root = machine.run()?;
    machine.check_budget()?;
    Ok((machine.store, root))
}

impl<R: Read> Machine<R> {
    /// Fails unless the file begins like a pickled container. Identifies other file types by their first bytes.
    fn check_header(&mut self) -> Result<()> {
        let head = self.input.peek(8)?;
        let other = match head {
            [] => "the file is empty",
            [PROTO, ..] => return Ok(()),
            [MARK, ..] => return Err(SnapshotError::Protocol(0)),
            [EMPTY_DICT | EMPTY_LIST, ..] => return Err(SnapshotError::Protocol(1)),
            [b'P', b'K', 3, 4, ..] => {
                "it is a zip archive as written by torch.save, which contains tensors, not a snapshot"
            }
            [b'{', ..] => "it looks like JSON",
            [b'<', ..] => "it looks like a memory_viz page; use the pickle it was made from",
            _ => "it starts with unexpected bytes",
        };
        Err(SnapshotError::NoPickle(other))
    }

    fn run(&mut self) -> Result<PickleValue> {
        loop {
            self.budget.steps -= 1;
            if self.budget.steps == 0 {
                self.check_budget()?;
            }
            let opcode = self.input.byte()?;
            match opcode {
                STOP => return self.pop(),
                MARK => self.mark()?,
                BINGET | LONG_BINGET => {
                    let key = match opcode {
                        BINGET => self.input.byte()?.into(),
                        _ => u32::from_le_bytes(self.input.array()?),
                    };
                    self.recall(key)?;
                }
                MEMOIZE => self.memoize(self.memo.len())?,
                BININT | BININT1 | BININT2 => {
                    let n = match opcode {
                        BININT => i32::from_le_bytes(self.input.array()?),
                        BININT1 => self.input.byte()?.into(),
                        _ => u16::from_le_bytes(self.input.array()?).into(),
                    };
                    self.push(PickleValue::Int(n.into()))?;
                }
                LONG1 => {
                    let size = self.input.byte()?;
                    self.long(usize::from(size))?;
                }
                EMPTY_DICT => self.push_new(Object::EmptyDict)?,
                SETITEMS => self.add_marked(PickleStore::set)?,
                EMPTY_LIST | EMPTY_SET => self.push_new(Object::EmptyList)?,
                APPENDS | ADDITEMS => self.add_marked(PickleStore::append)?,
                TUPLE1 | TUPLE2 | TUPLE3 => self.tuple(usize::from(opcode - TUPLE1) + 1)?,
                NONE => self.push(PickleValue::None)?,
                NEWTRUE | NEWFALSE => self.push(PickleValue::Bool(opcode == NEWTRUE))?,
                SHORT_BINUNICODE | SHORT_BINBYTES | SHORT_BINSTRING => {
                    let size = self.input.byte()?;
                    self.text(size.into())?;
                }
                FRAME => {
                    let _ = self.input.array::<8>()?;
                }
                _ => self.rare(opcode)?,
            }
        }
    }

    #[cold]
    fn check_budget(&mut self) -> Result<()> {
        self.budget.steps = STEPS;
        let memory = self.store.memory()
            + self.stack.len() * size_of::<PickleValue>()
            + self.memo.len() * size_of::<MemoValue>();
        let Budget { size, max_memory, max_unpacked, .. } = self.budget;
        if memory > max_memory || self.input.offset() > max_unpacked {
            Err(SnapshotError::TooLarge { size, max_memory })
        } else {
            Ok(())
        }
    }

    /// Executes a rarely used instruction whose operand follows in the pickle.
    fn rare(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            PROTO => match self.input.byte()? {
                newer if newer > NEWEST => Err(SnapshotError::Protocol(newer)),
                _ => Ok(()),
            },
            BINFLOAT => {
                let number = f64::from_be_bytes(self.input.array()?);
                self.push(PickleValue::Float(number))
            }
            LONG4 => {
                let size = i32::from_le_bytes(self.input.array()?);
                match usize::try_from(size) {
                    Ok(size) => self.long(size),
                    Err(_) => Err(self.damaged("a number with a negative length")),
                }
            }
            BINPUT => {
                let key = self.input.byte()?;
                self.memoize(key.into())
            }
            LONG_BINPUT => {
                let key = u32::from_le_bytes(self.input.array()?);
                self.memoize(key as usize)
            }
            _ => self.rare_text(opcode),
        }
    }

    fn rare_text(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            BINUNICODE | BINBYTES | BINSTRING => {
                let size = u32::from_le_bytes(self.input.array()?);
                self.text(size.into())
            }
            BINUNICODE8 | BINBYTES8 | BYTEARRAY8 => {
                let size = u64::from_le_bytes(self.input.array()?);
                self.text(size)
            }
            _ => self.rare_on_stack(opcode),
        }
    }

    /// Executes a rarely used instruction that operates on stack values.
    fn rare_on_stack(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            APPEND => {
                let from = self.last(1)?;
                self.add_items(from, PickleStore::append)
            }
            SETITEM => {
                let from = self.last(2)?;
                self.add_items(from, PickleStore::set)
            }
            EMPTY_TUPLE => self.tuple(0),
            TUPLE | FROZENSET => {
                let from = self.unmark()?;
                self.tuple(self.stack.len() - from)
            }
            // As in Python, POP also removes a mark on top of the stack.
            POP if self.marks.last() == Some(&self.stack.len()) => {
                self.marks.pop();
                Ok(())
            }
            POP => self.pop().map(drop),
            POP_MARK => {
                let from = self.unmark()?;
                self.stack.truncate(from);
                Ok(())
            }
            DUP => {
                let top = self.top()?;
                self.push(top)
            }
            GLOBAL | STACK_GLOBAL | REDUCE | BUILD | INST | OBJ | NEWOBJ | NEWOBJ_EX | EXT1
            | EXT2 | EXT4 | PERSID | BINPERSID | NEXT_BUFFER | READONLY_BUFFER => {
                let at = self.input.offset() - 1;
                Err(SnapshotError::Executes { opcode, at })
            }
            _ => Err(self.damaged(&format!("unknown pickle instruction {opcode:#04x}"))),
        }
    }

    #[inline]
    fn push(&mut self, value: PickleValue) -> Result<()> {
        if self.stack.len() >= MAX_WAITING {
            return Err(self.too_much("too many values on the stack"));
        }
        self.stack.push(value);
        Ok(())
    }

    #[inline]
    fn push_new(&mut self, object: Object) -> Result<()> {
        match self.store.add(object) {
            Some(value) => self.push(value),
            None => Err(self.too_much("more than 80 million objects")),
        }
    }

    /// Returns the stack height below which an instruction must not pop values. Values before a mark are operands of
    /// other instructions.
    #[inline]
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    #[inline]
    fn pop(&mut self) -> Result<PickleValue> {
        if self.stack.len() > self.floor()
            && let Some(value) = self.stack.pop()
        {
            return Ok(value);
        }
        Err(self.damaged("an instruction has no operand"))
    }

    #[inline]
    fn top(&self) -> Result<PickleValue> {
        match self.stack.last() {
            Some(value) if self.stack.len() > self.floor() => Ok(*value),
            _ => Err(self.damaged("an instruction has no operand")),
        }
    }

    fn mark(&mut self) -> Result<()> {
        if self.marks.len() >= MAX_LEVELS {
            return Err(self.too_much("more than 10000 nested levels"));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// Removes the last mark and returns the position of the values after it.
    fn unmark(&mut self) -> Result<usize> {
        match self.marks.pop() {
            Some(mark) => Ok(mark),
            None => Err(self.damaged("a container end has no matching start")),
        }
    }

    /// Adds the values after the last mark to the container before the mark.
    #[inline]
    fn add_marked(&mut self, add: AddItems) -> Result<()> {
        let from = self.unmark()?;
        self.add_items(from, add)
    }

    /// Moves the values starting at position `from` to the container before them.
    #[inline]
    fn add_items(&mut self, from: usize, add: AddItems) -> Result<()> {
        let (before, items) = self.stack.split_at(from);
        let Some(&container) = before.get(self.floor()..).and_then(<[_]>::last) else {
            return Err(self.damaged("an instruction has no operand"));
        };
        let added = add(&mut self.store, container, items);
        self.stack.truncate(from);
        added.map_err(|what| self.damaged(&what))
    }

    /// Returns the position of the last `count` values, if all of them come after the last mark.
    fn last(&self, count: usize) -> Result<usize> {
        let from = self.stack.len().checked_sub(count).filter(|from| *from >= self.floor());
        from.ok_or_else(|| self.damaged("an instruction has no operand"))
    }

    fn tuple(&mut self, count: usize) -> Result<()> {
        let from = self.last(count)?;
        let Some(tuple) = self.store.tuple(&self.stack[from..]) else {
            return Err(self.too_much("more than 80 million objects"));
        };
        self.stack.truncate(from);
        self.push(tuple)
    }

    fn text(&mut self, size: u64) -> Result<()> {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if size >= LARGE_TEXT {
            self.check_budget()?;
        }
        let text = self.input.take(size)?;
        match self.store.texts.intern(text) {
            Some(id) => self.push(PickleValue::Text(id)),
            None => Err(self.too_much("more than 512 MiB of text")),
        }
    }

    /// Reads a little-endian two's-complement integer.
    #[inline]
    fn long(&mut self, size: usize) -> Result<()> {
        let bytes = self.input.take(size)?;
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let value = if size <= 8 {
            let mut all = [if negative { 0xff } else { 0 }; 8];
            all[..size].copy_from_slice(bytes);
            PickleValue::Int(i64::from_le_bytes(all))
        } else if size == 9 && bytes[8] == 0 {
            let mut all = [0; 8];
            all.copy_from_slice(&bytes[..8]);
            PickleValue::Large(u64::from_le_bytes(all))
        } else {
            PickleValue::Huge
        };
        self.push(value)
    }

    /// Stores the value on top of the stack under the number `key`. Python numbers the memo entries consecutively.
    #[inline]
    fn memoize(&mut self, key: usize) -> Result<()> {
        let entry = match self.top()? {
            PickleValue::Text(id) => MemoValue::Text(id),
            PickleValue::Object(id) => MemoValue::Object(id),
            _ => return Err(self.damaged("a number in the memo")),
        };
        let count = self.memo.len();
        if count > MAX_MEMO {
            return Err(self.too_much("more than 100 million values in the memo"));
        }
        match key.cmp(&count) {
            Ordering::Less => self.memo[key] = entry,
            Ordering::Equal => self.memo.push(entry),
            Ordering::Greater => return Err(self.damaged("a memo entry without the ones before")),
        }
        Ok(())
    }

    #[inline]
    fn recall(&mut self, key: u32) -> Result<()> {
        match self.memo.get(key as usize) {
            Some(MemoValue::Text(id)) => self.push(PickleValue::Text(*id)),
            Some(MemoValue::Object(id)) => self.push(PickleValue::Object(*id)),
            None => Err(self.damaged("a reference to an unknown memo entry")),
        }
    }

    #[cold]
    fn damaged(&self, what: &str) -> SnapshotError {
        SnapshotError::Damaged { at: self.input.offset().saturating_sub(1), what: what.to_owned() }
    }

    #[cold]
    fn too_much(&self, what: &str) -> SnapshotError {
        SnapshotError::TooMuch { at: self.input.offset().saturating_sub(1), what: what.to_owned() }
    }
}
