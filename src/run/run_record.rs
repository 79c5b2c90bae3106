//! What is kept of a run that failed: the incident, and what it was concluded from, without secrets.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;

use super::Moment;
use super::command::CommandLine;
use crate::collect::host::hello;
use crate::diagnose::LogFindings;
use crate::incidents::{Excerpt, Key, Record};
use crate::model::host::Hello;
use crate::model::incident::Incident;
use crate::model::process::{ProcessKey, Variable};
use crate::model::text::visible;
use crate::redact;

/// A longer command line is cut; the end of one is rarely what tells.
const MAX_COMMAND: usize = 4096;
/// Text of all logs together.
const MAX_EXCERPT: usize = 256 << 10;

/// Who failed, when, and what it had said.
pub(super) struct Failed<'a> {
    pub(super) command: &'a CommandLine,
    pub(super) who: Option<ProcessKey>,
    pub(super) at: Moment,
    pub(super) logs: &'a [LogFindings],
}

impl Failed<'_> {
    /// `incident` is redacted already.
    pub(super) fn record(&self, incident: &Incident) -> Record {
        let hello = hello();
        let mut incident = incident.clone();
        incident.host = (!hello.host.is_empty()).then(|| hello.host.clone());
        incident.fields.pid = incident.fields.pid.or(self.who.map(|who| who.pid));
        let observed = Key {
            boot_id: hello.boot_id.clone(),
            process: self.who,
            run: None,
            gpu: None,
            first: self.at.mono,
            time: self.at.wall,
        };
        let mut record = Record::new(incident, observed);
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
        MAX_COMMAND,
    )
}

fn excerpt(logs: &[LogFindings]) -> Option<Excerpt> {
    let texts = logs.iter().map(|log| log.excerpt(MAX_EXCERPT, harmless));
    let text = texts.collect::<Vec<String>>().join("\n");
    let text = text.trim();
    (!text.is_empty()).then(|| Excerpt {
        text: text.to_owned(),
        is_cut: false,
    })
}

/// Without secrets, which may go over lines; then line by line without what a terminal would obey.
fn harmless(piece: &str) -> String {
    let text = redact::text(piece.as_bytes());
    let lines = text.split(|byte| *byte == b'\n');
    let lines: Vec<String> = lines.map(|line| visible(line, MAX_EXCERPT)).collect();
    lines.join("\n")
}

/// What the command was given, which is what we were given.
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
