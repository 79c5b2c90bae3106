//! `gputop run`: run a command as if typed, and explain it when it fails.
//!
//! Exit codes are the command's; 128 and the signal's number where a signal ended it; 127 when there is no such
//! command, 126 when it cannot be run.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use color_eyre::Result;

use super::settings::{Settings, SharedArgs};
use super::{say, say_styled};
use crate::diagnose::recovery;
use crate::export::explanation::{self, Style};
use crate::incidents::{Record, save, with_timeout};
use crate::run::{self, CommandLine, Explanation, Finished, Hook, Rank};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Start Python without gputop's hook: nothing is learned from inside the program
    #[arg(long)]
    no_hook: bool,
    /// Have PyTorch record its allocations; kept at an out-of-memory error and at the end
    #[arg(long, conflicts_with = "no_hook")]
    trace_allocs: bool,
    /// The command and its arguments, as typed without `gputop run`
    #[arg(
        value_name = "CMD",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    command: Vec<OsString>,
}

pub fn run(args: &Args, shared: &SharedArgs) -> Result<u8> {
    // What breaks on our side is for the log: the command's output stays its own.
    std::panic::set_hook(Box::new(|panic| {
        if !recovery::is_recovered(panic) {
            tracing::error!("gputop run: {panic}");
        }
    }));
    let Some((program, rest)) = args.command.split_first() else {
        return Ok(2);
    };
    let hook = if args.no_hook {
        None
    } else {
        let trace = args.trace_allocs;
        with_timeout(PATIENCE, move || Hook::prepare(trace)).flatten()
    };
    let command = CommandLine {
        program: program.clone(),
        args: rest.to_vec(),
        environment: hook.as_ref().map(Hook::environment).unwrap_or_default(),
    };
    let rank = Rank::of_this_process();
    let finished = match run::run(&command, rank.as_ref()) {
        Ok(finished) => finished,
        Err(why) => {
            say(&format!("gputop: {why}\n"));
            return Ok(why.code());
        }
    };
    let code = finished.exit.code();
    report(|| explain(finished, rank.as_ref(), hook.as_ref(), shared));
    for trace in hook.iter().flat_map(Hook::traces) {
        say(&format!("gputop: allocation trace: {}\n", trace.display()));
    }
    Ok(code)
}

/// Runs `explain` so that not even a panic changes what the command exits with, and says what failed in it.
fn report(explain: impl FnOnce()) {
    recovery::recover(explain);
    for failure in recovery::take_failures() {
        say(&format!("gputop: {failure}\n"));
    }
}

/// Prints the explanation of a command that failed, and stores the incident.
fn explain(finished: Finished, rank: Option<&Rank>, hook: Option<&Hook>, shared: &SharedArgs) {
    match run::explain(finished, rank, hook) {
        Some(Explanation::Whole(incident, record)) => {
            let is_terminal = std::io::stderr().is_terminal();
            let style = Style {
                width: super::width_of(is_terminal),
                colour: is_terminal && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
            };
            let text = explanation::text(std::slice::from_ref(&*incident), false, &style);
            say_styled(&format!("\n{text}"));
            let fault = run::run_until_cancelled(|is_enough| kept(*record, shared, is_enough));
            if let Some(fault) = fault {
                say(&format!("gputop: {fault}\n"));
            }
        }
        Some(Explanation::Line(line)) => say(&format!("gputop: {line}\n")),
        None => {}
    }
}

/// How long the configuration may take to be read, and the hook to be laid out: a home that hangs takes for ever.
const PATIENCE: Duration = Duration::from_secs(2);

/// Into the store, and the user's own command told; what went wrong, in one sentence: the command that was run has
/// nothing to do with it.
fn kept(record: Record, shared: &SharedArgs, is_enough: &Arc<AtomicBool>) -> Option<String> {
    let shared = shared.clone();
    let settings = with_timeout(PATIENCE, move || {
        let settings = Settings::read(&shared, None);
        settings.map(|settings| settings.on_incident)
    });
    match settings {
        Some(Ok(on_incident)) => save(record, on_incident.as_deref(), is_enough).fault,
        Some(Err(error)) => {
            let fault = save(record, None, is_enough).fault;
            Some(fault.unwrap_or_else(|| format!("on_incident was not run: {error}")))
        }
        None => save(record, None, is_enough).fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_the_explanation_is_said_and_returns() {
        report(|| panic!("injected"));
        // It was said: nothing is left to say.
        assert!(recovery::take_failures().is_empty());
    }
}
