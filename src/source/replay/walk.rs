//! Finds the minutes of a recording that has no index because it is still being written, was truncated, or is damaged.
//!
//! Each zstd frame contains the lengths of its blocks, so the search reads only a few bytes per second of recording and
//! decompresses nothing. Unparsable data is skipped up to the next possible start of a minute. Bytes that only look
//! like a start contain no frames, so `measure` drops them.
//!
//! Example of a zstd block header (RFC 8878, 3.1.1.2): `25 40 00` is little-endian for last = 1, type = 2 (compressed),
//! size = 0x804.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use super::contents::{Contents, ReadWindow};
use super::lines::{Lines, TimedLine};
use crate::source::layout::{
    HELLO_MAGIC, INDEX_MAGIC, MAX_INDEX_BYTES, Minute, NOTE_MAGIC, SKIPPABLE_HEADER, ZSTD_MAGIC,
};

const MAX_BLOCK_BYTES: u64 = 128 << 10;
/// Maximum length of the uncompressed first line of a note. Real first lines are far shorter.
const MAX_NOTE_LINE_BYTES: usize = 1 << 10;
/// Minutes without a note are decompressed to find their times: a crash leaves one such minute, damage leaves a few.
/// Their total decompressed size is limited to this number of bytes plus a multiple of the file size. Minutes beyond
/// the limit are skipped, so that a malicious file does not take long to open.
const MIN_MEASURED_BYTES: u64 = 128 << 20;
const MEASURED_BYTES_PER_FILE_BYTE: u64 = 40;

/// The minutes of a recording, and the offsets of those that follow data of which nothing can be read.
#[derive(Debug, Default, PartialEq)]
pub struct Found {
    pub minutes: Vec<Minute>,
    pub after_damage: BTreeSet<u64>,
}

/// Returns the [`Minute`] records from file offset `at` to the end of the file.
pub fn minutes(contents: &Arc<Contents>, at: u64) -> io::Result<Found> {
    let mut walk = RecordingWalk {
        window: ReadWindow::new(contents),
        length: contents.len()?,
        found: Found::default(),
        has_skipped: false,
    };
    walk.find_minutes(at)?;
    let max_bytes =
        MIN_MEASURED_BYTES.saturating_add(walk.length.saturating_mul(MEASURED_BYTES_PER_FILE_BYTE));
    measure(contents, &mut walk.found, max_bytes);
    Ok(walk.found)
}

struct RecordingWalk<'a> {
    window: ReadWindow<'a>,
    length: u64,
    found: Found,
    /// True if data has been skipped since the last minute.
    has_skipped: bool,
}

enum Part {
    Minute,
    Skippable(u32),
}

