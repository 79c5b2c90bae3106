//! A log that gputop follows, and the processes that write to it.
//!
//! A log shared by several processes is read once. An excerpt is attributed to the only writer, or to all writers if
//! there are several: a line does not show which process wrote it, and a process name in the line's text is not
//! trusted.

use std::borrow::Cow;

use super::batch::{Group, Part};
use super::content::LogContent;
use super::docker;
use super::sanitize::sanitize;
use super::tail::MAX_AT_ONCE;

use gputop_explain::scan::has_anchor;
use gputop_model::event::{LogExcerpt, LogOrigin, LogTrigger};
use gputop_model::log::LogSource;
use gputop_model::{Bytes, LogView, Millis, Mono, ProcessKey, Reading, Reason};

/// Maximum number of bytes to send from the end of a log.
const MAX_TAIL: u64 = 16 << 10;
/// Maximum size of a log's text to show on a screen.
const MAX_VIEW: u64 = 256 << 10;
/// Maximum size of the text to show on a screen while a log grows too fast. A user cannot follow such a log anyway, and
/// sanitizing a lot of new text on each refresh would be expensive.
const MAX_FLOOD_VIEW: u64 = 32 << 10;
/// Time for which a log counts as growing too fast after some of its text was skipped.
const FLOOD_INTERVAL: Millis = Millis(5_000);
/// Maximum number of bytes to read from one log at a time.
const MAX_READ: u64 = 2 * MAX_AT_ONCE;
const MAX_READ_PER_SECOND: u64 = 4 * MAX_AT_ONCE;
/// Minimum read allowance in bytes. While the allowance is smaller, reads are postponed, because they would skip most
/// of the new text.
const MIN_READ: u64 = 64 << 10;
/// Maximum size of one log excerpt.
const MAX_SENT: usize = 64 << 10;
/// Milliseconds to wait after an exit, because the last output may arrive late through pipes and file servers.
const EXIT_DELAY: u64 = 500;
/// Milliseconds to wait after a failed allocation, so that the program can print the error.
const OOM_DELAY: u64 = 700;

/// Log excerpt, and its process if the log has only one writer.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessExcerpt {
    pub process: Option<ProcessKey>,
    pub excerpt: LogExcerpt,
}

#[derive(Debug)]
struct Writer {
    key: ProcessKey,
    /// Size of the log in bytes when the process was attached. Earlier text is ignored.
    from: u64,
    exited: bool,
}

#[derive(Debug)]
struct TailRequest {
    key: ProcessKey,
    why: LogTrigger,
    due: Mono,
}

#[derive(Debug)]
pub struct Log {
    name: String,
    origin: LogOrigin,
    content: Box<dyn LogContent>,
    group: Group,
    /// Number of lines before the offset where gputop started to read the log. `None` if not yet counted, and
    /// `Some(None)` if the log is too long to count them.
    lines_before: Option<Option<u64>>,
    writers: Vec<Writer>,
    tail_requests: Vec<TailRequest>,
    send_allowance: Allowance,
    read_allowance: Allowance,
    /// True if text was skipped and no excerpt has reported this yet.
    sampled: bool,
    /// Number of skipped bytes that no excerpt has reported yet.
    skipped: u64,
    all_skipped: u64,
    skipped_at: Option<Mono>,
    left_out: u64,
    polled_at: Mono,
    /// Time of the last read before the latest text arrived. The latest text was written after this time.
    before_newest: Mono,
}

impl Log {
    pub fn new(name: String, origin: LogOrigin, content: Box<dyn LogContent>, now: Mono) -> Self {
        let from = content.offset();
        Self {
            name,
            origin,
            group: Group::new(from),
            lines_before: None,
            content,
            writers: Vec::new(),
            tail_requests: Vec::new(),
            send_allowance: Allowance::new(MAX_REPORTED, MAX_REPORTED_PER_SECOND, now),
            read_allowance: Allowance::new(MAX_READ, MAX_READ_PER_SECOND, now),
            sampled: false,
            skipped: 0,
            all_skipped: 0,
            skipped_at: None,
            left_out: 0,
            polled_at: now,
            before_newest: now,
        }
    }

