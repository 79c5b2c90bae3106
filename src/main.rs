//! Parses the command line, installs the panic and report hooks, runs gputop, and returns the exit code.

use std::process::ExitCode;

use color_eyre::config::{HookBuilder, Theme};
use gputop::cli;
use gputop::tui::terminal::restore_on_panic;

fn main() -> ExitCode {
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(code) => return code.into(),
    };
    // The report hook is installed first. The terminal's hook wraps it, so that the screen is restored before anything
    // is printed.
    let hooks = HookBuilder::default().theme(Theme::new());
    let (panic_hook, report_hook) = hooks.into_hooks();
    if let Err(error) = report_hook.install() {
        cli::say(&format!("gputop: {error}\n"));
    }
    // Panic messages are escaped too, because they may quote untrusted text.
    std::panic::set_hook(Box::new(move |panic| {
        cli::say(&format!("{}\n", panic_hook.panic_report(panic)));
    }));
    restore_on_panic();
    let code = cli::run(&cli).unwrap_or_else(|report| {
        cli::say(&format!("gputop: {}\n", one_line(&report)));
        2
    });
    // Exit without waiting for threads, which may hang in a driver call.
    std::process::exit(code.into())
}

/// Returns an error report and its causes on one line. Skips causes already contained in the preceding text.
fn one_line(report: &color_eyre::Report) -> String {
    let mut line = String::new();
    for cause in report.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = cause;
        } else if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}
