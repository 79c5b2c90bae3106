//! Reads a process's NUL-separated lists, `cmdline` and `environ`, up to a limit.
//!
//! Each list may contain megabytes. At most [`READ_LIMIT`] bytes are read. An entry truncated by the limit is dropped,
//! because redaction would not recognize a truncated secret.

use std::fs::File;
use std::io::{self, Read};

pub const READ_LIMIT: usize = 64 << 10;

/// Reads the file up to one byte beyond the limit. The additional byte shows that the file is longer.
pub fn read(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(READ_LIMIT).unwrap_or(u64::MAX);
    file.take(limit + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[derive(Debug, Default, PartialEq)]
pub struct NulList {
    bytes: Vec<u8>,
    pub is_truncated: bool,
}

impl NulList {
    pub fn read(file: File) -> io::Result<Self> {
        read(file).map(Self::from_bytes)
    }

    pub fn from_bytes(mut bytes: Vec<u8>) -> Self {
        let is_truncated = bytes.len() > READ_LIMIT;
        if is_truncated {
            bytes.truncate(READ_LIMIT);
            let complete = bytes.iter().rposition(|&b| b == 0).map_or(0, |nul| nul + 1);
            bytes.truncate(complete);
        }
        Self { bytes, is_truncated }
    }

    /// Returns the entries without empty ones at the end. A program that sets its title fills the rest of its command line
    /// with NULs.
    pub fn entries(&self) -> impl Iterator<Item = &[u8]> {
        let end = self.bytes.iter().rposition(|&b| b != 0);
        let complete = end.map(|end| &self.bytes[..=end]);
        complete.map(|bytes| bytes.split(|&b| b == 0)).into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_argument_is_an_entry_and_empty_file_has_no_entries() {
        let entries = |bytes: &[u8]| -> Vec<Vec<u8>> {
            NulList::from_bytes(bytes.to_vec()).entries().map(<[u8]>::to_vec).collect()
        };
        assert_eq!(entries(b""), Vec::<Vec<u8>>::new());
        assert_eq!(entries(b"a\0\0b\0"), [b"a".to_vec(), b"".to_vec(), b"b".to_vec()]);
        assert_eq!(entries(b"set by prctl"), [b"set by prctl".to_vec()]);
        assert_eq!(entries(b"ray::IDLE\0\0\0\0"), [b"ray::IDLE".to_vec()]);
        assert_eq!(entries(b"\0\0\0"), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn drops_entry_that_the_limit_truncates() {
        let mut bytes = b"first\0".to_vec();
        bytes.resize(READ_LIMIT + 1, b'x');
        let list = NulList::from_bytes(bytes);
        assert!(list.is_truncated);
        assert_eq!(list.entries().collect::<Vec<_>>(), [b"first"]);
    }
}