    /// Adds a process that writes to the log. `from` is the log's offset when the process was attached.
    pub fn add_writer(&mut self, key: ProcessKey, from: u64) {
        if !self.writers.iter().any(|writer| writer.key == key) {
            self.writers.push(Writer { key, from, exited: false });
        }
    }

    /// Returns the offset up to which the log was read.
    pub fn offset(&self) -> u64 {
        self.content.offset()
    }

    pub fn remove_writer(&mut self, key: ProcessKey) {
        self.writers.retain(|writer| writer.key != key);
    }

    /// Returns true if all writers of the log exited and all requested text was sent.
    pub fn is_over(&self) -> bool {
        self.tail_requests.is_empty() && self.writers.iter().all(|writer| writer.exited)
    }

    /// Requests that the end of the log be sent for a process, after a short delay.
    pub fn request_tail(&mut self, key: ProcessKey, why: LogTrigger, now: Mono) {
        if !self.writers.iter().any(|writer| writer.key == key) {
            return;
        }
        let delay = match why {
            LogTrigger::Ended => EXIT_DELAY,
            _ => OOM_DELAY,
        };
        let due = Mono(now.0 + delay);
        if !self.tail_requests.iter().any(|a| a.key == key && a.why == why) {
            self.tail_requests.push(TailRequest { key, why, due });
            self.content.request_now();
        }
    }

    /// Returns the time of the next read of the log, or `None` if no more text will follow.
    pub fn due(&self) -> Option<Mono> {
        let requested = self.tail_requests.iter().map(|request| request.due);
        let read = self.content.due(self.polled_at);
        requested.chain(self.group.due()).chain(read).min()
    }

    /// Reads new text from the log and returns the excerpts to report.
    pub fn poll(&mut self, buffer: &mut Vec<u8>, now: Mono) -> Vec<ProcessExcerpt> {
        let mut parts = self.read(buffer, now);
        parts.extend(self.group.flush(now));
        let mut excerpts: Vec<ProcessExcerpt> = parts
            .into_iter()
            .filter_map(|part| self.excerpt_of(part, LogTrigger::Matched, None, now))
            .collect();
        excerpts.extend(self.answer(now));
        excerpts
    }

    /// Restarts at the current end of the log. Drops any text waiting to be sent.
    pub fn restart(&mut self) {
        self.group = Group::new(self.content.offset());
        self.lines_before = None;
    }

    /// Adds this log to the view of a process. The view shows the text of its first non-empty log.
    pub fn add_to(&self, view: &mut LogView, key: ProcessKey) {
        let source = LogSource {
            name: self.name.clone(),
            origin: self.origin,
            is_sampled: self.is_flooding(),
            skipped: Bytes(self.all_skipped),
            writers: self.writers.len(),
        };
        let Some(writer) = self.writers.iter().find(|writer| writer.key == key) else { return };
        let end = self.content.offset();
        let max_bytes = if self.is_flooding() { MAX_FLOOD_VIEW } else { MAX_VIEW };
        let text = self.text(writer.from.max(end.saturating_sub(max_bytes)), end);
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
        self.sampled || skipped.is_some_and(|at| self.polled_at.since(at) < FLOOD_INTERVAL)
    }

