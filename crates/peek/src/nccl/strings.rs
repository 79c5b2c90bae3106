//! `std::string` in both of libstdc++'s layouts.
//!
//! New layout: `{characters, length, 16 bytes}`. A short text is in the 16 bytes, so the first word points to them.
//! Old layout, in PyTorch's wheels up to 2.6: one pointer to the characters, which are preceded by
//! `{length, capacity, references}`.

use gputop_model::text::visible;

use super::copies::{Copies, Parsed, Stop};
use crate::memory::is_pointer;
use crate::memory::view::View;

/// Maximum length of a text in bytes. Names of groups have up to about 100.
const MAX_BYTES: u64 = 256;
const MAX_CHARS: usize = 128;
/// Length of a text that is inside a string of the new layout.
const MAX_INLINE: u64 = 15;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StringLayout {
    Old,
    New,
}

const REFUSED: Stop = Stop::Refused("the process group has a text that is not a string");

impl StringLayout {
    pub fn size(self) -> usize {
        match self {
            Self::Old => 8,
            Self::New => 32,
        }
    }

    /// Returns the string at `offset` in the object at `address`, of which `view` is a copy.
    pub fn read(
        self,
        copies: &Copies,
        view: View<'_>,
        address: u64,
        offset: usize,
    ) -> Parsed<String> {
        let start = view.word(offset).ok_or(REFUSED)?;
        let len = match self {
            Self::New => view.word(offset + 8).ok_or(REFUSED)?,
            Self::Old if !is_pointer(start) => return Err(REFUSED),
            Self::Old => {
                let header = copies.get(start.wrapping_sub(24), 24)?;
                let (len, capacity) = header.word(0).zip(header.word(8)).ok_or(REFUSED)?;
                if len > capacity && len > 0 {
                    return Err(REFUSED);
                }
                len
            }
        };
        if len > MAX_BYTES {
            return Err(REFUSED);
        }
        let len = usize::try_from(len).unwrap_or_default();
        let inline = address.wrapping_add(offset as u64 + 16);
        if self == Self::New && start == inline {
            let bytes = view.from(offset + 16).and_then(|rest| rest.0.get(..len));
            return text(bytes.filter(|_| len as u64 <= MAX_INLINE).ok_or(REFUSED)?);
        }
        if len == 0 {
            return Ok(String::new());
        }
        text(copies.get(start, len)?.0)
    }
}

/// Returns the text with its invisible characters escaped. A text with control characters is refused.
fn text(bytes: &[u8]) -> Parsed<String> {
    let text = str::from_utf8(bytes).map_err(|_| REFUSED)?;
    if text.chars().any(char::is_control) {
        return Err(REFUSED);
    }
    Ok(visible(bytes, MAX_CHARS))
}
