//! Limits shared by both ends of a connection.

/// Maximum length of a decompressed line.
pub const MAX_LINE: u64 = 16 << 20;

/// Maximum length of a request line.
pub const MAX_REQUEST_LINE: u64 = 64 << 10;

/// zstd window of the stream: 32 KiB, of which a reader needs more than three per host. A frame smaller than the window
/// can refer to the previous frame. Frames of 64 processes with their pools take 7.3 kB per second, below the limit of
/// 10 kB. A window of 256 KiB would reduce this to 3.4 kB, but the windows of a hundred hosts would then take half of
/// the reader's memory limit.
pub const WINDOW_LOG: u32 = 15;
/// Largest window that a reader accepts, because the first agents used this size.
pub const MAX_WINDOW_LOG: u32 = 18;

/// Maximum number of unacknowledged frames.
pub const MAX_UNACKNOWLEDGED_FRAMES: u64 = 4;
