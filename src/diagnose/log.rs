//! One log, read piece by piece: the sightings of signatures in it, and its Python exceptions.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::catalogue::Catalogue;
use super::fields::FieldMap;
use super::recovery::recover;
use super::scan::{Excerpt, Scanner};
use super::signature::Match;
use super::text::{self, Flow, LogLine};
use super::traceback::{self, Frame, Traceback};
use super::{own_process, quote};
use crate::model::incident::Quote;
use crate::model::text::{slice, visible};

/// Sightings kept of one log; what repeats is counted, so only a log of thousands of different failures has more.
const MAX_SIGHTINGS: usize = 2000;
/// A path longer than this is cut.
const MAX_NAME: usize = 4096;
/// Tracebacks kept of one log.
const MAX_TRACEBACKS: usize = 200;
/// The same thing again within this many lines is the same failure.
const SAME_WITHIN: u64 = 400;
/// How much text around a sighting is kept for evidence, each way.
const CONTEXT: usize = 6 * 1024;

/// One signature in one log.
#[derive(Debug, Clone)]
pub struct Sighting {
    /// The card whose signature it is.
    pub card: usize,
    pub weak: bool,
    /// How often it was there, counting what differs in block, thread and time only.
    pub count: u32,
    pub found: FieldMap,
    /// The card that a table names for it.
    pub table: Option<Arc<str>>,
    pub first_line: u64,
    pub last_line: u64,
    pub rank: Option<u32>,
    pub writer: String,
    pub time: Option<String>,
    pub frames: Vec<Frame>,
    pub quote: Quote,
    pub context: Arc<str>,
}

/// All that one log holds.
#[derive(Debug, Default)]
pub struct LogFindings {
    pub file: String,
    /// From the file's name, where ranks log to files of their own.
    pub rank: Option<u32>,
    pub sightings: Vec<Sighting>,
    pub tracebacks: Vec<Traceback>,
    pub bytes: u64,
}

impl LogFindings {
    /// The text around what was found, in the log's order, at most `most` bytes: what lies between is a line `[...]`.
    /// Each piece, a few KiB of whole lines, is passed through `clean` first.
    #[must_use]
    pub fn excerpt(&self, most: usize, clean: impl Fn(&str) -> String) -> String {
        let mut out = String::new();
        for sighting in &self.sightings {
            let piece = clean(whole_lines(&sighting.context));
            let known = overlap(&out, &piece);
            let gap = if out.is_empty() || known > 0 {
                ""
            } else {
                "\n[...]\n"
            };
            if out.len() + gap.len() + piece.len() - known > most {
                break;
            }
            out.push_str(gap);
            out.push_str(&piece[known..]);
        }
        out
    }
}

/// A context without the lines that its ends may have cut: half a token cannot be told from a word.
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

/// How much of the beginning of `next` is the end of `text`: contexts of neighbours share it.
fn overlap(text: &str, next: &str) -> usize {
    /// Shorter ones are chance.
    const MIN_OVERLAP: usize = 32;
    let Some(head) = next.get(..MIN_OVERLAP) else {
        return 0;
    };
    // The nearest first: the longest overlap begins earliest, and no context is longer than two of them.
    let from = text.len().saturating_sub(next.len());
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at));
    let tail = &text[from.unwrap_or(text.len())..];
    tail.match_indices(head)
        .map(|(at, _)| &tail[at..])
        .find(|rest| next.starts_with(rest))
        .map_or(0, str::len)
}

/// Reads one log.
#[derive(Debug)]
pub struct LogReader<'a> {
    catalogue: &'a Catalogue,
    scanner: Scanner,
    findings: LogFindings,
    /// The newest sighting of each [`repeat_key`].
    newest: HashMap<String, usize>,
}

impl<'a> LogReader<'a> {
    /// `file` is the name that incidents will carry.
    #[must_use]
    pub fn new(catalogue: &'a Catalogue, file: &str) -> Self {
        Self {
            catalogue,
            scanner: Scanner::default(),
            findings: LogFindings {
                // A name is chosen by whoever made the file.
                file: visible(file.as_bytes(), MAX_NAME),
                rank: rank_of(file),
                ..LogFindings::default()
            },
            newest: HashMap::new(),
        }
    }

    pub fn push(&mut self, piece: &[u8]) {
        for excerpt in self.scanner.push(piece) {
            self.read(&excerpt);
        }
    }

    #[must_use]
    pub fn finish(mut self) -> LogFindings {
        for excerpt in self.scanner.finish() {
            self.read(&excerpt);
        }
        self.findings.bytes = self.scanner.bytes;
        self.findings.sightings.sort_by_key(|s| s.first_line);
        self.findings
    }

