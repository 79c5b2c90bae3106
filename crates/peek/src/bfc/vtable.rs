//! Finds the vtables of a class in a library, by the name of the class.
//!
//! The loader has written the addresses of names, type_infos and functions into the RELRO segment. The name itself is
//! somewhere in tens of megabytes of constants. It is searched in the file, because a read of the process's memory would
//! map the file's pages into the process. The result is saved for each file.
//!
//! ```text
//! "N3tsl12BFCAllocatorE" ◄─[+8]─ type_info ◄─ [0, type_info, function, …]
//!                                                           ▲ the first word of each object
//! ```
//!
//! The linker may have merged the name with the end of a longer name. A match therefore counts only if a type_info
//! points to it.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use super::failure::mapped;
use super::library::Library;
use crate::memory::elf::Image;
use crate::memory::maps::Mapping;
use crate::memory::view::View;
use crate::memory::{Memory, MemoryError, Range, rtti, up_to};

/// Bytes of constants to search in one step.
const BLOCK: usize = 1 << 20;
/// Maximum size of a RELRO segment. The largest known one has 3.1 MB.
const MAX_RELRO_BYTES: usize = 32 << 20;
/// Maximum size of the constants of a library. The largest known ones have 34 MB.
const MAX_CONSTANTS: usize = 256 << 20;
const MAX_CACHED_FILES: usize = 64;

/// Device, inode, size and time of the last change, in seconds and nanoseconds.
type FileVersion = (u64, u64, u64, i64, i64);

/// Offsets of the vtables from the start of each library that was searched.
#[derive(Debug, Default)]
pub struct VtableCache(HashMap<FileVersion, Vec<u64>>);

/// Search for the vtables of one library, in steps.
#[derive(Debug)]
pub struct VtableSearch {
    base: u64,
    library: &'static Library,
    file: Option<(File, FileVersion)>,
    code: Vec<Range>,
    /// Words in RELRO, with their addresses.
    relro: Vec<(u64, Vec<u64>)>,
    blocks: VecDeque<Block>,
    is_cached: bool,
    found: Vec<(&'static str, Vec<u64>)>,
}

/// A part of the library's constants, in memory and in the file.
#[derive(Debug, Clone, Copy)]
struct Block {
    range: Range,
    offset: u64,
    /// True if only the parts that are in physical memory are searched.
    resident_only: bool,
}

impl VtableSearch {
    /// Starts a search in the library at `base`. Returns `None` if there is no ELF image.
    pub fn start(
        memory: &dyn Memory,
        maps: &[Mapping],
        base: u64,
        library: &'static Library,
        cache: &VtableCache,
    ) -> Result<Option<Self>, MemoryError> {
        let Some(image) = mapped(Image::read(memory, base))? else { return Ok(None) };
        let mapping = maps.iter().find(|map| map.start == base);
        let file = mapping.and_then(|map| memory.open_file(map));
        let file = file.and_then(|file| Some((version(&file)?, file))).map(|(v, file)| (file, v));
        let mut search = Self {
            base,
            library,
            file,
            code: image.code,
            relro: Vec::new(),
            blocks: VecDeque::new(),
            is_cached: false,
            found: Vec::new(),
        };
        if search.take_cached(memory, cache)? {
            return Ok(Some(search));
        }
        search.read_relro(memory, &image.relro)?;
        search.queue(&image.constants);
        Ok(Some(search))
    }

    /// Takes the vtables from the cache if the names of their classes are right in this process.
    fn take_cached(
        &mut self,
        memory: &dyn Memory,
        cache: &VtableCache,
    ) -> Result<bool, MemoryError> {
        let cached = self.file.as_ref().and_then(|(_, version)| cache.0.get(version));
        for vtable in cached.into_iter().flatten().map(|offset| self.base.wrapping_add(*offset)) {
            let name = mapped(rtti::class_of_vtable(memory, vtable))?.flatten();
            let class = self.library.classes.iter().find(|class| name.as_deref() == Some(class));
            let Some(class) = class else {
                self.found.clear();
                return Ok(false);
            };
            // A dump needs the words on both sides of the vtable's address.
            up_to(memory, vtable.wrapping_sub(16), 24)?;
            self.found.push((class, vec![vtable]));
        }
        self.is_cached = !self.found.is_empty();
        Ok(self.is_cached)
    }

    fn read_relro(&mut self, memory: &dyn Memory, relro: &[Range]) -> Result<(), MemoryError> {
        for range in relro.iter().filter(|range| range.len <= MAX_RELRO_BYTES) {
            for part in memory.resident(*range) {
                let bytes = up_to(memory, part.address, part.len)?;
                self.relro.push((part.address, View(&bytes).words().collect()));
            }
        }
        Ok(())
    }

    /// Queues the constants: in the file or, without a file, first the resident parts in memory and then everything.
    fn queue(&mut self, constants: &[(Range, u64)]) {
        let mut left = MAX_CONSTANTS;
        let mut blocks = Vec::new();
        for (range, offset) in constants {
            let len = range.len.min(left);
            left -= len;
            blocks.extend((0..len).step_by(BLOCK).map(|at| Block {
                range: Range {
                    address: range.address.wrapping_add(at as u64),
                    len: (len - at).min(BLOCK),
                },
                offset: offset.wrapping_add(at as u64),
                resident_only: false,
            }));
        }
        if self.file.is_none() {
            let resident = blocks.iter().map(|block| Block { resident_only: true, ..*block });
            self.blocks.extend(resident);
        }
        self.blocks.extend(blocks);
    }

