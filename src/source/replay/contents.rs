//! The contents of a recording, in a file or in memory. They are read in sections instead of all at once.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

#[derive(Debug)]
pub enum Contents {
    File(File),
    Memory(Cow<'static, [u8]>),
}

impl Contents {
    pub fn len(&self) -> io::Result<u64> {
        match self {
            Self::File(file) => Ok(file.metadata()?.len()),
            Self::Memory(bytes) => Ok(bytes.len() as u64),
        }
    }

    /// Reads bytes until the buffer is full or the contents end. Returns the number of bytes read.
    pub fn read_at(&self, mut at: u64, mut into: &mut [u8]) -> io::Result<usize> {
        let wanted = into.len();
        while !into.is_empty() {
            match self.read_some(at, into) {
                Ok(0) => break,
                Ok(read) => {
                    at += read as u64;
                    into = &mut into[read..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(wanted - into.len())
    }

    fn read_some(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read_at(into, at),
            Self::Memory(bytes) => {
                let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
                rest.unwrap_or_default().read(into)
            }
        }
    }

    /// Reads up to `length` bytes. The caller must limit the length.
    pub fn piece(&self, at: u64, length: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        let read = self.read_at(at, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    }
}

/// A reader for a section of a recording's contents.
#[derive(Debug)]
pub struct Section {
    pub contents: Arc<Contents>,
    pub at: u64,
    pub end: u64,
}

impl Read for Section {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let max = into.len().min(left);
        let read = self.contents.read_at(self.at, &mut into[..max])?;
        self.at += read as u64;
        Ok(read)
    }
}

/// A buffer for small, mostly sequential reads.
#[derive(Debug)]
pub struct ReadWindow<'a> {
    contents: &'a Contents,
    at: u64,
    buffer: Vec<u8>,
}

const WINDOW_BYTES: u64 = 64 << 10;

impl<'a> ReadWindow<'a> {
    pub fn new(contents: &'a Contents) -> Self {
        Self { contents, at: 0, buffer: Vec::new() }
    }

    /// Returns at least `count` bytes starting at `at`, or fewer at the end of the contents. `count` must not exceed
    /// [`WINDOW_BYTES`].
    pub fn from(&mut self, at: u64, count: usize) -> io::Result<&[u8]> {
        let end = at.saturating_add(count as u64);
        if at < self.at || end > self.at + self.buffer.len() as u64 {
            self.buffer = self.contents.piece(at, WINDOW_BYTES)?;
            self.at = at;
        }
        let offset = usize::try_from(at - self.at).unwrap_or(usize::MAX);
        Ok(self.buffer.get(offset..).unwrap_or_default())
    }
}