    fn plain<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        match self.origin {
            LogOrigin::Docker => docker::plain(bytes).into(),
            _ => bytes.into(),
        }
    }

    fn text(&self, from: u64, to: u64) -> Reading<String> {
        match self.content.between(from, to) {
            Ok(bytes) => {
                // Without its beginning, a line may show a secret that its name would hide.
                let is_whole = self.content.between(from.saturating_sub(1), from);
                let is_whole = from == 0 || is_whole.is_ok_and(|before| before == b"\n");
                let first = memchr::memchr(b'\n', &bytes).filter(|_| !is_whole);
                let bytes = &bytes[first.map_or(0, |end| end + 1)..];
                Reading::Value(sanitize(&self.plain(bytes), 2 * bytes.len().max(1)).0)
            }
            Err(error) => {
                Reading::missing(Reason::Unknown, format!("cannot read the log: {error}"))
            }
        }
    }

    fn read(&mut self, buffer: &mut Vec<u8>, now: Mono) -> Vec<Part> {
        let previous_poll = std::mem::replace(&mut self.polled_at, now);
        let max_bytes = self.read_allowance.left(now).min(MAX_AT_ONCE);
        if max_bytes < MIN_READ {
            return Vec::new();
        }
        let Ok(read) = self.content.read(buffer, max_bytes, now) else { return Vec::new() };
        self.read_allowance.take(buffer.len() as u64, now);
        let mut parts = Vec::new();
        if read.is_new_file || read.skipped > 0 {
            parts.extend(self.group.finish());
            let from = self.content.offset() - buffer.len() as u64;
            self.group = Group::new(from);
            self.lines_before = None;
            if read.skipped > 0 {
                self.sampled = true;
                self.skipped += read.skipped;
                self.all_skipped += read.skipped;
                self.skipped_at = Some(now);
            }
            if read.is_new_file {
                self.writers.iter_mut().for_each(|writer| writer.from = 0);
            }
        }
        if !buffer.is_empty() {
            self.before_newest = previous_poll;
            parts.extend(self.group.push(buffer, now));
        }
        parts
    }

    /// Handles the requests for the end of the log that are now due. Returns the excerpts to report.
    fn answer(&mut self, now: Mono) -> Vec<ProcessExcerpt> {
        let mut excerpts = Vec::new();
        while let Some(at) = self.tail_requests.iter().position(|request| request.due <= now) {
            let request = self.tail_requests.swap_remove(at);
            if let Some(part) = self.group.finish() {
                excerpts.extend(self.excerpt_of(part, LogTrigger::Matched, None, now));
            }
            let part = self.unsent(request.key);
            excerpts.extend(
                part.and_then(|part| self.excerpt_of(part, request.why, Some(request.key), now)),
            );
            if request.why == LogTrigger::Ended {
                let exited = self.writers.iter_mut().find(|w| w.key == request.key);
                exited.into_iter().for_each(|writer| writer.exited = true);
            }
        }
        excerpts
    }

    /// Returns the end of a process's output, without text that was already sent.
    fn unsent(&mut self, key: ProcessKey) -> Option<Part> {
        let writer = self.writers.iter().find(|writer| writer.key == key)?;
        let end = self.content.offset();
        let from = self.group.sent_to().unwrap_or(0).max(writer.from);
        let cut = end.saturating_sub(MAX_TAIL);
        let mut bytes = self.content.between(from.max(cut), end).ok()?;
        let mut offset = from.max(cut);
        if cut > from {
            // Drop the first line, which is incomplete.
            let first = memchr::memchr(b'\n', &bytes).map_or(0, |n| n + 1);
            bytes.drain(..first);
            offset += first as u64;
        }
        self.group.note_sent(end);
        bytes.iter().any(|b| !b.is_ascii_whitespace() && *b != 0).then_some(Part {
            continues: offset == from && from > 0 && from != writer.from,
            line: None,
            offset,
            bytes,
        })
    }

    fn first_line(&mut self, part: &Part) -> Option<u64> {
        let Some(line) = part.line else { return self.content.line_at(part.offset) };
        let base = self.group.base();
        let content = &self.content;
        let before = *self.lines_before.get_or_insert_with(|| Some(content.line_at(base)? - 1));
        Some(before? + line)
    }

    /// Builds an excerpt from a part of the log. `requester` is the process whose exit or failed allocation is the
    /// reason to send it.
    fn excerpt_of(
        &mut self,
        part: Part,
        why: LogTrigger,
        requester: Option<ProcessKey>,
        now: Mono,
    ) -> Option<ProcessExcerpt> {
        let end = part.offset + part.bytes.len() as u64;
        let mut writers: Vec<ProcessKey> = self
            .writers
            .iter()
            .filter(|w| w.from < end && (!w.exited || Some(w.key) == requester))
            .map(|w| w.key)
            .collect();
        writers.sort_unstable();
        if writers.is_empty() {
            return None;
        }
        if !self.send_allowance.take(part.bytes.len().min(MAX_SENT) as u64, now) {
            self.left_out += part.bytes.len() as u64;
            return None;
        }
        let (text, left_out) = sanitize(&self.plain(&part.bytes), MAX_SENT);
        let first_line = self.first_line(&part);
        let excerpt = LogExcerpt {
            file: self.name.clone().into(),
            first_line: Reading::or_missing(
                first_line,
                Reason::NotRead,
                "line numbers are available only for short logs",
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
            writers: if writers.len() > 1 { writers.clone() } else { Vec::new() },
        };
        Some(ProcessExcerpt { process: (writers.len() == 1).then(|| writers[0]), excerpt })
    }
}

