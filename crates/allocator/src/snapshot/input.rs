//! Reads the bytes of a pickle in chunks, so that a file of any size needs only one buffer.

use std::io::{ErrorKind, Read};

use super::error::{Result, SnapshotError};

const PIECE: usize = 256 << 10;
/// Maximum length of one string or number. The longest strings in real snapshots contain a compiled graph.
const MAX_AT_ONCE: usize = 64 << 20;

pub struct PickleInput<R> {
    reader: R,
    buffer: Vec<u8>,
    at: usize,
    end: usize,
    /// Number of bytes consumed before the first byte in the buffer.
    before: u64,
    max_at_once: usize,
}

impl<R: Read> PickleInput<R> {
    /// Limits a single value to a quarter of `max_memory`, because a value is stored in the buffer and then in a table.
    pub fn new(reader: R, max_memory: usize) -> Self {
        Self {
            reader,
            buffer: vec![0; PIECE],
            at: 0,
            end: 0,
            before: 0,
            max_at_once: MAX_AT_ONCE.min(max_memory / 4),
        }
    }

    /// Returns the position of the next byte in the data.
    pub fn offset(&self) -> u64 {
        self.before + self.at as u64
    }

    #[inline]
    pub fn byte(&mut self) -> Result<u8> {
        if self.at == self.end {
            self.fill(1)?;
        }
        let byte = self.buffer[self.at];
        self.at += 1;
        Ok(byte)
    }

    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    #[inline]
    pub fn take(&mut self, count: usize) -> Result<&[u8]> {
        if self.end - self.at < count {
            self.fill(count)?;
        }
        let taken = &self.buffer[self.at..self.at + count];
        self.at += count;
        Ok(taken)
    }

    /// Returns the next `count` bytes without consuming them, or fewer at the end of the data.
    pub fn peek(&mut self, count: usize) -> Result<&[u8]> {
        match self.fill(count) {
            Err(SnapshotError::Cut(_)) | Ok(()) => {
                let end = self.end.min(self.at + count);
                Ok(&self.buffer[self.at..end])
            }
            Err(error) => Err(error),
        }
    }

    /// Reads until the buffer contains `count` unread bytes.
    #[cold]
    fn fill(&mut self, count: usize) -> Result<()> {
        if self.end - self.at >= count {
            return Ok(());
        }
        if count > self.max_at_once {
            let what = format!("a value larger than {} MiB", self.max_at_once >> 20);
            let at = self.offset();
            return Err(SnapshotError::TooMuch { at, what });
        }
        self.buffer.copy_within(self.at..self.end, 0);
        self.before += self.at as u64;
        self.end -= self.at;
        self.at = 0;
        while self.end < count {
            if self.end == self.buffer.len() {
                // Grow the buffer in steps, because a damaged or malicious file may claim a huge length.
                let more = self.buffer.len().min(self.max_at_once);
                self.buffer.resize(self.buffer.len() + more, 0);
            }
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Err(SnapshotError::Cut(self.before + self.end as u64)),
                Ok(more) => self.end += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The decoder reports this error if the compressed file is truncated.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    return Err(SnapshotError::Cut(self.before + self.end as u64));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
