//! `gputop explain`: finds GPU failures in logs, and explains what went wrong and what to change.
//!
//! A path is a file or a directory. The logs from the ranks of one job are explained together.
//! Files are read in chunks, so logs may be of any size. `.gz` and `.zst` files are decompressed.
//!
//! The output is often pasted into issue trackers and chats. It is redacted like saved incidents unless `--raw` is given.

mod input;

use std::fmt::Write as _;
use std::path::PathBuf;

use color_eyre::Result;
use gputop_explain::workload::Workloads;
use gputop_explain::{
    Catalogue, LogFindings, diagnose, evidence::Measured, fatal_first, jobs, recovery,
};
use gputop_model::redact;
use gputop_model::text::visible;
use gputop_model::{Bytes, Incident};

use super::print::{print, print_json, print_styled, say};
use super::progress::Progress;
use crate::export::cards;
use crate::export::explanation::{self, Detail, Document};
use crate::incident::source_lines;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Log files, or directories of logs; `-` is standard input
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print all incidents in full, not only the last fatal one
    #[arg(long)]
    all: bool,
    /// Print all causes and checks, and advice to avoid
    #[arg(long, short)]
    verbose: bool,
    /// Print Markdown for an issue tracker
    #[arg(long)]
    markdown: bool,
    /// Show secrets found in the log instead of replacing them with `***`
    #[arg(long)]
    raw: bool,
    /// Use the error cards in this directory instead of the built-in ones, and the workloads beside it
    #[arg(long, value_name = "DIR", hide = true)]
    cards: Option<PathBuf>,
}

/// Explains logs. Exit codes: 0 incident found; 1 no incident found; 2 an input could not be read, and the others
/// contain no incident.
pub fn run(args: &Args) -> Result<u8> {
    let own;
    let catalogue = match &args.cards {
        Some(folder) => {
            own = super::cards::from(folder)?;
            &own
        }
        None => Catalogue::embedded(),
    };
    let stdin = [PathBuf::from("-")];
    let paths = if args.paths.is_empty() { &stdin[..] } else { &args.paths };
    let Explained { mut incidents, logs, unread } = explained(catalogue, paths);
    fatal_first(&mut incidents);
    // Redact the output instead of the log, because a log may be gigabytes long.
    if !args.raw {
        incidents.iter_mut().for_each(redact::incident);
    }
    if args.json {
        print_json(&Document::of(&incidents))?;
    } else if args.markdown {
        print(&explanation::markdown(&incidents, args.all))?;
    } else if !incidents.is_empty() {
        let detail = match (args.all, args.verbose) {
            (true, _) => Detail::All,
            (false, true) => Detail::Full,
            (false, false) => Detail::Short { more: "-v" },
        };
        print_styled(&explanation::text(&incidents, detail, &super::print::style()))?;
    }
    if incidents.is_empty() && !args.json {
        say(&no_incident(catalogue, &logs, args.raw));
    }
    Ok(exit_code(&incidents, unread))
}

/// Logs and the incidents found in them.
#[derive(Default)]
struct Explained {
    incidents: Vec<Incident>,
    logs: Vec<LogFindings>,
    /// Number of inputs, and of logs, that could not be read.
    unread: usize,
}

/// Reads and diagnoses all logs, and prints what could not be read.
fn explained(catalogue: &Catalogue, paths: &[PathBuf]) -> Explained {
    let mut explained = Explained::default();
    let mut progress = Progress::new("", None);
    let mut logs = Vec::new();
    for path in paths {
        let (mut found, faults) = input::logs(catalogue, path, &mut progress);
        for fault in &faults {
            progress.erase();
            say(&format!("gputop: {fault}\n"));
        }
        for log in found.iter().filter(|log| log.skipped_bytes > 0) {
            say(&format!(
                "gputop: {} contains too many errors; only its start and end were read, and {} in the middle were skipped\n",
                log.file,
                Bytes(log.skipped_bytes)
            ));
        }
        explained.unread += faults.len();
        source_lines::add(&mut found);
        logs.append(&mut found);
    }
    // The ranks of a job may be given as separate files. The last job comes first.
    for job in jobs(catalogue, logs) {
        explained.incidents.extend(diagnose(catalogue, &job, &Measured::default()));
        explained.logs.extend(job);
    }
    drop(progress);
    let failures = recovery::take_failures();
    for failure in &failures {
        say(&format!("gputop: {failure}\n"));
    }
    explained.unread += failures.len();
    explained
}

