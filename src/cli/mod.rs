//! The command line: one file for each subcommand.
//!
//! Exit codes: 0 success; 1 nothing to show (such as no NVIDIA driver or no terminal); 2 usage error or failure; 128 +
//! N if signal N terminated the dashboard. `run` returns the exit code of its command.
// Allow printing, because this module prints messages to stdout and stderr.
#![allow(clippy::print_stdout, clippy::print_stderr)]

#[cfg(local)]
mod agent;
#[cfg(local)]
mod allocator;
mod async_runtime;
#[cfg(local)]
mod background_recorder;
mod cards;
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
#[cfg(local)]
mod memory;
#[cfg(local)]
mod once;
mod print;
#[cfg(local)]
mod probe;
mod progress;
mod pushed_program;
#[cfg(local)]
mod ranks;
mod record;
mod replay;
#[cfg(local)]
mod run;
#[cfg(feature = "serve")]
mod serve;
mod settings;
mod slurm;
mod snapshot;
mod startup_state;
mod subcommands;
mod summary;
mod targets;
#[cfg(any(test, not(local)))]
mod unavailable;
mod whatif;
#[cfg(local)]
mod why;

use std::ffi::OsString;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use color_eyre::Result;
use gputop_model::text::Escaped;

pub use self::print::say;
use self::settings::{Flags, Settings, SettingsArgs, is_given};

/// The arguments of gputop. The help shows the description from Cargo.toml.
#[derive(Debug, Parser)]
#[command(
    name = "gputop",
    version,
    about,
    subcommand_precedence_over_arg = true,
    after_help = "Example:\n  gputop               # this host\n  gputop gpu1 me@gpu2  # remote hosts, over ssh"
)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    dashboard: dashboard::Args,
    #[command(flatten)]
    settings: SettingsArgs,
    #[arg(skip)]
    flags: Flags,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[cfg(local)]
    /// Print one sample of all GPUs and their processes
    #[command(after_help = "Example:\n  gputop once --csv > sample.csv")]
    Once(once::Args),
    #[cfg(local)]
    /// Print one line for a status bar, such as tmux status-right
    #[command(after_help = "Example:\n  tmux set -g status-right '#(gputop line --width 40)'")]
    Line(line::Args),
    #[cfg(local)]
    /// Show the ranks of distributed jobs side by side: who waits for whom, and where
    #[command(after_help = "Example:\n  gputop ranks --watch")]
    Ranks(ranks::Args),
    /// Record this host, or remote hosts, until interrupted
    #[command(after_help = "Example:\n  gputop record --for 8h --output night.gpt.zst")]
    Record(record::Args),
    #[cfg(feature = "serve")]
    /// Serve metrics of this host, or of remote hosts, to Prometheus
    #[command(after_help = "Example:\n  gputop serve --listen 127.0.0.1:9836 --labels user,job")]
    Serve(serve::Args),
    /// Play one or more recordings side by side
    #[command(after_help = "Example:\n  gputop replay --speed 8 night.gpt.zst")]
    Replay(replay::Args),
    /// Play the built-in recording of a training run
    #[command(after_help = "Example:\n  gputop demo --tour")]
    Demo(demo::Args),
    #[cfg(local)]
    /// Show the allocators of PyTorch, JAX, TensorFlow and CuPy in a running process
    #[command(after_help = "Example:\n  gputop allocator 4123 --blocks")]
    Allocator(allocator::Args),
    #[cfg(local)]
    /// Show which tensors and arrays hold the GPU memory of a running process, and what grows
    #[command(after_help = "Example:\n  gputop memory 4123 --watch 10s")]
    Memory(memory::Args),
    #[cfg(local)]
    /// Show why a running program is slow, or leaves its GPU idle
    #[command(after_help = "Example:\n  gputop why 4123 --watch 30s")]
    Why(why::Args),
    #[cfg(local)]
    /// Allocate GPU memory briefly to measure how much the driver can provide, and how it fragments
    #[command(after_help = "Example:\n  gputop probe --gpu 0 --policy native --policy expandable")]
    Probe(probe::Args),
    #[cfg(local)]
    /// Run the child process of `gputop probe`
    #[command(name = crate::probe::CHILD, hide = true)]
    ProbeChild,
    /// Show a PyTorch memory snapshot: segments, history and allocation stacks; or compare two
    #[command(after_help = "Example:\n  gputop snapshot snapshot.pickle")]
    Snapshot(snapshot::Args),
    /// Summarize a recording, or compare two
    #[command(after_help = "Example:\n  gputop summary --html night.gpt.zst > night.html")]
    Summary(summary::Args),
    /// Replay allocations under other settings of PyTorch's allocator
    #[command(
        after_help = "Example:\n  gputop whatif snapshot.pickle --conf expandable_segments:True --card 24GiB"
    )]
    Whatif(whatif::Args),
    #[cfg(local)]
    /// Run a command and, if it fails, explain why
    #[command(after_help = "Example:\n  gputop run python train.py --batch 8")]
    Run(run::Args),
    #[cfg(local)]
    /// Set up the Python hook for programs started without `gputop run`
    #[command(
        after_help = "Example:\n  PYTHONPATH=$(gputop hook path):$PYTHONPATH python train.py"
    )]
    Hook(hook::Args),
    /// Explain GPU failures found in logs
    #[command(after_help = "Example:\n  gputop explain slurm-81234.out")]
    Explain(explain::Args),
    /// List saved incidents
    #[command(after_help = "Example:\n  gputop incidents show 7f3a")]
    Incidents(incidents::Args),
    /// Browse the error catalogue
    #[command(after_help = "Example:\n  gputop cards oom-fragmentation")]
    Cards(cards::Args),
    #[cfg(local)]
    /// Check what works on this host, and show fixes
    #[command(after_help = "Example:\n  gputop doctor")]
    Doctor(doctor::Args),
    /// Print or check the configuration
    #[command(after_help = "Example:\n  gputop config print")]
    Config(config::Args),
    /// Generate shell completions, man pages and the reference
    #[command(
        after_help = "Example:\n  gputop generate completions bash > ~/.local/share/bash-completion/completions/gputop"
    )]
    Generate(generate::Args),
    #[cfg(local)]
    /// Serve a remote gputop over standard input and output
    #[command(hide = true)]
    Agent(agent::Args),
    #[cfg(not(local))]
    #[command(flatten)]
    Unavailable(unavailable::Unavailable),
}

