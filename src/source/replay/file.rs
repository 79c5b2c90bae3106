//! Represents a recording as a table of minutes. Opening it is fast, minutes are read one at a time, and the contents
//! are treated as untrusted.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use gputop_model::bounded_json;
use gputop_model::history::Summary;
use gputop_model::protocol::{Line, Update};
use gputop_model::{Hello, Mono};

use super::contents::Contents;
use super::lines::{DamagedMinute, FrameTime, Lines, TimedLine};
use super::walk::{self, Found};
use crate::source::layout::{
    HELLO_MAGIC, INDEX_END, INDEX_FOOTER, INDEX_MAGIC, Index, MAX_INDEX_BYTES, MAX_NOTE_BYTES,
    Minute, MinuteNote, NOTE_MAGIC, SKIPPABLE_HEADER,
};

/// Maximum memory for the lists of one note.
const MAX_NOTE_MEMORY: usize = 16 << 20;
/// Maximum memory for the table of minutes, enough for more than half a year.
const MAX_INDEX_MEMORY: usize = 32 << 20;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot read the recording {name}: {source}")]
    Read { name: String, source: io::Error },
    #[error("{0} is empty, so there is nothing to play")]
    Empty(String),
    #[error(
        "{name} is not a gputop recording: it starts with {begins}. Record one with `gputop record`"
    )]
    Foreign { name: String, begins: String },
    #[error(
        "{name} is not a recording. If it is a memory snapshot of PyTorch: gputop snapshot {name}"
    )]
    Pickle { name: String },
    #[error("{0} contains no readable frame, so there is nothing to play")]
    NoFrames(String),
    #[error(
        "cannot play {name}: gputop {version} recorded it with \"{needs}\", which this version does not support. Install a newer gputop"
    )]
    TooNew { name: String, version: String, needs: String },
}

/// A playable recording. The positions of its minutes are known, but no minute has been read yet.
#[derive(Debug)]
pub struct Recording {
    contents: Arc<Contents>,
    hello: Hello,
    pub(super) minutes: Vec<Minute>,
    /// Offsets of the minutes that follow data of which nothing can be read.
    after_damage: BTreeSet<u64>,
    /// True if the recording has an index, so that its last minute is complete.
    is_finished: bool,
    has_holders: bool,
}

