//! Bytes on their way from one descriptor to another, neither of which blocks.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::unistd::{read, write};

/// More than the kernel gives of a terminal in one read (a page less one byte, `n_tty`). What is read is passed on at
/// once: gathering more of it would let the writer wait for us, and then the terminal for the writer.
const PIECE: usize = 8 << 10;

pub(super) struct Passing {
    bytes: Box<[u8; PIECE]>,
    begin: usize,
    end: usize,
}

impl Passing {
    pub(super) fn new() -> Self {
        Self {
            bytes: Box::new([0; PIECE]),
            begin: 0,
            end: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    pub(super) fn clear(&mut self) {
        (self.begin, self.end) = (0, 0);
    }

    /// Takes what is there to read, when all before has been passed on. `Err` when there will be no more.
    pub(super) fn fill(&mut self, from: impl AsFd) -> Result<&[u8], Errno> {
        if !self.is_empty() {
            return Ok(&[]);
        }
        self.clear();
        loop {
            match read(&from, &mut *self.bytes) {
                Ok(0) => return Err(Errno::EIO),
                Ok(n) => {
                    self.end = n;
                    return Ok(self.rest());
                }
                Err(Errno::EAGAIN) => return Ok(&[]),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Passes on as much as is taken. `Err` when nothing will be any more.
    pub(super) fn pass(&mut self, to: impl AsFd) -> Result<(), Errno> {
        while !self.is_empty() {
            match write(&to, self.rest()) {
                Ok(n) => self.begin += n,
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
