//! Log output that a process wrote after gputop attached to it, as shown on a screen.

use serde::{Deserialize, Serialize};

use super::event::LogOrigin;
use super::process::ProcessKey;
use super::reading::{Missing, Reading};
use super::units::{Bytes, Mono};

/// Log text of one process whose log is being followed. Sent in reply to a request and never recorded.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogView {
    pub process: ProcessKey,
    pub at: Mono,
    /// False until gputop has searched for the process's logs.
    pub is_attached: bool,
    /// Readable logs of the process. The first one is the source of `text`.
    pub sources: Vec<LogSource>,
    /// Reason why some or all output of the process cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
    /// Newest log text since attaching, escaped for display and limited in length.
    pub text: Reading<String>,
    /// Line numbers, counted from 0 and ascending, of the log lines that contain a literal from an error signature.
    pub errors: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogSource {
    /// Name of the log, as in [`LogExcerpt::file`](super::event::LogExcerpt::file).
    pub name: String,
    pub origin: LogOrigin,
    /// True if the log grows faster than gputop reads it.
    pub is_sampled: bool,
    /// Log bytes skipped since attaching, because they arrived too fast.
    #[serde(skip_serializing_if = "Bytes::is_zero")]
    pub skipped: Bytes,
    /// Number of watched processes that write to the log.
    pub writers: usize,
}
