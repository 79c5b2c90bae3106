//! What a process has written since it was attached to, as far as a screen shows it.

use serde::{Deserialize, Serialize};

use super::event::LogOrigin;
use super::process::ProcessKey;
use super::reading::{Missing, Reading};
use super::units::{Bytes, Mono};

/// The followed text of one process. Answers a request; never recorded.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogView {
    pub process: ProcessKey,
    pub at: Mono,
    /// False until it was looked where the process writes.
    pub is_attached: bool,
    /// Where it writes to what can be read: the log that the text is of comes first.
    pub sources: Vec<LogSource>,
    /// Why nothing can be read of what it writes, or of a part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
    /// The newest text since the moment of attaching, harmless and bounded.
    pub text: Reading<String>,
    /// The numbers, from 0, of its lines that hold a literal of an error; ascending.
    pub errors: Vec<usize>,
}

/// One log of a process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogSource {
    /// As [`LogExcerpt::file`](super::event::LogExcerpt::file).
    pub name: String,
    pub origin: LogOrigin,
    /// It grows faster than it is read.
    pub is_sampled: bool,
    /// Text that was not read since the moment of attaching, since it came too fast.
    #[serde(skip_serializing_if = "Bytes::is_zero")]
    pub skipped: Bytes,
    /// How many watched processes write there.
    pub writers: usize,
}
