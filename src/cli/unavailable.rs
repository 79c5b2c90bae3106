//! The subcommands that a client is without. Each says so and what to do instead: its name must not be taken for a host.

use std::ffi::OsString;

use clap::Subcommand;

/// Whatever the subcommand itself would have been given.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Anything {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub enum Absent {
    #[command(hide = true, disable_help_flag = true)]
    Once(Anything),
    #[command(hide = true, disable_help_flag = true)]
    Line(Anything),
    #[command(hide = true, disable_help_flag = true)]
    Allocator(Anything),
    #[command(hide = true, disable_help_flag = true)]
    Probe(Anything),
    #[command(hide = true, disable_help_flag = true)]
    Run(Anything),
    #[command(hide = true, disable_help_flag = true)]
    Hook(Anything),
    #[command(hide = true, disable_help_flag = true)]
    Doctor(Anything),
    #[command(hide = true, disable_help_flag = true)]
    Agent(Anything),
}

impl Absent {
    /// What it is, and what a client has instead.
    pub fn sentence(&self) -> String {
        let (name, instead) = match self {
            Self::Once(_) => (
                "once",
                "`ssh HOST gputop once` prints a sample of that host",
            ),
            Self::Line(_) => ("line", "`ssh HOST gputop line` prints that host's"),
            Self::Allocator(_) => (
                "allocator",
                "`gputop HOST` shows the same with `M` on a process",
            ),
            Self::Probe(_) => ("probe", "`gputop --allow-probe HOST` probes with `P`"),
            Self::Run(_) => ("run", "it is for the host that has the GPUs"),
            Self::Hook(_) => ("hook", "it is for the host that has the GPUs"),
            Self::Doctor(_) => ("doctor", "`ssh HOST gputop doctor` examines that host"),
            Self::Agent(_) => ("agent", "an agent runs on a host that has GPUs"),
        };
        format!(
            "`gputop {name}` is not in this build ({}): {instead}",
            super::NO_COLLECTORS
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Client {
        #[command(subcommand)]
        command: Absent,
    }

    #[test]
    fn whatever_is_given_to_a_subcommand_that_is_not_there_it_says_so() {
        for line in [
            "run --no-hook -- python train.py --lr 1",
            "probe --help",
            "agent",
        ] {
            let client = Client::try_parse_from(format!("gputop {line}").split(' '));
            let said = client.expect("it takes anything").command.sentence();
            let name = line.split(' ').next().unwrap_or_default();
            assert!(
                said.starts_with(&format!("`gputop {name}` is not in this build")),
                "{said}"
            );
        }
    }

    #[test]
    fn each_is_a_subcommand_of_the_whole_program() {
        let whole = super::super::Cli::command();
        for absent in Client::command().get_subcommands() {
            let name = absent.get_name();
            assert!(whole.find_subcommand(name).is_some(), "{name}");
        }
    }
}
