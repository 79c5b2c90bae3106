//! Finds the minutes of a recording that has no index: one that is still written, was cut off, or is damaged.
//!
//! zstd frames tell the length of each of their blocks, so the walk reads some bytes per second of recording and
//! decompresses nothing. What does not parse is passed over to the next place that looks like a beginning; a false
//! one yields no frame and is dropped when it is measured.
//!
//! One block (RFC 8878, 3.1.1.2): `25 40 00` is, little-endian, last = 1, type = 2 (compressed), size = 0x804.

use std::io;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::contents::{Contents, Window};
use super::lines::Lines;
use crate::model::units::Mono;
use crate::source::layout::{
    HELLO_MAGIC, INDEX_MAGIC, MAX_INDEX_BYTES, Minute, NOTE_MAGIC, SKIPPABLE_HEADER, ZSTD_MAGIC,
};

/// zstd never makes larger blocks.
const MAX_BLOCK_BYTES: u64 = 128 << 10;
/// The plain line of a note is far shorter.
const MAX_NOTE_LINE: usize = 1 << 10;
/// Minutes without a note are decompressed to learn their times: a crash leaves one, damage a few. The limit is
/// a number of bytes, plus a number for each byte of the file; minutes beyond it are left out, so that a hostile file is not slow.
const MIN_MEASURED: u64 = 128 << 20;
const MEASURED_PER_BYTE: u64 = 40;

/// The minutes from `at` to the end.
pub fn minutes(contents: &Arc<Contents>, at: u64) -> io::Result<Vec<Minute>> {
    let mut walk = Walk {
        window: Window::new(contents),
        length: contents.len()?,
        found: Vec::new(),
    };
    walk.all(at)?;
    let max_bytes = MIN_MEASURED.saturating_add(walk.length.saturating_mul(MEASURED_PER_BYTE));
    Ok(measure(contents, walk.found, max_bytes))
}

struct Walk<'a> {
    window: Window<'a>,
    length: u64,
    found: Vec<Minute>,
}

enum Piece {
    Minute,
    Skippable(u32),
}

