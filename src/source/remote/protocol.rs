//! What both sides agree on.

use serde::{Deserialize, Serialize};

use crate::model::text::visible;
use crate::source::Request;

/// What one side of another number cannot be talked to by. Fields and kinds of lines may be added without it: what a
/// reader does not know it passes over.
pub const PROTOCOL: u32 = 1;

/// `gputop-agent protocol=1 version=0.1.0`, the first line of a far side that is one.
pub const GREETING: &str = "gputop-agent protocol=";

/// What may stand before it: a banner, a message of the day.
pub const MAX_NOISE: usize = 64 << 10;

/// No line is longer, unpacked.
pub const MAX_LINE: u64 = 16 << 20;

/// No order is longer.
pub const MAX_ORDER: u64 = 64 << 10;

/// The window of the stream is 32 KiB: what a reader of it holds three times and more, for each host. Where a frame is smaller than
/// that, it finds the one before it there; one of 64 processes with their pools takes 7.3 kB a second, of the 10 that it
/// may, instead of 3.4 with a window of 256 KiB: but then a hundred hosts would take half of the memory that their reader may.
pub const WINDOW_LOG: u32 = 15;
/// The window that a reader takes: as first agents wrote.
pub const MAX_WINDOW_LOG: u32 = 18;

/// So many frames are sent ahead of what is known to have arrived.
pub const FRAMES_UNDER_WAY: u64 = 4;

/// A line from here to there: exactly one of these, or nothing known.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestLine {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    /// Frames that have arrived since the connection began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames: Option<u64>,
    /// The name of one of the incidents that were listed, to be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incident: Option<String>,
}

/// The greeting of this version.
pub fn greeting() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!("{GREETING}{PROTOCOL} version={version}\n")
}

/// Whether the words behind [`GREETING`], `1 version=0.1.0`, are of this protocol.
///
/// # Errors
/// The version of a gputop that speaks another one.
pub fn fits(words: &[u8]) -> Result<(), String> {
    let words = visible(words, 60);
    let (protocol, version) = words.split_once(" version=").unwrap_or((&words, "?"));
    match protocol.parse::<u32>() {
        Ok(PROTOCOL) => Ok(()),
        _ => Err(version.trim_end().to_owned()),
    }
}
