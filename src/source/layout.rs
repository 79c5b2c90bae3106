//! File format of a recording: names and structures shared by the writer and the reader.
//!
//! ```text
//! skippable 0x184D2A50   {"hello":{…}}                                    one line of JSON
//! zstd frame             {"frame":{…}}  {"event":{…}}  {"map":{…}}  {"stack":{…}}  {"phase_window":{…}} …     one minute of lines, one block per line
//! skippable 0x184D2A51   {"offset":…,"start":…}  + zstd {"summary":…}     the note of that minute
//! …                      another minute and its note
//! skippable 0x184D2A5E   {"minutes":[…]}  + length + "gputopIX"           the index
//! ```
//!
//! Decompressors skip skippable frames, so `zstdcat FILE | jq` sees only the frames, events and maps. A note starts
//! with an uncompressed line for readers without an index. The index ends with its own length, so that readers can find
//! it from the end of the file. All numbers outside JSON are little-endian, as in zstd.

use gputop_model::history::Summary;
use gputop_model::{Event, Millis, Mono};
use serde::{Deserialize, Serialize};

pub const HELLO_MAGIC: u32 = 0x184D_2A50;
pub const NOTE_MAGIC: u32 = 0x184D_2A51;
pub const INDEX_MAGIC: u32 = 0x184D_2A5E;
pub const ZSTD_MAGIC: u32 = 0xFD2F_B528;
/// Length of the magic number and the length field at the start of every skippable frame.
pub const SKIPPABLE_HEADER: u64 = 8;

/// End marker of a finished recording, written after the length of the index frame.
pub const INDEX_END: &[u8; 8] = b"gputopIX";
/// Combined size of the length (`u32`) and [`INDEX_END`].
pub const INDEX_FOOTER: u64 = 12;

/// File name extension of recordings.
pub const FILE_EXTENSION: &str = ".gpt.zst";

/// Time span compressed as one unit. A jump decodes at most one such unit.
pub const MINUTE: Millis = Millis(60_000);
/// zstd window size for one minute: 4 MiB. A window of 16 MiB makes ordinary recordings 0.1 % smaller, and the built-in
/// one, with a map every few seconds, 2 %.
pub const WINDOW_LOG: u32 = 22;
/// Maximum window size that readers accept: 16 MiB of decoder memory, as earlier versions used.
pub const MAX_WINDOW_LOG: u32 = 24;
/// Maximum JSON size of a minute. A minute that reaches the limit is closed early, so that readers can limit their
/// memory use.
pub const MAX_MINUTE_BYTES: u64 = 64 << 20;
/// Maximum length of a recorded line. A reader skips a minute with a longer line instead of exhausting memory. The
/// largest supported map takes 13 MiB.
pub const MAX_LINE_BYTES: u64 = 16 << 20;
/// Maximum length of a recorded reading of memory holders. A reading with 53 groups takes 14 KiB, and compressed 1 KiB or
/// less.
pub const MAX_HOLDERS_BYTES: usize = 256 << 10;
/// Maximum length of a note, compressed or not.
pub const MAX_NOTE_BYTES: u64 = 8 << 20;
/// Maximum size of the events in a note.
pub const MAX_NOTE_EVENT_BYTES: u64 = 4 << 20;
/// Maximum size of the index, enough for a year of minutes.
pub const MAX_INDEX_BYTES: u64 = 64 << 20;

/// Position of a minute and the time it covers. `bytes` is the size of the zstd frame only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Minute {
    pub offset: u64,
    pub bytes: u64,
    pub start: Mono,
    pub end: Mono,
    pub frames: u64,
    /// Number of pool maps; 0 in files from versions without maps.
    #[serde(skip_serializing_if = "is_zero")]
    pub maps: u64,
    /// Number of readings of memory holders; 0 in files from versions without such readings.
    #[serde(skip_serializing_if = "is_zero")]
    pub holders: u64,
    /// Length of the note after the minute, including its header; 0 if there is no note.
    pub note: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The compressed part of a note: data from this minute that a jump to a later minute needs.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MinuteNote {
    pub summary: Summary,
    pub events: Vec<Event>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Index {
    /// Position of the index frame. An index at any other position is rejected.
    pub offset: u64,
    pub minutes: Vec<Minute>,
}

/// Returns the magic number and length of a skippable frame, or `None` if the payload is too long for the format.
pub fn skippable_header(magic: u32, payload: usize) -> Option<[u8; 8]> {
    let length = u32::try_from(payload).ok()?;
    let mut header = [0; 8];
    header[..4].copy_from_slice(&magic.to_le_bytes());
    header[4..].copy_from_slice(&length.to_le_bytes());
    Some(header)
}
