//! `gputop explain`: read logs, say what went wrong and what to change.
//!
//! Each path is a job: a file, or a directory with a log for each rank. Files are read in pieces, so a log may be of
//! any size; `.gz` and `.zst` are unpacked on the way.
//!
//! What is printed ends up in issue trackers and chats, so it is redacted as stored incidents are, unless `--raw` is given.

mod input;

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::PathBuf;

use color_eyre::Result;

use super::{print, print_json, print_styled, say};
use crate::diagnose::{Catalogue, LogFindings, evidence::Measured, fatal_first, judge, recovery};
use crate::export::explanation;
use crate::model::incident::Incident;
use crate::model::text::visible;
use crate::redact;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Logs, or directories with a log for each rank; `-` is standard input
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print every incident in full, not only the last fatal one
    #[arg(long)]
    all: bool,
    /// Print Markdown, for an issue tracker
    #[arg(long)]
    markdown: bool,
    /// Show secrets found in the log instead of replacing them with `***`
    #[arg(long)]
    raw: bool,
    /// Use the error cards in this directory instead of the built-in ones
    #[arg(long, value_name = "DIR", hide = true)]
    cards: Option<PathBuf>,
}

/// Exit codes: 0 an incident, 1 none, 2 something could not be read and nothing was found in the rest.
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
    let paths = if args.paths.is_empty() {
        &stdin[..]
    } else {
        &args.paths
    };
    let mut incidents = Vec::new();
    let mut logs = Vec::new();
    let mut unread = 0;
    for path in paths {
        let (job, faults) = input::job(catalogue, path);
        for fault in &faults {
            say(&format!("gputop: {fault}\n"));
        }
        unread += faults.len();
        incidents.extend(judge(catalogue, &job, &Measured::default()));
        logs.extend(job);
    }
    let failures = recovery::take_failures();
    for failure in &failures {
        say(&format!("gputop: {failure}\n"));
    }
    unread += failures.len();
    fatal_first(&mut incidents);
    // Only what is printed: a log may have gigabytes.
    if !args.raw {
        incidents.iter_mut().for_each(redact::incident);
    }
    if args.json {
        print_json(&explanation::json(&incidents)?)?;
    } else if args.markdown {
        print(&explanation::markdown(&incidents, args.all))?;
    } else if !incidents.is_empty() {
        let style = explanation::Style {
            width: super::width(),
            colour: std::io::stdout().is_terminal()
                && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
        };
        print_styled(&explanation::text(&incidents, args.all, &style))?;
    }
    if incidents.is_empty() && !args.json {
        say(&nothing(&logs, args.raw));
    }
    Ok(exit_code(&incidents, unread))
}

fn exit_code(incidents: &[Incident], unread: usize) -> u8 {
    match (incidents.is_empty(), unread) {
        (false, _) => 0,
        (true, 0) => 1,
        (true, _) => 2,
    }
}

/// That no incident was found, with the last exception where there is one: it may be what the reader looks for.
fn nothing(logs: &[LogFindings], raw: bool) -> String {
    let bytes: u64 = logs.iter().map(|log| log.bytes).sum();
    let last = logs
        .iter()
        .rev()
        .find_map(|log| Some((log, log.tracebacks.last()?)));
    let mut out = match (bytes, logs.len()) {
        (_, 0) => return String::new(),
        (0, _) => "gputop: there was nothing to read: the input is empty\n".to_owned(),
        (_, 1) => "gputop: no GPU failure in it\n".to_owned(),
        (_, n) => format!("gputop: no GPU failure in {n} logs\n"),
    };
    if let Some((log, traceback)) = last {
        let place = traceback.place().map_or_else(String::new, |frame| {
            format!(", raised at {}:{}", frame.file, frame.line)
        });
        let said = format!("{}: {}", traceback.exception, traceback.message);
        let said = match raw {
            true => said.into_bytes(),
            false => redact::text(said.as_bytes()),
        };
        let said = visible(&said, 500);
        let file = &log.file;
        let _ = writeln!(
            out,
            "Its last exception is a plain one ({file}:{}{place}):\n{said}",
            traceback.last_line
        );
    }
    out
}