/// Checks the text of a configuration file. Returns an error message if it is invalid. Entry point for the fuzz
/// targets.
#[doc(hidden)]
pub fn check_config(text: &str) -> Result<(), String> {
    Settings::from_text(text).map(drop).map_err(|error| error.to_string())
}

/// Runs the subcommand, or the dashboard, and returns the exit code. Errors are messages for the user.
pub fn run(cli: &Cli) -> Result<u8> {
    prepare(cli.command.as_ref());
    // Read settings only in subcommands that use them, so that `gputop explain` works with a broken configuration.
    let settings = || read_settings(&cli.flags);
    match &cli.command {
        None => watch(&settings()?, |settings| dashboard::run(&cli.dashboard, settings)),
        #[cfg(local)]
        Some(Command::Once(args)) => once::run(args, &settings()?),
        #[cfg(local)]
        Some(Command::Line(args)) => line::run(args),
        #[cfg(local)]
        Some(Command::Ranks(args)) => ranks::run(args, &settings()?),
        Some(Command::Record(args)) => watch(&settings()?, |settings| record::run(args, settings)),
        #[cfg(feature = "serve")]
        Some(Command::Serve(args)) => watch(&settings()?, |settings| serve::run(args, settings)),
        Some(Command::Replay(args)) => replay::run(args, &settings()?),
        Some(Command::Demo(args)) => demo::run(args, &settings()?),
        Some(Command::Generate(args)) => generate::run(args, &Cli::command(), || {
            // Do not offer host groups if the configuration is invalid.
            settings().map_or_else(|_| Vec::new(), |settings| settings.groups)
        }),
        #[cfg(local)]
        Some(Command::Agent(args)) => agent::run(args),
        Some(Command::Config(args)) => config::run(args, &cli.flags),
        #[cfg(local)]
        Some(Command::Allocator(args)) => allocator::run(args),
        #[cfg(local)]
        Some(Command::Memory(args)) => memory::run(args),
        #[cfg(local)]
        Some(Command::Why(args)) => why::run(args, &settings()?),
        #[cfg(local)]
        Some(Command::Probe(args)) => probe::run(args),
        #[cfg(local)]
        Some(Command::ProbeChild) => Ok(crate::probe::child::run()),
        Some(Command::Snapshot(args)) => snapshot::run(args, settings),
        Some(Command::Summary(args)) => summary::run(args),
        Some(Command::Whatif(args)) => whatif::run(args, settings),
        #[cfg(local)]
        Some(Command::Run(args)) => run::run(args, &cli.flags),
        #[cfg(local)]
        Some(Command::Hook(args)) => hook::run(args),
        Some(Command::Explain(args)) => explain::run(args),
        Some(Command::Incidents(args)) => incidents::run(args),
        Some(Command::Cards(args)) => cards::run(args),
        #[cfg(local)]
        Some(Command::Doctor(args)) => doctor::run(args, &cli.flags),
        #[cfg(not(local))]
        Some(Command::Unavailable(command)) => color_eyre::eyre::bail!(command.message()),
    }
}

