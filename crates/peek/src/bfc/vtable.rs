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
            self.verify(memory)?;
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

    /// Removes what was found in a file that is not the one that the process mapped.
    fn verify(&mut self, memory: &dyn Memory) -> Result<(), MemoryError> {
        let mut verified = Vec::new();
        for (class, vtables) in std::mem::take(&mut self.found) {
            let vtable = vtables.first().copied().unwrap_or_default();
            let name = mapped(rtti::class_of_vtable(memory, vtable))?.flatten();
            if name.as_deref() == Some(class) {
                verified.push((class, vtables));
            }
        }
        self.found = verified;
        Ok(())
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

    /// Returns the vtables with the names of their classes.
    pub fn classes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.found.iter().flat_map(|(class, all)| all.iter().map(|vtable| (*class, *vtable)))
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
pub(super) fn positions(bytes: &[u8], needle: &[u8]) -> Vec<usize> {
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
    use std::cell::Cell;
    use std::io::Write;

    use super::*;
    use crate::bfc::library;

    const BASE: u64 = 0x7f00_0000_0000;
    const NAME: &[u8] = b"N3tsl12BFCAllocatorE\0";
    const VTABLE: u64 = BASE + 0x4210;

    /// A library in memory: constants, code, and a RELRO segment with a type_info and a vtable.
    #[derive(Debug)]
    struct Loaded {
        bytes: Vec<u8>,
        file: Option<tempfile::NamedTempFile>,
        /// Number of bytes read from memory.
        read: Cell<usize>,
    }

    impl Loaded {
        fn new() -> Self {
            let mut image = Self { bytes: vec![0; 0x5000], file: None, read: Cell::new(0) };
            image.put(0, b"\x7fELF\x02\x01");
            image.put(16, &3_u16.to_le_bytes());
            image.put(32, &64_u64.to_le_bytes());
            image.put(56, &4_u16.to_le_bytes());
            let segments: [[u64; 4]; 4] = [
                [1 | 4 << 32, 0, 0x3000, 0],
                [1 | 5 << 32, 0x3000, 0x1000, 0x3000],
                [1 | 6 << 32, 0x4000, 0x1000, 0x4000],
                [0x6474_e552 | 4 << 32, 0x4000, 0x1000, 0x4000],
            ];
            for (index, [kind, address, len, offset]) in segments.into_iter().enumerate() {
                for (at, word) in [(0, kind), (8, offset), (16, address), (32, len), (40, len)] {
                    image.put(64 + 56 * index + at, &word.to_le_bytes());
                }
            }
            // The end of a longer name, which no type_info points to, and the name itself.
            image.put(0x0ff0, b"other");
            image.put(0x0ff5, NAME);
            image.put(0x2000, NAME);
            image.put(0x4108, &(BASE + 0x2000).to_le_bytes());
            // A pointer to the type_info that is not in a vtable, and the vtable.
            image.put(0x4180, &(BASE + 0x4100).to_le_bytes());
            image.put(0x4208, &(BASE + 0x4100).to_le_bytes());
            image.put(0x4210, &(BASE + 0x3010).to_le_bytes());
            image
        }

        fn put(&mut self, at: usize, bytes: &[u8]) {
            self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn with_file(mut self, bytes: &[u8]) -> Self {
            let mut file = tempfile::NamedTempFile::new().expect("a file");
            file.write_all(bytes).expect("written");
            self.file = Some(file);
            self
        }

        fn search(&self, cache: &mut VtableCache) -> Vec<u64> {
            let maps = self.maps().expect("maps");
            let (base, library) = library::loaded(&maps)[0];
            let mut search = VtableSearch::start(self, &maps, base, library, cache)
                .expect("memory")
                .expect("an image");
            loop {
                while !search.advance(self, cache).expect("memory") {}
                let is_found = search.vtables().next().is_some();
                if is_found || !search.ignore_file(self).expect("memory") {
                    return search.vtables().collect();
                }
            }
        }
    }

    impl Memory for Loaded {
        fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError> {
            for range in ranges {
                let at = usize::try_from(range.address.wrapping_sub(BASE)).unwrap_or(usize::MAX);
                let bytes = self.bytes.get(at..).unwrap_or_default();
                let bytes = &bytes[..bytes.len().min(range.len)];
                self.read.set(self.read.get() + bytes.len());
                into.extend(bytes);
                if bytes.len() < range.len {
                    break;
                }
            }
            Ok(())
        }

        fn maps(&self) -> Result<Vec<Mapping>, MemoryError> {
            let file = "/venv/xla_cuda_plugin.so".to_owned();
            let (start, end) = (BASE, BASE + 0x5000);
            Ok(vec![Mapping { start, end, executable: true, file, ..Mapping::default() }])
        }

        fn resident(&self, range: Range) -> Vec<Range> {
            vec![range]
        }

        fn open_file(&self, _: &Mapping) -> Option<File> {
            self.file.as_ref()?.reopen().ok()
        }
    }

    #[test]
    fn a_name_counts_only_if_a_type_info_points_to_it() {
        let image = Loaded::new();
        assert_eq!(image.search(&mut VtableCache::default()), [VTABLE]);
        let mut stripped = Loaded::new();
        stripped.put(0x4108, &[0; 8]);
        assert_eq!(stripped.search(&mut VtableCache::default()), [0; 0]);
    }

    #[test]
    fn the_file_is_searched_once_and_a_foreign_file_is_ignored() {
        let bytes = Loaded::new().bytes;
        let image = Loaded::new().with_file(&bytes);
        let mut cache = VtableCache::default();
        assert_eq!(image.search(&mut cache), [VTABLE]);
        // The headers, RELRO and a few names, but not the constants.
        assert!(image.read.get() < 0x2000, "{}", image.read.get());
        image.read.set(0);
        assert_eq!(image.search(&mut cache), [VTABLE]);
        assert!(image.read.get() < 0x1000, "{}", image.read.get());
        let foreign = Loaded::new().with_file(&[0; 0x5000]);
        assert_eq!(foreign.search(&mut VtableCache::default()), [VTABLE]);
    }

    #[test]
    fn a_cached_vtable_of_another_class_is_not_used() {
        let bytes = Loaded::new().bytes;
        let mut cache = VtableCache::default();
        let mut image = Loaded::new().with_file(&bytes);
        assert_eq!(image.search(&mut cache), [VTABLE]);
        image.put(0x2000, b"N3tsl12XYZ");
        assert_eq!(image.search(&mut cache), [0; 0]);
    }

    #[test]
    fn finds_every_occurrence() {
        assert_eq!(positions(b"abcabxababcab", b"abc"), [0, 8]);
        assert_eq!(positions(b"aaaa", b"aa"), [0, 1, 2]);
        assert_eq!(positions(b"ab", b"abc"), [0; 0]);
    }
}
