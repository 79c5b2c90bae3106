//! Reads a log piece by piece, and collects signature matches and Python exceptions.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::SystemTime;

use gputop_model::incident::Quote;
use gputop_model::text::{slice, visible};

use super::catalogue::Catalogue;
use super::fields::FieldMap;
use super::recovery::recover;
use super::scan::{LogChunk, Scanner};
use super::signature::Match;
use super::text::{self, Flow, LogLine};
use super::traceback::{self, Traceback, TracebackFrame};
use super::{own_process, quote, smi_table};

/// Maximum number of sightings to store from the start of a log. Repetitions are counted but not stored.
const MAX_SIGHTINGS: usize = 2000;
/// Maximum number of further sightings, from the end of a log that has more than [`MAX_SIGHTINGS`].
const MAX_LAST_SIGHTINGS: usize = 500;
/// Number of bytes of excerpts to read from the end of a log with too many errors. The last errors show why the program
/// exited.
const TAIL_BYTES: usize = 256 * 1024;
const MAX_NAME: usize = 4096;
const MAX_TRACEBACKS: usize = 200;
/// Maximum number of log lines between repetitions of one failure.
const MAX_REPEAT_GAP: u64 = 400;
/// Number of bytes to store from the start of a log. The start identifies the program.
const MAX_START: usize = 16 * 1024;
/// A text up to this length is treated as a user's question or a single message instead of a log.
const MAX_SHORT_TEXT: usize = 2048;
/// Number of bytes of log text to store before and after a sighting, as evidence.
pub(super) const CONTEXT: usize = 6 * 1024;
/// Maximum time between related messages of different programs in a syslog.
const MAX_SHARED_SECONDS: u32 = 300;

/// Source of the text in which an error was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TextSource {
    /// A log file, or the output of a program.
    #[default]
    Log,
    KernelLog,
    /// A traceback in a report of the Python hook.
    Hook,
    /// What was read from the process groups of ranks.
    Ranks,
}

/// A signature match in a log.
#[derive(Debug, Clone, Default)]
pub struct Sighting {
    pub card: usize,
    pub weak: bool,
    /// Number of messages with the same wording as the first, ignoring block, thread and time. Messages with a
    /// different wording are not counted, because they are further messages about the same event: Slurm prints three
    /// lines for one kill.
    pub count: u32,
    /// Wording of the first message, for comparison with the wording of later messages.
    pub wording: String,
    pub found: FieldMap,
    /// ID of the card found in the table of assertions or Xids.
    pub table: Option<Arc<str>>,
    pub first_line: u64,
    pub last_line: u64,
    pub rank: Option<u32>,
    pub writer: String,
    pub time: Option<String>,
    pub frames: Vec<TracebackFrame>,
    pub quote: Quote,
    /// Text of the writer around the message, followed by nearby lines of others or of no writer that concern it.
    pub context: Arc<str>,
    /// Length in bytes of the writer's own text in `context`.
    pub own_context: usize,
}

#[derive(Debug, Clone, Default)]
pub struct LogFindings {
    /// Name of the log.
    pub file: String,
    pub source: TextSource,
    /// Time at which the log was last written, if it is a file.
    pub modified: Option<SystemTime>,
    /// Rank from the log's file name, if each rank has its own log.
    pub rank: Option<u32>,
    pub sightings: Vec<Sighting>,
    pub tracebacks: Vec<Traceback>,
    pub start: String,
    pub bytes: u64,
    /// Complete text of the log, if it is so short that it may be a user's question.
    pub short_text: Option<String>,
    /// Number of skipped excerpt bytes between the first sightings and the end of the log.
    pub skipped_bytes: u64,
}

impl LogFindings {
    /// Returns the approximate memory in bytes. The texts around the errors take most of it.
    pub(super) fn memory(&self) -> usize {
        let contexts = self.sightings.iter().map(|sighting| sighting.context.len());
        let lists = self.sightings.len() * size_of::<Sighting>()
            + self.tracebacks.len() * size_of::<Traceback>();
        contexts.sum::<usize>() + lists + self.start.len()
    }

