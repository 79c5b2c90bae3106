//! `gputop generate`: completions, man pages and the reference, all from the definitions that the program runs by.

mod completions;
mod man;
mod reference;
mod ssh_config;

use clap::{Command as ClapCommand, CommandFactory, Subcommand};
use clap_complete::Shell;
use color_eyre::Result;

use super::settings::{CONFIG_VARIABLE, Group};
#[cfg(local)]
use super::settings::{KERNEL_LOG_VARIABLE, LIBRARY_VARIABLE};
use super::{Cli, log, print};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Completions for a shell, to be put where it looks for them
    Completions {
        /// The shell they are for
        shell: Shell,
    },
    /// The hosts that completions offer: groups of the configuration, and what ~/.ssh/config names
    #[command(hide = true)]
    Hosts,
    /// The manual page of gputop, or of one of its commands
    Man {
        /// A command: `once`, `config print`
        #[arg(value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Everything there is to say on the command line, to set and to press, as Markdown
    Markdown,
}

/// Variables that are read beside those that stand for a setting, each with what it does, without a period.
const VARIABLES: &[(&str, &str)] = &[
    (CONFIG_VARIABLE, "The configuration to read, as --config"),
    #[cfg(local)]
    (
        LIBRARY_VARIABLE,
        "The NVML library to load instead of the one that the system finds",
    ),
    #[cfg(local)]
    (
        KERNEL_LOG_VARIABLE,
        "The file to read the kernel's log from instead of /dev/kmsg",
    ),
    (
        log::LEVEL_VARIABLE,
        "What is written to gputop/gputop.log in the state directory: `error`, `warn`, `info`, `debug`",
    ),
    ("NO_COLOR", "Without a theme of your choice: no colour"),
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

/// The command line, without the command that says how it is used: everything here says that.
fn program() -> ClapCommand {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    program
}

/// A line each, and nothing that a shell would read as more than a word.
fn hosts(groups: &[Group]) -> String {
    let is_plain = |name: &&str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
        !name.is_empty() && !name.starts_with('-') && name.chars().all(is_plain)
    };
    let named = std::env::var_os("HOME").map(|home| ssh_config::hosts(home.as_ref()));
    let groups = groups.iter().map(|group| group.name.as_str());
    let hosts = groups.chain(named.iter().flatten().map(String::as_str));
    hosts
        .filter(is_plain)
        .map(|host| format!("{host}\n"))
        .collect()
}
