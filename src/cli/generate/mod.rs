//! `gputop generate`: generates completions, man pages and the reference from the program's own definitions.

mod completions;
mod man;
mod reference;
mod ssh_config;

use clap::{Command as ClapCommand, CommandFactory, Subcommand};
use clap_complete::Shell;
use color_eyre::Result;

#[cfg(local)]
use super::settings::{CANDIDATES_VARIABLE, KERNEL_LOG_VARIABLE, LIBRARY_VARIABLE};
use super::settings::{CONFIG_VARIABLE, Group};
use super::{Cli, log, print};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  gputop generate completions fish > ~/.config/fish/completions/gputop.fish"
    )]
    Completions {
        /// Shell that will read the script
        shell: Shell,
    },
    /// Print the hosts that completions offer: groups from the configuration, and hosts from ~/.ssh/config
    #[command(hide = true)]
    Hosts,
    /// Print the man page of gputop, or of a subcommand
    #[command(after_help = "Example:\n  gputop generate man config print | man -l -")]
    Man {
        /// Subcommand, such as `once` or `config print`
        #[arg(value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Print a reference for all commands, settings, keys and themes as Markdown
    #[command(after_help = "Example:\n  gputop generate markdown > REFERENCE.md")]
    Markdown,
}

/// Environment variables that do not correspond to a setting, each with a description (no final period).
const VARIABLES: &[(&str, &str)] = &[
    (CONFIG_VARIABLE, "Configuration file to read, as with --config"),
    #[cfg(local)]
    (LIBRARY_VARIABLE, "NVML library to load instead of the system's"),
    #[cfg(local)]
    (KERNEL_LOG_VARIABLE, "File to read the kernel log from instead of /dev/kmsg"),
    #[cfg(local)]
    (CANDIDATES_VARIABLE, "`0`: Do not follow new programs before the driver lists them"),
    (
        log::LEVEL_VARIABLE,
        "Minimum level of messages in gputop/gputop.log in the state directory: `error`, `warn`, `info`, `debug`",
    ),
    ("NO_COLOR", "Disables colours unless a theme is set"),
];

pub fn run(args: &Args, groups: impl FnOnce() -> Vec<Group>) -> Result<u8> {
    match &args.command {
        Command::Completions { shell } => print(&completions::script(*shell, &Cli::command()))?,
        Command::Hosts => print(&hosts(&groups()))?,
        Command::Man { command } => print(&man::page(program(), command)?)?,
        Command::Markdown => print(&reference::markdown(&program()))?,
    }
    Ok(0)
}

/// Returns the lines of the example at the end of a command's help.
fn examples(command: &ClapCommand) -> Vec<String> {
    let help = command.get_after_help().map(ToString::to_string);
    let help = help.unwrap_or_default();
    let lines = help.lines().skip_while(|line| *line != "Example:").skip(1);
    lines.map(|line| line.trim().to_owned()).collect()
}

/// Returns the definition of the command line without the `help` subcommand, which needs no documentation.
fn program() -> ClapCommand {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    program
}

/// Returns the host names to complete, one per line. Omits names with characters that are special in a shell.
fn hosts(groups: &[Group]) -> String {
    let is_plain = |name: &&str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
        !name.is_empty() && !name.starts_with('-') && name.chars().all(is_plain)
    };
    let named = std::env::var_os("HOME").map(|home| ssh_config::hosts(home.as_ref()));
    let groups = groups.iter().map(|group| group.name.as_str());
    let hosts = groups.chain(named.iter().flatten().map(String::as_str));
    hosts.filter(is_plain).map(|host| format!("{host}\n")).collect()
}
