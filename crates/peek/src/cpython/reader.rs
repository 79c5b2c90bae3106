//! Reads words of the target's memory through a bounded cache, until the time limit is reached.
//!
//! Naming tensors requires following millions of pointers. Reading the memory around each of them once, in chunks of 16
//! KiB, takes a few thousand system calls instead of millions.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::limits::{Limits, Options};
use crate::memory::maps::Mapping;
use crate::memory::view::View;
use crate::memory::{Memory, Range, is_pointer};

const CHUNK_BYTES: u64 = 16 << 10;
const RECENT_CHUNKS: usize = 64;
/// Maximum length of one memory read in bytes. Longer arrays are read in parts.
const MAX_READ_BYTES: usize = 1 << 20;
/// Number of time limit checks for each read of the clock.
const CHECKS_PER_CLOCK: u32 = 64;

/// A hash function for addresses that is faster than the standard one. Hostile addresses can make it slow, but the time
/// limit still applies.
#[derive(Debug, Default, Clone, Copy)]
pub struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = self.0 ^ word ^ (word >> 29);
        self.0 = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }
}

pub type AddressMap<V> = HashMap<u64, V, BuildHasherDefault<AddressHasher>>;

/// Values by the address from which they were read. It remembers failed reads too, and starts over when it is full.
#[derive(Debug)]
pub struct Cache<V>(RefCell<AddressMap<Option<V>>>);

impl<V> Default for Cache<V> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<V: Clone> Cache<V> {
    /// Returns the value at an address, and reads it if it is not among the `max` cached values.
    pub fn get(&self, address: u64, max: usize, read: impl FnOnce() -> Option<V>) -> Option<V> {
        if let Some(found) = self.0.borrow().get(&address) {
            return found.clone();
        }
        let found = read();
        let mut values = self.0.borrow_mut();
        if values.len() >= max {
            values.clear();
        }
        values.insert(address, found.clone());
        found
    }
}

/// Limits for one read, and the remaining time.
pub struct Budget<'a> {
    pub options: Options,
    pub limits: Limits,
    /// Returns the time since the read started.
    clock: &'a dyn Fn() -> Duration,
    cancelled: &'a AtomicBool,
    checks: Cell<u32>,
    is_over: Cell<bool>,
}

impl fmt::Debug for Budget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Budget");
        debug.field("options", &self.options).finish_non_exhaustive()
    }
}

impl<'a> Budget<'a> {
    pub fn new(
        options: &Options,
        clock: &'a dyn Fn() -> Duration,
        cancelled: &'a AtomicBool,
    ) -> Self {
        Self {
            options: *options,
            limits: Limits::default(),
            clock,
            cancelled,
            checks: Cell::new(0),
            is_over: Cell::new(false),
        }
    }

    pub fn elapsed(&self) -> Duration {
        (self.clock)()
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Returns true if the time limit is reached or the read was cancelled.
    pub fn is_over(&self) -> bool {
        let checks = self.checks.get().wrapping_add(1);
        self.checks.set(checks);
        if checks.is_multiple_of(CHECKS_PER_CLOCK) && !self.is_over.get() {
            self.is_over.set(self.is_cancelled() || self.elapsed() >= self.options.time_limit);
        }
        self.is_over.get()
    }

    /// Returns true if at least this percentage of the time limit has passed.
    pub fn is_beyond(&self, percent: u32) -> bool {
        self.is_cancelled() || self.elapsed() >= self.options.time_limit * percent / 100
    }
}

#[derive(Debug, Clone)]
struct CachedChunk {
    start: u64,
    bytes: Rc<[u8]>,
}

fn no_chunks() -> Vec<CachedChunk> {
    vec![CachedChunk { start: 0, bytes: Rc::from([]) }; RECENT_CHUNKS]
}

/// Returns the start and end of each mapping, without the mapped device memory of a driver, which may be slow to read.
pub fn readable(maps: &[Mapping]) -> Rc<[(u64, u64)]> {
    let readable = maps.iter().filter(|map| !map.file.starts_with("/dev/"));
    readable.map(|map| (map.start, map.end)).collect()
}

/// Memory of the target process, with a cache. Every method returns `None` if the memory is not readable.
#[derive(Debug)]
pub struct Reader<'a> {
    memory: &'a dyn Memory,
    pub budget: &'a Budget<'a>,
    /// Start and end address of each mapping, in ascending order.
    mappings: Rc<[(u64, u64)]>,
    chunks: RefCell<AddressMap<CachedChunk>>,
    /// Recently used chunks, at their number modulo the length. A hit avoids the search for the mapping and the lookup
    /// in the hash map.
    recent: RefCell<Vec<CachedChunk>>,
    /// Buffer for the next chunk.
    buffer: RefCell<Vec<u8>>,
    cached_bytes: Cell<usize>,
    /// Maximum cache size in bytes. If 0, only the requested bytes are read, which keeps a recorded dump small.
    max_cached_bytes: usize,
}

impl<'a> Reader<'a> {
    pub fn new(
        memory: &'a dyn Memory,
        maps: &[Mapping],
        max_cached_bytes: usize,
        budget: &'a Budget<'a>,
    ) -> Self {
        Self::with_mappings(memory, readable(maps), max_cached_bytes, budget)
    }

    /// Returns a reader of these mappings, which are [`readable`].
    pub fn with_mappings(
        memory: &'a dyn Memory,
        mappings: Rc<[(u64, u64)]>,
        max_cached_bytes: usize,
        budget: &'a Budget<'a>,
    ) -> Self {
        Self {
            memory,
            budget,
            mappings,
            chunks: RefCell::default(),
            recent: RefCell::new(no_chunks()),
            buffer: RefCell::default(),
            cached_bytes: Cell::new(0),
            max_cached_bytes,
        }
    }

