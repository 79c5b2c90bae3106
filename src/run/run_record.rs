//! The incident record of a failed run: the incident and its evidence, without secrets.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;

use super::ExitTime;
use super::command::CommandLine;
use crate::collect::host::hello;
use crate::diagnose::LogFindings;
use crate::incident::{Excerpt, Record};
use crate::model::host::Hello;
use crate::model::incident::Incident;
use crate::model::incident_key::IncidentKey;
use crate::model::process::{ProcessKey, Variable};
use crate::model::text::visible;
use crate::redact;

/// Maximum length of the saved command line; the end of a longer one is rarely relevant.
const MAX_COMMAND_BYTES: usize = 4096;
/// Maximum size of the text of all logs together.
const MAX_EXCERPT_BYTES: usize = 256 << 10;

/// A failed command with its logs.
pub(super) struct FailedRun<'a> {
    pub(super) command: &'a CommandLine,
    pub(super) process: Option<ProcessKey>,
    pub(super) at: ExitTime,
    pub(super) logs: &'a [LogFindings],
}

impl FailedRun<'_> {
    /// Returns the record. `incident` must already be redacted.
    pub(super) fn record(&self, incident: &Incident) -> Record {
        let hello = hello();
        let mut incident = incident.clone();
        incident.host = (!hello.host.is_empty()).then(|| hello.host.clone());
        incident.fields.pid = incident
            .fields
            .pid
            .or(self.process.map(|process| process.pid));
        let key = IncidentKey {
            boot_id: hello.boot_id.clone(),
            process: self.process,
            run: None,
            gpu: None,
            first: self.at.mono,
            time: self.at.wall,
        };
        let mut record = Record::new(incident, key);
        record.command = Some(command_line(self.command));
        record.excerpt = excerpt(self.logs);
        record.environment = environment();
        record.versions = versions(&hello);
        record
    }
}

pub(super) fn command_line(command: &CommandLine) -> String {
    let words = std::iter::once(&command.program).chain(&command.args);
    visible(
        &redact::command(words.map(|word| word.as_bytes())),
        MAX_COMMAND_BYTES,
    )
}

fn excerpt(logs: &[LogFindings]) -> Option<Excerpt> {
    let texts = logs
        .iter()
        .map(|log| log.excerpt(MAX_EXCERPT_BYTES, sanitized));
    let text = texts.collect::<Vec<String>>().join("\n");
    let text = text.trim();
    (!text.is_empty()).then(|| Excerpt {
        text: text.to_owned(),
        is_cut: false,
    })
}

/// Removes secrets, which may span lines, and then escapes control characters line by line.
fn sanitized(piece: &str) -> String {
    let text = redact::text(piece.as_bytes());
    let lines = text.split(|byte| *byte == b'\n');
    let lines: Vec<String> = lines.map(|line| visible(line, MAX_EXCERPT_BYTES)).collect();
    lines.join("\n")
}

/// Returns the environment of the command, which is that of gputop.
fn environment() -> Vec<Variable> {
    let all = std::env::vars_os();
    let all = all.map(|(name, value)| redact::variable(name.as_bytes(), value.as_bytes()));
    let mut shown: Vec<Variable> = all.filter(|one| one.value.is_some()).collect();
    shown.sort_by(|a, b| a.name.cmp(&b.name));
    shown
}

fn versions(hello: &Hello) -> BTreeMap<String, String> {
    let driver = std::fs::read("/sys/module/nvidia/version").ok();
    let driver = driver.map(|text| visible(text.trim_ascii(), 60));
    let all = [
        ("gputop", Some(hello.version.clone())),
        ("kernel", hello.kernel.value().cloned()),
        ("driver", driver),
    ];
    all.into_iter()
        .filter_map(|(name, version)| Some((name.to_owned(), version?)))
        .collect()
}