    /// Reads an excerpt; after a panic its halves, so that a line costs the failures of no other line.
    fn read(&mut self, excerpt: &Excerpt) {
        let (sightings, tracebacks) = (
            self.findings.sightings.len(),
            self.findings.tracebacks.len(),
        );
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

    fn read_whole(&mut self, excerpt: &Excerpt) {
        let lines = text::lines(&excerpt.bytes, excerpt.first_line);
        for flow in text::flows(&lines) {
            let matches = self
                .catalogue
                .signatures
                .matches(&flow, &self.catalogue.cards);
            let tracebacks = traceback::all(&flow, &lines);
            for one in &matches {
                self.note(one, &flow, &lines);
            }
            for traceback in tracebacks {
                // An exception that a card knows is no plain one.
                let said = &traceback.said;
                if !matches
                    .iter()
                    .any(|m| m.start < said.end && said.start < m.end.max(m.start + 1))
                {
                    self.findings.tracebacks.push(traceback);
                }
            }
        }
        let surplus = self
            .findings
            .tracebacks
            .len()
            .saturating_sub(MAX_TRACEBACKS);
        // The first may be the cause, the last is what a reader wants to see: the middle goes.
        if surplus > 0 {
            let half = MAX_TRACEBACKS / 2;
            self.findings.tracebacks.drain(half..half + surplus);
        }
    }

    fn note(&mut self, one: &Match, flow: &Flow, lines: &[LogLine]) {
        let (first, last) = (
            flow.line_at(one.start),
            flow.line_at(one.end.max(one.start + 1) - 1),
        );
        let (Some(line), Some(end)) = (lines.get(first), lines.get(last)) else {
            return;
        };
        let key = repeat_key(one, &line.writer);
        if self.is_again(&key, line, end) {
            return;
        }
        let mut found = one.found.clone();
        own_process::note(&mut found);
        if let Some(pid) = pid_of(&line.writer) {
            found.entry("pid").or_insert_with(|| pid.into());
        }
        let table = self.catalogue.tables.look_up(&mut found).map(Arc::from);
        let frames = traceback::frames_before(flow, lines, one.start);
        let context = slice(
            &flow.text,
            one.start.saturating_sub(CONTEXT),
            one.end + CONTEXT,
        );
        self.newest.insert(key, self.findings.sightings.len());
        self.findings.sightings.push(Sighting {
            card: one.card,
            weak: one.weak,
            count: 1 + line.repeats,
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
            frames,
            found,
        });
    }

    /// Counts what was seen just before; `true` when nothing else is to be done.
    fn is_again(&mut self, key: &str, line: &LogLine, end: &LogLine) -> bool {
        let is_full = self.findings.sightings.len() >= MAX_SIGHTINGS;
        let newest = self.newest.get(key);
        let newest = newest.and_then(|&at| self.findings.sightings.get_mut(at));
        match newest.filter(|s| is_full || line.number <= s.last_line + SAME_WITHIN) {
            Some(same) => {
                same.count = same.count.saturating_add(1 + line.repeats);
                same.last_line = same.last_line.max(end.last);
                true
            }
            None => is_full,
        }
    }
}

/// Returns what two matches of one writer have in common when they tell the same, threads and sizes aside.
fn repeat_key(one: &Match, writer: &str) -> String {
    const TELLING: [&str; 9] = [
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
    let mut key = format!("{} {} {writer}", one.card, one.weak);
    // Each Xid line names the process that it is about.
    let pid = one.found.contains_key("xid").then_some("pid");
    for name in TELLING.into_iter().chain(pid) {
        key.push('\n');
        if let Some(value) = one.found.get(name) {
            let _ = write!(key, "{value}");
        }
    }
    key
}

/// `(Worker_PP0 pid=4711)`: launchers name who wrote a line.
fn pid_of(writer: &str) -> Option<u32> {
    let (_, rest) = writer.split_once("pid=")?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// `rank_3.log`, `worker-3.out`, `attempt_0/3/stderr.log`.
fn rank_of(file: &str) -> Option<u32> {
    let name = super::tables::base_name(file);
    for mark in ["rank", "worker", "local_rank", "proc", "gpu"] {
        let Some(at) = name.to_ascii_lowercase().find(mark) else {
            continue;
        };
        let rest = name[at + mark.len()..].trim_start_matches(['_', '-', '.']);
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        if let Ok(rank) = rest[..digits].parse() {
            return Some(rank);
        }
    }
    // torchrun --log-dir: …/attempt_0/3/stderr.log
    let folder = file.rsplit(['/', '\\']).nth(1)?;
    ["stderr.log", "stdout.log"]
        .contains(&name)
        .then(|| folder.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::recovery;
    use crate::diagnose::signature::Signatures;

    #[test]
    fn an_excerpt_says_what_neighbours_share_once() {
        let text = (0..60)
            .map(|n| format!("line {n} of the log"))
            .collect::<Vec<_>>()
            .join("\n");
        let of = |context: &str| Sighting {
            card: 0,
            weak: false,
            count: 1,
            found: FieldMap::default(),
            table: None,
            first_line: 1,
            last_line: 1,
            rank: None,
            writer: String::new(),
            time: None,
            frames: Vec::new(),
            quote: Quote::default(),
            context: context.into(),
        };
        let log = LogFindings {
            sightings: vec![of(&text[..400]), of(&text[200..700]), of(&text[900..])],
            ..LogFindings::default()
        };
        let whole = format!("{}\n[...]\n{}", &text[..700], &text[900..]);
        let excerpt = |most| log.excerpt(most, str::to_owned);
        assert_eq!(excerpt(1 << 20), whole);
        assert_eq!(excerpt(500), text[..400]);
        assert_eq!(log.excerpt(9, |_| "clean".into()), "clean");
    }

    #[test]
    fn what_may_be_half_a_line_is_left_out_of_an_excerpt() {
        let line = "a line of the log\n";
        let long = format!("hf_half{}", line.repeat(800));
        assert_eq!(whole_lines(&long), line.repeat(799).trim_end());
        assert_eq!(whole_lines("short\ntext"), "short\ntext");
        let endless = "x".repeat(3 * CONTEXT);
        assert_eq!(whole_lines(&endless), endless);
    }

    #[test]
    fn a_launchers_prefix_tells_the_process() {
        assert_eq!(pid_of("VllmWorker rank=1 pid=4711"), Some(4711));
        assert_eq!(pid_of("rank 3"), None);
    }

    #[test]
    fn a_files_name_tells_its_rank() {
        assert_eq!(rank_of("logs/rank_3.log"), Some(3));
        assert_eq!(rank_of("logs/worker-12.out"), Some(12));
        assert_eq!(rank_of("run/attempt_0/5/stderr.log"), Some(5));
        assert_eq!(rank_of("train.log"), None);
    }

    /// A catalogue that panics at the second of two failures: its card is missing.
    fn broken() -> Catalogue {
        let whole = Catalogue::embedded();
        let known = |id: &str| whole.card(id).cloned().expect("a card");
        let cards = [known("host-oom-killer"), known("xid-79-off-bus")];
        let mut catalogue = Catalogue {
            signatures: Signatures::new(&cards),
            cards: cards.into(),
            tables: crate::diagnose::tables::Tables::default(),
        };
        catalogue.cards.truncate(1);
        catalogue
    }

    #[test]
    fn a_line_that_cannot_be_read_costs_no_other_failure() {
        let catalogue = broken();
        let killed = "Out of memory: Killed process 418 (python)\n";
        let bad = "NVRM: GPU at PCI:0000:3b:00: GPU has fallen off the bus.\n";
        let log = format!(
            "one\n{killed}two\n{bad}{bad}three\n{}{killed}",
            "line\n".repeat(600)
        );
        let mut reader = LogReader::new(&catalogue, "x");
        reader.push(log.as_bytes());
        let found = reader.finish();
        let lines: Vec<u64> = found.sightings.iter().map(|s| s.first_line).collect();
        assert_eq!(lines, [2, 607]);
        let failures = recovery::take_failures();
        assert_eq!(failures.len(), 1, "{failures:?}");
    }

    #[test]
    fn a_crash_that_cannot_be_judged_costs_no_other() {
        let whole = Catalogue::embedded();
        let log = format!(
            "Out of memory: Killed process 418 (python)\n{}torch.OutOfMemoryError: CUDA out of memory. Tried to \
             allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 1.06 GiB is free. Of the allocated \
             memory 14.10 GiB is allocated by PyTorch, and 8.02 GiB is reserved by PyTorch but unallocated.\n",
            "line\n".repeat(600)
        );
        let mut reader = LogReader::new(whole, "x");
        reader.push(log.as_bytes());
        // Without signatures there is nothing to read for the card that the figures speak for: a panic.
        let catalogue = Catalogue {
            cards: whole.cards.clone(),
            signatures: Signatures::new(&[]),
            tables: crate::diagnose::tables::Tables::default(),
        };
        let incidents = crate::diagnose::judge(&catalogue, &[reader.finish()], &Default::default());
        let ids: Vec<&str> = incidents.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(ids, ["host-oom-killer"]);
        assert_eq!(recovery::take_failures().len(), 1);
    }
}
