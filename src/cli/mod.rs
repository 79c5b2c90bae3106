//! The command line: one file for each subcommand, and the rule that turns an outcome into an exit code.
//!
//! Exit codes: 0 fine; 1 nothing to show (no NVIDIA driver, no terminal to show it on); 2 usage or failure;
//! 128 + N when signal N ended the dashboard; of `run` those of its command.
// Printing is what a command line is for.
#![allow(clippy::print_stdout, clippy::print_stderr)]

#[cfg(local)]
mod agent;
#[cfg(local)]
mod allocator;
mod cards;
mod closed_stdout;
mod config;
mod connect;
mod dashboard;
mod decompress;
mod demo;
#[cfg(local)]
mod doctor;
mod explain;
mod generate;
#[cfg(local)]
mod hook;
mod incident_inbox;
#[cfg(local)]
mod incident_sync;
mod incidents;
#[cfg(local)]
mod line;
mod log;
mod malloc_tuning;
#[cfg(local)]
mod once;
#[cfg(local)]
mod probe;
mod progress;
mod pushed_program;
mod record;
mod replay;
#[cfg(local)]
mod run;
mod settings;
mod slurm;
mod snapshot;
mod targets;
#[cfg(any(test, not(local)))]
mod unavailable;
mod whatif;

use clap::{Parser, Subcommand};
use color_eyre::Result;

use self::settings::{Settings, SharedArgs};
use crate::model::text::{Escaped, json_escaped};

/// A top for NVIDIA GPUs that knows what the allocator knows
#[derive(Debug, Parser)]
#[command(name = "gputop", version, about, subcommand_precedence_over_arg = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    shared: SharedArgs,
    #[command(flatten)]
    top: dashboard::Args,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[cfg(local)]
    /// Print one sample: every GPU, and every process that is on one of them
    Once(once::Args),
    #[cfg(local)]
    /// Print one short line, for tmux's status-right and the like
    Line(line::Args),
    /// Record this host, or others, until interrupted
    Record(record::Args),
    /// Play a recording, or several side by side
    Replay(replay::Args),
    /// Play the built-in recording of a training run
    Demo,
    #[cfg(local)]
    /// Show what PyTorch's allocator of a running process holds
    Allocator(allocator::Args),
    #[cfg(local)]
    /// Allocate on the real card for a moment: what the driver gives, and what a pattern leaves of an allocator
    Probe(probe::Args),
    #[cfg(local)]
    /// What `probe` starts
    #[command(name = crate::probe::CHILD, hide = true)]
    ProbeChild,
    /// Show a memory snapshot of PyTorch: map, history, who holds what
    Snapshot(snapshot::Args),
    /// What the same allocations would have reserved under other settings of PyTorch's allocator
    Whatif(whatif::Args),
    #[cfg(local)]
    /// Run a command as if typed; when it fails, say what went wrong and what to change
    Run(run::Args),
    #[cfg(local)]
    /// The Python hook, for programs that are not started by `gputop run`
    Hook(hook::Args),
    /// Read logs of a crash, say what went wrong and what to change
    Explain(explain::Args),
    /// What went wrong so far, kept until it was read
    Incidents(incidents::Args),
    /// The explanations, browsed
    Cards(cards::Args),
    #[cfg(local)]
    /// Say what works here, what does not, and what would help
    Doctor(doctor::Args),
    /// The settings in force, and whether the configuration is right
    Config(config::Args),
    /// Completions, manual pages, the reference
    Generate(generate::Args),
    #[cfg(local)]
    /// What `gputop HOST` runs there
    #[command(hide = true)]
    Agent(agent::Args),
    #[cfg(not(local))]
    #[command(flatten)]
    Absent(unavailable::Absent),
}

/// Why this host is not seen, of a build without `cfg(local)`: a clause.
#[cfg(any(test, not(local)))]
const NO_COLLECTORS: &str = "this gputop is a client, built without what sees its own host";

/// The names of all subcommands, for hints.
pub fn subcommands() -> Vec<String> {
    use clap::CommandFactory;
    Cli::command()
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .map(|c| c.get_name().to_owned())
        .collect()
}

/// Checks the text of a configuration file; returns the message for an invalid one. Entry point for the fuzz targets.
#[doc(hidden)]
pub fn check_config(text: &str) -> Result<(), String> {
    Settings::from_text(text)
        .map(drop)
        .map_err(|error| error.to_string())
}