impl RecordingWalk<'_> {
    fn find_minutes(&mut self, mut at: u64) -> io::Result<()> {
        while at < self.length {
            at = match self.part(at)? {
                Some((part, end)) => {
                    self.add_part(&part, at, end)?;
                    end
                }
                None => self.skip_damage(at)?,
            };
        }
        Ok(())
    }

    /// Returns the file part that starts at `at`, and its end, if the part is complete and followed by a part of a
    /// known type.
    fn part(&mut self, at: u64) -> io::Result<Option<(Part, u64)>> {
        let Some((part, end)) = self.complete_part(at)? else { return Ok(None) };
        let follows = end == self.length || self.magic(end)?.is_some_and(is_known);
        Ok(follows.then_some((part, end)))
    }

    fn complete_part(&mut self, at: u64) -> io::Result<Option<(Part, u64)>> {
        match self.magic(at)? {
            Some(ZSTD_MAGIC) => {
                let end = self.end_of_zstd(at)?;
                Ok(end.map(|end| (Part::Minute, end)))
            }
            Some(magic) if is_known(magic) => {
                let Some(length) = number::<4>(self.window.from(at + 4, 4)?) else {
                    return Ok(None);
                };
                let end = at + SKIPPABLE_HEADER + length;
                let whole = length <= MAX_INDEX_BYTES && end <= self.length;
                Ok(whole.then_some((Part::Skippable(magic), end)))
            }
            _ => Ok(None),
        }
    }

    fn end_of_zstd(&mut self, at: u64) -> io::Result<Option<u64>> {
        let Some(&descriptor) = self.window.from(at + 4, 1)?.first() else { return Ok(None) };
        let mut block = at + 5 + header_rest(descriptor);
        loop {
            let Some(header) = number::<3>(self.window.from(block, 3)?) else { return Ok(None) };
            let size = header >> 3;
            let stored = match header >> 1 & 3 {
                0 | 2 => size,
                1 => 1,
                _ => return Ok(None),
            };
            block += 3 + stored;
            if size > MAX_BLOCK_BYTES || block > self.length {
                return Ok(None);
            }
            if header & 1 == 1 {
                let end = block + if descriptor & 4 == 4 { 4 } else { 0 };
                return Ok((end <= self.length).then_some(end));
            }
        }
    }

    fn add_part(&mut self, part: &Part, at: u64, end: u64) -> io::Result<()> {
        match part {
            Part::Minute => self.push(at, end),
            Part::Skippable(NOTE_MAGIC) => self.add_note(at, end)?,
            Part::Skippable(_) => {}
        }
        Ok(())
    }

    fn push(&mut self, at: u64, end: u64) {
        if std::mem::take(&mut self.has_skipped) {
            self.found.after_damage.insert(at);
        }
        self.found.minutes.push(Minute { offset: at, bytes: end - at, ..Minute::default() });
    }

    /// Adds a note to the minute that directly precedes it. Ignores the offset in the note, because the file may be
    /// several recordings joined together.
    fn add_note(&mut self, at: u64, end: u64) -> io::Result<()> {
        let text = self.window.from(at + SKIPPABLE_HEADER, MAX_NOTE_LINE_BYTES)?;
        let line = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let Ok(note) = serde_json::from_slice::<Minute>(line) else { return Ok(()) };
        if let Some(minute) = self.found.minutes.last_mut()
            && minute.offset + minute.bytes == at
        {
            *minute = Minute { offset: minute.offset, bytes: minute.bytes, note: end - at, ..note };
        }
        Ok(())
    }

    /// Skips damaged data up to the next known start of a minute. Retains a truncated minute, because its first seconds
    /// may be intact.
    fn skip_damage(&mut self, at: u64) -> io::Result<u64> {
        let next = self.next_known(at + 1)?;
        match self.magic(at)? {
            Some(ZSTD_MAGIC) => self.push(at, next),
            // A note contains no frames.
            Some(NOTE_MAGIC) => {}
            _ => self.has_skipped = true,
        }
        Ok(next)
    }

    fn next_known(&mut self, mut at: u64) -> io::Result<u64> {
        loop {
            let bytes = self.window.from(at, 4)?;
            if bytes.len() < 4 {
                return Ok(self.length);
            }
            let found =
                bytes.array_windows().position(|magic| is_known(u32::from_le_bytes(*magic)));
            if let Some(found) = found {
                return Ok(at + found as u64);
            }
            at += bytes.len() as u64 - 3;
        }
    }

    fn magic(&mut self, at: u64) -> io::Result<Option<u32>> {
        Ok(number::<4>(self.window.from(at, 4)?).and_then(|n| u32::try_from(n).ok()))
    }
}

fn is_known(magic: u32) -> bool {
    matches!(magic, ZSTD_MAGIC | NOTE_MAGIC | HELLO_MAGIC | INDEX_MAGIC)
}

