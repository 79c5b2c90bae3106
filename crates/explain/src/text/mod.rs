//! Cleans log text: removes escapes, prefixes and wrapping added by terminals, launchers, container runtimes and e-mail
//! programs. The original line numbers are kept.
//!
//! The bytes of an excerpt become [`LogLine`]s without escapes, carriage returns and prefixes. The lines of one writer
//! become a [`Flow`], which is searched for signatures. This module knows nothing about specific errors.

mod flow;
mod log_line;
mod own_output;
mod plain;
mod prefix;

pub use self::log_line::LogLine;

pub use flow::{Flow, flows};
pub use plain::lines;
