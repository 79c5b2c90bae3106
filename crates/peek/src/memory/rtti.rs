//! Class name of a C++ object in the target. In the Itanium ABI, the object's first word points into its vtable, the
//! word before that address points to the type_info, and the second word of the type_info points to the name.
//!
//! ```text
//! object ─► vtable ─[-8]─► type_info ─[+8]─► "N3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE"
//! ```

use super::view::View;
use super::{Memory, MemoryError, pointer, up_to};

/// Maximum length of a class name. Longer names yield `None`, because the names that gputop looks for are much shorter.
const MAX_CHARS: usize = 256;
/// Minimum length of a mangled class name. The shortest possible name is `1A`.
const MIN_CHARS: usize = 2;

/// Returns the mangled class name of an object, or `None` if the text is not a valid name. Fails if a pointer leads to
/// unmapped memory.
pub fn class_name(memory: &dyn Memory, object: u64) -> Result<Option<String>, MemoryError> {
    let vtable = pointer(memory, object, "an object")?;
    class_of_vtable(memory, vtable)
}

/// Returns the mangled name of the class with this vtable.
pub fn class_of_vtable(memory: &dyn Memory, vtable: u64) -> Result<Option<String>, MemoryError> {
    let info = pointer(memory, vtable.wrapping_sub(8), "a vtable")?;
    let name = pointer(memory, info.wrapping_add(8), "a type_info")?;
    let text = up_to(memory, name, MAX_CHARS)?;
    Ok(View(&text)
        .text()
        .filter(|name| name.len() >= MIN_CHARS && name.bytes().all(|b| b.is_ascii_graphic()))
        .map(str::to_owned))
}