/// Returns the little-endian number in the first `N` bytes.
fn number<const N: usize>(bytes: &[u8]) -> Option<u64> {
    Some(bytes.get(..N)?.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
}

/// Returns the length of a zstd frame header, excluding its magic number and descriptor byte.
fn header_rest(descriptor: u8) -> u64 {
    let single = descriptor >> 5 & 1;
    let window = u64::from(1 - single);
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let content = [u64::from(single), 2, 4, 8][usize::from(descriptor >> 6)];
    window + dictionary + content
}

/// Reads the minutes without a note to find their times and frame counts, and drops the minutes without a frame.
fn measure(contents: &Arc<Contents>, found: &mut Found, mut budget: u64) {
    for minute in found.minutes.iter_mut().filter(|m| m.note == 0) {
        let end = minute.offset + minute.bytes;
        if let Ok(lines) = Lines::new(contents, minute.offset, end) {
            measure_one(minute, lines, &mut budget);
        }
    }
    let (mut has_dropped, after_damage) = (false, &mut found.after_damage);
    found.minutes.retain(|minute| {
        let is_readable = minute.note > 0 || minute.frames > 0;
        if is_readable && has_dropped {
            after_damage.insert(minute.offset);
        }
        has_dropped = !is_readable;
        is_readable
    });
}

fn measure_one(minute: &mut Minute, mut lines: Lines, budget: &mut u64) {
    let before = lines.left();
    while *budget > before - lines.left()
        && let Ok(Some(line)) = lines.next()
    {
        let Ok(line) = serde_json::from_slice(line) else { continue };
        let TimedLine { from: 0, frame, map, holder_reading } = line else { continue };
        minute.maps += u64::from(map.is_some());
        minute.holders += u64::from(holder_reading.is_some());
        let Some(frame) = frame else { continue };
        if minute.frames == 0 {
            minute.start = frame.mono;
        }
        minute.frames += 1;
        minute.end = minute.end.max(frame.mono);
    }
    *budget = budget.saturating_sub(before - lines.left());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::record::Recorder;
    use gputop_model::frame::Frame;
    use gputop_model::host::Hello;
    use gputop_model::units::Mono;

    fn found(bytes: Vec<u8>) -> Found {
        minutes(&Arc::new(Contents::Memory(bytes.into())), 0).expect("memory reads")
    }

    fn walked(bytes: Vec<u8>) -> Vec<Minute> {
        found(bytes).minutes
    }

    fn recording() -> Vec<u8> {
        let mut recorder = Recorder::new(Vec::new(), &Hello::default()).expect("records");
        for seconds in 0..150 {
            let frame = Frame { seq: seconds, mono: Mono(seconds * 1_000), ..Frame::default() };
            recorder.frame(&frame).expect("records");
        }
        recorder.finish().expect("records")
    }

    #[test]
    fn the_walk_finds_the_minutes_of_the_index() {
        let bytes = recording();
        let found = walked(bytes.clone());
        let covered: Vec<_> = found.iter().map(|m| (m.start.0, m.frames)).collect();
        assert_eq!(covered, [(0, 60), (60_000, 60), (120_000, 30)]);
        let footer = &bytes[bytes.len() - 12..];
        let index = bytes.len() - u32::from_le_bytes(footer[..4].try_into().expect("4")) as usize;
        let line = &bytes[index + 8..bytes.len() - 12];
        let stored: crate::source::layout::Index = serde_json::from_slice(line).expect("JSON");
        assert_eq!(stored.minutes, found);
    }

    #[test]
    fn marks_the_minute_after_unreadable_data() {
        let bytes = recording();
        let whole = found(bytes.clone());
        assert_eq!(whole.after_damage, BTreeSet::new());
        let mut damaged = bytes;
        damaged[usize::try_from(whole.minutes[0].offset).expect("small")] ^= 1;
        let found = found(damaged);
        assert_eq!(found.minutes, whole.minutes[1..]);
        assert_eq!(found.after_damage, BTreeSet::from([whole.minutes[1].offset]));
    }

    #[test]
    fn ignores_a_wrong_length() {
        let mut bytes = recording();
        let first = walked(bytes.clone())[0];
        let note = usize::try_from(first.offset + first.bytes).expect("small");
        // Set the first note's length so that the note seems to extend to the end of the file.
        let rest = u32::try_from(bytes.len() - note - 8).expect("small") - 3;
        bytes[note + 4..note + 8].copy_from_slice(&rest.to_le_bytes());
        let covered: Vec<_> = walked(bytes).iter().map(|m| m.frames).collect();
        assert_eq!(covered, [60, 60, 30]);
    }

    #[test]
    fn finds_no_minutes_in_other_data() {
        assert_eq!(walked(Vec::new()), []);
        assert_eq!(walked(vec![0x28; 100_000]), []);
    }
}
