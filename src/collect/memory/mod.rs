//! The memory of another process, whatever program it runs: ranges of bytes, mappings, ELF images, C++ type names.
//!
//! Nothing here knows PyTorch; `collect/torch` is the first reader, other allocators come to stand beside it. The
//! target is never written to and, unless the user asks for it ([`pause`]), never stopped, and no file of it is opened: a deleted library and one that only
//! exists in the target's mount namespace read as any other.
//!
//! [`Memory`] has two implementers, a [`Live`](live::Live) process and a recorded [`Dump`](dump::Dump), and
//! [`Recorder`](dump::Recorder), which makes the second out of the first. What is read may change under the reader
//! or be garbage: every length taken from the target is bounded before it is used, and a failed read names the
//! struct it was for.
//!
//! ```text
//! maps ─► image at 0x7f2a00000000 ─► symbol "…9allocatorE" at 0x7f2a000a4d20
//!       (elf.rs, from memory)        ─► pointer ─► object ─► its class by name (rtti.rs)
//! ```

pub mod access;
pub mod dump;
pub mod elf;
pub mod live;
pub mod maps;
pub mod objects;
pub mod pause;
mod ptrace_call;
pub mod rtti;
pub mod view;

use maps::Mapping;

/// A stretch of the target's address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub address: u64,
    pub len: usize,
}

/// Why memory could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// A clause: why not, and the way out that this user has.
    #[error("{0}")]
    Denied(Box<str>),
    #[error("no such process, or it has ended")]
    Gone,
    /// `what` is a noun phrase: `the program headers`.
    #[error("{what} at {address:#x}: not readable")]
    Unreadable { what: &'static str, address: u64 },
    /// The system call failed for a reason that is not the target's.
    #[error("the kernel refused to read another process: {0}")]
    Refused(String),
}

pub trait Memory {
    /// Appends the bytes of all ranges, one behind the other, up to the first that is not mapped. So what is short
    /// was not readable; an error is about the process as a whole.
    ///
    /// # Errors
    /// When the process may not be read, or is gone.
    fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError>;

    /// By address.
    ///
    /// # Errors
    /// When the process may not be read, or is gone.
    fn maps(&self) -> Result<Vec<Mapping>, MemoryError>;
}

impl<M: Memory> Memory for &M {
    fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError> {
        (**self).read(ranges, into)
    }

    fn maps(&self) -> Result<Vec<Mapping>, MemoryError> {
        (**self).maps()
    }
}

/// More than any struct that is read as one piece; a length that came from a broken target stops here.
const MAX_READ: usize = 32 << 20;

/// One range, whole. `what` is a noun phrase for the message.
///
/// # Errors
/// Also when only a part of it is mapped.
pub fn exact(
    memory: &impl Memory,
    address: u64,
    len: usize,
    what: &'static str,
) -> Result<Vec<u8>, MemoryError> {
    let bytes = up_to(memory, address, len)?;
    if bytes.len() < len {
        return Err(MemoryError::Unreadable { what, address });
    }
    Ok(bytes)
}

/// One range as far as it is mapped, which may be not at all.
///
/// # Errors
/// When the process may not be read, or is gone.
pub fn up_to(memory: &impl Memory, address: u64, len: usize) -> Result<Vec<u8>, MemoryError> {
    let mut bytes = Vec::new();
    if len <= MAX_READ {
        memory.read(&[Range { address, len }], &mut bytes)?;
    }
    Ok(bytes)
}

/// The pointer at `address`.
///
/// # Errors
/// When it is not mapped.
pub fn pointer(memory: &impl Memory, address: u64, what: &'static str) -> Result<u64, MemoryError> {
    let bytes = exact(memory, address, 8, what)?;
    view::View(&bytes)
        .word(0)
        .ok_or(MemoryError::Unreadable { what, address })
}

/// True for what a pointer to an object on the heap can be: no small number, aligned, in the user's half.
pub fn is_pointer(word: u64) -> bool {
    (0x1_0000..1 << 56).contains(&word) && word.is_multiple_of(8)
}
