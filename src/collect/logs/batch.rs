//! When text that is worth sending is sent: an error is printed line by line, and is to arrive as one.
//!
//! Text that is still growing waits until it is quiet, and never long; what comes after it was sent follows as an
//! excerpt that continues it, until the error has been over for a while.

use crate::diagnose::scan::{Excerpt, Scanner};
use crate::model::units::{Millis, Mono};

/// Text is sent when nothing was added for this long,
const QUIET: Millis = Millis(200);
/// or this long after it came, whole lines of it; a line without an end waits as long for its rest.
const LATEST: Millis = Millis(700);
/// What comes later than this after an error is sent only when it is the context of another.
const WINDOW: Millis = Millis(3_000);

/// A part of a log to send, as it was written.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    pub bytes: Vec<u8>,
    /// Where it begins in the log.
    pub offset: u64,
    /// The number of its first line, counted from 1 where the group begins.
    pub line: Option<u64>,
    /// It begins where the part before it ended.
    pub continues: bool,
}

#[derive(Debug, Default)]
pub struct Group {
    scanner: Scanner,
    /// Where the scanner's first byte is in the log.
    base: u64,
    /// Up to where the log was sent.
    sent_to: Option<u64>,
    /// Since when text waits.
    waits: Option<Mono>,
    /// Since when an error is followed.
    window: Option<Mono>,
    grew: Mono,
    /// Only a line without its end is left.
    is_held: bool,
}

impl Group {
    pub fn new(base: u64) -> Self {
        Self {
            base,
            ..Self::default()
        }
    }

    pub fn base(&self) -> u64 {
        self.base
    }

    pub fn sent_to(&self) -> Option<u64> {
        self.sent_to
    }

    /// Says that more was sent than this knows of.
    pub fn note_sent(&mut self, to: u64) {
        self.sent_to = Some(self.sent_to.unwrap_or(0).max(to));
    }

    pub fn push(&mut self, text: &[u8], now: Mono) -> Vec<Part> {
        let done = self.scanner.push(text);
        (self.grew, self.is_held) = (now, false);
        let mut parts: Vec<Part> = done.into_iter().filter_map(|e| self.part(e)).collect();
        self.note_window(now);
        parts.extend(self.flush(now));
        parts
    }

    /// What has waited long enough.
    pub fn flush(&mut self, now: Mono) -> Option<Part> {
        if self.due()? > now {
            return None;
        }
        if self.window.is_some_and(|since| now.since(since) >= WINDOW) {
            return self.finish();
        }
        let whole_lines = now.since(self.grew) < LATEST;
        let excerpt = self.scanner.flush(whole_lines);
        self.is_held = self.scanner.is_open();
        self.waits = self.is_held.then_some(now);
        self.part(excerpt?)
    }

    /// What waits, whatever it is: nothing will follow.
    pub fn finish(&mut self) -> Option<Part> {
        let excerpt = self.scanner.finish().pop();
        (self.waits, self.window, self.is_held) = (None, None, false);
        self.part(excerpt?)
    }

    /// When there is something to flush.
    pub fn due(&self) -> Option<Mono> {
        let waits = self.waits?;
        let quiet = if self.is_held { LATEST } else { QUIET };
        let (quiet, latest) = (self.grew.0 + quiet.0, waits.0 + LATEST.0);
        Some(Mono(quiet.min(latest)))
    }

    fn note_window(&mut self, now: Mono) {
        if !self.scanner.is_open() {
            self.waits = None;
            return;
        }
        self.waits = self.waits.or(Some(now));
        self.window = self.window.or(Some(now));
    }

    /// Without what was sent already: nothing, if that is all of it.
    fn part(&mut self, excerpt: Excerpt) -> Option<Part> {
        let Excerpt {
            mut bytes,
            mut first_line,
            start,
        } = excerpt;
        let mut offset = self.base + start;
        let end = offset + bytes.len() as u64;
        if let Some(sent) = self.sent_to.filter(|sent| *sent > offset) {
            let again = usize::try_from(sent.min(end) - offset).unwrap_or(usize::MAX);
            first_line += memchr::memchr_iter(b'\n', &bytes[..again]).count() as u64;
            bytes.drain(..again);
            offset = sent;
        }
        if bytes.is_empty() {
            return None;
        }
        let continues = self.sent_to == Some(offset);
        self.sent_to = Some(end);
        Some(Part {
            offset,
            line: Some(first_line),
            continues,
            bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = b"step 1\nTraceback (most recent call last):\n";
    const ERROR: &[u8] = b"RuntimeError: CUDA error: x\n";

    #[test]
    fn a_traceback_that_is_being_printed_arrives_as_one() {
        let mut group = Group::new(1_000);
        assert_eq!(group.push(HEAD, Mono(0)), []);
        assert_eq!(group.flush(Mono(100)), None);
        assert_eq!(group.push(ERROR, Mono(150)), []);
        assert_eq!(group.due(), Some(Mono(350)));
        let part = group.flush(Mono(350)).expect("it is quiet");
        assert_eq!(part.bytes, [HEAD, ERROR].concat());
        assert_eq!((part.offset, part.continues), (1_000, false));
        assert_eq!(group.due(), None);
        assert_eq!(group.push(b"rest\n", Mono(400)), []);
        let rest = group.flush(Mono(600)).expect("it is quiet again");
        assert_eq!((rest.bytes, rest.continues), (b"rest\n".to_vec(), true));
    }

    #[test]
    fn text_that_never_stops_is_sent_all_the_same() {
        let mut group = Group::new(0);
        let mut parts = group.push(HEAD, Mono(0));
        for at in (50..1_000).step_by(50) {
            parts.extend(group.push(b"  more\n", Mono(at)));
        }
        assert_eq!(parts.len(), 1);
        assert!(parts[0].bytes.starts_with(HEAD));
        assert_eq!(parts[0].line, Some(1));
    }

    #[test]
    fn a_line_without_an_end_waits_for_it_and_not_for_ever() {
        let mut group = Group::new(0);
        group.push(b"CUDA error: one\nCUDA er", Mono(0));
        let part = group.flush(Mono(200)).expect("its first line is whole");
        assert_eq!(part.bytes, b"CUDA error: one\n");
        assert_eq!(group.flush(Mono(400)), None);
        let part = group.flush(Mono(700)).expect("it has waited");
        assert_eq!(part.bytes, b"CUDA er");
        assert!(part.continues);
    }

    #[test]
    fn what_comes_long_after_an_error_is_not_sent() {
        let mut group = Group::new(0);
        group.push(ERROR, Mono(0));
        let mut parts: Vec<Part> = group.flush(Mono(200)).into_iter().collect();
        for second in 1..100 {
            parts.extend(group.push(b"an ordinary line of some length\n", Mono(second * 1_000)));
            parts.extend(group.flush(Mono(second * 1_000 + 250)));
        }
        assert!(parts.len() <= 5, "{}", parts.len());
        assert_eq!(group.due(), None);
        // It is the context of the next one.
        group.push(ERROR, Mono(200_000));
        let next = group.flush(Mono(200_200)).expect("an error");
        assert!(next.bytes.starts_with(b"an ordinary"));
    }
}