impl Recording {
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Self::new(Contents::File(file), name),
            Err(source) => Err(OpenError::Read { name, source }),
        }
    }

    pub fn from_bytes(bytes: Cow<'static, [u8]>) -> Result<Self, OpenError> {
        Self::new(Contents::Memory(bytes), "the built-in recording".into())
    }

    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Returns the times of the first and the last frame.
    pub fn span(&self) -> (Mono, Mono) {
        let start = self.minutes.first().map_or(Mono(0), |m| m.start);
        let end = self.minutes.iter().map(|m| m.end).max();
        (start, end.unwrap_or(start))
    }

    /// Returns the wall time minus the monotonic time of the recording's first frame, in milliseconds. Returns `None`
    /// if no frame can be read.
    pub(super) fn wall_offset(&self) -> Option<i64> {
        let minutes = self.minutes.iter().filter(|minute| minute.frames > 0);
        minutes
            .filter_map(|minute| self.first_frame_time(minute))
            .find_map(|time| time.time.0.checked_sub(i64::try_from(time.mono.0).ok()?))
    }

    fn first_frame_time(&self, minute: &Minute) -> Option<FrameTime> {
        let mut lines = self.lines(minute).ok()?;
        loop {
            let line: Option<TimedLine> = serde_json::from_slice(lines.next().ok()??).ok();
            let time = line.filter(|line| line.from == 0).and_then(|line| line.frame);
            if time.is_some() {
                return time;
            }
        }
    }

    pub fn minute_count(&self) -> usize {
        self.minutes.len()
    }

    /// Returns the times of the first and the last line of a minute.
    pub fn minute_span(&self, minute: usize) -> (Mono, Mono) {
        let minute = self.minutes.get(minute).copied().unwrap_or_default();
        (minute.start, minute.end)
    }

    /// Returns true if data directly before a minute is unreadable, so that an unknown time is missing.
    pub fn is_after_damage(&self, minute: usize) -> bool {
        self.minutes.get(minute).is_some_and(|minute| self.after_damage.contains(&minute.offset))
    }

    /// Passes the lines of a minute to `take`. Returns false if part of the minute is unreadable. The last minute is an
    /// exception: unfinished recordings always end in the middle of a line.
    pub fn each_line(&self, minute: usize, mut take: impl FnMut(&[u8])) -> bool {
        let is_unfinished = !self.is_finished && minute + 1 >= self.minutes.len();
        let Some(mut lines) = self.minutes.get(minute).and_then(|m| self.lines(m).ok()) else {
            return is_unfinished;
        };
        loop {
            match lines.next() {
                Ok(Some(line)) => take(line),
                Ok(None) => return true,
                Err(DamagedMinute) => return is_unfinished,
            }
        }
    }

    /// Returns the chart values of a minute, if the minute has a note.
    pub fn minute_summary(&self, minute: usize) -> Option<Summary> {
        let mut room = MAX_NOTE_MEMORY;
        Some(self.note(self.minutes.get(minute)?, &mut room)?.summary)
    }

    fn new(contents: Contents, name: String) -> Result<Self, OpenError> {
        let contents = Arc::new(contents);
        let read = |source| OpenError::Read { name: name.clone(), source };
        if contents.len().map_err(read)? == 0 {
            return Err(OpenError::Empty(name));
        }
        let Some((hello, after)) = read_hello(&contents).map_err(read)? else {
            let head = contents.piece(0, 8).map_err(read)?;
            // Pickle protocols 2 to 5.
            if let [0x80, 2..=5, ..] = head[..] {
                return Err(OpenError::Pickle { name });
            }
            let begins = describe(&head);
            return Err(OpenError::Foreign { name, begins });
        };
        // Reject every required feature, because none is defined yet; see `Hello::requires`.
        if let Some(needs) = hello.requires.first().cloned() {
            let version = hello.version;
            return Err(OpenError::TooNew { name, version, needs });
        }
        let index = read_index(&contents).map_err(read)?;
        let is_finished = index.is_some();
        let Found { minutes, after_damage } = match index {
            Some(minutes) => Found { minutes, ..Found::default() },
            None => walk::minutes(&contents, after).map_err(read)?,
        };
        if minutes.iter().all(|m| m.frames == 0) {
            return Err(OpenError::NoFrames(name));
        }
        let has_holders = minutes.iter().any(|minute| minute.holders > 0);
        Ok(Self { contents, hello, minutes, after_damage, is_finished, has_holders })
    }

    pub(super) fn lines(&self, minute: &Minute) -> Result<Lines, DamagedMinute> {
        Lines::new(&self.contents, minute.offset, minute.offset + minute.bytes)
    }

    /// Returns the minutes before a minute, newest first, up to the start of the boot.
    pub(super) fn of_same_boot_before(&self, minute: usize) -> impl Iterator<Item = &Minute> {
        let mut later = self.minutes.get(minute).map_or(Mono(0), |minute| minute.start);
        let before = self.minutes.get(..minute).unwrap_or_default().iter().rev();
        before.take_while(move |minute| {
            let is_before = minute.start <= later;
            later = minute.start;
            is_before
        })
    }

    /// Returns true if the recording contains readings of memory holders.
    pub(super) fn has_holders(&self) -> bool {
        self.has_holders
    }

    /// Returns the note of a minute and subtracts its memory from `room`. Returns `None` if there is no note, or if the
    /// note is damaged or larger than `room`. The charts then have a gap.
    pub(super) fn note(&self, minute: &Minute, room: &mut usize) -> Option<MinuteNote> {
        if !(SKIPPABLE_HEADER..=MAX_NOTE_BYTES).contains(&minute.note) {
            return None;
        }
        let frame = self.contents.piece(minute.offset + minute.bytes, minute.note).ok()?;
        let payload = payload_of(&frame, NOTE_MAGIC)?;
        let line = payload.iter().position(|&byte| byte == b'\n')?;
        let packed = zstd::stream::read::Decoder::new(payload.get(line + 1..)?).ok()?;
        let mut text = Vec::new();
        packed.take(MAX_NOTE_BYTES).read_to_end(&mut text).ok()?;
        let (note, bytes) = bounded_json::read(&text, MAX_NOTE_MEMORY.min(*room)).ok()?;
        *room -= bytes;
        Some(note)
    }
}

