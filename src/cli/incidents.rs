//! `gputop incidents`: what went wrong so far, from the store.
//!
//! Exit codes: 0 shown; 1 there is none, or none of that name; 2 the store cannot be read, or a file not written.

mod report;
mod table;

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Subcommand;
use color_eyre::Result;
use jiff::tz::TimeZone;
use serde::Serialize;

use super::{print, print_json, print_styled, say};
use crate::export::explanation::{self, Others, Style};
use crate::incidents::{Listing, Record, Store, StoreError, Uid};
use crate::model::incident::Incident;
use crate::model::text::Escaped;

#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, Clone, clap::Args)]
struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List them, the newest first; `*` marks those that nobody has read
    List(ListArgs),
    /// Explain one, and mark it as read
    Show {
        /// The beginning or the end of its name is enough
        uid: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print one for an issue tracker, or with all that is kept of it
    Export {
        /// The beginning or the end of its name is enough
        uid: String,
        /// Print Markdown (the default)
        #[arg(long, conflicts_with = "json")]
        markdown: bool,
        /// Print JSON: the log excerpt, the evidence, the environment as well
        #[arg(long)]
        json: bool,
    },
    /// Show what a report to gputop's authors would hold, for when an explanation is wrong; nothing is sent
    Report {
        /// The beginning or the end of its name is enough
        uid: String,
        /// Write it to this file
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

pub fn run(args: &Args) -> Result<u8> {
    let store = Store::of_this_user()?;
    match &args.command {
        None => list(&store, args.list.json),
        Some(Command::List(list_args)) => list(&store, list_args.json),
        Some(Command::Show { uid, json }) => {
            on(&store, uid, |uid, record| show(&store, uid, record, *json))
        }
        Some(Command::Export { uid, json, .. }) => on(&store, uid, |_, record| {
            if *json {
                print_json(&document(record)?)?;
            } else {
                let incident = std::slice::from_ref(&record.incident);
                print(&(explanation::markdown(incident, true) + &around(record)))?;
            }
            Ok(0)
        }),
        Some(Command::Report { uid, output }) => on(&store, uid, |uid, record| {
            let text = report::text(record);
            match output {
                Some(path) => report::write(path, &text)?,
                None => {
                    print(&text)?;
                    say(&format!(
                        "gputop: this is all that the report would hold; nothing was written or sent. To write it:\n\
                         gputop incidents report {uid} -o report.md\n"
                    ));
                }
            }
            Ok(0)
        }),
    }
}

/// Does something with the incident that the user means.
fn on(store: &Store, word: &str, with: impl FnOnce(&Uid, &Record) -> Result<u8>) -> Result<u8> {
    let found = store
        .find(word)
        .and_then(|uid| store.read(&uid).map(|record| (uid, record)));
    match found {
        Ok((uid, record)) => with(&uid, &record),
        Err(error @ (StoreError::Unknown { .. } | StoreError::Ambiguous { .. })) => {
            say(&format!("gputop: {error}\n"));
            Ok(1)
        }
        Err(error) => Err(error.into()),
    }
}

fn list(store: &Store, json: bool) -> Result<u8> {
    let Listing {
        entries,
        unreadable,
    } = store.list()?;
    if json {
        let incidents = entries.iter().rev().map(|entry| IncidentRow {
            incident: &entry.record.incident,
            read: entry.is_read,
        });
        let document = Document {
            schema: SCHEMA,
            incidents: incidents.collect(),
        };
        print_json(&(serde_json::to_string_pretty(&document)? + "\n"))?;
    } else if !entries.is_empty() {
        let width = std::io::stdout().is_terminal().then(super::width);
        print(&table::text(&entries, &TimeZone::system(), width))?;
    }
    const MAX_SUGGESTED: usize = 5;
    for one in unreadable.iter().take(MAX_SUGGESTED) {
        let file = store.folder().join(&one.file);
        say(&format!(
            "gputop: {} is passed over: {}\n",
            file.display(),
            one.why
        ));
    }
    if unreadable.len() > MAX_SUGGESTED {
        say(&format!(
            "gputop: and {} more files\n",
            unreadable.len() - MAX_SUGGESTED
        ));
    }
    if entries.is_empty() && !json {
        say("gputop: no incident so far; `gputop run` and a dashboard keep those that they see\n");
    }
    Ok(u8::from(entries.is_empty()))
}

fn show(store: &Store, uid: &Uid, record: &Record, json: bool) -> Result<u8> {
    if json {
        print_json(&document(record)?)?;
    } else {
        let style = Style {
            width: super::width(),
            colour: std::io::stdout().is_terminal()
                && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
        };
        let incident = Incident {
            time: None,
            ..record.incident.clone()
        };
        let text = explanation::text(&[incident], true, &style);
        print_styled(&format!(
            "{}\n\n{}",
            text.trim_end(),
            Escaped(&circumstances(uid, record, style.width))
        ))?;
    }
    // Somebody has read it; a store that cannot note that shows it once more.
    if let Err(error) = store.mark_read(std::slice::from_ref(uid)) {
        tracing::warn!("marking {uid} as read: {error}");
    }
    Ok(0)
}

/// What an explanation of a log has none of: when it was, where, and of which command.
fn circumstances(uid: &Uid, record: &Record, width: usize) -> String {
    let when = table::moment(&record.incident, &TimeZone::system(), "%Y-%m-%d %H:%M:%S");
    let host = record.incident.host.as_ref();
    let host = host.map_or_else(String::new, |host| format!(" on {host}"));
    let mut out = format!("WHEN  {when}{host}  {uid}\n");
    if let Some(command) = &record.command {
        out += &format!("RAN   {command}\n");
    }
    let mut lines = Vec::new();
    if let Some(scene) = &record.scene {
        lines.extend(explanation::scene(scene, Others::Named, width));
    }
    lines.extend(explanation::versions(&record.versions, width));
    for line in lines {
        out += &line.printed(false);
        out.push('\n');
    }
    out
}

/// What was there around it, for strangers.
fn around(record: &Record) -> String {
    const WIDTH: usize = 100;
    let Some(scene) = &record.scene else {
        return String::new();
    };
    let lines = explanation::scene(scene, Others::Numbered, WIDTH).into_iter();
    let lines = lines.chain(explanation::versions(&record.versions, WIDTH));
    let lines: Vec<String> = lines.map(|line| line.printed(false)).collect();
    if lines.is_empty() {
        return String::new();
    }
    let text = explanation::fenced("", &lines.join("\n"));
    format!("\n### What was there\n\n{text}\n")
}

const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Document<T> {
    schema: u32,
    incidents: Vec<T>,
}

#[derive(Serialize)]
struct IncidentRow<'a> {
    #[serde(flatten)]
    incident: &'a Incident,
    read: bool,
}

/// All that is kept, in the shape of `explain --json`.
fn document(record: &Record) -> Result<String> {
    let document = Document {
        schema: SCHEMA,
        incidents: vec![record],
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}
