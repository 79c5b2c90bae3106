//! What a recording looks like as a file: the names and shapes that writer and reader share.
//!
//! ```text
//! skippable 0x184D2A50   {"hello":{…}}                                    one line of JSON
//! zstd frame             {"frame":{…}}  {"event":{…}}  {"map":{…}}  {"stack":{…}} …     a minute of lines, a block a line
//! skippable 0x184D2A51   {"offset":…,"start":…}  + zstd {"summary":…}     that minute's note
//! …                      another minute and its note
//! skippable 0x184D2A5E   {"minutes":[…]}  + length + "gputopIX"           the index
//! ```
//!
//! Decompressors pass over skippable frames, so `zstdcat FILE | jq` sees the frames, events and maps and nothing else. The
//! plain first line of a note tells a reader without an index what it needs without decompressing anything. The
//! index ends with its own length, so that it is found from the end of the file. All numbers outside JSON are
//! little-endian, as zstd's own are.

use serde::{Deserialize, Serialize};

use crate::model::event::Event;
use crate::model::history::Summary;
use crate::model::units::{Millis, Mono};

pub const HELLO_MAGIC: u32 = 0x184D_2A50;
pub const NOTE_MAGIC: u32 = 0x184D_2A51;
pub const INDEX_MAGIC: u32 = 0x184D_2A5E;
pub const ZSTD_MAGIC: u32 = 0xFD2F_B528;
/// Magic and length in front of every skippable frame.
pub const SKIPPABLE_HEADER: u64 = 8;

/// Stands at the very end of a finished recording, after the length of the index frame.
pub const INDEX_END: &[u8; 8] = b"gputopIX";
/// The length as `u32` and [`INDEX_END`].
pub const INDEX_FOOTER: u64 = 12;

/// What the name of a recording ends with.
pub const ENDING: &str = ".gpt.zst";

/// How long a stretch is compressed as one; a jump decodes at most this much.
pub const MINUTE: Millis = Millis(60_000);
/// The window of a minute: 16 MiB, which is what a decoder of it holds.
pub const WINDOW_LOG: u32 = 24;
/// A minute is closed early once it holds this many bytes of JSON, so that a reader can bound what one may be.
pub const MAX_MINUTE_BYTES: u64 = 64 << 20;
/// No line is longer: a reader gives a minute up there instead of filling memory. The largest map that
/// is read takes 13 MiB.
pub const MAX_LINE_BYTES: u64 = 16 << 20;
/// No note is longer, packed or unpacked.
pub const MAX_NOTE_BYTES: u64 = 8 << 20;
/// So much of a note may be events.
pub const MAX_NOTE_EVENT_BYTES: u64 = 4 << 20;
/// A year of minutes.
pub const MAX_INDEX_BYTES: u64 = 64 << 20;

/// Where a minute is and what it covers. `bytes` counts the zstd frame alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Minute {
    pub offset: u64,
    pub bytes: u64,
    pub start: Mono,
    pub end: Mono,
    pub frames: u64,
    /// Maps of pools; a file made before there were any has none.
    #[serde(skip_serializing_if = "is_zero")]
    pub maps: u64,
    /// The length of the note behind it, header included; 0 when it has none.
    pub note: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The compressed part of a note: what a jump to a later minute needs of this one.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Note {
    pub summary: Summary,
    pub events: Vec<Event>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Index {
    /// Where the index frame itself begins: it is not believed when it begins elsewhere.
    pub offset: u64,
    pub minutes: Vec<Minute>,
}

/// A skippable frame's magic and length; `None` when the payload is longer than the format can say.
pub fn skippable_header(magic: u32, payload: usize) -> Option<[u8; 8]> {
    let length = u32::try_from(payload).ok()?;
    let mut header = [0; 8];
    header[..4].copy_from_slice(&magic.to_le_bytes());
    header[4..].copy_from_slice(&length.to_le_bytes());
    Some(header)
}