/// Runs what was asked for.
///
/// # Errors
/// With one sentence for the user: what is wrong, where, what to do.
pub fn run(cli: &Cli) -> Result<u8> {
    #[cfg(local)]
    let is_agent = matches!(cli.command, Some(Command::Agent(_)));
    #[cfg(not(local))]
    let is_agent = false;
    // The command of `gputop run` is to find the limit as it was.
    #[cfg(local)]
    if !matches!(cli.command, Some(Command::Run(_) | Command::ProbeChild)) {
        crate::open_files::raise();
    }
    // An agent writes nothing where it is.
    if !is_agent {
        log::start();
    }
    // Only what is set by them reads the settings: a slip in the configuration keeps nobody from an explanation.
    let settings = |interval| {
        let settings = Settings::read(&cli.shared, interval)?;
        if let Some(why) = &settings.unread {
            say(&format!(
                "gputop: your settings, incidents and log are not used: {why}\n"
            ));
        }
        Ok::<_, color_eyre::Report>(settings)
    };
    match &cli.command {
        None => dashboard::run(&cli.top, &settings(cli.top.interval)?),
        #[cfg(local)]
        Some(Command::Once(args)) => once::run(args, &settings(None)?),
        #[cfg(local)]
        Some(Command::Line(args)) => line::run(args),
        Some(Command::Record(args)) => record::run(args, &settings(args.interval)?),
        Some(Command::Replay(args)) => replay::run(args, &settings(None)?),
        Some(Command::Demo) => demo::run(&settings(None)?),
        Some(Command::Generate(args)) => generate::run(args, || {
            // With a slip in the configuration there are none.
            settings(None).map_or_else(|_| Vec::new(), |settings| settings.groups)
        }),
        #[cfg(local)]
        Some(Command::Agent(args)) => agent::run(args),
        Some(Command::Config(args)) => config::run(args, &cli.shared, cli.top.interval),
        #[cfg(local)]
        Some(Command::Allocator(args)) => allocator::run(args),
        #[cfg(local)]
        Some(Command::Probe(args)) => probe::run(args),
        #[cfg(local)]
        Some(Command::ProbeChild) => Ok(crate::probe::child::run()),
        Some(Command::Snapshot(args)) => snapshot::run(args, || settings(None)),
        Some(Command::Whatif(args)) => whatif::run(args, || settings(None)),
        #[cfg(local)]
        Some(Command::Run(args)) => run::run(args, &cli.shared),
        #[cfg(local)]
        Some(Command::Hook(args)) => hook::run(args),
        Some(Command::Explain(args)) => explain::run(args),
        Some(Command::Incidents(args)) => incidents::run(args),
        Some(Command::Cards(args)) => cards::run(args),
        #[cfg(local)]
        Some(Command::Doctor(args)) => doctor::run(args, &cli.shared),
        #[cfg(not(local))]
        Some(Command::Absent(absent)) => color_eyre::eyre::bail!(absent.sentence()),
    }
}

/// Prints text to standard output, escaped: file names, arguments and stored text cannot control the terminal.
fn print(text: &str) -> Result<()> {
    print_styled(&Escaped(text).to_string())
}

/// Prints a JSON document to standard output.
fn print_json(json: &str) -> Result<()> {
    print_styled(&json_escaped(json))
}

/// Prints text with our own escape sequences, whose other parts are escaped already. A closed pipe is not a failure.
fn print_styled(text: &str) -> Result<()> {
    use std::io::Write;
    if closed_stdout::is_closed() {
        color_eyre::eyre::bail!("cannot print: standard output is closed");
    }
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Prints a message to standard error, escaped as by `print`. A closed standard error is not a failure.
pub fn say(text: &str) {
    say_styled(&Escaped(text).to_string());
}

/// Prints a message with our own escape sequences, whose other parts are escaped already.
fn say_styled(text: &str) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Erases the line on which progress is shown on standard error.
fn erase_line() {
    say_styled("\r\x1b[2K");
}

/// Parses the command line, or returns the exit code after a message. Clap quotes arguments and environment variables as
/// they are; a message that quotes a control character is printed escaped, without colors.
///
/// # Errors
/// With the exit code for help, the version, or a usage error.
pub fn parse() -> Result<Cli, u8> {
    Cli::try_parse().map_err(|error| {
        let plain = error.to_string();
        let escaped = Escaped(&plain).to_string();
        if escaped == plain {
            // Standard output or error may be closed.
            let _ = error.print();
        } else {
            say(&plain);
        }
        u8::try_from(error.exit_code()).unwrap_or(2)
    })
}

/// How wide what is printed on standard output may be.
fn width() -> usize {
    width_of(settings::has_terminal())
}

/// The terminal's width where it is printed on one, or 80.
fn width_of(is_terminal: bool) -> usize {
    let size = if is_terminal {
        crossterm::terminal::size().ok()
    } else {
        None
    };
    size.map_or(80, |(width, _)| {
        if width == 0 {
            80
        } else {
            usize::from(width).clamp(40, 120)
        }
    })
}

/// The runtime of the one task there is: the loop. Collectors have threads of their own.
fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}
