//! `gputop generate`: generates completions, man pages and the reference from the program's own definitions.

mod completions;
mod examples;
mod man;
mod reference;
mod ssh_config;
mod variables;

use clap::{Command as ClapCommand, Subcommand};
use clap_complete::Shell;
use color_eyre::Result;

use super::print::print;
use super::settings::Group;

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

/// Generates a text about `cli`, the definition of the command line.
pub fn run(args: &Args, cli: &ClapCommand, groups: impl FnOnce() -> Vec<Group>) -> Result<u8> {
    match &args.command {
        Command::Completions { shell } => print(&completions::script(*shell, cli))?,
        Command::Hosts => print(&hosts(&groups()))?,
        Command::Man { command } => print(&man::page(program(cli), command)?)?,
        Command::Markdown => print(&reference::markdown(&program(cli)))?,
    }
    Ok(0)
}

/// Returns the definition of the command line without the `help` subcommand, which needs no documentation.
fn program(cli: &ClapCommand) -> ClapCommand {
    let mut program = cli.clone().disable_help_subcommand(true);
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
