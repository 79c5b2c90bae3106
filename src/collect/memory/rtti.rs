//! The class of a C++ object, by name, as the Itanium ABI lays it out: the object's first word is a pointer into its
//! vtable, the word before that target points to the type_info, whose second word points to the name.
//!
//! ```text
//! object ─► vtable ─[-8]─► type_info ─[+8]─► "N3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE"
//! ```

use super::view::View;
use super::{Memory, MemoryError, pointer, up_to};

/// Longer names are cut by the compilers' users, not by compilers; none that is looked for comes near.
const MAX_CHARS: usize = 256;
/// `1A` is the shortest name a class can have.
const FEWEST_CHARS: usize = 2;

/// The mangled name; `None` for an object without one.
///
/// # Errors
/// When the pointers lead nowhere.
pub fn class_name(memory: &impl Memory, object: u64) -> Result<Option<String>, MemoryError> {
    let vtable = pointer(memory, object, "an object")?;
    let info = pointer(memory, vtable.wrapping_sub(8), "a vtable")?;
    let name = pointer(memory, info.wrapping_add(8), "a type_info")?;
    let text = up_to(memory, name, MAX_CHARS)?;
    Ok(View(&text)
        .text()
        .filter(|name| name.len() >= FEWEST_CHARS && name.bytes().all(|b| b.is_ascii_graphic()))
        .map(str::to_owned))
}
