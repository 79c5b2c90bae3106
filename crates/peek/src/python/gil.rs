//! Finds the global interpreter lock, and the thread that holds it.
//!
//! The lock is in `_PyRuntime` up to Python 3.11 and in PyInterpreterState from 3.12 on, at an offset that differs between
//! releases. Its struct has begun the same way since Python 3.8 (`_gil_runtime_state` in pycore_gil.h), so it is found by its
//! content: the switch interval, 5,000 µs unless the program sets another, the thread that held the lock last, and whether
//! it is locked.

use crate::cpython::reader::Reader;

const SWITCH_INTERVAL_US: u64 = 5_000;
/// Part of a struct that is searched.
const MAX_SEARCHED_BYTES: u64 = 1 << 20;
const BLOCK_WORDS: usize = 8_192;
/// Words of the lock.
const WORDS: usize = 3;

/// The lock of the main interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GlobalLock(u64);

impl GlobalLock {
    /// Searches the structs at `places` for a lock that one of `threads` held last.
    pub(super) fn locate(reader: &Reader<'_>, places: &[u64], threads: &[u64]) -> Option<Self> {
        places.iter().find_map(|place| search(reader, *place, threads)).map(Self)
    }

    /// Returns the address of the thread that holds the lock: 0 if none does. `None` if the lock cannot be read.
    pub(super) fn holder(self, reader: &Reader<'_>) -> Option<u64> {
        let words = reader.words(self.0, WORDS)?;
        let [_, holder, locked] = words[..] else { return None };
        Some(if locked as u32 == 1 { holder } else { 0 })
    }
}

fn search(reader: &Reader<'_>, place: u64, threads: &[u64]) -> Option<u64> {
    let (_, end) = reader.mapping(place)?;
    let end = end.min(place.saturating_add(MAX_SEARCHED_BYTES));
    let mut at = place;
    while at < end {
        let left = usize::try_from((end - at) / 8).ok()?;
        let words = reader.words(at, left.min(BLOCK_WORDS))?;
        if let Some(index) = words.array_windows::<WORDS>().position(|w| is_lock(*w, threads)) {
            return Some(at + index as u64 * 8);
        }
        if words.len() <= WORDS {
            break;
        }
        // The lock may span two blocks.
        at += (words.len() - WORDS + 1) as u64 * 8;
    }
    None
}

fn is_lock([interval, holder, locked]: [u64; WORDS], threads: &[u64]) -> bool {
    interval == SWITCH_INTERVAL_US && locked <= 1 && threads.contains(&holder)
}
