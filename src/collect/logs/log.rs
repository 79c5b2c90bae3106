//! One log that is followed, and the processes that write to it.
//!
//! A log that several processes share is read once. What is found in it is of whoever writes there: of one process
//! if it is one, else of all of them, since a line does not tell (and what it claims is not believed).

use std::borrow::Cow;

use super::batch::{Group, Part};
use super::content::Body;
use super::docker;
use super::sanitize::shown;

use crate::diagnose::scan::has_anchor;
use crate::model::event::{LogExcerpt, LogOrigin, LogWhy};
use crate::model::log::{LogSource, LogView};
use crate::model::process::ProcessKey;
use crate::model::reading::{Reading, Reason};
use crate::model::units::{Bytes, Mono};

/// The most that is sent of the end of a log.
const MAX_TAIL: u64 = 16 << 10;
/// The most that a screen shows.
const MAX_VIEW: u64 = 256 << 10;
/// The most that one excerpt holds.
const MAX_SENT: usize = 64 << 10;
/// How long after the end of a process its last words may arrive: they pass through pipes and file servers.
const AFTER_END: u64 = 500;
/// A failed allocation is told of by whoever catches it, a little later.
const AFTER_OOM: u64 = 700;

/// An excerpt, and the process that it is of, where that is one.
#[derive(Debug, Clone, PartialEq)]
pub struct Excerpted {
    pub process: Option<ProcessKey>,
    pub excerpt: LogExcerpt,
}

/// A process that writes to a log.
#[derive(Debug)]
struct Writer {
    key: ProcessKey,
    /// What was written before is older than the moment of attaching.
    from: u64,
    ended: bool,
}

#[derive(Debug)]
struct Asked {
    key: ProcessKey,
    why: LogWhy,
    due: Mono,
}

#[derive(Debug)]
pub struct Log {
    name: Reading<String>,
    origin: LogOrigin,
    body: Body,
    group: Group,
    /// How many lines lie before the group, once that was counted; they cannot be in a long log.
    lines_before: Option<Option<u64>>,
    writers: Vec<Writer>,
    asked: Vec<Asked>,
    allowance: Allowance,
    /// Text was passed over, and that was not told yet.
    sampled: bool,
    left_out: u64,
    looked: Mono,
    /// The look before the newest text came.
    before_newest: Mono,
}

impl Log {
    pub fn new(name: Reading<String>, origin: LogOrigin, body: Body, now: Mono) -> Self {
        let from = body.offset();
        Self {
            name,
            origin,
            group: Group::new(from),
            lines_before: None,
            body,
            writers: Vec::new(),
            asked: Vec::new(),
            allowance: Allowance::new(now),
            sampled: false,
            left_out: 0,
            looked: now,
            before_newest: now,
        }
    }

    /// `from` is the moment of attaching, as a place in the log.
    pub fn add_writer(&mut self, key: ProcessKey, from: u64) {
        if !self.writers.iter().any(|writer| writer.key == key) {
            self.writers.push(Writer {
                key,
                from,
                ended: false,
            });
        }
    }

    /// Up to where it was read.
    pub fn offset(&self) -> u64 {
        self.body.offset()
    }

    pub fn remove_writer(&mut self, key: ProcessKey) {
        self.writers.retain(|writer| writer.key != key);
    }

    /// Nobody writes here any more, and all was told.
    pub fn is_over(&self) -> bool {
        self.asked.is_empty() && self.writers.iter().all(|writer| writer.ended)
    }

    /// Has the end of the log sent, a moment later.
    pub fn ask(&mut self, key: ProcessKey, why: LogWhy, now: Mono) {
        if !self.writers.iter().any(|writer| writer.key == key) {
            return;
        }
        let pause = match why {
            LogWhy::Ended => AFTER_END,
            _ => AFTER_OOM,
        };
        let due = Mono(now.0 + pause);
        if !self.asked.iter().any(|a| a.key == key && a.why == why) {
            self.asked.push(Asked { key, why, due });
            self.body.hurry();
        }
    }

