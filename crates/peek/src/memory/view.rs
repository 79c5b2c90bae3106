//! Copy of part of another process's memory, read as little-endian words.
//!
//! Reads beyond the copy return `None`, which distinguishes a struct truncated by an unmapped page from one that is all
//! zeros. Both architectures supported by CUDA are little-endian with 64-bit pointers.

/// Bytes of one struct, or of several consecutive structs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct View<'a>(pub &'a [u8]);

impl<'a> View<'a> {
    pub fn byte(self, offset: usize) -> Option<u8> {
        self.0.get(offset).copied()
    }

    pub fn half(self, offset: usize) -> Option<u16> {
        self.array(offset).map(u16::from_le_bytes)
    }

    pub fn int(self, offset: usize) -> Option<u32> {
        self.array(offset).map(u32::from_le_bytes)
    }

    pub fn word(self, offset: usize) -> Option<u64> {
        self.array(offset).map(u64::from_le_bytes)
    }

    pub fn signed(self, offset: usize) -> Option<i64> {
        self.array(offset).map(i64::from_le_bytes)
    }

    pub fn from(self, offset: usize) -> Option<Self> {
        self.0.get(offset..).map(View)
    }

    pub fn words(self) -> impl Iterator<Item = u64> + 'a {
        let (words, _) = self.0.as_chunks::<8>();
        words.iter().map(|word| u64::from_le_bytes(*word))
    }

    /// Returns the text up to the first NUL, or `None` if there is no NUL.
    pub fn text(self) -> Option<&'a str> {
        let end = self.0.iter().position(|&b| b == 0)?;
        std::str::from_utf8(self.0.get(..end)?).ok()
    }

    fn array<const N: usize>(self, offset: usize) -> Option<[u8; N]> {
        self.0.get(offset..)?.first_chunk().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_beyond_the_copy_returns_none() {
        let view = View(&[1, 0, 0, 0, 0, 0, 0, 0x80, 7]);
        assert_eq!(view.word(0), Some(0x8000_0000_0000_0001));
        assert_eq!(view.signed(0), Some(i64::MIN + 1));
        assert_eq!(view.word(1), Some(0x0780_0000_0000_0000));
        assert_eq!((view.word(2), view.int(usize::MAX)), (None, None));
        assert_eq!(view.words().count(), 1);
        assert_eq!((View(b"a\0b").text(), View(b"ab").text()), (Some("a"), None));
    }
}