    /// Searches one more block. Returns true once the search has ended.
    pub fn advance(
        &mut self,
        memory: &dyn Memory,
        cache: &mut VtableCache,
    ) -> Result<bool, MemoryError> {
        if self.is_cached {
            return Ok(true);
        }
        let is_complete = self.found.len() == self.library.classes.len();
        let block = self.blocks.pop_front().filter(|_| !is_complete);
        let Some(block) = block else {
            self.save(cache);
            return Ok(true);
        };
        for (address, bytes) in self.read(memory, block)? {
            for class in self.library.classes {
                if self.found.iter().all(|(found, _)| found != class) {
                    self.find(class, address, &bytes);
                }
            }
        }
        Ok(false)
    }

    fn read(&self, memory: &dyn Memory, block: Block) -> Result<Vec<(u64, Vec<u8>)>, MemoryError> {
        // A name may be partly in the next block.
        let overlap = self.library.classes.iter().map(|class| class.len()).max().unwrap_or(0);
        let Block { range: Range { address, len }, offset, resident_only } = block;
        if let Some((file, _)) = &self.file {
            let mut bytes = vec![0; len + overlap];
            let read = read_up_to(file, &mut bytes, offset);
            bytes.truncate(read);
            return Ok(vec![(address, bytes)]);
        }
        let whole = Range { address, len: len + overlap };
        let parts = if resident_only { memory.resident(whole) } else { vec![whole] };
        parts.into_iter().map(|p| Ok((p.address, up_to(memory, p.address, p.len)?))).collect()
    }

    /// Adds the vtables of a class whose name is in these bytes.
    fn find(&mut self, class: &'static str, address: u64, bytes: &[u8]) {
        for at in positions(bytes, format!("{class}\0").as_bytes()) {
            let name = address.wrapping_add(at as u64);
            let infos = self.pointers_to(name).map(|place| place.wrapping_sub(8));
            let vtables: Vec<u64> = infos.flat_map(|info| self.vtables_of(info)).collect();
            if !vtables.is_empty() {
                self.found.push((class, vtables));
                return;
            }
        }
    }

    /// Returns the addresses of the words in RELRO that equal `value`.
    fn pointers_to(&self, value: u64) -> impl Iterator<Item = u64> {
        self.relro.iter().flat_map(move |(start, words)| {
            let places = words.iter().enumerate().filter(move |(_, word)| **word == value);
            places.map(move |(index, _)| start.wrapping_add(8 * index as u64))
        })
    }

    /// Returns the addresses that objects with this type_info have in their first word.
    fn vtables_of(&self, info: u64) -> Vec<u64> {
        let mut found = Vec::new();
        for (start, words) in &self.relro {
            for (index, window) in words.windows(3).enumerate() {
                let [0, word, function] = *window else { continue };
                if word == info && self.is_code(function) {
                    found.push(start.wrapping_add(8 * (index as u64 + 2)));
                }
            }
        }
        found
    }

    fn is_code(&self, address: u64) -> bool {
        let is_in = |range: &Range| {
            address.checked_sub(range.address).is_some_and(|offset| offset < range.len as u64)
        };
        self.code.iter().any(is_in)
    }

    fn save(&self, cache: &mut VtableCache) {
        let Some((_, version)) = &self.file else { return };
        if cache.0.len() >= MAX_CACHED_FILES {
            cache.0.clear();
        }
        let offsets = self.vtables().map(|vtable| vtable.wrapping_sub(self.base));
        cache.0.insert(*version, offsets.collect());
    }

    pub fn vtables(&self) -> impl Iterator<Item = u64> {
        self.found.iter().flat_map(|(_, vtables)| vtables.iter().copied())
    }

    pub fn library(&self) -> &'static Library {
        self.library
    }

    /// Searches the memory instead, if the file turned out to be a different one. Returns false if there is no file.
    pub fn ignore_file(&mut self, memory: &dyn Memory) -> Result<bool, MemoryError> {
        if self.file.take().is_none() {
            return Ok(false);
        }
        let Some(image) = mapped(Image::read(memory, self.base))? else { return Ok(false) };
        self.queue(&image.constants);
        Ok(true)
    }
}

fn version(file: &File) -> Option<FileVersion> {
    let data = file.metadata().ok()?;
    Some((data.dev(), data.ino(), data.size(), data.mtime(), data.mtime_nsec()))
}

/// Reads as many bytes as the file has. Returns their number.
fn read_up_to(file: &File, bytes: &mut [u8], offset: u64) -> usize {
    let mut read = 0;
    while let Some(rest) = bytes.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset.saturating_add(read as u64)) {
            Ok(count @ 1..) => read += count,
            _ => break,
        }
    }
    read
}

/// Returns the positions of `needle` in `bytes`. Skips bytes that cannot belong to a match (Horspool's algorithm), which
/// makes it several times faster than a comparison at every position.
fn positions(bytes: &[u8], needle: &[u8]) -> Vec<usize> {
    let Some(last) = needle.len().checked_sub(1) else { return Vec::new() };
    let mut skip = [needle.len(); 256];
    for (index, byte) in needle.iter().take(last).enumerate() {
        skip[usize::from(*byte)] = last - index;
    }
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(window) = bytes.get(at..at + needle.len()) {
        if window == needle {
            found.push(at);
        }
        at += skip[usize::from(window[last])];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_occurrence() {
        assert_eq!(positions(b"abcabxababcab", b"abc"), [0, 8]);
        assert_eq!(positions(b"aaaa", b"aa"), [0, 1, 2]);
        assert_eq!(positions(b"ab", b"abc"), [0; 0]);
    }
}