impl Walk<'_> {
    fn all(&mut self, mut at: u64) -> io::Result<()> {
        while at < self.length {
            at = match self.piece(at)? {
                Some((piece, end)) => {
                    self.take(&piece, at, end)?;
                    end
                }
                None => self.broken(at)?,
            };
        }
        Ok(())
    }

    /// What begins here and where it ends, if it is whole and something known follows it.
    fn piece(&mut self, at: u64) -> io::Result<Option<(Piece, u64)>> {
        let Some((piece, end)) = self.whole_piece(at)? else {
            return Ok(None);
        };
        let follows = end == self.length || self.magic(end)?.is_some_and(is_known);
        Ok(follows.then_some((piece, end)))
    }

    fn whole_piece(&mut self, at: u64) -> io::Result<Option<(Piece, u64)>> {
        match self.magic(at)? {
            Some(ZSTD_MAGIC) => {
                let end = self.end_of_zstd(at)?;
                Ok(end.map(|end| (Piece::Minute, end)))
            }
            Some(magic) if is_known(magic) => {
                let Some(length) = number::<4>(self.window.from(at + 4, 4)?) else {
                    return Ok(None);
                };
                let end = at + SKIPPABLE_HEADER + length;
                let whole = length <= MAX_INDEX_BYTES && end <= self.length;
                Ok(whole.then_some((Piece::Skippable(magic), end)))
            }
            _ => Ok(None),
        }
    }

    fn end_of_zstd(&mut self, at: u64) -> io::Result<Option<u64>> {
        let Some(&descriptor) = self.window.from(at + 4, 1)?.first() else {
            return Ok(None);
        };
        let mut block = at + 5 + header_rest(descriptor);
        loop {
            let Some(header) = number::<3>(self.window.from(block, 3)?) else {
                return Ok(None);
            };
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

    fn take(&mut self, piece: &Piece, at: u64, end: u64) -> io::Result<()> {
        match piece {
            Piece::Minute => self.push(at, end),
            Piece::Skippable(NOTE_MAGIC) => self.take_note(at, end)?,
            Piece::Skippable(_) => {}
        }
        Ok(())
    }

    fn push(&mut self, at: u64, end: u64) {
        self.found.push(Minute {
            offset: at,
            bytes: end - at,
            ..Minute::default()
        });
    }

    /// A note belongs to the minute it stands right behind, whatever offset it was written with: the file may have
    /// been glued together from others.
    fn take_note(&mut self, at: u64, end: u64) -> io::Result<()> {
        let text = self.window.from(at + SKIPPABLE_HEADER, MAX_NOTE_LINE)?;
        let line = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let Ok(told) = serde_json::from_slice::<Minute>(line) else {
            return Ok(());
        };
        if let Some(minute) = self.found.last_mut()
            && minute.offset + minute.bytes == at
        {
            *minute = Minute {
                offset: minute.offset,
                bytes: minute.bytes,
                note: end - at,
                ..told
            };
        }
        Ok(())
    }

    /// Goes on where something known begins. A minute that breaks off is kept: its first seconds may be whole.
    fn broken(&mut self, at: u64) -> io::Result<u64> {
        let next = self.next_known(at + 1)?;
        if self.magic(at)? == Some(ZSTD_MAGIC) {
            self.push(at, next);
        }
        Ok(next)
    }

    fn next_known(&mut self, mut at: u64) -> io::Result<u64> {
        loop {
            let bytes = self.window.from(at, 4)?;
            if bytes.len() < 4 {
                return Ok(self.length);
            }
            let here = bytes
                .windows(4)
                .position(|four| number::<4>(four).is_some_and(|n| is_known(n as u32)));
            if let Some(here) = here {
                return Ok(at + here as u64);
            }
            at += bytes.len() as u64 - 3;
        }
    }

    fn magic(&mut self, at: u64) -> io::Result<Option<u32>> {
        let number = number::<4>(self.window.from(at, 4)?);
        Ok(number.and_then(|n| u32::try_from(n).ok()))
    }
}

fn is_known(magic: u32) -> bool {
    matches!(magic, ZSTD_MAGIC | NOTE_MAGIC | HELLO_MAGIC | INDEX_MAGIC)
}

/// The little-endian number of `N` bytes at the front.
fn number<const N: usize>(bytes: &[u8]) -> Option<u64> {
    let bytes = bytes.get(..N)?;
    Some(bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
}

/// Length of a zstd frame header behind its descriptor byte.
fn header_rest(descriptor: u8) -> u64 {
    let single = descriptor >> 5 & 1;
    let window = u64::from(1 - single);
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let content = [u64::from(single), 2, 4, 8][usize::from(descriptor >> 6)];
    window + dictionary + content
}

/// Finds out what the minutes without a note cover, and drops those that hold no frame.
fn measure(contents: &Arc<Contents>, mut minutes: Vec<Minute>, mut budget: u64) -> Vec<Minute> {
    for minute in minutes.iter_mut().filter(|m| m.note == 0) {
        let end = minute.offset + minute.bytes;
        if let Ok(lines) = Lines::new(contents, minute.offset, end) {
            measure_one(minute, lines, &mut budget);
        }
    }
    minutes.retain(|minute| minute.note > 0 || minute.frames > 0);
    minutes
}

/// Of a line only the moment of its frame: quicker than the whole.
#[derive(Deserialize)]
struct Moment {
    #[serde(default)]
    from: u32,
    frame: Option<FrameMoment>,
    map: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct FrameMoment {
    #[serde(default)]
    mono: Mono,
}

fn measure_one(minute: &mut Minute, mut lines: Lines, budget: &mut u64) {
    let before = lines.left();
    while *budget > before - lines.left()
        && let Ok(Some(line)) = lines.next()
    {
        let Ok(Moment {
            from: 0,
            frame,
            map,
        }) = serde_json::from_slice(line)
        else {
            continue;
        };
        minute.maps += u64::from(map.is_some());
        let Some(frame) = frame else {
            continue;
        };
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
    use crate::model::frame::Frame;
    use crate::model::host::Hello;
    use crate::source::record::Recorder;

    fn walked(bytes: Vec<u8>) -> Vec<Minute> {
        minutes(&Arc::new(Contents::Memory(bytes.into())), 0).expect("memory reads")
    }

    fn recording() -> Vec<u8> {
        let mut recorder = Recorder::new(Vec::new(), &Hello::default()).expect("records");
        for seconds in 0..150 {
            let frame = Frame {
                seq: seconds,
                mono: Mono(seconds * 1_000),
                ..Frame::default()
            };
            recorder.frame(&frame).expect("records");
        }
        recorder.finish().expect("records")
    }

    #[test]
    fn the_walk_finds_what_the_index_tells() {
        let bytes = recording();
        let found = walked(bytes.clone());
        let covered: Vec<_> = found.iter().map(|m| (m.start.0, m.frames)).collect();
        assert_eq!(covered, [(0, 60), (60_000, 60), (120_000, 30)]);
        let footer = &bytes[bytes.len() - 12..];
        let index = bytes.len() - u32::from_le_bytes(footer[..4].try_into().expect("4")) as usize;
        let line = &bytes[index + 8..bytes.len() - 12];
        let told: crate::source::layout::Index = serde_json::from_slice(line).expect("JSON");
        assert_eq!(told.minutes, found);
    }

    #[test]
    fn a_length_that_leads_astray_is_not_followed() {
        let mut bytes = recording();
        let first = walked(bytes.clone())[0];
        let note = usize::try_from(first.offset + first.bytes).expect("small");
        // The first note claims to reach to the end of the file.
        let rest = u32::try_from(bytes.len() - note - 8).expect("small") - 3;
        bytes[note + 4..note + 8].copy_from_slice(&rest.to_le_bytes());
        let covered: Vec<_> = walked(bytes).iter().map(|m| m.frames).collect();
        assert_eq!(covered, [60, 60, 30]);
    }

    #[test]
    fn nothing_is_found_in_nothing() {
        assert_eq!(walked(Vec::new()), []);
        assert_eq!(walked(vec![0x28; 100_000]), []);
    }
}