    pub fn uncached(&self) -> Self {
        Self {
            memory: self.memory,
            budget: self.budget,
            mappings: self.mappings.clone(),
            chunks: RefCell::default(),
            recent: RefCell::new(no_chunks()),
            buffer: RefCell::default(),
            cached_bytes: Cell::new(0),
            max_cached_bytes: 0,
        }
    }

    /// Empties the cache, so that the memory is read again.
    pub fn forget(&self) {
        self.chunks.borrow_mut().clear();
        self.cached_bytes.set(0);
        *self.recent.borrow_mut() = no_chunks();
    }

    pub fn memory(&self) -> &'a dyn Memory {
        self.memory
    }

    pub fn mapping(&self, address: u64) -> Option<(u64, u64)> {
        let index = self.mappings.partition_point(|&(_, end)| end <= address);
        self.mappings.get(index).copied().filter(|&(start, _)| start <= address)
    }

    /// Returns the cached chunk that contains the address. The chunk is empty if its memory cannot be read.
    fn chunk(&self, address: u64) -> Option<CachedChunk> {
        let (map_start, map_end) = self.mapping(address)?;
        let aligned = address & !(CHUNK_BYTES - 1);
        let start = aligned.max(map_start);
        if let Some(chunk) = self.chunks.borrow().get(&start) {
            return Some(chunk.clone());
        }
        if self.budget.is_over() {
            return None;
        }
        let end = map_end.min(aligned.saturating_add(CHUNK_BYTES));
        let mut buffer = self.buffer.borrow_mut();
        self.read_into(start, usize::try_from(end - start).ok()?, &mut buffer);
        let chunk = CachedChunk { start, bytes: Rc::from(&buffer[..]) };
        if self.cached_bytes.get() + chunk.bytes.len() > self.max_cached_bytes {
            self.chunks.borrow_mut().clear();
            self.cached_bytes.set(0);
        }
        self.cached_bytes
            .set(self.cached_bytes.get() + chunk.bytes.len() + size_of::<CachedChunk>());
        self.chunks.borrow_mut().insert(start, chunk.clone());
        Some(chunk)
    }

    fn read_now(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.read_into(address, len, &mut bytes);
        bytes
    }

    /// Replaces the buffer's content with the target's memory, or empties the buffer if the memory cannot be read.
    fn read_into(&self, address: u64, len: usize, buffer: &mut Vec<u8>) {
        buffer.clear();
        if self.memory.read(&[Range { address, len }], buffer).is_err() {
            buffer.clear();
        }
    }

    /// Calls `take` with the bytes from `address` to the end of its chunk.
    fn with_bytes<T>(&self, address: u64, take: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        let after = |chunk: &CachedChunk| {
            let skipped = usize::try_from(address.checked_sub(chunk.start)?).ok()?;
            (skipped < chunk.bytes.len()).then_some(skipped)
        };
        let slot = usize::try_from(address / CHUNK_BYTES).ok()? % RECENT_CHUNKS;
        if let Some(chunk) = self.recent.borrow().get(slot)
            && let Some(skipped) = after(chunk)
        {
            return take(chunk.bytes.get(skipped..)?);
        }
        let chunk = self.chunk(address)?;
        let skipped = after(&chunk)?;
        let taken = take(chunk.bytes.get(skipped..)?);
        if let Some(recent) = self.recent.borrow_mut().get_mut(slot) {
            *recent = chunk;
        }
        taken
    }

    /// Reads `len` bytes, which may span several chunks.
    pub fn bytes(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        if len > MAX_READ_BYTES {
            return None;
        }
        if self.max_cached_bytes == 0 {
            if self.budget.is_over() {
                return None;
            }
            self.mapping(address)?;
            let bytes = self.read_now(address, len);
            return (bytes.len() == len).then_some(bytes);
        }
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let at = address.checked_add(bytes.len() as u64)?;
            let missing = len - bytes.len();
            self.with_bytes(at, |chunk| {
                bytes.extend_from_slice(&chunk[..missing.min(chunk.len())]);
                Some(())
            })?;
        }
        Some(bytes)
    }

    fn array<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        if self.max_cached_bytes > 0
            && let Some(bytes) = self.with_bytes(address, |bytes| bytes.first_chunk::<N>().copied())
        {
            return Some(bytes);
        }
        self.bytes(address, N)?.first_chunk().copied()
    }

    pub fn word(&self, address: u64) -> Option<u64> {
        self.array(address).map(u64::from_le_bytes)
    }

    pub fn int(&self, address: u64) -> Option<u32> {
        self.array(address).map(u32::from_le_bytes)
    }

    pub fn byte(&self, address: u64) -> Option<u8> {
        self.array::<1>(address).map(|[byte]| byte)
    }

    /// Reads a word, or returns `None` if the word cannot be a pointer.
    pub fn pointer(&self, address: u64) -> Option<u64> {
        self.word(address).filter(|&word| is_pointer(word))
    }

    pub fn words(&self, address: u64, count: usize) -> Option<Vec<u64>> {
        let bytes = self.bytes(address, count.checked_mul(8)?)?;
        Some(View(&bytes).words().collect())
    }

    /// Reads a NUL-terminated string of printable ASCII characters.
    pub fn text(&self, address: u64, max_bytes: usize) -> Option<String> {
        let mut text = String::new();
        for at in 0..max_bytes as u64 {
            match self.byte(address.checked_add(at)?)? {
                0 => return Some(text),
                byte @ b' '..=b'~' => text.push(char::from(byte)),
                _ => return None,
            }
        }
        None
    }
}
