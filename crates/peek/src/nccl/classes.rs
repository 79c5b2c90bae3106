//! Names of the classes of objects, by their type information. See [`crate::memory::rtti`] for its layout.

use super::copies::{Copies, Parsed, Stop};
use crate::memory::is_pointer;
use crate::memory::maps::Mapping;

/// Number of bytes of a class name that are read. The longest name that is compared as a whole has 38.
const NAME_BYTES: usize = 96;

pub const STATUS: &str = "St23_Sp_counted_ptr_inplaceIN4c10d18ProcessGroupStatusE";
pub const OPTIONS: &str = "N4c10d16ProcessGroupNCCL7OptionsE";
pub const WORK: &str = "N4c10d16ProcessGroupNCCL8WorkNCCLE";
pub const PREFIX_STORE: &str = "N4c10d11PrefixStoreE";
pub const TCP_STORE: &str = "N4c10d8TCPStoreE";
/// End of the name of every class of stores.
pub const STORE_SUFFIX: &str = "StoreE";

/// Where objects and class information are in a process.
#[derive(Debug, Default)]
pub struct AddressSpace {
    heaps: Vec<(u64, u64)>,
    files: Vec<(u64, u64)>,
}

impl AddressSpace {
    pub fn new(maps: &[Mapping]) -> Self {
        let extents = |is_wanted: fn(&Mapping) -> bool| {
            let wanted = maps.iter().filter(|map| is_wanted(map));
            wanted.map(|map| (map.start, map.end)).collect()
        };
        Self { heaps: extents(|map| map.is_heap), files: extents(|map| !map.file.is_empty()) }
    }

    /// Returns true if a word can point to an object on a heap.
    pub fn is_object(&self, word: u64) -> bool {
        is_pointer(word) && contains(&self.heaps, word)
    }

    fn is_in_file(&self, word: u64) -> bool {
        is_pointer(word) && contains(&self.files, word)
    }

    /// Returns the class name of an object, or an empty name if it has none.
    pub fn class<'a>(&self, copies: &'a Copies, object: u64) -> Parsed<&'a str> {
        if !self.is_object(object) {
            return Ok("");
        }
        self.class_of(copies, readable(copies.word(object))?)
    }

    /// Returns the name of the class with this vtable, or an empty name if it is no vtable.
    pub fn class_of<'a>(&self, copies: &'a Copies, vtable: u64) -> Parsed<&'a str> {
        if !self.is_in_file(vtable) {
            return Ok("");
        }
        let info = readable(copies.word(vtable - 8))?;
        if !self.is_in_file(info) {
            return Ok("");
        }
        let name = readable(copies.word(info + 8))?;
        if !contains(&self.files, name) {
            return Ok("");
        }
        match copies.get(name, NAME_BYTES) {
            // A name that is longer than the copy is compared by its beginning.
            Ok(copy) => Ok(copy.text().or_else(|| str::from_utf8(copy.0).ok()).unwrap_or_default()),
            Err(Stop::Needs) => Err(Stop::Needs),
            Err(_) => Ok(""),
        }
    }
}

/// Returns a word, or 0 if it is not readable.
fn readable(word: Parsed<u64>) -> Parsed<u64> {
    match word {
        Err(Stop::Needs) => Err(Stop::Needs),
        Err(_) => Ok(0),
        Ok(word) => Ok(word),
    }
}

/// Returns true if one of the sorted extents contains the address.
fn contains(extents: &[(u64, u64)], address: u64) -> bool {
    let index = extents.partition_point(|(_, end)| *end <= address);
    extents.get(index).is_some_and(|(start, _)| *start <= address)
}
