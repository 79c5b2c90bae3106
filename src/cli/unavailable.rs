//! Subcommands missing from the client build. Each fails with a message, because its name would otherwise be mistaken
//! for a host.

use std::ffi::OsString;

use clap::Subcommand;

/// Accepts and ignores all arguments of the missing subcommand.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct AnyArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub enum Unavailable {
    #[command(hide = true, disable_help_flag = true)]
    Once(AnyArgs),
    #[command(hide = true, disable_help_flag = true)]
    Line(AnyArgs),
    #[command(hide = true, disable_help_flag = true)]
    Allocator(AnyArgs),
    #[command(hide = true, disable_help_flag = true)]
    Memory(AnyArgs),
    #[command(hide = true, disable_help_flag = true)]
    Probe(AnyArgs),
    #[command(hide = true, disable_help_flag = true)]
    Run(AnyArgs),
    #[command(hide = true, disable_help_flag = true)]
    Hook(AnyArgs),
    #[command(hide = true, disable_help_flag = true)]
    Doctor(AnyArgs),
    #[command(hide = true, disable_help_flag = true)]
    Agent(AnyArgs),
}

impl Unavailable {
    /// Returns an error message that suggests what to do instead.
    pub fn message(&self) -> String {
        let (name, alternative) = match self {
            Self::Once(_) => ("once", "Use `ssh HOST gputop once`"),
            Self::Line(_) => ("line", "Use `ssh HOST gputop line`"),
            Self::Allocator(_) => ("allocator", "Start `gputop HOST` and press `M` on a process"),
            Self::Memory(_) => ("memory", "Start `gputop HOST` and press `o` on a process"),
            Self::Probe(_) => ("probe", "Start `gputop --allow-probe HOST` and press `P`"),
            Self::Run(_) => ("run", "Run it on the host with the GPUs"),
            Self::Hook(_) => ("hook", "Run it on the host with the GPUs"),
            Self::Doctor(_) => ("doctor", "Use `ssh HOST gputop doctor`"),
            Self::Agent(_) => ("agent", "Run it on a host with GPUs"),
        };
        format!("`gputop {name}` is not available: {}. {alternative}", super::NO_COLLECTORS)
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Client {
        #[command(subcommand)]
        command: Unavailable,
    }

    #[test]
    fn missing_subcommands_accept_any_arguments_and_fail_with_a_message() {
        for line in ["run --no-hook -- python train.py --lr 1", "probe --help", "agent"] {
            let client = Client::try_parse_from(format!("gputop {line}").split(' '));
            let message = client.expect("any arguments").command.message();
            let name = line.split(' ').next().unwrap_or_default();
            assert!(
                message.starts_with(&format!("`gputop {name}` is not available: ")),
                "{message}"
            );
        }
    }

    #[test]
    fn every_missing_subcommand_exists_in_the_full_build() {
        let full = super::super::Cli::command();
        for command in Client::command().get_subcommands() {
            let name = command.get_name();
            assert!(full.find_subcommand(name).is_some(), "{name}");
        }
    }
}
