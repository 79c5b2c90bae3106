//! The explanation printed after a failure. Nothing is printed if the command succeeded or no cause was found.

use super::exit::ExitOutcome;
use super::hook::Hook;
use super::hook_evidence::HookReports;
use super::ranks::{First, Rank, folder};
use super::run_record::{FailedRun, command_line};
use super::trace_replay::add_predictions;
use super::{Evidence, Finished};
use crate::diagnose::evidence::Measured;
use crate::diagnose::hook_report::name_source;
use crate::diagnose::rerun::with_command;
use crate::diagnose::{Catalogue, LogFindings, LogReader, judge};
use crate::incident::Record;
use crate::model::incident::{DetectedBy, Incident, Quote, Severity};
use crate::model::text::visible;
use crate::redact;

/// Text to print after a failure.
#[derive(Debug)]
pub enum Explanation {
    /// The incident to print and the record to save.
    Whole(Box<Incident>, Box<Record>),
    /// One line; another rank prints the explanation.
    Line(String),
}

/// Explains a failed command. `rank` is set if the command is one of several ranks, `hook` if it ran with the Python
/// hook.
#[must_use]
pub fn explain(
    finished: Finished,
    rank: Option<&Rank>,
    hook: Option<&Hook>,
) -> Option<Explanation> {
    let Finished {
        exit,
        process,
        at,
        evidence,
    } = finished;
    if !exit.is_failure() {
        return None;
    }
    let catalogue = Catalogue::embedded();
    let command = evidence.command.clone();
    let (mut logs, has_line_numbers) = evidence.read(catalogue);
    let reports = HookReports::new(hook.map(Hook::reports).unwrap_or_default());
    let message = exception(&logs).or_else(|| reports.exception());
    let mut incident = incident(catalogue, &mut logs, has_line_numbers, &reports, hook)
        .or_else(|| killed(catalogue, &command.name(), exit));
    // The text is printed into the command's own log, which people share.
    incident.iter_mut().for_each(redact::incident);
    let whole = |mut incident: Incident| {
        if rank.is_none() {
            with_command(&mut incident, &command_line(&command));
        }
        let failed = FailedRun {
            command: &command,
            process,
            at,
            logs: &logs,
        };
        let record = failed.record(&incident);
        Explanation::Whole(Box::new(incident), Box::new(record))
    };
    let Some(rank) = rank else {
        return incident.map(whole);
    };
    // A plain exception counts too: the other ranks may have waited for this one.
    let what = incident
        .as_ref()
        .map(|incident| incident.title.clone())
        .or_else(|| message.map(|message| visible(&redact::text(message.as_bytes()), 200)))?;
    let first = folder().map_or(First::This, |folder| rank.claim(&folder, &what));
    match (first, incident) {
        (_, None) => None,
        (First::This, Some(incident)) => Some(whole(incident)),
        (First::Other(message), Some(incident)) => Some(Explanation::Line(format!(
            "rank {} failed too ({exit}, {}); {message}",
            rank.number, incident.id
        ))),
    }
}

/// Returns the cause of the failure. The logs decide; hook reports are used if no log contains the cause or the logs
/// only contain a consequence of it. Measurements of the hook and predicted fixes from its trace are added.
fn incident(
    catalogue: &Catalogue,
    logs: &mut Vec<LogFindings>,
    has_line_numbers: bool,
    reports: &HookReports,
    hook: Option<&Hook>,
) -> Option<Incident> {
    let from_logs = first(catalogue, logs, &Measured::default());
    let number = logs.len();
    logs.extend(reports.logs(catalogue));
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
    if let Some(found) = reports.oom_measurement(&incident) {
        incident = first(catalogue, logs, &found.report.measured)?;
        found.report.complete(&mut incident);
        if hook.is_some_and(Hook::traces_allocations) {
            add_predictions(&mut incident, found);
        }
    }
    name_source(&mut incident);
    if !has_line_numbers {
        incident.log = None;
    }
    Some(incident)
}

fn first(catalogue: &Catalogue, logs: &[LogFindings], measured: &Measured) -> Option<Incident> {
    judge(catalogue, logs, measured)
        .into_iter()
        .find(|incident| incident.severity != Severity::Note)
}

/// Returns the incident for SIGKILL. A process killed by signal 9 prints nothing, so the exit status is the only
/// evidence.
fn killed(catalogue: &Catalogue, name: &str, exit: ExitOutcome) -> Option<Incident> {
    if !exit.is_sigkill() {
        return None;
    }
    let mut log = LogReader::new(catalogue, "gputop run");
    let text = match exit {
        ExitOutcome::Killed(_) => format!("{name} exited on signal 9 (Killed)\n"),
        ExitOutcome::Exited(code) => format!("{name} exited with code {code}\n"),
    };
    log.push(text.as_bytes());
    let mut incident = first(catalogue, &[log.finish()], &Measured::default())?;
    incident.log = None;
    // This text was made up here, and the title repeats it.
    incident.quote = Quote::default();
    incident.detected_by = DetectedBy::Exit;
    incident.fields.exit_code = Some(exit.code().into());
    Some(incident)
}

/// Returns the last exception of the program: `KeyError: 'labels'`.
fn exception(logs: &[LogFindings]) -> Option<String> {
    let last = logs.iter().rev().find_map(|log| log.tracebacks.last())?;
    Some(format!("{}: {}", last.exception, last.message))
}

impl Evidence {
    /// Returns all logs, and whether their line numbers are right.
    fn read(self, catalogue: &Catalogue) -> (Vec<LogFindings>, bool) {
        let mut logs = Vec::new();
        let mut has_line_numbers = true;
        if let Some(summary) = self.output.finish() {
            has_line_numbers = summary.is_whole;
            logs.push(summary.findings);
        }
        logs.extend(self.files.iter().filter_map(|file| file.read(catalogue)));
        (logs, has_line_numbers)
    }
}
