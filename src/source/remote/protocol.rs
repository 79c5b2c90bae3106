//! Definitions that both ends of a connection share.

use crate::model::text::visible;

/// Protocol version. Both ends must have the same one. New fields and kinds of lines do not need a new version,
/// because readers skip what they do not know.
pub const PROTOCOL: u32 = 1;

/// Start of the first line of an agent: `gputop-agent protocol=1 version=0.1.0`.
pub const GREETING: &str = "gputop-agent protocol=";

/// Maximum length of the text before the greeting, such as a banner or a message of the day.
pub const MAX_PREAMBLE: usize = 64 << 10;

/// Maximum length of a decompressed line.
pub const MAX_LINE: u64 = 16 << 20;

/// Maximum length of a request line.
pub const MAX_REQUEST_LINE: u64 = 64 << 10;

/// zstd window of the stream: 32 KiB, which a reader holds more than three times per host. A frame smaller than the
/// window can refer to the previous one. A frame of 64 processes with their pools takes 7.3 kB per second, of the
/// allowed 10. A window of 256 KiB would need 3.4 kB, but the windows of a hundred hosts would then take half of the
/// reader's memory limit.
pub const WINDOW_LOG: u32 = 15;
/// Largest window that a reader accepts, as the first agents used it.
pub const MAX_WINDOW_LOG: u32 = 18;

/// Maximum number of unacknowledged frames.
pub const FRAMES_UNDER_WAY: u64 = 4;

/// Returns the greeting of this version.
pub fn greeting() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!("{GREETING}{PROTOCOL} version={version}\n")
}

/// Checks the text after [`GREETING`], `1 version=0.1.0`.
///
/// # Errors
/// Returns the version of the other gputop if its protocol differs.
pub fn fits(words: &[u8]) -> Result<(), String> {
    let words = visible(words, 60);
    let (protocol, version) = words.split_once(" version=").unwrap_or((&words, "?"));
    match protocol.parse::<u32>() {
        Ok(PROTOCOL) => Ok(()),
        _ => Err(version.trim_end().to_owned()),
    }
}
