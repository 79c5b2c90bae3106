//! What is said after a failure, if anything: nothing is where nothing is wrong, or nothing was found.

use super::exit::Ended;
use super::hook::Hook;
use super::hook_evidence::Inside;
use super::ranks::{First, Rank, folder};
use super::run_record::{Failed, command_line};
use super::trace_replay::foretell;
use super::{Evidence, Finished};
use crate::diagnose::evidence::Measured;
use crate::diagnose::hook_report::name_source;
use crate::diagnose::rerun::with_command;
use crate::diagnose::{Catalogue, LogFindings, LogReader, judge};
use crate::incidents::Record;
use crate::model::incident::{DetectedBy, Incident, Quote, Severity};
use crate::model::text::visible;
use crate::redact;

/// What to print.
#[derive(Debug)]
pub enum Explanation {
    /// And what to keep of it.
    Whole(Box<Incident>, Box<Record>),
    /// Another rank explains.
    Line(String),
}

/// Reads what the command left behind. `rank`, where it is one of many; `hook`, where it ran with it.
#[must_use]
pub fn explain(
    finished: Finished,
    rank: Option<&Rank>,
    hook: Option<&Hook>,
) -> Option<Explanation> {
    let Finished {
        ended,
        who,
        at,
        evidence,
    } = finished;
    if !ended.is_failure() {
        return None;
    }
    let catalogue = Catalogue::embedded();
    let command = evidence.command.clone();
    let (mut logs, has_lines) = evidence.read(catalogue);
    let inside = Inside::new(hook.map(Hook::reports).unwrap_or_default());
    let said = exception(&logs).or_else(|| inside.exception());
    let mut incident = incident(catalogue, &mut logs, has_lines, &inside, hook)
        .or_else(|| killed(catalogue, &command.name(), ended));
    // It goes into the command's own log, which people share.
    incident.iter_mut().for_each(redact::incident);
    let whole = |mut incident: Incident| {
        if rank.is_none() {
            with_command(&mut incident, &command_line(&command));
        }
        let failed = Failed {
            command: &command,
            who,
            at,
            logs: &logs,
        };
        let record = failed.record(&incident);
        Explanation::Whole(Box::new(incident), Box::new(record))
    };
    let Some(rank) = rank else {
        return incident.map(whole);
    };
    // Also a plain exception may be what the other ranks then waited for in vain.
    let what = incident
        .as_ref()
        .map(|incident| incident.title.clone())
        .or_else(|| said.map(|said| visible(&redact::text(said.as_bytes()), 200)))?;
    let first = folder().map_or(First::This, |folder| rank.claim(&folder, &what));
    match (first, incident) {
        (_, None) => None,
        (First::This, Some(incident)) => Some(whole(incident)),
        (First::Other(said), Some(incident)) => Some(Explanation::Line(format!(
            "rank {} failed too ({ended}, {}); {said}",
            rank.number, incident.id
        ))),
    }
}

/// What ended the command: by its own words, and where no log has them or they are about a consequence only by what
/// the hook heard inside; with what the hook measured, and what its trace says of the fixes.
fn incident(
    catalogue: &Catalogue,
    logs: &mut Vec<LogFindings>,
    has_lines: bool,
    inside: &Inside,
    hook: Option<&Hook>,
) -> Option<Incident> {
    let from_logs = first(catalogue, logs, &Measured::default());
    let number = logs.len();
    logs.extend(inside.logs(catalogue));
    let with_hook = if logs.len() > number {
        first(catalogue, logs, &Measured::default())
    } else {
        None
    };
    let is_cause = |cause: &Incident| match &from_logs {
        Some(known) => cause.secondary.iter().any(|one| one.id == known.id),
        None => true,
    };
    let with_hook = with_hook.filter(is_cause);
    if with_hook.is_none() {
        logs.truncate(number);
    }
    let mut incident = with_hook.or(from_logs)?;
    if let Some(found) = inside.measured(&incident) {
        incident = first(catalogue, logs, &found.heard.measured)?;
        found.heard.complete(&mut incident);
        if hook.is_some_and(Hook::traces_allocations) {
            foretell(&mut incident, found);
        }
    }
    name_source(&mut incident);
    if !has_lines {
        incident.log = None;
    }
    Some(incident)
}

fn first(catalogue: &Catalogue, logs: &[LogFindings], measured: &Measured) -> Option<Incident> {
    judge(catalogue, logs, measured)
        .into_iter()
        .find(|incident| incident.severity != Severity::Note)
}

/// Nobody prints anything after signal 9: what we saw ourselves is the only text.
fn killed(catalogue: &Catalogue, name: &str, ended: Ended) -> Option<Incident> {
    if !ended.is_killed_hard() {
        return None;
    }
    let mut log = LogReader::new(catalogue, "gputop run");
    let text = match ended {
        Ended::Killed(_) => format!("{name} exited on signal 9 (Killed)\n"),
        Ended::Exited(code) => format!("{name} exited with code {code}\n"),
    };
    log.push(text.as_bytes());
    let mut incident = first(catalogue, &[log.finish()], &Measured::default())?;
    incident.log = None;
    // Those are our words, and the title has them.
    incident.quote = Quote::default();
    incident.detected_by = DetectedBy::Exit;
    incident.fields.exit_code = Some(ended.code().into());
    Some(incident)
}

/// The last exception of the program: `KeyError: 'labels'`.
fn exception(logs: &[LogFindings]) -> Option<String> {
    let last = logs.iter().rev().find_map(|log| log.tracebacks.last())?;
    Some(format!("{}: {}", last.exception, last.message))
}

impl Evidence {
    /// All logs, and whether their line numbers are right.
    fn read(self, catalogue: &Catalogue) -> (Vec<LogFindings>, bool) {
        let mut logs = Vec::new();
        let mut has_lines = true;
        if let Some(told) = self.tape.finish() {
            has_lines = told.is_whole;
            logs.push(told.findings);
        }
        logs.extend(self.files.iter().filter_map(|file| file.read(catalogue)));
        (logs, has_lines)
    }
}