/// Time after the end of a subcommand in which the user's commands may finish.
const NOTIFICATION_GRACE: Duration = Duration::from_secs(3);

/// Runs a subcommand that watches for incidents. Then waits a short time for the user's commands, stops them, and
/// reports which notifications were not sent.
fn watch(settings: &Settings, run: impl FnOnce(&Settings) -> Result<u8>) -> Result<u8> {
    let result = run(settings);
    let lost = settings.notifications.finish(NOTIFICATION_GRACE);
    if !lost.is_empty() {
        let count = match lost.len() {
            1 => "1 notification was".to_owned(),
            count => format!("{count} notifications were"),
        };
        let lost = lost.join("\n  ");
        say(&format!("gputop: on_incident: {count} not sent before gputop exited:\n  {lost}\n"));
    }
    result
}

/// Raises the limit on open files and starts the log, where the command allows it.
#[cfg(local)]
fn prepare(command: Option<&Command>) {
    // Keep the original limit for `gputop run`, because the command inherits the limit.
    if !matches!(command, Some(Command::Run(_) | Command::ProbeChild)) {
        crate::open_files::raise();
    }
    // Do not write a log as an agent, because an agent must not create files on its host.
    if !matches!(command, Some(Command::Agent(_))) {
        log::start();
    }
}

#[cfg(not(local))]
fn prepare(_: Option<&Command>) {
    log::start();
}

fn read_settings(flags: &Flags) -> Result<Settings> {
    let settings = Settings::read(flags)?;
    if let Some(why) = &settings.unread {
        say(&format!("gputop: your settings, incidents and log are not used: {why}\n"));
    }
    Ok(settings)
}

/// Parses the command line. After printing help, the version or a usage error, returns the exit code as the error.
///
/// Clap prints arguments and environment variables unchanged. A message that contains a control character is therefore
/// printed escaped and without colours.
pub fn parse() -> Result<Cli, u8> {
    parsed(std::env::args_os()).map_err(|error| {
        let plain = error.to_string();
        let escaped = Escaped(&plain).to_string();
        if escaped == plain {
            // Ignore the error, because standard output or standard error may be closed.
            let _ = error.print();
        } else {
            say(&plain);
        }
        u8::try_from(error.exit_code()).unwrap_or(2)
    })
}

/// Parses the command line. Rejects options given before a subcommand that does not accept them.
fn parsed<T: Into<OsString> + Clone>(
    args: impl IntoIterator<Item = T>,
) -> Result<Cli, clap::Error> {
    let mut program = Cli::command();
    let matches = program.try_get_matches_from_mut(args)?;
    if let Some(name) = matches.subcommand_name()
        && let Some(subcommand) = program.find_subcommand(name)
        && let Some(option) = unsupported_option(&matches, &program, subcommand)
    {
        let message = format!("option --{option} does not apply to `gputop {name}`");
        return Err(program.error(ErrorKind::UnknownArgument, message));
    }
    Ok(Cli { flags: Flags::of(&matches), ..Cli::from_arg_matches(&matches)? })
}

/// Returns the first option given before the subcommand that neither the subcommand nor any of its nested subcommands
/// accepts.
fn unsupported_option<'c>(
    matches: &ArgMatches,
    program: &'c clap::Command,
    subcommand: &clap::Command,
) -> Option<&'c str> {
    let has = |command: &clap::Command, arg: &Arg| {
        command.get_arguments().any(|own| own.get_id() == arg.get_id())
    };
    let applies = |arg: &Arg| {
        has(subcommand, arg) || subcommand.get_subcommands().any(|below| has(below, arg))
    };
    let mut options = program.get_arguments().filter(|arg| arg.get_long().is_some());
    options.find(|arg| is_given(matches, arg.get_id().as_str()) && !applies(arg))?.get_long()
}

#[cfg(test)]
mod tests;
