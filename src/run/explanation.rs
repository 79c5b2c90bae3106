//! Explains failed commands. There is no explanation if the command succeeded or no cause was found.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use gputop_explain::evidence::Measured;
use gputop_explain::kernel_report::{self, KernelReport};
use gputop_explain::predicted_fixes;
use gputop_explain::rerun::with_command;
use gputop_explain::{Catalogue, LogFindings, diagnose};
use gputop_model::event::{OomEvidence, OomVerdict};
use gputop_model::incident::Cause;
use gputop_model::incident_record::Excerpt;
use gputop_model::process::program_of;
use gputop_model::redact;
use gputop_model::text::visible;
use gputop_model::{
    DetectedBy, Hello, Incident, IncidentKey, Pid, ProcessKey, Quote, Record, Severity,
    TraceReplay, Variable,
};

use super::command::{CommandLine, ExitOutcome};
use super::hook::{Hook, HookEvidence, HookReports};
use super::oom_watch::OomWatch;
use super::other_pools;
use super::output::CapturedOutput;
use super::ranks::{FirstFailedRank, Rank, folder};
use super::{ExitTime, Finished, RunEvidence};
use crate::collect::hook::Traced;
use crate::collect::host::hello;
use crate::incident::{source_lines, with_timeout};

/// Text to print after a command failed.
#[derive(Debug)]
pub enum Explanation {
    /// The incident to print and the record to save.
    Whole(Box<Incident>, Box<Record>),
    /// One line to print if another rank prints the explanation.
    Line(String),
}

/// Explains a failed command. `rank` is set if the command is one of several ranks; `hook` is set if it ran with the
/// Python hook.
pub fn explain(
    finished: Finished,
    oom: &mut OomWatch,
    rank: Option<&Rank>,
    hook: Option<&Hook>,
) -> Option<Explanation> {
    let Finished { exit, process, at, evidence, .. } = finished;
    if !exit.is_failure() {
        return None;
    }
    let catalogue = Catalogue::embedded();
    let command = evidence.command.clone();
    let (mut logs, has_line_numbers) = evidence.read(catalogue);
    source_lines::add(&mut logs);
    let reports = HookReports::new(hook.map(Hook::reports).unwrap_or_default());
    let message = exception(&logs).or_else(|| reports.exception());
    let measured = Measured { pools: other_pools::read(&logs, at.mono), ..measured() };
    let mut incident = incident(catalogue, &mut logs, has_line_numbers, &reports, (measured, hook));
    if incident.as_ref().map_or(exit.is_sigkill(), is_only_sigkill) {
        let named = incident.as_ref().and_then(|incident| incident.fields.pid);
        let pids: Vec<Pid> = named.into_iter().chain(process.map(|process| process.pid)).collect();
        incident = match killed(catalogue, &mut logs, &command.name(), exit, &oom.verdict(&pids)) {
            Ok(incident) => incident,
            Err(line) => return Some(Explanation::Line(line)),
        };
    }
    // Redact the text, because it is printed to the command's own log, which users may share.
    incident.iter_mut().for_each(redact::incident);
    let whole = |mut incident: Incident| {
        let line = command_line(&command);
        if rank.is_none() {
            with_command(&mut incident, &line);
        }
        let fields = &mut incident.fields;
        fields.program = fields.program.take().or_else(|| program_of(&line));
        let failed = FailedRun { command: &command, process, at, logs: &logs };
        let record = failed.record(&incident);
        Explanation::Whole(Box::new(incident), Box::new(record))
    };
    let Some(rank) = rank else { return incident.map(whole) };
    // Also register exceptions that have no explanation, because the other ranks may have failed while waiting for this
    // rank.
    let what = incident
        .as_ref()
        .map(|incident| incident.title.clone())
        .or_else(|| message.map(|message| visible(&redact::text(message.as_bytes()), 200)))?;
    let first = folder().map_or(FirstFailedRank::This, |folder| rank.claim(&folder, &what));
    match (first, incident) {
        (_, None) => None,
        (FirstFailedRank::This, Some(incident)) => Some(whole(incident)),
        (FirstFailedRank::Other(message), Some(incident)) => Some(Explanation::Line(format!(
            "rank {} failed too ({exit}, {}); {message}",
            rank.number, incident.id
        ))),
    }
}