    /// Returns the text around the sightings in order, at most `max` bytes. A line `[...]` marks each gap. Each piece
    /// of text, a few KiB of complete lines, is first passed through `clean`.
    #[must_use]
    pub fn excerpt(&self, max: usize, clean: impl Fn(&str) -> String) -> String {
        let mut out = String::new();
        for sighting in &self.sightings {
            let piece = clean(whole_lines(slice(&sighting.context, 0, sighting.own_context)));
            let known = overlap(&out, &piece);
            let gap = if out.is_empty() || known > 0 { "" } else { "\n[...]\n" };
            if out.len() + gap.len() + piece.len() - known > max {
                break;
            }
            out.push_str(gap);
            out.push_str(&piece[known..]);
        }
        out
    }
}

/// Returns the context without the first and last line if they may be incomplete. Redaction would not recognize half of
/// a secret.
fn whole_lines(context: &str) -> &str {
    if context.len() <= CONTEXT {
        return context;
    }
    let first = context.find('\n').filter(|at| *at < CONTEXT / 2);
    let last = context.rfind('\n');
    let last = last.filter(|at| *at > context.len() - CONTEXT / 2);
    let (first, last) = (first.map_or(0, |at| at + 1), last.unwrap_or(context.len()));
    context.get(first..last).unwrap_or(context)
}

/// Returns the length of the overlap between the end of `text` and the start of `next`. The contexts of nearby
/// sightings overlap.
fn overlap(text: &str, next: &str) -> usize {
    /// Minimum length of an overlap in bytes; a shorter one can be a coincidence.
    const MIN_OVERLAP: usize = 32;
    let Some(head) = next.get(..MIN_OVERLAP) else {
        return 0;
    };
    // Search from the earliest start, which gives the longest overlap. The overlap cannot be longer than `next`.
    let from = text.len().saturating_sub(next.len());
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at));
    let tail = &text[from.unwrap_or(text.len())..];
    tail.match_indices(head)
        .map(|(at, _)| &tail[at..])
        .find(|rest| next.starts_with(rest))
        .map_or(0, str::len)
}

/// Returns the last `max` bytes of a text, without half a character.
fn last_bytes(text: &str, max: usize) -> &str {
    slice(text, text.len().saturating_sub(max), text.len())
}

/// Returns the lines near `lines[first..=last]` that concern its writer although another writer or none is named: a
/// banner, versions, a launcher's messages or a table of memory, and in a syslog, what other programs of the host
/// reported at that time.
fn shared_lines(lines: &[LogLine], first: usize, last: usize) -> String {
    let own = &lines[first];
    if own.writer.is_empty() {
        return String::new();
    }
    let time = own.seconds();
    let is_close = |line: &LogLine| match (time, line.seconds()) {
        (Some(own), Some(other)) => own.abs_diff(other) <= MAX_SHARED_SECONDS,
        _ => false,
    };
    let is_of_host = |line: &LogLine| {
        !own.host.is_empty() && line.host == own.host && line.writer != own.writer && is_close(line)
    };
    let near = |lines: &mut dyn Iterator<Item = &LogLine>| -> Vec<String> {
        let shared = lines.filter(|line| line.writer.is_empty() || is_of_host(line));
        let mut room = CONTEXT;
        let fits = |text: &String| {
            room = room.saturating_sub(text.len() + 1);
            room > 0
        };
        let shared = shared.filter(|line| !line.is_code);
        let named = |line: &LogLine| match line.writer.as_str() {
            "" => line.text.clone(),
            writer => format!("{writer}: {}", line.text),
        };
        shared.map(named).take_while(fits).collect()
    };
    let mut shared = near(&mut lines[..first].iter().rev());
    shared.reverse();
    shared.extend(near(&mut lines[last + 1..].iter()));
    shared.join("\n")
}

