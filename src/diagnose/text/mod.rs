//! Log text made plain: what a terminal, a launcher, a container runtime or a person's e-mail put around and into
//! the machine's words is taken off again, and the original line stays known.
//!
//! Bytes of an excerpt become [`LogLine`]s (no escapes, no carriage returns, no prefixes), lines of one stream become
//! a [`Flow`] that signatures are matched against. Nothing here knows any error.

mod flow;
mod own_output;
mod plain;
mod prefix;

pub use flow::{Flow, flows};
pub use plain::lines;

/// One line as its program printed it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogLine {
    /// In the file, counted from 1.
    pub number: u64,
    pub text: String,
    /// Who printed it, where a prefix tells; lines of one writer have the same.
    pub writer: String,
    pub rank: Option<u32>,
    /// As it was written before the line.
    pub time: Option<String>,
    /// As it stood in the log, prefixes included, in characters.
    pub width: usize,
    /// One blank ended it: where a terminal cut it there, the next line goes on after it.
    pub cut_at_blank: bool,
    /// Blanks or the side of a box fill it up: it was not cut.
    pub is_padded: bool,
    /// Lines after it that differ in their numbers only and were left out: a kernel that fails prints one for each thread.
    pub repeats: u32,
    /// The number of the last of them.
    pub last: u64,
    /// Source text that a traceback shows, not output.
    pub is_code: bool,
}
