//! Copies of memory ranges for parsers that do not know in advance which ranges they need.
//!
//! A parser asks for a range, and stops with [`Stop::Needs`] if it was not copied yet. [`Copies::complete`] then copies all
//! ranges that the parsers asked for in one system call, and runs them again. A list of pointers therefore takes one
//! system call for all groups of a process, and a chain of pointers one for each link.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::memory::view::View;
use crate::memory::{Memory, MemoryError, Range};

/// Maximum number of times that parsers run: a chain of pending works, and the pointers that lead to it.
const MAX_ROUNDS: usize = 256;
/// Maximum number of copied bytes. The groups of a rank take a few KiB each.
const MAX_BYTES: usize = 8 << 20;

/// Why a parser returned no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// A range has not been copied yet.
    Needs,
    /// The object is no longer the group that was found there.
    Replaced,
    /// The memory contains something else. The text is a sentence for the user.
    Refused(&'static str),
}

const UNREADABLE: Stop = Stop::Refused("memory of the process group is not readable");

pub type Parsed<T> = Result<T, Stop>;

#[derive(Debug, Default)]
pub struct Copies {
    bytes: Vec<u8>,
    /// Position in `bytes` of each range, or `None` if the range is not readable.
    ranges: HashMap<(u64, usize), Option<usize>>,
    needed: RefCell<Vec<Range>>,
}

impl Copies {
    /// Returns the copy of a range. A range that is not readable is refused.
    pub fn get(&self, address: u64, len: usize) -> Parsed<View<'_>> {
        match self.ranges.get(&(address, len)) {
            Some(Some(at)) => {
                let copy = self.bytes.get(*at..*at + len);
                copy.map(View).ok_or(UNREADABLE)
            }
            Some(None) => Err(UNREADABLE),
            None => {
                self.needed.borrow_mut().push(Range { address, len });
                Err(Stop::Needs)
            }
        }
    }

    /// Returns the word at an address.
    pub fn word(&self, address: u64) -> Parsed<u64> {
        self.get(address, 8)?.word(0).ok_or(UNREADABLE)
    }

    /// Runs parsers until all memory that they ask for has been copied.
    pub fn complete<T>(
        &mut self,
        memory: &dyn Memory,
        parse: impl Fn(&Self) -> T,
    ) -> Result<T, MemoryError> {
        for _ in 1..MAX_ROUNDS {
            let parsed = parse(self);
            let needed = self.needed.take();
            if needed.is_empty() {
                return Ok(parsed);
            }
            self.copy(memory, needed)?;
        }
        Ok(parse(self))
    }

    /// Copies ranges in as few system calls as possible.
    pub fn copy(&mut self, memory: &dyn Memory, mut wanted: Vec<Range>) -> Result<(), MemoryError> {
        wanted.sort_unstable_by_key(|range| (range.address, range.len));
        wanted.dedup();
        let mut left = MAX_BYTES.saturating_sub(self.bytes.len());
        wanted.retain(|range| {
            let is_within = range.len <= left;
            left -= if is_within { range.len } else { 0 };
            if !is_within {
                self.ranges.insert((range.address, range.len), None);
            }
            is_within
        });
        let mut rest = &wanted[..];
        while !rest.is_empty() {
            let mut at = self.bytes.len();
            memory.read(rest, &mut self.bytes)?;
            let mut whole = 0;
            for range in rest {
                if range.len > self.bytes.len() - at {
                    break;
                }
                self.ranges.insert((range.address, range.len), Some(at));
                at += range.len;
                whole += 1;
            }
            self.bytes.truncate(at);
            // The read stops at the first range that is not readable. Continue behind it.
            if let Some(unreadable) = rest.get(whole) {
                self.ranges.insert((unreadable.address, unreadable.len), None);
            }
            rest = rest.get(whole + 1..).unwrap_or_default();
        }
        Ok(())
    }
}