#[derive(Debug)]
pub struct LogReader<'a> {
    catalogue: &'a Catalogue,
    scanner: Scanner,
    findings: LogFindings,
    /// Index of the newest sighting for each [`repeat_key`].
    newest: HashMap<String, usize>,
    /// First bytes of the log, at most [`MAX_START`].
    beginning: Vec<u8>,
    max_sightings: usize,
    /// Number of bytes of excerpts read so far, and its maximum. The rest is treated like the errors beyond
    /// [`MAX_SIGHTINGS`].
    read_bytes: u64,
    max_read_bytes: u64,
    /// Most recent excerpts found after the limit for sightings was reached.
    tail: VecDeque<LogChunk>,
    /// End of the last excerpt's text for each writer, at most [`CONTEXT`] bytes. It is the context of the next excerpt
    /// if that begins where this one ends: a flood of repeated errors is cut into several excerpts.
    carried: HashMap<String, String>,
    /// Byte offset of the end of the last excerpt in the log.
    carried_to: u64,
}

impl<'a> LogReader<'a> {
    /// Creates a log reader. `file` is the log's name as shown in incidents.
    #[must_use]
    pub fn new(catalogue: &'a Catalogue, file: &str) -> Self {
        Self {
            catalogue,
            scanner: Scanner::default(),
            findings: LogFindings {
                // File names are untrusted, so control characters are escaped.
                file: visible(file.as_bytes(), MAX_NAME),
                rank: rank_of(file),
                ..LogFindings::default()
            },
            newest: HashMap::new(),
            beginning: Vec::new(),
            max_sightings: MAX_SIGHTINGS,
            read_bytes: 0,
            max_read_bytes: u64::MAX,
            tail: VecDeque::new(),
            carried: HashMap::new(),
            carried_to: 0,
        }
    }

    /// Creates a reader for text that is not in a log file.
    #[must_use]
    pub fn of(catalogue: &'a Catalogue, source: TextSource) -> Self {
        let file = match source {
            TextSource::Log => "output",
            TextSource::KernelLog => "kernel log",
            TextSource::Hook => "hook report",
            TextSource::Ranks => "process groups",
        };
        let mut reader = Self::new(catalogue, file);
        reader.findings.source = source;
        reader
    }

    /// Limits how many bytes of excerpts are read. Matching all signatures takes a second for about 13 MB, so a small
    /// compressed log could take minutes.
    pub fn set_max_read_bytes(&mut self, max_read_bytes: u64) {
        self.max_read_bytes = max_read_bytes;
    }

    pub fn push(&mut self, piece: &[u8]) {
        self.beginning.extend(piece.iter().take(MAX_START - self.beginning.len()));
        for excerpt in self.scanner.push(piece) {
            self.add(excerpt);
        }
    }

    #[must_use]
    pub fn finish(mut self) -> LogFindings {
        self.scanner.open_short_text();
        for excerpt in self.scanner.finish() {
            self.add(excerpt);
        }
        if self.is_full() {
            self.max_sightings += MAX_LAST_SIGHTINGS;
            self.max_read_bytes = u64::MAX;
            self.read_tail();
        }
        self.findings.bytes = self.scanner.bytes;
        if self.beginning.len() <= MAX_SHORT_TEXT {
            self.findings.short_text = Some(String::from_utf8_lossy(&self.beginning).into_owned());
        }
        if !self.findings.sightings.is_empty() || !self.findings.tracebacks.is_empty() {
            let lines = text::lines(&self.beginning, 1);
            let parts = lines.iter().flat_map(|line| [line.writer.as_str(), " ", &line.text, "\n"]);
            self.findings.start = parts.collect();
        }
        self.findings.sightings.sort_by_key(|s| s.first_line);
        self.findings
    }

    fn is_full(&self) -> bool {
        self.findings.sightings.len() >= self.max_sightings
            || self.read_bytes >= self.max_read_bytes
    }

    /// Reads an excerpt. If there are already too many sightings, stores the excerpt until the end of the log instead,
    /// because matching every signature in a flood of errors takes seconds per megabyte and yields nothing new.
    fn add(&mut self, excerpt: LogChunk) {
        if !self.is_full() {
            return self.read(&excerpt);
        }
        self.tail.push_back(excerpt);
        let mut size: usize = self.tail.iter().map(|e| e.bytes.len()).sum();
        while size > TAIL_BYTES && self.tail.len() > 1 {
            let skipped = self.tail.pop_front().map_or(0, |e| e.bytes.len());
            size -= skipped;
            self.findings.skipped_bytes += skipped as u64;
        }
    }