/// Returns the cause of the failure. Prefers the cause found in the logs. Uses the hook reports if the logs contain no
/// cause, or if the cause in the logs is only a consequence of the one in the hook reports. `measured` has what was
/// measured without the hook. Adds the hook's measurements, and the effects of fixes as predicted from its trace.
fn incident(
    catalogue: &Catalogue,
    logs: &mut Vec<LogFindings>,
    has_line_numbers: bool,
    reports: &HookReports,
    (mut measured, hook): (Measured, Option<&Hook>),
) -> Option<Incident> {
    measured.set_own_pools(reports.pools());
    let from_logs = first(catalogue, logs, &measured);
    let number = logs.len();
    logs.extend(reports.logs(catalogue));
    let with_hook = if logs.len() > number { first(catalogue, logs, &measured) } else { None };
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
        let measured = Measured {
            allocator_settings: measured.allocator_settings,
            pools: measured.pools,
            ..found.report.measured.clone()
        };
        incident = first(catalogue, logs, &measured)?;
        found.report.complete(&mut incident);
        if hook.is_some_and(Hook::traces_allocations) {
            add_predictions(&mut incident, found);
        }
    }
    if !has_line_numbers {
        incident.log = None;
    }
    Some(incident)
}

/// Returns what is known without the hook: the settings that the command inherited.
fn measured() -> Measured {
    Measured { allocator_settings: allocator_settings(), ..Measured::default() }
}

/// Variables with settings of PyTorch's allocator, the one that takes precedence first.
const ALLOCATOR_VARIABLES: [&str; 3] =
    ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"];

fn allocator_settings() -> Option<String> {
    let set = |name: &&str| Some(format!("{name}={}", std::env::var(name).ok()?));
    ALLOCATOR_VARIABLES.iter().find_map(set)
}

fn first(catalogue: &Catalogue, logs: &[LogFindings], measured: &Measured) -> Option<Incident> {
    diagnose(catalogue, logs, measured)
        .into_iter()
        .find(|incident| incident.severity != Severity::Note)
}

/// Card that describes processes killed by SIGKILL, and its causes that only evidence of a lack of memory supports.
const SIGKILL_CARD: &str = "host-oom-killer";
const MEMORY_CAUSES: [&str; 2] = ["host-memory", "container-limit"];

/// Returns true if the incident reports a process killed by SIGKILL, without evidence that memory was the reason.
fn is_only_sigkill(incident: &Incident) -> bool {
    let mut causes = incident.causes.iter();
    let shows_memory =
        |cause: &Cause| MEMORY_CAUSES.contains(&cause.id.as_str()) && !cause.r#for.is_empty();
    incident.id == SIGKILL_CARD && !causes.any(shows_memory)
}

/// Returns the incident for a process killed by the OOM killer, or `None` if something else killed it. If that is
/// unknown, the error is a line for the user.
fn killed(
    catalogue: &Catalogue,
    logs: &mut Vec<LogFindings>,
    name: &str,
    exit: ExitOutcome,
    verdict: &OomVerdict,
) -> Result<Option<Incident>, String> {
    match (verdict.killed.get(), &verdict.evidence) {
        (Some(true), Some(evidence)) => {
            Ok(killed_by_oom_killer(catalogue, logs, name, exit, evidence))
        }
        (Some(_), _) => {
            let end = match exit {
                ExitOutcome::Killed(9) => "was killed by signal 9 (SIGKILL)",
                ExitOutcome::Exited(137) => "exited as if by signal 9 (SIGKILL)",
                _ => return Ok(None),
            };
            Err(format!("{name} {end}; the kernel's out-of-memory killer did not do it"))
        }
        (None, _) => {
            let why = verdict.killed.why().map(ToString::to_string);
            let why = why.unwrap_or_else(|| "the kernel log is not readable".to_owned());
            Err(format!(
                "{name} was killed by signal 9 (SIGKILL) for an unknown reason: {why}. Run `sudo dmesg -T | grep -i 'killed process'` on the host to see whether memory ran out."
            ))
        }
    }
}

fn killed_by_oom_killer(
    catalogue: &Catalogue,
    logs: &mut Vec<LogFindings>,
    name: &str,
    exit: ExitOutcome,
    evidence: &OomEvidence,
) -> Option<Incident> {
    let report = match evidence {
        OomEvidence::KernelLine(line) => KernelReport::line(line),
        OomEvidence::Counter(counter) => KernelReport::oom_count(name, counter),
    };
    // The first log is preferred among those that report the same failure.
    logs.insert(0, kernel_report::findings(catalogue, &[report]));
    let mut incident = first(catalogue, logs, &measured())?;
    // gputop itself wrote the text about an increased counter, and the title says the same.
    let is_counted = matches!(evidence, OomEvidence::Counter(_));
    if is_counted && incident.detected_by == DetectedBy::Exit {
        incident.quote = Quote::default();
        incident.log = None;
    }
    incident.fields.exit_code = Some(exit.code().into());
    Some(incident)
}

