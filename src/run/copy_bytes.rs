//! A buffer for copying between two non-blocking descriptors.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::unistd::{read, write};

/// Larger than one read from a terminal returns (a page less one byte, `n_tty`). Each chunk is passed on immediately:
/// collecting more would delay the writer, and then the terminal.
const CHUNK_BYTES: usize = 8 << 10;

pub(super) struct CopyBuffer {
    bytes: Box<[u8; CHUNK_BYTES]>,
    begin: usize,
    end: usize,
}

impl CopyBuffer {
    pub(super) fn new() -> Self {
        Self {
            bytes: Box::new([0; CHUNK_BYTES]),
            begin: 0,
            end: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    pub(super) fn pending(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    pub(super) fn clear(&mut self) {
        (self.begin, self.end) = (0, 0);
    }

    /// Reads available bytes if the buffer is empty. Returns an error when nothing more will arrive.
    pub(super) fn read_from(&mut self, from: impl AsFd) -> Result<&[u8], Errno> {
        if !self.is_empty() {
            return Ok(&[]);
        }
        self.clear();
        loop {
            match read(&from, &mut *self.bytes) {
                Ok(0) => return Err(Errno::EIO),
                Ok(n) => {
                    self.end = n;
                    return Ok(self.pending());
                }
                Err(Errno::EAGAIN) => return Ok(&[]),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes as much as the descriptor accepts. Returns an error when it will accept nothing more.
    pub(super) fn write_to(&mut self, to: impl AsFd) -> Result<(), Errno> {
        while !self.is_empty() {
            match write(&to, self.pending()) {
                Ok(n) => self.begin += n,
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