    /// Reads the end of the log backwards in chunks, so that the sightings include the last errors.
    fn read_tail(&mut self) {
        const MAX_PIECE: usize = 16 * 1024;
        let mut pieces = Vec::from(std::mem::take(&mut self.tail));
        while let Some(piece) = pieces.pop() {
            match piece.halves() {
                _ if self.is_full() => self.findings.skipped_bytes += piece.bytes.len() as u64,
                Some(halves) if piece.bytes.len() > MAX_PIECE => pieces.extend(halves),
                _ => self.read(&piece),
            }
        }
    }

    /// Reads an excerpt. After a panic, reads its halves separately, so that one line that triggers a bug does not hide
    /// the others.
    fn read(&mut self, excerpt: &LogChunk) {
        let (sightings, tracebacks) =
            (self.findings.sightings.len(), self.findings.tracebacks.len());
        if recover(|| self.read_whole(excerpt)).is_some() {
            return;
        }
        self.findings.sightings.truncate(sightings);
        self.findings.tracebacks.truncate(tracebacks);
        self.newest.clear();
        for half in excerpt.halves().iter().flatten() {
            self.read(half);
        }
    }

    fn read_whole(&mut self, excerpt: &LogChunk) {
        self.read_bytes += excerpt.bytes.len() as u64;
        if excerpt.start != self.carried_to {
            self.carried.clear();
        }
        let lines = text::lines(&excerpt.bytes, excerpt.first_line);
        let flows = text::flows(&lines);
        let untagged = flows.iter().find(|flow| flow.writer.is_empty());
        for flow in &flows {
            let untagged = untagged.filter(|_| !flow.writer.is_empty());
            let matches = self.catalogue.signatures.matches(flow, untagged, &self.catalogue.cards);
            let tracebacks = traceback::all(flow, &lines);
            for one in &matches {
                self.note(one, flow, &lines);
            }
            for traceback in tracebacks {
                // Skip exceptions that match a card, because they are already listed as errors.
                let exception = &traceback.exception_range;
                if !matches
                    .iter()
                    .any(|m| m.start < exception.end && exception.start < m.end.max(m.start + 1))
                {
                    self.findings.tracebacks.push(traceback);
                }
            }
        }
        let carried: Vec<_> = flows
            .iter()
            .map(|flow| {
                let before = self.carried.get(&flow.writer).map_or("", String::as_str);
                let room = CONTEXT.saturating_sub(flow.text.len());
                let text = [last_bytes(before, room), last_bytes(&flow.text, CONTEXT)].concat();
                (flow.writer.clone(), text)
            })
            .collect();
        // The text without a writer is kept even if this excerpt adds nothing to it.
        let untagged = self.carried.remove_entry("");
        self.carried = untagged.into_iter().chain(carried).collect();
        self.carried_to = excerpt.start + excerpt.bytes.len() as u64;
        let surplus = self.findings.tracebacks.len().saturating_sub(MAX_TRACEBACKS);
        // If there are too many tracebacks, drop those in the middle: the first one may be the cause, and users look
        // for the last one.
        if surplus > 0 {
            let half = MAX_TRACEBACKS / 2;
            self.findings.tracebacks.drain(half..half + surplus);
        }
    }

