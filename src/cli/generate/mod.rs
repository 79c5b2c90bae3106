//! `gputop generate`: completions, man pages and the reference, all from the definitions that the program runs by.

mod man;
mod reference;

use clap::{Command as ClapCommand, CommandFactory, Subcommand};
use clap_complete::Shell;
use color_eyre::Result;

use super::settings::{CONFIG_VARIABLE, KERNEL_LOG_VARIABLE, LIBRARY_VARIABLE};
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
    (
        LIBRARY_VARIABLE,
        "The NVML library to load instead of the one that the system finds",
    ),
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

pub fn run(args: &Args) -> Result<u8> {
    match &args.command {
        Command::Completions { shell } => print(&completions(*shell))?,
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

fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "gputop", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}
