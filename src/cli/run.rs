//! `gputop run`: runs a command unchanged and, if it fails, explains why.
//!
//! Returns the command's exit code, 128 + N if signal N killed the command, 127 if it was not found, or 126 if the
//! command cannot be executed.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use color_eyre::Result;
use gputop_explain::recovery;
use gputop_model::{Millis, PidNamespace, ProcessKey, Record};

use super::background_recorder::BackgroundRecorder;
use super::print::{say, say_styled};
use super::settings::{ConfigArgs, Flags, IncidentArgs, Settings, agent_options};
use super::startup_state;
use crate::collect::exits::oom::OomCounterPaths;
use crate::collect::host::pid_namespace;
use crate::export::explanation::{self, Detail};
use crate::incident::{save, with_timeout};
use crate::run::{
    self, Capture, CommandLine, Explanation, Finished, Hook, OomWatch, Rank, StallReporter,
};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Run Python without gputop's hook
    #[arg(long)]
    no_hook: bool,
    /// Do not capture the output to terminals and pipes; use only output files, the hook and the exit status to explain
    /// failures
    #[arg(long)]
    no_capture: bool,
    /// Record PyTorch's allocations, and save the trace on an out-of-memory error and at exit
    #[arg(long, conflicts_with = "no_hook")]
    trace_allocs: bool,
    /// Record this host while the command runs, keep the recording, and print a summary of the command at the end
    /// [default file: gputop-run-DATE-PID.gpt.zst]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    #[expect(clippy::option_option, reason = "clap's type for an option with an optional value")]
    summary: Option<Option<PathBuf>>,
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    incidents: IncidentArgs,
    /// Command to run, with its arguments
    #[arg(
        value_name = "CMD",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    command: Vec<OsString>,
}

pub fn run(args: &Args, flags: &Flags) -> Result<u8> {
    // Write gputop's panics to the log, to keep the command's output clean.
    std::panic::set_hook(Box::new(|panic| {
        if !recovery::is_recovered(panic) {
            tracing::error!("gputop run: {panic}");
        }
    }));
    let Some((program, rest)) = args.command.split_first() else { return Ok(2) };
    let hook = if args.no_hook {
        None
    } else {
        let trace = args.trace_allocs;
        with_timeout(HOME_TIMEOUT, move || Hook::prepare(trace)).flatten()
    };
    let command = CommandLine {
        program: program.clone(),
        args: rest.to_vec(),
        environment: hook.as_ref().map(Hook::environment).unwrap_or_default(),
        closed_streams: startup_state::closed_streams(),
        ignores_sigpipe: startup_state::ignores_sigpipe(),
    };
    let rank = Rank::of_this_process();
    let capture = if args.no_capture { Capture::Files } else { Capture::All };
    let mut oom = oom_watch();
    let recorder = args.summary.as_ref();
    let recorder = recorder.map(|path| BackgroundRecorder::start(path.as_ref(), flags));
    let mut finished = match run::run(&command, rank.as_ref(), capture, stall_reporter()) {
        Ok(finished) => finished,
        Err(why) => {
            say(&format!("gputop: {why}\n"));
            return Ok(why.code());
        }
    };
    let (code, process) = (finished.exit.code(), finished.process);
    // Dropping the pipes waits for processes that the command left running. Print the explanation first.
    let _pipes = finished.take_pipes();
    report(|| explain(finished, &mut oom, rank.as_ref(), hook.as_ref(), flags));
    for trace in hook.iter().flat_map(Hook::traces) {
        say(&format!("gputop: allocation trace: {}\n", trace.display()));
    }
    if let Some(recorder) = recorder {
        let traces = hook.as_ref().map(Hook::traces).unwrap_or_default();
        let traces = args.trace_allocs.then_some(&*traces);
        report(|| summarize(recorder, process, traces));
    }
    Ok(code)
}

fn summarize(
    recorder: Result<BackgroundRecorder>,
    process: Option<ProcessKey>,
    traces: Option<&[PathBuf]>,
) {
    if let Err(why) = recorder.and_then(|recorder| recorder.summarize(process, traces)) {
        say(&format!("gputop: no summary: {why}\n"));
    }
}

/// Runs `explain` and reports its failures. A panic in `explain` does not change the exit code.
fn report(explain: impl FnOnce()) {
    recovery::recover(explain);
    for failure in recovery::take_failures() {
        say(&format!("gputop: {failure}\n"));
    }
}

/// Returns the reporter of stalled ranks, unless the search for programs is turned off.
fn stall_reporter() -> Option<StallReporter> {
    let options = agent_options(Millis(1_000));
    let report = |line: &str| {
        // The command's output may be in the middle of a line.
        let before = if std::io::stderr().is_terminal() { "\n" } else { "" };
        say(&format!("{before}gputop: {line}\n"));
    };
    options.finds_candidates.then_some(StallReporter {
        proc_root: options.proc_root,
        container_files: options.container_files,
        report,
    })
}

fn oom_watch() -> OomWatch {
    let options = agent_options(Millis(1_000));
    let is_host = pid_namespace(&options.proc_root) == PidNamespace::Host;
    let paths =
        OomCounterPaths { proc_root: options.proc_root, cgroup_root: options.cgroup_root, is_host };
    OomWatch::start(paths, &options.kernel_log)
}

/// Prints the explanation of a failed command and saves the incident.
fn explain(
    finished: Finished,
    oom: &mut OomWatch,
    rank: Option<&Rank>,
    hook: Option<&Hook>,
    flags: &Flags,
) {
    match run::explain(finished, oom, rank, hook) {
        Some(Explanation::Whole(incident, record)) => {
            let style = super::print::style_of(std::io::stderr().is_terminal());
            let detail = Detail::Short { more: "`gputop incidents show last`" };
            let text = explanation::text(std::slice::from_ref(&*incident), detail, &style);
            say_styled(&format!("\n{text}"));
            let fault = run::run_until_cancelled(|is_cancelled| {
                save_incident(*record, flags, is_cancelled)
            });
            if let Some(fault) = fault {
                say(&format!("gputop: {fault}\n"));
            }
        }
        Some(Explanation::Line(line)) => say(&format!("gputop: {line}\n")),
        None => {}
    }
}

/// Maximum time to read the configuration or to install the hook, because a network home directory may hang.
const HOME_TIMEOUT: Duration = Duration::from_secs(2);

/// Saves the incident and runs the user's `on_incident` command. Returns an error message if either fails.
fn save_incident(record: Record, flags: &Flags, is_cancelled: &Arc<AtomicBool>) -> Option<String> {
    let flags = flags.clone();
    let settings = with_timeout(HOME_TIMEOUT, move || {
        let settings = Settings::read(&flags);
        settings.map(|settings| settings.values.on_incident)
    });
    match settings {
        Some(Ok(on_incident)) => save(record, on_incident.as_deref(), is_cancelled).fault,
        Some(Err(error)) => {
            let fault = save(record, None, is_cancelled).fault;
            Some(fault.unwrap_or_else(|| format!("on_incident was not run: {error}")))
        }
        None => save(record, None, is_cancelled).fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_a_panic_in_the_explanation_and_returns() {
        report(|| panic!("injected"));
        // `report` has already taken and printed the failure.
        assert!(recovery::take_failures().is_empty());
    }
}
