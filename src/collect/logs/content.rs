//! The content of a log: a file, or the text of a program.

use std::io;

use super::stream::Stream;
use super::tail::{Tail, TailRead};
use crate::model::units::{Millis, Mono};

/// How often a log is read.
const READ_INTERVAL: Millis = Millis(250);
const MIN_INTERVAL: Millis = Millis(20);

#[derive(Debug)]
pub enum LogContent {
    File(Tail),
    Stream(Stream),
}

impl LogContent {
    /// Returns the offset up to which the log was read.
    pub fn offset(&self) -> u64 {
        match self {
            Self::File(tail) => tail.offset(),
            Self::Stream(stream) => stream.offset(),
        }
    }

    /// Reads the text since the last call into `buffer`, at most `max_bytes`.
    pub fn read(
        &mut self,
        buffer: &mut Vec<u8>,
        max_bytes: u64,
        now: Mono,
    ) -> io::Result<TailRead> {
        match self {
            Self::File(tail) => tail.read(buffer, max_bytes, now),
            Self::Stream(stream) => {
                let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
                Ok(stream.read(buffer, max_bytes, now))
            }
        }
    }

    /// Returns the text between two offsets, as far as it is still available.
    pub fn between(&self, from: u64, to: u64) -> io::Result<Vec<u8>> {
        match self {
            Self::File(tail) => tail.between(from, to),
            Self::Stream(stream) => Ok(stream.between(from, to)),
        }
    }

    /// Requests the text of a program immediately. Has no effect for a file.
    pub fn hurry(&mut self) {
        if let Self::Stream(stream) = self {
            stream.hurry();
        }
    }

    /// Returns the time of the next read after one at `last`.
    pub fn due(&self, last: Mono) -> Option<Mono> {
        let usual = Mono(last.0 + READ_INTERVAL.0);
        match self {
            Self::File(_) => Some(usual),
            // Not before the limit on reading has recovered.
            Self::Stream(stream) => Some(stream.due(usual)?.max(Mono(last.0 + MIN_INTERVAL.0))),
        }
    }

    /// Returns the number of the line at an offset, if it is known.
    pub fn line_at(&self, offset: u64) -> Option<u64> {
        match self {
            Self::File(tail) => tail.line_at(offset),
            Self::Stream(_) => None,
        }
    }
}