    /// When it is to be looked at again, if that is before its turn.
    pub fn due(&self) -> Option<Mono> {
        let asked = self.asked.iter().map(|asked| asked.due);
        asked.chain(self.group.due()).min()
    }

    /// Reads what is new, and gives what is to be told.
    pub fn look(&mut self, buffer: &mut Vec<u8>, now: Mono) -> Vec<Excerpted> {
        let mut parts = self.read(buffer, now);
        parts.extend(self.group.flush(now));
        let mut told: Vec<Excerpted> = parts
            .into_iter()
            .filter_map(|part| self.tell(part, LogWhy::Matched, None, now))
            .collect();
        told.extend(self.answer(now));
        told
    }

    /// Adds this log to what a screen shows of a process; the text is that of the log which was written to last.
    pub fn add_to(&self, view: &mut LogView, key: ProcessKey) {
        let source = LogSource {
            name: self.name.value().cloned().unwrap_or_default(),
            origin: self.origin,
            is_sampled: self.sampled,
            writers: self.writers.len(),
        };
        let Some(writer) = self.writers.iter().find(|writer| writer.key == key) else {
            return;
        };
        let end = self.body.offset();
        let text = self.text(writer.from.max(end.saturating_sub(MAX_VIEW)), end);
        if view.text.value().is_none_or(|known| known.is_empty()) {
            view.errors = text.value().map(|text| errors_in(text)).unwrap_or_default();
            view.text = text;
            view.sources.insert(0, source);
        } else {
            view.sources.push(source);
        }
    }