/// Returns the indices of the lines that contain a fixed string from a known error message.
fn errors_in(text: &str) -> Vec<usize> {
    let errors = text.lines().enumerate().filter(|(_, line)| has_anchor(line.as_bytes()));
    errors.map(|(number, _)| number).collect()
}

/// Limit on the text sent from one log in a burst: enough for one error, but not for an error that is printed again and
/// again.
const MAX_REPORTED: u64 = 256 << 10;
const MAX_REPORTED_PER_SECOND: u64 = 8 << 10;

/// Byte budget with a maximum size and a refill rate per second.
#[derive(Debug)]
struct Allowance {
    max_bytes: u64,
    per_second: u64,
    bytes: u64,
    at: Mono,
}

impl Allowance {
    fn new(max_bytes: u64, per_second: u64, now: Mono) -> Self {
        Self { max_bytes, per_second, bytes: max_bytes, at: now }
    }

    fn left(&mut self, now: Mono) -> u64 {
        let earned = now.since(self.at).0.saturating_mul(self.per_second) / 1_000;
        if earned > 0 {
            self.bytes = self.bytes.saturating_add(earned).min(self.max_bytes);
            self.at = now;
        }
        self.bytes
    }

    /// Takes `bytes` from the budget. If less is left, takes nothing and returns false.
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

    use super::super::tail::{LogFileLocation, Tail};
    use super::*;

    #[test]
    fn reads_a_flood_in_part_and_reports_the_skipped_bytes() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        let location = LogFileLocation::Path {
            reader: None,
            path: file.path().to_owned(),
            owners: vec![geteuid().as_raw()],
        };
        let open = location.open().expect("a readable file");
        let content = Box::new(Tail::new(location, open, 0, Mono(0)));
        let mut log = Log::new("train.log".into(), LogOrigin::Descriptor, content, Mono(0));
        let key = ProcessKey::default();
        log.add_writer(key, 0);
        let view = |log: &Log| {
            let mut view = LogView::default();
            log.add_to(&mut view, key);
            view
        };
        // The log grows by 17 MB/s for 10 s and is polled at the maximum rate for a log with errors.
        let (mut buffer, mut read) = (Vec::new(), 0);
        for poll in 1..=1_000 {
            file.as_file().set_len(poll * 170_000).expect("a larger file");
            buffer.clear();
            log.poll(&mut buffer, Mono(poll * 10));
            read += buffer.len() as u64;
        }
        assert!(read <= MAX_READ + 10 * MAX_READ_PER_SECOND, "{read}");
        let skipped = Bytes(log.offset() - read);
        assert!(skipped > Bytes::mib(100), "{skipped}");
        assert_eq!(view(&log).sources[0].skipped, skipped);
        assert!(view(&log).sources[0].is_sampled);
        let text = view(&log).text;
        assert!(text.value().is_some_and(|t| t.len() as u64 <= 2 * MAX_FLOOD_VIEW));
        // Only the next excerpt reports the skipped bytes.
        file.as_file().set_len(0).expect("an empty file");
        for (at, wanted) in [(20_000, skipped), (30_000, Bytes(0))] {
            writeln!(file, "CUDA error: at {at}").expect("a written line");
            log.poll(&mut buffer, Mono(at));
            let excerpts = log.poll(&mut buffer, Mono(at + 1_000));
            assert_eq!(excerpts.len(), 1, "{excerpts:?}");
            assert_eq!(excerpts[0].excerpt.skipped, wanted);
        }
        assert!(!view(&log).sources[0].is_sampled);
    }
}
