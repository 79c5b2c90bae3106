//! Finds the parts of a log that can contain errors, quickly and in bounded memory.
//!
//! Every text that matches a signature contains an anchor, one of the literals that its expression requires. The scanner
//! extracts the complete lines around each anchor. Only such excerpts are decoded. In a log without errors, the scanner
//! only searches for parts of anchors and counts line breaks.

use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, Input, Span, packed};
use memchr::{memchr, memchr_iter, memrchr};

/// Number of bytes to include before an anchor in its excerpt, for a traceback and the lines of other threads.
const CONTEXT_BEFORE: usize = 12 * 1024;
const CONTEXT_AFTER: usize = 6 * 1024;
/// Maximum size of an excerpt with several anchors, in bytes.
const MAX_EXCERPT: usize = 256 * 1024;
/// Maximum size in bytes of a text that is read whole although it contains no anchor.
const MAX_SHORT: u64 = 16 << 10;
const MAX_TEXTS_PER_SEARCHER: usize = 64;
/// Maximum length of an anchor in bytes, the same as in `anchor.rs`. An anchor can be split across two pieces of input.
const MAX_ANCHOR: usize = 32;

/// Texts to search for, each with the anchors that contain it and the offset of the text in them. The build script derives
/// them from the expressions of the cards ([`anchor`](super::anchor)).
const SEARCHES: &[Search] = include!(concat!(env!("OUT_DIR"), "/searches.rs"));

