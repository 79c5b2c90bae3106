//! ELF image loaded by a process, read from the process's memory instead of its file.
//!
//! Only the loaded parts are available: the program headers, the dynamic section and the dynamic symbols. These suffice
//! to find an exported object, or the writable segments to search if the object is not exported.
//!
//! Example: an image is mapped at 0x7f2a00000000, and its first segment has the virtual address 0x400000 (PyTorch's
//! aarch64 wheels). The bias is then 0x7f2a00000000 − 0x400000, and a symbol with the value 0x4a4d20 is at bias +
//! 0x4a4d20.

use super::view::View;
use super::{Memory, MemoryError, Range, exact, up_to};

/// Machine number of 64-bit Arm in the ELF header.
pub const AARCH64: u16 = 183;

const MAGIC: &[u8] = b"\x7fELF\x02\x01";
const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const SYMBOL_BYTES: usize = 24;
/// Maximum number of program headers. Real images have about a dozen.
const MAX_PROGRAM_HEADERS: usize = 128;
/// Number of bytes to read from the dynamic section: 256 entries. Libraries have about 30.
const DYNAMIC_BYTES: usize = 4_096;
/// Maximum length of a symbol hash chain. Real chains have a few symbols.
const MAX_CHAIN: usize = 4_096;
const FIXED_ADDRESS: u16 = 2;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_RELRO: u32 = 0x6474_e552;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Image {
    pub machine: u16,
    /// Difference between an address in memory and the corresponding address in the file.
    pub bias: u64,
    /// Writable segments, which contain .data and .bss.
    pub writable: Vec<Range>,
    /// Memory that the loader wrote and then made read-only, such as vtables.
    pub relro: Vec<Range>,
    pub code: Vec<Range>,
    /// Read-only segments, such as .rodata, with their offsets in the file.
    pub constants: Vec<(Range, u64)>,
    symbols: u64,
    strings: u64,
    hash: u64,
}

impl Image {
    /// Reads the headers of the ELF image at `base`. Fails if there is no 64-bit ELF image at `base`.
    pub fn read(memory: &dyn Memory, base: u64) -> Result<Self, MemoryError> {
        let what = "the ELF header";
        let none = MemoryError::Unreadable { what, address: base };
        let header = exact(memory, base, HEADER_BYTES, what)?;
        if !header.starts_with(MAGIC) {
            return Err(none);
        }
        Self::from_header(memory, base, View(&header))?.ok_or(none)
    }

    /// Reads an ELF image, given its header. Returns `None` if the header is incomplete.
    fn from_header(
        memory: &dyn Memory,
        base: u64,
        header: View<'_>,
    ) -> Result<Option<Self>, MemoryError> {
        let Some((at, count)) = header.word(32).zip(header.half(56)) else { return Ok(None) };
        let count = usize::from(count).min(MAX_PROGRAM_HEADERS);
        let address = base.wrapping_add(at);
        let bytes = exact(memory, address, count * PROGRAM_HEADER_BYTES, "the program headers")?;
        let is_fixed = header.half(16) == Some(FIXED_ADDRESS);
        let segments = ProgramHeader::list(View(&bytes));
        let lowest = segments.iter().filter(|s| s.kind == PT_LOAD).map(|s| s.address);
        let lowest = lowest.min().unwrap_or(0) & !0xfff;
        let mut image = Self {
            machine: header.half(18).unwrap_or_default(),
            bias: if is_fixed { 0 } else { base.wrapping_sub(lowest) },
            ..Self::default()
        };
        let range =
            |s: &ProgramHeader| Range { address: image.bias.wrapping_add(s.address), len: s.len };
        let loaded = |wanted: u32| {
            let is_wanted =
                move |s: &&ProgramHeader| s.kind == PT_LOAD && s.flags & (PF_W | PF_X) == wanted;
            segments.iter().filter(is_wanted)
        };
        let relro = segments.iter().filter(|s| s.kind == PT_GNU_RELRO).map(range).collect();
        let code = loaded(PF_X).map(range).collect();
        let constants = loaded(0).map(|s| (range(s), s.offset)).collect();
        let writable = segments.iter().filter(|s| s.kind == PT_LOAD && s.flags & PF_W != 0);
        let writable = writable.map(range).collect();
        image = Self { writable, relro, code, constants, ..image };
        if let Some(dynamic) = segments.iter().find(|s| s.kind == PT_DYNAMIC) {
            let address = image.bias.wrapping_add(dynamic.address);
            image.parse_dynamic(&up_to(memory, address, DYNAMIC_BYTES)?);
        }
        Ok(Some(image))
    }

