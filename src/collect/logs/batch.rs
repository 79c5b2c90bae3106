//! Collects the lines of an error, which a program prints one by one, so that they are sent as one excerpt.
//!
//! An error's text is held until it stops growing or a time limit is reached, and is then sent. For a few seconds after
//! the error, further text is sent as a continuation of the excerpt.

use gputop_explain::scan::{LogChunk, Scanner};
use gputop_model::{Millis, Mono};

/// Time without new text after which the waiting text is sent.
const QUIET_INTERVAL: Millis = Millis(200);
/// Maximum delay between reading and sending a complete line. An incomplete line is held for the same time, in case its
/// end arrives.
const MAX_DELAY: Millis = Millis(700);
/// Time after an error during which further text is sent as context. Later text is sent only if it contains another
/// error.
const FOLLOW_LIMIT: Millis = Millis(3_000);

/// Part of a log to send, with the log's original bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    pub bytes: Vec<u8>,
    /// Offset of the part in the log.
    pub offset: u64,
    /// Number of the part's first line, counted from 1 at the offset where gputop started to read the log.
    pub line: Option<u64>,
    /// True if the part begins where the previous part ended.
    pub continues: bool,
}

#[derive(Debug, Default)]
pub struct Group {
    scanner: Scanner,
    /// Log offset of the first byte passed to the scanner.
    base: u64,
    /// End offset of the text sent so far.
    sent_to: Option<u64>,
    /// Time since which text has been waiting to be sent.
    waiting_since: Option<Mono>,
    /// Time of the error whose context is being sent.
    followed_since: Option<Mono>,
    grew_at: Mono,
    /// True if the only waiting text is an incomplete line.
    is_line_open: bool,
}

impl Group {
    pub fn new(base: u64) -> Self {
        Self { base, ..Self::default() }
    }

    pub fn base(&self) -> u64 {
        self.base
    }

    pub fn sent_to(&self) -> Option<u64> {
        self.sent_to
    }

    /// Records that the caller sent the log up to offset `to`.
    pub fn note_sent(&mut self, to: u64) {
        self.sent_to = Some(self.sent_to.unwrap_or(0).max(to));
    }

    pub fn push(&mut self, text: &[u8], now: Mono) -> Vec<Part> {
        let done = self.scanner.push(text);
        (self.grew_at, self.is_line_open) = (now, false);
        let mut parts: Vec<Part> = done.into_iter().filter_map(|e| self.part(e)).collect();
        self.note_waiting(now);
        parts.extend(self.flush(now));
        parts
    }

    /// Returns the text that is waiting to be sent, if it is due.
    pub fn flush(&mut self, now: Mono) -> Option<Part> {
        if self.due()? > now {
            return None;
        }
        if self.followed_since.is_some_and(|since| now.since(since) >= FOLLOW_LIMIT) {
            return self.finish();
        }
        let whole_lines = now.since(self.grew_at) < MAX_DELAY;
        let excerpt = self.scanner.flush(whole_lines);
        self.is_line_open = self.scanner.is_open();
        self.waiting_since = self.is_line_open.then_some(now);
        self.part(excerpt?)
    }

    /// Returns all waiting text. Call it when no more text will follow.
    pub fn finish(&mut self) -> Option<Part> {
        let excerpt = self.scanner.finish().pop();
        (self.waiting_since, self.followed_since, self.is_line_open) = (None, None, false);
        self.part(excerpt?)
    }

    /// Returns the time at which the waiting text is due to be sent.
    pub fn due(&self) -> Option<Mono> {
        let since = self.waiting_since?;
        let quiet = if self.is_line_open { MAX_DELAY } else { QUIET_INTERVAL };
        let (quiet, latest) = (self.grew_at.0 + quiet.0, since.0 + MAX_DELAY.0);
        Some(Mono(quiet.min(latest)))
    }

    fn note_waiting(&mut self, now: Mono) {
        if !self.scanner.is_open() {
            self.waiting_since = None;
            return;
        }
        self.waiting_since = self.waiting_since.or(Some(now));
        self.followed_since = self.followed_since.or(Some(now));
    }

    /// Converts an excerpt to a part, without text that was already sent. Returns `None` if nothing remains.
    fn part(&mut self, excerpt: LogChunk) -> Option<Part> {
        let LogChunk { mut bytes, mut first_line, start } = excerpt;
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
        Some(Part { offset, line: Some(first_line), continues, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = b"step 1\nTraceback (most recent call last):\n";
    const ERROR: &[u8] = b"RuntimeError: CUDA error: x\n";

    #[test]
    fn sends_a_traceback_that_is_being_printed_as_one_part() {
        let mut group = Group::new(1_000);
        assert_eq!(group.push(HEAD, Mono(0)), []);
        assert_eq!(group.flush(Mono(100)), None);
        assert_eq!(group.push(ERROR, Mono(150)), []);
        assert_eq!(group.due(), Some(Mono(350)));
        let part = group.flush(Mono(350)).expect("the error is sent after the quiet interval");
        assert_eq!(part.bytes, [HEAD, ERROR].concat());
        assert_eq!((part.offset, part.continues), (1_000, false));
        assert_eq!(group.due(), None);
        assert_eq!(group.push(b"rest\n", Mono(400)), []);
        let rest = group
            .flush(Mono(600))
            .expect("the remaining text is sent after another quiet interval");
        assert_eq!((rest.bytes, rest.continues), (b"rest\n".to_vec(), true));
    }

    #[test]
    fn sends_text_that_never_stops() {
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
    fn an_incomplete_line_waits_for_its_end_up_to_a_limit() {
        let mut group = Group::new(0);
        group.push(b"CUDA error: one\nCUDA er", Mono(0));
        let part = group.flush(Mono(200)).expect("the complete first line is sent");
        assert_eq!(part.bytes, b"CUDA error: one\n");
        assert_eq!(group.flush(Mono(400)), None);
        let part = group.flush(Mono(700)).expect("the incomplete last line is sent");
        assert_eq!(part.bytes, b"CUDA er");
        assert!(part.continues);
    }

    #[test]
    fn does_not_send_text_long_after_an_error() {
        let mut group = Group::new(0);
        group.push(ERROR, Mono(0));
        let mut parts: Vec<Part> = group.flush(Mono(200)).into_iter().collect();
        for second in 1..100 {
            parts.extend(group.push(b"an ordinary line of some length\n", Mono(second * 1_000)));
            parts.extend(group.flush(Mono(second * 1_000 + 250)));
        }
        assert!(parts.len() <= 5, "{}", parts.len());
        assert_eq!(group.due(), None);
        // The waiting text is sent as context for the next error.
        group.push(ERROR, Mono(200_000));
        let next = group.flush(Mono(200_200)).expect("an error");
        assert!(next.bytes.starts_with(b"an ordinary"));
    }
}
