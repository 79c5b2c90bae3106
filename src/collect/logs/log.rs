//! One log that is followed, and the processes that write to it.
//!
//! A log that several processes share is read once. What is found in it is of whoever writes there: of one process
//! if it is one, else of all of them, since a line does not tell (and what it claims is not believed).

use std::borrow::Cow;

use super::batch::{Group, Part};
use super::content::Body;
use super::docker;
use super::sanitize::shown;
use super::tail::MAX_AT_ONCE;

use crate::diagnose::scan::has_anchor;
use crate::model::event::{LogExcerpt, LogOrigin, LogWhy};
use crate::model::log::{LogSource, LogView};
use crate::model::process::ProcessKey;
use crate::model::reading::{Reading, Reason};
use crate::model::units::{Bytes, Millis, Mono};

/// The most that is sent of the end of a log.
const MAX_TAIL: u64 = 16 << 10;
/// The most that a screen shows.
const MAX_VIEW: u64 = 256 << 10;
/// The most that a screen shows of a log of which text is being passed over: all of it is new each time, nobody reads
/// it, and making it harmless is what costs most.
const MAX_FLOOD_VIEW: u64 = 32 << 10;
/// A log counts as flooding this long after text of it was passed over.
const FLOOD: Millis = Millis(5_000);
/// What is read of one log, at once and in the long run.
const MAX_READ: u64 = 2 * MAX_AT_ONCE;
const MAX_READ_PER_SECOND: u64 = 4 * MAX_AT_ONCE;
/// Less than this is not worth reading: what is behind it would be passed over.
const MIN_READ: u64 = 64 << 10;
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
    reading: Allowance,
    /// Text was passed over, and that was not told yet.
    sampled: bool,
    /// How much of it, and how much since the beginning.
    skipped: u64,
    all_skipped: u64,
    skipped_at: Option<Mono>,
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
            allowance: Allowance::new(MAX_TOLD, MAX_TOLD_PER_SECOND, now),
            reading: Allowance::new(MAX_READ, MAX_READ_PER_SECOND, now),
            sampled: false,
            skipped: 0,
            all_skipped: 0,
            skipped_at: None,
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

    /// Goes on with what is written from now on; what waits to be sent is dropped.
    pub fn restart(&mut self) {
        self.group = Group::new(self.body.offset());
        self.lines_before = None;
    }

    /// Adds this log to what a screen shows of a process; the text is that of the log which was written to last.
    pub fn add_to(&self, view: &mut LogView, key: ProcessKey) {
        let source = LogSource {
            name: self.name.value().cloned().unwrap_or_default(),
            origin: self.origin,
            is_sampled: self.is_flooding(),
            skipped: Bytes(self.all_skipped),
            writers: self.writers.len(),
        };
        let Some(writer) = self.writers.iter().find(|writer| writer.key == key) else {
            return;
        };
        let end = self.body.offset();
        let most = if self.is_flooding() {
            MAX_FLOOD_VIEW
        } else {
            MAX_VIEW
        };
        let text = self.text(writer.from.max(end.saturating_sub(most)), end);
        if view.text.value().is_none_or(|known| known.is_empty()) {
            view.errors = text.value().map(|text| errors_in(text)).unwrap_or_default();
            view.text = text;
            view.sources.insert(0, source);
        } else {
            view.sources.push(source);
        }
    }

    fn is_flooding(&self) -> bool {
        let skipped = self.skipped_at;
        self.sampled || skipped.is_some_and(|at| self.looked.since(at) < FLOOD)
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
        let most = self.reading.left(now).min(MAX_AT_ONCE);
        if most < MIN_READ {
            return Vec::new();
        }
        let Ok(news) = self.body.read(buffer, most, now) else {
            return Vec::new();
        };
        self.reading.take(buffer.len() as u64, now);
        let mut parts = Vec::new();
        if news.is_new || news.passed_over > 0 {
            parts.extend(self.group.finish());
            let from = self.body.offset() - buffer.len() as u64;
            self.group = Group::new(from);
            self.lines_before = None;
            if news.passed_over > 0 {
                self.sampled = true;
                self.skipped += news.passed_over;
                self.all_skipped += news.passed_over;
                self.skipped_at = Some(now);
            }
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
        if !self
            .allowance
            .take(part.bytes.len().min(MAX_SENT) as u64, now)
        {
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
            skipped: Bytes(std::mem::take(&mut self.skipped)),
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
const MAX_TOLD: u64 = 256 << 10;
const MAX_TOLD_PER_SECOND: u64 = 8 << 10;

/// Bytes that may be used up: so many at once, and in the long run so many in a second.
#[derive(Debug)]
struct Allowance {
    max_bytes: u64,
    per_second: u64,
    bytes: u64,
    at: Mono,
}

impl Allowance {
    fn new(max_bytes: u64, per_second: u64, now: Mono) -> Self {
        Self {
            max_bytes,
            per_second,
            bytes: max_bytes,
            at: now,
        }
    }

    fn left(&mut self, now: Mono) -> u64 {
        let earned = now.since(self.at).0.saturating_mul(self.per_second) / 1_000;
        if earned > 0 {
            self.bytes = self.bytes.saturating_add(earned).min(self.max_bytes);
            self.at = now;
        }
        self.bytes
    }

    /// Returns false, and takes nothing, if so much is not left.
    fn take(&mut self, bytes: u64, now: Mono) -> bool {
        let left = self.left(now).checked_sub(bytes);
        self.bytes = left.unwrap_or(self.bytes);
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use nix::unistd::geteuid;

    use super::super::tail::{LogLocation, Tail};
    use super::*;

    #[test]
    fn a_flood_is_read_in_part_and_what_was_skipped_is_said() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        let place = LogLocation::Path {
            reader: None,
            path: file.path().to_owned(),
            owners: vec![geteuid().as_raw()],
        };
        let open = place.open().expect("it can be read");
        let body = Body::File(Tail::new(place, open, 0, Mono(0)));
        let name = Reading::Value("train.log".into());
        let mut log = Log::new(name, LogOrigin::Descriptor, body, Mono(0));
        let key = ProcessKey::default();
        log.add_writer(key, 0);
        let view = |log: &Log| {
            let mut view = LogView::default();
            log.add_to(&mut view, key);
            view
        };
        // 17 MB a second for 10 s, looked at as often as a log with errors is at most.
        let (mut buffer, mut read) = (Vec::new(), 0);
        for look in 1..=1_000 {
            file.as_file().set_len(look * 170_000).expect("it grows");
            buffer.clear();
            log.look(&mut buffer, Mono(look * 10));
            read += buffer.len() as u64;
        }
        assert!(read <= MAX_READ + 10 * MAX_READ_PER_SECOND, "{read}");
        let skipped = Bytes(log.offset() - read);
        assert!(skipped > Bytes::mib(100), "{skipped}");
        assert_eq!(view(&log).sources[0].skipped, skipped);
        assert!(view(&log).sources[0].is_sampled);
        let text = view(&log).text;
        assert!(
            text.value()
                .is_some_and(|t| t.len() as u64 <= 2 * MAX_FLOOD_VIEW)
        );
        // What is told next says so, once.
        file.as_file().set_len(0).expect("it is emptied");
        for (at, wanted) in [(20_000, skipped), (30_000, Bytes(0))] {
            writeln!(file, "CUDA error: at {at}").expect("it is written");
            log.look(&mut buffer, Mono(at));
            let told = log.look(&mut buffer, Mono(at + 1_000));
            assert_eq!(told.len(), 1, "{told:?}");
            assert_eq!(told[0].excerpt.skipped, wanted);
        }
        assert!(!view(&log).sources[0].is_sampled);
    }
}
