//! Content of a log: a file ([`Tail`](super::tail::Tail)) or a program's output ([`Stream`](super::stream::Stream)).

use std::fmt::Debug;
use std::io;

use gputop_model::{Millis, Mono};

const READ_INTERVAL: Millis = Millis(250);

pub trait LogContent: Debug + Send {
    /// Returns the offset up to which the log was read.
    fn offset(&self) -> u64;

    /// Reads the text added since the last call into `buffer`. If more than `max_bytes` were added, reads only the
    /// latest text.
    fn read(&mut self, buffer: &mut Vec<u8>, max_bytes: u64, now: Mono) -> io::Result<TailRead>;

    /// Returns the log's text between two offsets, if still available.
    fn between(&self, from: u64, to: u64) -> io::Result<Vec<u8>>;

    /// Asks for new text immediately, because a writer exited or one of its allocations failed.
    fn request_now(&mut self) {}

    /// Returns the time of the next read after a read at `last`. `None` if nothing is left to read.
    fn due(&self, last: Mono) -> Option<Mono> {
        Some(Mono(last.0 + READ_INTERVAL.0))
    }

    /// Returns the number of the line at an offset, if known.
    fn line_at(&self, _offset: u64) -> Option<u64> {
        None
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct TailRead {
    /// True if the file was replaced or truncated, so that offsets start at 0 again.
    pub is_new_file: bool,
    /// Number of bytes skipped before the text that was read.
    pub skipped: u64,
    pub bytes: usize,
}