    fn plain<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        match self.origin {
            LogOrigin::Docker => docker::plain(bytes).into(),
            _ => bytes.into(),
        }
    }

    fn text(&self, from: u64, to: u64) -> Reading<String> {
        match self.body.between(from, to) {
            Ok(bytes) => Reading::Value(shown(&self.plain(&bytes), 2 * bytes.len().max(1)).0),
            Err(error) => {
                Reading::missing(Reason::Unknown, format!("it could not be read: {error}"))
            }
        }
    }

    fn read(&mut self, buffer: &mut Vec<u8>, now: Mono) -> Vec<Part> {
        let looked = std::mem::replace(&mut self.looked, now);
        let Ok(news) = self.body.read(buffer, now) else {
            return Vec::new();
        };
        let mut parts = Vec::new();
        if news.is_new || news.passed_over > 0 {
            parts.extend(self.group.finish());
            let from = self.body.offset() - buffer.len() as u64;
            self.group = Group::new(from);
            self.lines_before = None;
            self.sampled |= news.passed_over > 0;
            if news.is_new {
                self.writers.iter_mut().for_each(|writer| writer.from = 0);
            }
        }
        if !buffer.is_empty() {
            self.before_newest = looked;
            parts.extend(self.group.push(buffer, now));
        }
        parts
    }

    /// The ends that were asked for and are due.
    fn answer(&mut self, now: Mono) -> Vec<Excerpted> {
        let mut told = Vec::new();
        while let Some(at) = self.asked.iter().position(|asked| asked.due <= now) {
            let asked = self.asked.swap_remove(at);
            if let Some(part) = self.group.finish() {
                told.extend(self.tell(part, LogWhy::Matched, None, now));
            }
            let part = self.unsent(asked.key);
            told.extend(part.and_then(|part| self.tell(part, asked.why, Some(asked.key), now)));
            if asked.why == LogWhy::Ended {
                let ended = self.writers.iter_mut().find(|w| w.key == asked.key);
                ended.into_iter().for_each(|writer| writer.ended = true);
            }
        }
        told
    }

    /// The end of what a process wrote, as far as it was not sent.
    fn unsent(&mut self, key: ProcessKey) -> Option<Part> {
        let writer = self.writers.iter().find(|writer| writer.key == key)?;
        let end = self.body.offset();
        let from = self.group.sent_to().unwrap_or(0).max(writer.from);
        let cut = end.saturating_sub(MAX_TAIL);
        let mut bytes = self.body.between(from.max(cut), end).ok()?;
        let mut offset = from.max(cut);
        if cut > from {
            // The line that was cut has no beginning.
            let first = memchr::memchr(b'\n', &bytes).map_or(0, |n| n + 1);
            bytes.drain(..first);
            offset += first as u64;
        }
        self.group.note_sent(end);
        let is_worth = bytes.iter().any(|b| !b.is_ascii_whitespace() && *b != 0);
        is_worth.then_some(Part {
            continues: offset == from && from > 0 && from != writer.from,
            line: None,
            offset,
            bytes,
        })
    }

    fn first_line(&mut self, part: &Part) -> Option<u64> {
        let Some(line) = part.line else {
            return self.body.line_at(part.offset);
        };
        let base = self.group.base();
        let body = &self.body;
        let before = *self
            .lines_before
            .get_or_insert_with(|| Some(body.line_at(base)? - 1));
        Some(before? + line)
    }

    /// `asker` is the process whose end, or failed allocation, made it worth sending.
    fn tell(
        &mut self,
        part: Part,
        why: LogWhy,
        asker: Option<ProcessKey>,
        now: Mono,
    ) -> Option<Excerpted> {
        let end = part.offset + part.bytes.len() as u64;
        let mut writers: Vec<ProcessKey> = self
            .writers
            .iter()
            .filter(|w| w.from < end && (!w.ended || Some(w.key) == asker))
            .map(|w| w.key)
            .collect();
        writers.sort_unstable();
        if writers.is_empty() {
            return None;
        }
        if !self.allowance.take(part.bytes.len().min(MAX_SENT), now) {
            self.left_out += part.bytes.len() as u64;
            return None;
        }
        let (text, left_out) = shown(&self.plain(&part.bytes), MAX_SENT);
        let first_line = self.first_line(&part);
        let excerpt = LogExcerpt {
            file: self.name.clone(),
            first_line: first_line.map_or_else(
                || Reading::missing(Reason::NotRead, "lines are counted in short logs only"),
                Reading::Value,
            ),
            text,
            origin: self.origin,
            why,
            offset: Bytes(part.offset).into(),
            continues: part.continues,
            sampled: std::mem::take(&mut self.sampled),
            left_out: Bytes(std::mem::take(&mut self.left_out) + left_out),
            lag: now.since(self.before_newest),
            writers: if writers.len() > 1 {
                writers.clone()
            } else {
                Vec::new()
            },
        };
        Some(Excerpted {
            process: (writers.len() == 1).then(|| writers[0]),
            excerpt,
        })
    }
}

/// The numbers of the lines that hold a literal of an error.
fn errors_in(text: &str) -> Vec<usize> {
    let lines = text.lines().enumerate();
    let errors = lines.filter(|(_, line)| has_anchor(line.as_bytes()));
    errors.map(|(number, _)| number).collect()
}

/// How much of one log is sent: plenty for an error, little for one that repeats for ever.
#[derive(Debug)]
struct Allowance {
    bytes: u64,
    at: Mono,
}

impl Allowance {
    const MAX_BYTES: u64 = 256 << 10;
    const PER_SECOND: u64 = 8 << 10;

    fn new(now: Mono) -> Self {
        Self {
            bytes: Self::MAX_BYTES,
            at: now,
        }
    }

    fn take(&mut self, bytes: usize, now: Mono) -> bool {
        let earned = now.since(self.at).0 * Self::PER_SECOND / 1_000;
        if earned > 0 {
            self.bytes = (self.bytes + earned).min(Self::MAX_BYTES);
            self.at = now;
        }
        let left = self.bytes.checked_sub(bytes as u64);
        self.bytes = left.unwrap_or(self.bytes);
        left.is_some()
    }
}
