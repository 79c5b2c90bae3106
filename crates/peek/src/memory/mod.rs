//! Reads the memory of another process: byte ranges, mappings, ELF images, C++ class names.
//!
//! This module does not depend on PyTorch; `torch` is its first user. The target is never written to, and is
//! stopped only at the user's request ([`pause`]). What is in its files can also be read from its memory, so gputop can
//! read deleted libraries and libraries that exist only in the target's mount namespace.
//!
//! [`Memory`] is implemented by a [`Live`](live::Live) process and by a recorded [`Dump`](dump::Dump).
//! [`DumpRecorder`](dump::DumpRecorder) creates a dump from a live process. The memory may change during a read or contain
//! garbage. Every length that comes from the target is therefore bounded before use, and a read error names the struct
//! that could not be read.
//!
//! ```text
//! maps ─► image at 0x7f2a00000000 ─► symbol "…9allocatorE" at 0x7f2a000a4d20
//!       (elf.rs, from memory)        ─► pointer ─► object ─► name of its class (rtti.rs)
//! ```

pub mod access;
pub mod dump;
pub(crate) mod elf;
pub(crate) mod heap_pages;
pub mod live;
pub mod maps;
pub(crate) mod objects;
pub mod pause;
mod ptrace_call;
pub(crate) mod rtti;
pub mod view;

use std::fmt;
use std::fs::File;

use gputop_model::{Missing, Reason};

use maps::Mapping;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub address: u64,
    pub len: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Permission denied. Contains a phrase with the reason and the fix for this user.
    #[error("{0}")]
    Denied(Box<str>),
    #[error("process not found or already exited")]
    Gone,
    /// Unreadable address. `what` is a noun phrase: `the program headers`.
    #[error("cannot read {what} at {address:#x}")]
    Unreadable { what: &'static str, address: u64 },
    /// System call that failed for a reason unrelated to the target.
    #[error("the kernel rejected a read of another process's memory: {0}")]
    Refused(String),
}

impl MemoryError {
    /// Returns why a value that depends on the memory is missing.
    pub fn missing(&self) -> Missing {
        let reason = match self {
            Self::Denied(_) => Reason::Denied,
            Self::Gone => Reason::Gone,
            Self::Unreadable { .. } | Self::Refused(_) => Reason::Unknown,
        };
        Missing::new(reason, self.to_string())
    }
}

pub trait Memory: fmt::Debug {
    /// Appends the bytes of all ranges, in order, up to the first unmapped byte. If fewer bytes than requested are
    /// appended, part of a range is unreadable. An error means that no memory of the process is readable.
    fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError>;

    /// Returns the process's memory mappings, ordered by address.
    fn maps(&self) -> Result<Vec<Mapping>, MemoryError>;

    /// Returns the CPU time in nanoseconds of a thread that runs or waits for a CPU. Returns `None` if the thread is
    /// blocked, stopped or unknown. `thread` is the ID in the thread's own PID namespace.
    fn runnable_cpu_time(&self, _thread: u32) -> Option<u64> {
        None
    }

    /// Returns the parts of a range that are worth searching: those in physical memory or, in a dump, those recorded.
    /// Reading any other part would make the process's page tables grow.
    fn resident(&self, _range: Range) -> Vec<Range> {
        Vec::new()
    }

    /// Opens the file of a mapping. The file may have been replaced since the process mapped it.
    fn open_file(&self, _mapping: &Mapping) -> Option<File> {
        None
    }
}

impl<M: Memory + ?Sized> Memory for &M {
    fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError> {
        (**self).read(ranges, into)
    }

    fn maps(&self) -> Result<Vec<Mapping>, MemoryError> {
        (**self).maps()
    }

    fn runnable_cpu_time(&self, thread: u32) -> Option<u64> {
        (**self).runnable_cpu_time(thread)
    }

    fn resident(&self, range: Range) -> Vec<Range> {
        (**self).resident(range)
    }

    fn open_file(&self, mapping: &Mapping) -> Option<File> {
        (**self).open_file(mapping)
    }
}

/// Maximum length of one read. Larger than any struct that gputop reads. Limits lengths that come from a corrupt
/// target.
const MAX_READ: usize = 32 << 20;

/// Reads a complete range of memory. `what` is a noun phrase for the error message. Also fails if only part of the
/// range is mapped.
pub fn exact(
    memory: &dyn Memory,
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

/// Reads the mapped part of a memory range, which may be empty.
pub fn up_to(memory: &dyn Memory, address: u64, len: usize) -> Result<Vec<u8>, MemoryError> {
    let mut bytes = Vec::new();
    if len <= MAX_READ {
        memory.read(&[Range { address, len }], &mut bytes)?;
    }
    Ok(bytes)
}

pub fn pointer(memory: &dyn Memory, address: u64, what: &'static str) -> Result<u64, MemoryError> {
    let bytes = exact(memory, address, 8, what)?;
    view::View(&bytes).word(0).ok_or(MemoryError::Unreadable { what, address })
}

/// Returns true if the word can be a pointer to a heap object: aligned, in the user half of the address space, and not
/// a small number.
pub(crate) fn is_pointer(word: u64) -> bool {
    (0x1_0000..1 << 56).contains(&word) && word.is_multiple_of(8)
}