    fn note(&mut self, one: &Match, flow: &Flow, lines: &[LogLine]) {
        let (first, last) = (flow.line_at(one.start), flow.line_at(one.end.max(one.start + 1) - 1));
        let (Some(line), Some(end)) = (lines.get(first), lines.get(last)) else {
            return;
        };
        let key = repeat_key(one, line);
        let wording = wording(slice(&flow.text, one.start, one.end));
        if self.count_repeat(&key, &wording, line, end) {
            return;
        }
        let mut found = one.found.clone();
        own_process::separate(&mut found);
        if let Some(pid) = pid_of(&line.writer) {
            found.entry("pid").or_insert_with(|| pid.into());
        }
        let table = self.catalogue.tables.look_up(&mut found).map(Arc::from);
        let mut frames = traceback::frames_before(flow, lines, one.start);
        if frames.is_empty() {
            frames = traceback::frames_after(flow, lines, one.start);
        } else if !frames.iter().any(TracebackFrame::is_users) {
            frames.splice(0..0, traceback::frames_of_next_exception(flow, lines, one.start));
        }
        let carried = |writer: &str| {
            let text = self.carried.get(writer).map_or("", String::as_str);
            last_bytes(text, CONTEXT.saturating_sub(one.start))
        };
        let own = slice(&flow.text, one.start.saturating_sub(CONTEXT), one.end + CONTEXT);
        let own = [carried(&flow.writer), own].concat();
        let own_context = own.len();
        let untagged = if flow.writer.is_empty() { "" } else { carried("") };
        let context = match [untagged, &shared_lines(lines, first, last)].concat() {
            shared if shared.is_empty() => own,
            shared => [own, shared].join("\n"),
        };
        smi_table::add(&mut found, lines, first);
        self.newest.insert(key, self.findings.sightings.len());
        self.findings.sightings.push(Sighting {
            card: one.card,
            weak: one.weak || line.is_warning,
            count: 1 + line.repeats,
            wording,
            table,
            first_line: line.number,
            last_line: end.last,
            rank: found
                .get("rank")
                .and_then(serde_json::Value::as_u64)
                .and_then(|r| u32::try_from(r).ok())
                .or(line.rank),
            writer: line.writer.clone(),
            time: line.time.clone(),
            quote: quote::of(one, &found, flow, &self.catalogue.cards[one.card]),
            context: context.into(),
            own_context,
            frames,
            found,
        });
    }

    /// Counts a repetition of a recent sighting. Returns true if the match needs no further processing.
    fn count_repeat(&mut self, key: &str, wording: &str, line: &LogLine, end: &LogLine) -> bool {
        let is_full = self.is_full();
        let newest = self.newest.get(key).and_then(|&at| self.findings.sightings.get_mut(at));
        match newest.filter(|s| is_full || line.number <= s.last_line + MAX_REPEAT_GAP) {
            Some(same) => {
                if same.wording == wording {
                    same.count = same.count.saturating_add(1 + line.repeats);
                }
                same.last_line = same.last_line.max(end.last);
                true
            }
            None => is_full,
        }
    }
}

/// Returns a key that is equal for matches from one writer that report the same failure. Threads and sizes may differ.
fn repeat_key(one: &Match, line: &LogLine) -> String {
    const IDENTIFYING: [&str; 9] = [
        "assertion",
        "kernel_file",
        "xid",
        "status",
        "cuda_error",
        "source_file",
        "exit_code",
        "rank",
        "pci_bus",
    ];
    let mut key = format!("{} {} {} {:?}", one.card, one.weak, line.writer, line.rank);
    // Include the PID only for Xids, because each line about an Xid names a process.
    let pid = one.found.contains_key("xid").then_some("pid");
    for name in IDENTIFYING.into_iter().chain(pid) {
        key.push('\n');
        if let Some(value) = one.found.get(name) {
            let _ = write!(key, "{value}");
        }
    }
    key
}

/// Returns the first letters of a message, skipping digits, spaces and punctuation.
fn wording(message: &str) -> String {
    const MAX_LETTERS: usize = 24;
    message.chars().filter(|c| c.is_alphabetic()).take(MAX_LETTERS).collect()
}

/// Returns the PID in a log line's launcher prefix: `(Worker_PP0 pid=4711)`.
fn pid_of(writer: &str) -> Option<u32> {
    let (_, rest) = writer.split_once("pid=")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// Returns the rank in a log's file name: `rank_3.log`, `worker-3.out`, `attempt_0/3/stderr.log`.
fn rank_of(file: &str) -> Option<u32> {
    let name = super::tables::base_name(file);
    for mark in ["rank", "worker", "local_rank", "proc", "gpu"] {
        let Some(at) = name.to_ascii_lowercase().find(mark) else {
            continue;
        };
        let rest = name[at + mark.len()..].trim_start_matches(['_', '-', '.']);
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        if let Ok(rank) = rest[..digits].parse() {
            return Some(rank);
        }
    }
    // torchrun --log-dir names logs by directory: …/attempt_0/3/stderr.log
    let folder = file.rsplit(['/', '\\']).nth(1)?;
    ["stderr.log", "stdout.log"].contains(&name).then(|| folder.parse().ok())?
}

#[cfg(test)]
mod tests;
