//! Cleans log text: removes escapes, prefixes and wrapping that terminals, launchers, container runtimes and e-mail
//! programs add. The original line numbers are kept.
//!
//! The bytes of an excerpt become [`LogLine`]s without escapes, carriage returns and prefixes. The lines of one writer
//! become a [`Flow`], in which signatures are searched. This module is independent of specific errors.

mod flow;
mod own_output;
mod plain;
mod prefix;

pub use flow::{Flow, flows};
pub use plain::lines;

/// One line as its program printed it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogLine {
    /// Line number in the file, counted from 1.
    pub number: u64,
    pub text: String,
    /// Process or rank that wrote the line, taken from the line prefix. Empty if unknown.
    pub writer: String,
    pub rank: Option<u32>,
    /// Time in the prefix, as written.
    pub time: Option<String>,
    /// Width in the log including prefixes, in characters.
    pub width: usize,
    /// True if the line ends with one blank. If the line was wrapped at that blank, the next line continues after it.
    pub cut_at_blank: bool,
    /// True if the line is padded with blanks or ends with the side of a box, and therefore was not wrapped.
    pub is_padded: bool,
    /// Number of dropped lines after this one that differed only in numbers. A failing kernel prints a line for each
    /// thread.
    pub repeats: u32,
    /// Line number of the last dropped line.
    pub last: u64,
    /// True for source code in a traceback, which is not output.
    pub is_code: bool,
}
