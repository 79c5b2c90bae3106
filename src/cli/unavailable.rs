//! Subcommands missing from the client build. Each fails with a message, because its name would otherwise be mistaken
//! for a host.

use std::ffi::OsString;

use clap::Subcommand;

/// Reason why a client build (without `cfg(local)`) cannot show this host, as a phrase.
pub const NO_COLLECTORS: &str = "this build is a client and cannot read local GPUs";

/// Accepts and ignores all arguments of the missing subcommand.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct AnyArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

/// Declares the missing subcommands, each with a suggestion what to do instead.
macro_rules! unavailable {
    ($($command:ident: $alternative:literal,)*) => {
        #[derive(Debug, Subcommand)]
        pub enum Unavailable {
            $(#[command(hide = true, disable_help_flag = true)] $command(AnyArgs),)*
        }

        impl Unavailable {
            /// Returns an error message that suggests what to do instead.
            pub fn message(&self) -> String {
                let (name, alternative) = match self {
                    $(Self::$command(_) => (stringify!($command).to_lowercase(), $alternative),)*
                };
                format!("`gputop {name}` is not available: {}. {alternative}", NO_COLLECTORS)
            }
        }
    };
}

unavailable! {
    Once: "Use `ssh HOST gputop once`",
    Ranks: "Start `gputop HOST` and press `r`",
    Line: "Use `ssh HOST gputop line`",
    Allocator: "Start `gputop HOST` and press `M` on a process",
    Memory: "Start `gputop HOST` and press `o` on a process",
    Probe: "Start `gputop --allow-probe HOST` and press `P`",
    Run: "Run it on the host with the GPUs",
    Hook: "Run it on the host with the GPUs",
    Doctor: "Use `ssh HOST gputop doctor`",
    Agent: "Run it on a host with GPUs",
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
