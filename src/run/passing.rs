//! Bytes on their way from one descriptor to another, neither of which blocks.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::unistd::{read, write};

/// The kernel gives up to this much of a terminal in one read.
pub(super) const LEAST: usize = 4 << 10;

pub(super) struct Passing<const SIZE: usize> {
    bytes: Box<[u8; SIZE]>,
    begin: usize,
    end: usize,
}

impl<const SIZE: usize> Passing<SIZE> {
    pub(super) fn new() -> Self {
        Self {
            bytes: Box::new([0; SIZE]),
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
        while SIZE - self.end >= LEAST {
            match read(&from, &mut self.bytes[self.end..]) {
                Ok(n @ 1..) => self.end += n,
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                // What came before the end is passed on first.
                _ if self.end > 0 => break,
                Ok(0) => return Err(Errno::EIO),
                Err(error) => return Err(error),
            }
        }
        Ok(&self.bytes[..self.end])
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
