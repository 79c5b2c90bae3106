//! The content of a log: a file, or text that another thread delivers.

use std::io;

use super::piped_log::PipedLog;
use super::tail::{Tail, TailRead};
use crate::model::units::Mono;

#[derive(Debug)]
pub enum LogContent {
    File(Tail),
    Piped(PipedLog),
}

impl LogContent {
    /// Offset up to which it was read.
    pub fn offset(&self) -> u64 {
        match self {
            Self::File(tail) => tail.offset(),
            Self::Piped(piped) => piped.offset(),
        }
    }

    /// Reads the text since the last call into `buffer`; from a file at most `max_bytes`.
    pub fn read(
        &mut self,
        buffer: &mut Vec<u8>,
        max_bytes: u64,
        now: Mono,
    ) -> io::Result<TailRead> {
        match self {
            Self::File(tail) => tail.read(buffer, max_bytes, now),
            Self::Piped(piped) => Ok(piped.read(buffer)),
        }
    }

    /// Returns the text between two offsets, as far as it is still available.
    pub fn between(&self, from: u64, to: u64) -> io::Result<Vec<u8>> {
        match self {
            Self::File(tail) => tail.between(from, to),
            Self::Piped(piped) => Ok(piped.between(from, to)),
        }
    }

    /// Requests the text of the other thread immediately. Has no effect for a file.
    pub fn hurry(&self) {
        if let Self::Piped(piped) = self {
            piped.hurry();
        }
    }

    /// Returns the number of the line at an offset, if it is known.
    pub fn line_at(&self, offset: u64) -> Option<u64> {
        match self {
            Self::File(tail) => tail.line_at(offset),
            Self::Piped(_) => None,
        }
    }
}