/// Returns the program's last exception, such as `KeyError: 'labels'`.
fn exception(logs: &[LogFindings]) -> Option<String> {
    let last = logs.iter().rev().find_map(|log| log.tracebacks.last())?;
    Some(format!("{}: {}", last.exception, last.message))
}

impl RunEvidence {
    /// Parses all logs. The returned flag is true if the line numbers are correct.
    fn read(&self, catalogue: &Catalogue) -> (Vec<LogFindings>, bool) {
        let files = self.files.iter().filter_map(|file| file.read(catalogue));
        let outputs = self.outputs.iter().map(|output| output.read(catalogue));
        (outputs.chain(files).collect(), self.outputs.iter().all(CapturedOutput::is_whole))
    }
}

/// Maximum time for replaying a trace while the user waits for the explanation. The largest trace takes about one
/// second.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(5);

/// If the hook recorded a trace, predicts the effects of the fixes in `incident` and adds them. If no prediction is
/// possible, adds the reason.
fn add_predictions(incident: &mut Incident, found: HookEvidence) {
    if !predicted_fixes::has_settings(incident) {
        return;
    }
    let traced = Traced { process: found.process, torch: found.torch, oom: found.report.oom };
    let replayed = match with_timeout(REPLAY_TIMEOUT, move || traced.replay()) {
        Some(None) => return,
        Some(Some(replayed)) => replayed,
        None => TraceReplay {
            missing: Some(format!(
                "Replaying the allocation trace takes longer than {} s. Run `gputop whatif` on the trace to see which settings help.",
                REPLAY_TIMEOUT.as_secs()
            )),
            ..TraceReplay::default()
        },
    };
    predicted_fixes::add_predictions(incident, &replayed);
}

/// Maximum length of the saved command line. The end of a longer command line is rarely relevant.
const MAX_COMMAND_BYTES: usize = 4096;
/// Maximum size of the log text saved with an incident.
const MAX_EXCERPT_BYTES: usize = 256 << 10;

struct FailedRun<'a> {
    command: &'a CommandLine,
    process: Option<ProcessKey>,
    at: ExitTime,
    logs: &'a [LogFindings],
}

impl FailedRun<'_> {
    /// Returns the incident record to save. `incident` must already be redacted.
    fn record(&self, incident: &Incident) -> Record {
        let hello = hello();
        let mut incident = incident.clone();
        incident.host = (!hello.host.is_empty()).then(|| hello.host.clone());
        let own = self.process.map(|process| process.pid);
        let fields = &mut incident.fields;
        // A line of the kernel log that the command printed can be about any process.
        if let Some(named) = fields.pid.filter(|pid| fields.xid.is_some() && own != Some(*pid)) {
            fields.more.insert("xid_pid".to_owned(), named.0.into());
            fields.pid = None;
        }
        fields.pid = fields.pid.or(own);
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

fn command_line(command: &CommandLine) -> String {
    let words = std::iter::once(&command.program).chain(&command.args);
    visible(&redact::command(words.map(|word| word.as_bytes())), MAX_COMMAND_BYTES)
}

fn excerpt(logs: &[LogFindings]) -> Option<Excerpt> {
    let texts = logs.iter().map(|log| log.excerpt(MAX_EXCERPT_BYTES, sanitized));
    let text = texts.collect::<Vec<String>>().join("\n");
    let text = text.trim();
    (!text.is_empty()).then(|| Excerpt { text: text.to_owned(), is_cut: false })
}

/// Removes secrets, which may span lines, then escapes control characters line by line.
fn sanitized(piece: &str) -> String {
    let text = redact::text(piece.as_bytes());
    let lines = text.split(|byte| *byte == b'\n');
    lines.map(|line| visible(line, MAX_EXCERPT_BYTES)).collect::<Vec<String>>().join("\n")
}

/// Returns gputop's environment, which the command inherits, without variables whose value must be hidden.
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
    all.into_iter().filter_map(|(name, version)| Some((name.to_owned(), version?))).collect()
}
