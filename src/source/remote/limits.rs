//! Limits shared by both ends of a connection.

/// Maximum length of a decompressed protocol line.
pub const MAX_LINE: u64 = 16 << 20;

/// Maximum memory of a received event. An agent sends excerpts of 64 KiB at most, and its largest events are not much
/// larger. Several threads have a copy of an event.
pub const MAX_EVENT_BYTES: usize = 1 << 20;

pub const MAX_REQUEST_LINE: u64 = 64 << 10;

/// zstd window of an agent's stream: 32 KiB. A reader needs memory for more than three windows per host. A frame that
/// is smaller than the window can be compressed as a difference from the previous frame. Frames of 64 processes with
/// their pools take 7.3 kB per second, below the limit of 10 kB. A window of 256 KiB would reduce the rate to 3.4 kB,
/// but the windows of a hundred hosts would then take half of the reader's memory limit.
pub const WINDOW_LOG: u32 = 15;
/// Largest zstd window that a reader accepts. The first agent versions used this size.
pub const MAX_WINDOW_LOG: u32 = 18;

pub const MAX_UNACKNOWLEDGED_FRAMES: u64 = 4;