type Search = (&'static [u8], &'static [(usize, &'static [u8])]);

/// Part of a log that consists of complete lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogChunk {
    pub bytes: Vec<u8>,
    /// Line number of the excerpt's first line in the log, counted from 1.
    pub first_line: u64,
    /// Byte offset of the excerpt in the log.
    pub start: u64,
}

impl LogChunk {
    /// Returns both halves of the excerpt, split between two lines, or `None` for a single line.
    #[must_use]
    pub fn halves(&self) -> Option<[Self; 2]> {
        let middle = self.bytes.len() / 2;
        let before = memrchr(b'\n', &self.bytes[..middle]).map(|at| at + 1);
        let cut = before.unwrap_or_else(|| line_end(&self.bytes, middle));
        let (first, second) = self.bytes.split_at(cut);
        if second.is_empty() {
            return None;
        }
        let half = |bytes: &[u8], before: &[u8]| Self {
            bytes: bytes.to_vec(),
            first_line: self.first_line + memchr_iter(b'\n', before).count() as u64,
            start: self.start + before.len() as u64,
        };
        Some([half(first, &[]), half(second, first)])
    }
}

/// Reads a log piece by piece, and returns the excerpts around anchors.
#[derive(Debug)]
pub struct Scanner {
    /// The newest piece of the log, and earlier bytes that may still become part of an excerpt.
    buffer: Vec<u8>,
    /// Line number of the first line in the buffer.
    line: u64,
    searched: usize,
    /// Range of the excerpt that is still open, as offsets in the buffer.
    open: Option<(usize, usize)>,
    /// End of the last returned excerpt, as an offset in the buffer.
    returned: usize,
    pub bytes: u64,
}

impl Default for Scanner {
    fn default() -> Self {
        Self { buffer: Vec::new(), line: 1, searched: 0, open: None, returned: 0, bytes: 0 }
    }
}

impl Scanner {
    /// Adds a piece of the log and returns the completed excerpts.
    pub fn push(&mut self, piece: &[u8]) -> Vec<LogChunk> {
        self.bytes += piece.len() as u64;
        self.buffer.extend_from_slice(piece);
        let mut done = Vec::new();
        self.search(&mut done);
        if let Some((_, end)) = self.open
            && end <= self.buffer.len()
        {
            self.close(&mut done);
        }
        self.drop_unneeded();
        done
    }

    /// Makes a short text without any anchor an excerpt, because people paste the lines of an error without those around
    /// them.
    pub(crate) fn open_short_text(&mut self) {
        let is_unread = self.open.is_none() && self.returned == 0;
        if is_unread && self.bytes == self.buffer.len() as u64 && self.bytes <= MAX_SHORT {
            self.open = Some((0, self.buffer.len()));
        }
    }

    /// Marks the end of the log and returns the last excerpt, if one is open.
    pub fn finish(&mut self) -> Vec<LogChunk> {
        let mut done = Vec::new();
        if self.open.is_some() {
            self.close(&mut done);
        }
        done
    }

    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.is_some_and(|(start, end)| start < end.min(self.buffer.len()))
    }

    /// Returns the text of the open excerpt so far, for a log that is still being written. Text that arrives later
    /// becomes another excerpt. If `whole_lines` is true, an incomplete last line is not returned yet.
    pub fn flush(&mut self, whole_lines: bool) -> Option<LogChunk> {
        let (start, end) = self.open?;
        let available = end.min(self.buffer.len());
        let text = self.buffer.get(start..available).filter(|t| !t.is_empty())?;
        let cut = match memrchr(b'\n', text) {
            Some(newline) if whole_lines => start + newline,
            None if whole_lines => return None,
            _ => available,
        };
        let mut done = Vec::new();
        self.open = Some((start, cut));
        self.close(&mut done);
        if end > self.returned {
            self.open = Some((self.returned, end));
        }
        done.pop()
    }

    fn search(&mut self, done: &mut Vec<LogChunk>) {
        let from = self.searched.saturating_sub(MAX_ANCHOR);
        for anchor in find(&self.buffer[from..]) {
            self.add_anchor(from + anchor, done);
        }
        self.searched = self.buffer.len();
    }

    /// Opens or extends an excerpt around the anchor at offset `at`.
    fn add_anchor(&mut self, at: usize, done: &mut Vec<LogChunk>) {
        let start = at.saturating_sub(CONTEXT_BEFORE).max(self.returned);
        let end = at + CONTEXT_AFTER;
        match self.open {
            Some((first, last)) if start <= last && end - first <= MAX_EXCERPT => {
                self.open = Some((first, end));
            }
            Some((_, last)) if start <= last => {
                // The excerpt is full: close it, and start the next one at its end.
                self.open = self.open.map(|(first, _)| (first, at));
                self.close(done);
                self.open = Some((self.returned, end));
            }
            Some(_) => {
                self.close(done);
                self.open = Some((start.max(self.returned), end));
            }
            None => self.open = Some((start, end)),
        }
    }

    fn close(&mut self, done: &mut Vec<LogChunk>) {
        let Some((start, end)) = self.open.take() else {
            return;
        };
        let start = line_start(&self.buffer, start, self.returned);
        let end = line_end(&self.buffer, end.min(self.buffer.len()));
        if start >= end {
            return;
        }
        let before = memchr_iter(b'\n', &self.buffer[..start]).count() as u64;
        done.push(LogChunk {
            bytes: self.buffer[start..end].to_vec(),
            first_line: self.line + before,
            start: self.bytes - (self.buffer.len() - start) as u64,
        });
        self.returned = end;
    }

    /// Removes bytes that no excerpt needs from the start of the buffer.
    fn drop_unneeded(&mut self) {
        let keep = self.open.map_or_else(
            || {
                self.buffer
                    .len()
                    .saturating_sub(CONTEXT_BEFORE)
                    .max(self.returned.min(self.buffer.len()))
            },
            |(start, _)| start.saturating_sub(1024),
        );
        // Wait until more bytes can be dropped, because it is not worth moving the buffer for a few bytes.
        if keep < 64 * 1024 {
            return;
        }
        self.line += memchr_iter(b'\n', &self.buffer[..keep]).count() as u64;
        self.buffer.drain(..keep);
        self.searched -= keep;
        self.returned = self.returned.saturating_sub(keep);
        self.open = self.open.map(|(start, end)| (start - keep, end - keep));
    }
}

/// Returns the offsets of anchors in `text` in order, at most one per line from each searcher.
fn find(text: &[u8]) -> Vec<usize> {
    let mut offsets: Vec<usize> =
        searchers().iter().flat_map(|searcher| searcher.lines(text)).collect();
    offsets.sort_unstable();
    offsets
}

/// A search for the anchors of up to [`MAX_TEXTS_PER_SEARCHER`] texts.
struct Searcher {
    searches: Vec<&'static Search>,
    texts: TextSearcher,
}

enum TextSearcher {
    Vector(packed::Searcher),
    /// Searcher for processors without vector instructions.
    Plain(Box<AhoCorasick>),
    Nothing,
}

impl Searcher {
    fn of(searches: &[&'static Search]) -> Self {
        let texts = || searches.iter().map(|(text, _)| text);
        let found = match (packed::Searcher::new(texts()), AhoCorasick::new(texts())) {
            (Some(searcher), _) => TextSearcher::Vector(searcher),
            (None, Ok(plain)) => TextSearcher::Plain(Box::new(plain)),
            // Building a searcher from these literals never fails; a test verifies this.
            (None, Err(_)) => TextSearcher::Nothing,
        };
        Self { searches: searches.to_vec(), texts: found }
    }

    /// Returns the offset of the first anchor in each line that contains one.
    fn lines(&self, text: &[u8]) -> Vec<usize> {
        let mut offsets = Vec::new();
        let mut at = 0;
        while let Some(found) = self.next(text, at) {
            offsets.push(found);
            let Some(end) = memchr(b'\n', &text[found..]) else {
                break;
            };
            at = found + end;
        }
        offsets
    }

    /// Returns the offset of the first part of an anchor from `at` on.
    fn next(&self, text: &[u8], mut at: usize) -> Option<usize> {
        loop {
            let (start, index) = self.texts.find(text, at)?;
            let is_anchor = |(offset, anchor): &(usize, &[u8])| {
                let start = start.checked_sub(*offset);
                start.is_some_and(|start| text[start..].starts_with(anchor))
            };
            if self.searches[index].1.iter().any(is_anchor) {
                return Some(start);
            }
            at = start + 1;
        }
    }
}

impl TextSearcher {
    /// Returns the offset of the first text from `at` on, and the index of the text.
    fn find(&self, text: &[u8], at: usize) -> Option<(usize, usize)> {
        let found = match self {
            Self::Vector(searcher) => searcher.find_in(text, Span::from(at..text.len())),
            Self::Plain(searcher) => searcher.find(Input::new(text).span(at..text.len())),
            Self::Nothing => None,
        }?;
        Some((found.start(), found.pattern().as_usize()))
    }
}

fn searchers() -> &'static [Searcher] {
    static SEARCHERS: OnceLock<Vec<Searcher>> = OnceLock::new();
    SEARCHERS.get_or_init(|| {
        // Split the texts into parts of nearly equal size. Otherwise, the last searcher could be left with only a few
        // texts, but would take as long as one with many.
        let searchers = SEARCHES.len().div_ceil(MAX_TEXTS_PER_SEARCHER);
        // The vector search compares the lower halves of the first four bytes. Similar texts share a searcher, which then
        // has fewer false candidates. This halves the time.
        let mut searches: Vec<&Search> = SEARCHES.iter().collect();
        searches.sort_unstable_by_key(|(text, _)| -> [u8; 4] {
            std::array::from_fn(|i| text.get(i).map_or(0, |byte| byte & 0xf))
        });
        searches.chunks(searches.len().div_ceil(searchers)).map(Searcher::of).collect()
    })
}

#[must_use]
pub fn has_anchor(text: &[u8]) -> bool {
    !find(text).is_empty()
}

/// Returns the start of the line that contains offset `at`, but not before `from`. In a very long line, returns an
/// offset at most 4096 bytes before `at`.
fn line_start(text: &[u8], at: usize, from: usize) -> usize {
    let at = at.min(text.len());
    let from = from.min(at).max(at.saturating_sub(4096));
    memrchr(b'\n', &text[from..at]).map_or(from, |n| from + n + 1)
}

fn line_end(text: &[u8], at: usize) -> usize {
    let near = &text[at..(at + 4096).min(text.len())];
    memchr(b'\n', near).map_or(at + near.len(), |n| at + n + 1)
}

#[cfg(test)]
mod tests;