fn exit_code(incidents: &[Incident], unread: usize) -> u8 {
    match (incidents.is_empty(), unread) {
        (false, _) => 0,
        (true, 0) => 1,
        (true, _) => 2,
    }
}

/// Returns the message for logs without an incident. The message includes the last exception, which may be the one that
/// the user wants explained.
fn no_incident(catalogue: &Catalogue, logs: &[LogFindings], raw: bool) -> String {
    let bytes: u64 = logs.iter().map(|log| log.bytes).sum();
    // A launcher raises an exception of its own after that of the program.
    let last = |log: &'_ LogFindings| {
        let mut tracebacks = log.tracebacks.iter().rev();
        tracebacks.find(|traceback| !traceback.is_wrapper()).or(log.tracebacks.last()).cloned()
    };
    let last = logs.iter().find_map(|log| Some((log, last(log)?)));
    let mut out = match (bytes, logs.len()) {
        (_, 0) => return String::new(),
        (0, _) => "gputop: nothing to explain: the input is empty\n".to_owned(),
        (_, 1) => "gputop: no known GPU failure found in the log\n".to_owned(),
        (_, n) => format!("gputop: no known GPU failure found in {n} logs\n"),
    };
    if let Some((log, traceback)) = last {
        let place = traceback
            .place()
            .map_or_else(String::new, |frame| format!(", raised at {}:{}", frame.file, frame.line));
        let exception = format!("{}: {}", traceback.exception, traceback.message);
        let exception =
            if raw { exception.into_bytes() } else { redact::text(exception.as_bytes()) };
        let exception = visible(&exception, 500);
        let file = &log.file;
        let _ = writeln!(
            out,
            "No card describes the last exception ({file}:{}{place}):\n{exception}",
            traceback.last_line
        );
        let mut files = traceback.frames.iter().map(|frame| frame.file.as_str());
        let innermost = files.next_back().unwrap_or_default();
        if let Some(server) = Workloads::embedded().recognize(innermost, "").server() {
            let advice = if DEFECTS.contains(&traceback.exception.as_str()) {
                format!(
                    "This is a bug in {server}, not in the GPU: update it, or report it with this log."
                )
            } else {
                format!("{server} itself raised this, not the GPU. The message says why.")
            };
            let _ = writeln!(out, "{advice}");
        }
    }
    out += &cards_to_read(catalogue, logs);
    out
}

/// Exceptions that a server raises only because of a defect. Others, such as `ValueError`, may reject what it was given.
const DEFECTS: &[&str] = &["AssertionError", "AttributeError", "NameError", "UnboundLocalError"];

/// Maximum number of cards to suggest for a log without a known failure.
const MAX_SIMILAR_CARDS: usize = 3;

/// Returns the cards that best match a short query, such as a question, or an error message with a typo. A text that
/// reports no failure has no cards.
fn cards_to_read(catalogue: &Catalogue, logs: &[LogFindings]) -> String {
    let texts = logs.iter().filter_map(|log| log.short_text.as_deref());
    let texts: Vec<&str> = texts.filter(|text| cards::may_report_failure(text)).collect();
    let mut found = cards::search(catalogue, &texts.join("\n"));
    found.truncate(MAX_SIMILAR_CARDS);
    if found.is_empty() {
        return String::new();
    }
    format!(
        "These cards share words with the text, but may not apply. `gputop cards ID` shows one:\n{}",
        cards::list(&found)
    )
}
