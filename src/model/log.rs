//! Output that a process wrote after gputop attached to it, as shown on a screen.

use serde::{Deserialize, Serialize};

use super::event::LogOrigin;
use super::process::ProcessKey;
use super::reading::{Missing, Reading};
use super::units::{Bytes, Mono};

/// The followed text of one process. Sent in reply to a request and never recorded.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogView {
    pub process: ProcessKey,
    pub at: Mono,
    /// False until gputop has searched for the logs of the process.
    pub is_attached: bool,
    /// The readable logs of the process. The first one is the source of `text`.
    pub sources: Vec<LogSource>,
    /// Reason why the output of the process, or part of it, cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
    /// The newest text since attaching, escaped for display and limited in length.
    pub text: Reading<String>,
    /// Line numbers, from 0 and ascending, of the lines that contain an error literal.
    pub errors: Vec<usize>,
}

/// One log of a process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogSource {
    /// As [`LogExcerpt::file`](super::event::LogExcerpt::file).
    pub name: String,
    pub origin: LogOrigin,
    /// True if the log grows faster than it is read.
    pub is_sampled: bool,
    /// Bytes skipped since attaching because they arrived too fast.
    #[serde(skip_serializing_if = "Bytes::is_zero")]
    pub skipped: Bytes,
    /// Number of watched processes that write to the log.
    pub writers: usize,
}