fn payload_of(frame: &[u8], magic: u32) -> Option<&[u8]> {
    frame.strip_prefix(&magic.to_le_bytes())?.get(4..)
}

/// Returns the hello message and the position after it, or `None` if the file does not start with a hello message.
fn read_hello(contents: &Contents) -> io::Result<Option<(Hello, u64)>> {
    let header = contents.piece(0, SKIPPABLE_HEADER)?;
    let Some(length) = payload_of(&header, HELLO_MAGIC)
        .and(header.get(4..8))
        .and_then(|bytes| bytes.try_into().ok())
        .map(u32::from_le_bytes)
        .map(u64::from)
        .filter(|&length| length <= MAX_NOTE_BYTES)
    else {
        return Ok(None);
    };
    let line = contents.piece(SKIPPABLE_HEADER, length)?;
    Ok(match Line::read(&line) {
        Ok(Line::Update(Update::Hello(hello))) => {
            Some((Arc::unwrap_or_clone(hello), SKIPPABLE_HEADER + length))
        }
        _ => None,
    })
}

/// Returns the index of a finished recording, or `None` if it is missing or does not match the file.
fn read_index(contents: &Contents) -> io::Result<Option<Vec<Minute>>> {
    let length = contents.len()?;
    let footer = contents.piece(length.saturating_sub(INDEX_FOOTER), INDEX_FOOTER)?;
    let Some(whole) = footer
        .strip_suffix(INDEX_END)
        .and_then(|bytes| bytes.try_into().ok())
        .map(u32::from_le_bytes)
        .map(u64::from)
        .filter(|&whole| whole <= length.min(MAX_INDEX_BYTES) && whole > INDEX_FOOTER)
    else {
        return Ok(None);
    };
    let at = length - whole;
    let frame = contents.piece(at, whole - INDEX_FOOTER)?;
    let index = payload_of(&frame, INDEX_MAGIC)
        .and_then(|line| bounded_json::read::<Index>(line, MAX_INDEX_MEMORY).ok())
        .map(|(index, _)| index)
        .filter(|index| index.offset == at && are_in_order(&index.minutes, at));
    Ok(index.map(|index| index.minutes))
}

fn are_in_order(minutes: &[Minute], end: u64) -> bool {
    let mut at = 0;
    minutes.iter().all(|minute| {
        let after = minute
            .offset
            .checked_add(minute.bytes)
            .and_then(|after| after.checked_add(minute.note));
        let fits = minute.offset >= at && after.is_some_and(|after| after <= end);
        at = after.unwrap_or(end);
        fits
    })
}

fn describe(head: &[u8]) -> String {
    if head.starts_with(&HELLO_MAGIC.to_le_bytes()) {
        return "a damaged header".into();
    }
    if head.starts_with(&crate::source::layout::ZSTD_MAGIC.to_le_bytes()) {
        return "zstd data without a gputop header".into();
    }
    if head.iter().all(|byte| (b' '..=b'~').contains(byte)) {
        return format!("\u{201c}{}\u{201d}", String::from_utf8_lossy(head));
    }
    head.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<String>>().join(" ")
}