    fn parse_dynamic(&mut self, section: &[u8]) {
        let (entries, _) = section.as_chunks::<16>();
        for entry in entries {
            let entry = View(entry);
            let (Some(tag), Some(value)) = (entry.word(0), entry.word(8)) else { return };
            // glibc replaces the file addresses in the dynamic section with memory addresses when it loads the image,
            // but musl does not.
            let address = if value < self.bias { value.wrapping_add(self.bias) } else { value };
            match tag {
                0 => return,
                DT_STRTAB => self.strings = address,
                DT_SYMTAB => self.symbols = address,
                DT_GNU_HASH => self.hash = address,
                _ => {}
            }
        }
    }

    /// Returns the address of an exported symbol, or `None` if this image does not define it.
    pub fn symbol(&self, memory: &dyn Memory, name: &str) -> Result<Option<u64>, MemoryError> {
        if self.hash == 0 || self.symbols == 0 || self.strings == 0 {
            return Ok(None);
        }
        let what = "the symbol hash table";
        let header = exact(memory, self.hash, 16, what)?;
        let header = View(&header);
        let (Some(buckets), Some(first), Some(blooms)) =
            (header.int(0), header.int(4), header.int(8))
        else {
            return Ok(None);
        };
        let hash = gnu_hash(name);
        if buckets == 0 {
            return Ok(None);
        }
        let bucket_table = self.hash.wrapping_add(16 + u64::from(blooms) * 8);
        let bucket = bucket_table.wrapping_add(u64::from(hash % buckets) * 4);
        let mut index = int(memory, bucket, what)?;
        let chains = bucket_table.wrapping_add(u64::from(buckets) * 4);
        for _ in 0..MAX_CHAIN {
            let Some(chained) = index.checked_sub(first) else { return Ok(None) };
            let link = int(memory, chains.wrapping_add(u64::from(chained) * 4), what)?;
            if link | 1 == hash | 1
                && let Some(address) = self.named(memory, index, name)?
            {
                return Ok(Some(address));
            }
            // Stop at the end of the chain, which is marked by the lowest bit.
            if link & 1 == 1 {
                return Ok(None);
            }
            index = index.wrapping_add(1);
        }
        Ok(None)
    }

    /// Returns the address of the symbol with this index, if the symbol has this name and is defined in this image.
    fn named(
        &self,
        memory: &dyn Memory,
        index: u32,
        name: &str,
    ) -> Result<Option<u64>, MemoryError> {
        let at = self.symbols.wrapping_add(u64::from(index) * SYMBOL_BYTES as u64);
        let symbol = exact(memory, at, SYMBOL_BYTES, "a symbol")?;
        let symbol = View(&symbol);
        let (Some(text), Some(value)) = (symbol.int(0), symbol.word(8)) else { return Ok(None) };
        let text = self.strings.wrapping_add(u64::from(text));
        let found = up_to(memory, text, name.len() + 1)?;
        let is_match = value != 0 && View(&found).text() == Some(name);
        Ok(is_match.then(|| self.bias.wrapping_add(value)))
    }
}

/// ELF program header, which describes a segment.
struct ProgramHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    len: usize,
}

impl ProgramHeader {
    fn list(headers: View<'_>) -> Vec<Self> {
        headers
            .0
            .chunks_exact(PROGRAM_HEADER_BYTES)
            .filter_map(|header| {
                let header = View(header);
                Some(Self {
                    kind: header.int(0)?,
                    flags: header.int(4)?,
                    offset: header.word(8)?,
                    address: header.word(16)?,
                    len: usize::try_from(header.word(40)?).ok()?,
                })
            })
            .collect()
    }
}

fn int(memory: &dyn Memory, address: u64, what: &'static str) -> Result<u32, MemoryError> {
    let bytes = exact(memory, address, 4, what)?;
    View(&bytes).int(0).ok_or(MemoryError::Unreadable { what, address })
}

fn gnu_hash(name: &str) -> u32 {
    name.bytes().fold(5381, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::live::Live;
    use crate::memory::maps::images;
    use gputop_model::units::Pid;
    use std::path::Path;

    #[test]
    fn finds_symbol_of_own_process() {
        let live = Live::new(Path::new("/proc"), Pid(std::process::id()));
        let maps = live.maps().expect("maps");
        let is_libc = |name: &str| name == "libc.so.6";
        let base = images(&maps, |map| is_libc(map.file_name()));
        let image = Image::read(&live, base[0]).expect("the C library");
        let found = image.symbol(&live, "getpid").expect("tables");
        assert_eq!(found, Some(nix::libc::getpid as *const () as u64));
        assert_eq!(image.symbol(&live, "no_such_function").expect("tables"), None);
        assert!(!image.writable.is_empty());
    }

    #[test]
    fn rejects_memory_without_elf_header() {
        let live = Live::new(Path::new("/proc"), Pid(std::process::id()));
        let zeros = [0u8; 64];
        assert_eq!(
            Image::read(&live, zeros.as_ptr() as u64),
            Err(MemoryError::Unreadable { what: "the ELF header", address: zeros.as_ptr() as u64 })
        );
    }
}
