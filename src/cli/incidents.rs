//! `gputop incidents`: lists, shows and exports saved incidents.
//!
//! Exit codes: 0 shown; 1 no incident found; 2 the store cannot be read, or a file cannot be written.

mod report;
mod table;

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Subcommand;
use color_eyre::Result;
use gputop_model::text::Escaped;
use gputop_model::{Incident, Record};
use jiff::tz::TimeZone;
use serde::Serialize;

use super::print::{print, print_json, print_styled, say};
use crate::export::explanation::{self, Detail, Document, Others};
use crate::incident::{Listing, Store, StoreError, Uid};

#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<IncidentsCommand>,
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
enum IncidentsCommand {
    /// List saved incidents, newest first; `*` marks unread ones
    #[command(after_help = "Example:\n  gputop incidents list")]
    List(ListArgs),
    /// Explain an incident, and mark it as read
    #[command(after_help = "Example:\n  gputop incidents show 7f3a")]
    Show {
        /// UID of the incident, its first or last characters, or `last` for the newest
        uid: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print an incident as Markdown for an issue tracker, or as JSON
    #[command(after_help = "Example:\n  gputop incidents export 7f3a > incident.md")]
    Export {
        /// UID of the incident, its first or last characters, or `last` for the newest
        uid: String,
        /// Print Markdown (default)
        #[arg(long, conflicts_with = "json")]
        markdown: bool,
        /// Print JSON, with the log excerpt, the evidence and the environment
        #[arg(long)]
        json: bool,
    },
    /// Print a report for gputop's authors about a wrong explanation; nothing is sent
    #[command(after_help = "Example:\n  gputop incidents report 7f3a -o report.md")]
    Report {
        /// UID of the incident, its first or last characters, or `last` for the newest
        uid: String,
        /// Write the report to this file
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

pub fn run(args: &Args) -> Result<u8> {
    let store = Store::of_this_user()?;
    match &args.command {
        None => list(&store, args.list.json),
        Some(IncidentsCommand::List(list_args)) => list(&store, list_args.json),
        Some(IncidentsCommand::Show { uid, json }) => {
            with_incident(&store, uid, |uid, record| show(&store, uid, record, *json))
        }
        Some(IncidentsCommand::Export { uid, json, .. }) => {
            with_incident(&store, uid, |_, record| {
                if *json {
                    print_json(&Document::of([record]))?;
                } else {
                    let incident = std::slice::from_ref(&record.incident);
                    print(&(explanation::markdown(incident, true) + &anonymous_scene(record)))?;
                }
                Ok(0)
            })
        }
        Some(IncidentsCommand::Report { uid, output }) => {
            with_incident(&store, uid, |uid, record| {
                let text = report::text(record);
                match output {
                    Some(path) => report::write(path, &text)?,
                    None => {
                        print(&text)?;
                        say(&format!(
                            "gputop: this is the complete report; nothing was written or sent. To write it to a file:\n\
                         gputop incidents report {uid} -o report.md\n"
                        ));
                    }
                }
                Ok(0)
            })
        }
    }
}

/// Calls `action` with the incident whose UID begins or ends with `part`.
fn with_incident(
    store: &Store,
    part: &str,
    action: impl FnOnce(&Uid, &Record) -> Result<u8>,
) -> Result<u8> {
    match store.find(part).and_then(|uid| store.read(&uid).map(|record| (uid, record))) {
        Ok((uid, record)) => action(&uid, &record),
        Err(error @ (StoreError::Unknown { .. } | StoreError::Ambiguous { .. })) => {
            say(&format!("gputop: {error}\n"));
            Ok(1)
        }
        Err(error) => Err(error.into()),
    }
}

fn list(store: &Store, json: bool) -> Result<u8> {
    let Listing { entries, unreadable } = store.list()?;
    if json {
        let incidents = entries
            .iter()
            .rev()
            .map(|entry| IncidentRow { incident: &entry.record.incident, read: entry.is_read });
        print_json(&Document::of(incidents.collect::<Vec<_>>()))?;
    } else if !entries.is_empty() {
        let width = std::io::stdout().is_terminal().then(super::print::width);
        print(&table::text(&entries, &TimeZone::system(), width))?;
    }
    const MAX_REPORTED_FILES: usize = 5;
    for skipped in unreadable.iter().take(MAX_REPORTED_FILES) {
        let file = store.folder().join(&skipped.file);
        say(&format!("gputop: skipped {}: {}\n", file.display(), skipped.why));
    }
    if unreadable.len() > MAX_REPORTED_FILES {
        say(&format!("gputop: skipped {} more files\n", unreadable.len() - MAX_REPORTED_FILES));
    }
    if entries.is_empty() && !json {
        say("gputop: no saved incidents. `gputop run` and the dashboard save incidents\n");
    }
    Ok(u8::from(entries.is_empty()))
}

fn show(store: &Store, uid: &Uid, record: &Record, json: bool) -> Result<u8> {
    if json {
        print_json(&Document::of([record]))?;
    } else {
        let style = super::print::style();
        let incident = Incident { time: None, ..record.incident.clone() };
        let text = explanation::text(&[incident], Detail::Full, &style);
        print_styled(&format!(
            "{}\n\n{}",
            text.trim_end(),
            Escaped(&circumstances(uid, record, style.width))
        ))?;
    }
    // Ignore a failure to mark the incident as read. The incident then stays unread.
    if let Err(error) = store.mark_read(std::slice::from_ref(uid)) {
        tracing::warn!("cannot mark {uid} as read: {error}");
    }
    Ok(0)
}

/// Returns the lines that are printed only for saved incidents: time, host, command, scene and versions.
fn circumstances(uid: &Uid, record: &Record, width: usize) -> String {
    let when = table::local_time(&record.incident, &TimeZone::system(), "%Y-%m-%d %H:%M:%S");
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

/// Returns the incident's scene without process and user names, for publication.
fn anonymous_scene(record: &Record) -> String {
    const WIDTH: usize = 100;
    let Some(scene) = &record.scene else { return String::new() };
    let lines = explanation::scene(scene, Others::Numbered, WIDTH).into_iter();
    let lines = lines.chain(explanation::versions(&record.versions, WIDTH));
    let lines: Vec<String> = lines.map(|line| line.printed(false)).collect();
    if lines.is_empty() {
        return String::new();
    }
    let text = explanation::fenced("", &lines.join("\n"));
    format!("\n### Scene\n\n{text}\n")
}

#[derive(Serialize)]
struct IncidentRow<'a> {
    #[serde(flatten)]
    incident: &'a Incident,
    read: bool,
}
