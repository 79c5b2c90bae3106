//! `gputop hook`: the Python hook for programs that `gputop run` does not start.

use clap::Subcommand;
use color_eyre::Result;
use color_eyre::eyre::eyre;

use super::print;
use crate::collect::hook::install;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Command {
    /// Write the hook's files if they are not there, and print the directory to put on PYTHONPATH
    Path,
}

pub fn run(args: &Args) -> Result<u8> {
    match args.command {
        Command::Path => {
            let path = install().map_err(|error| {
                eyre!(
                    "the hook cannot be written below the cache or the state directory: {error}; set XDG_CACHE_HOME \
                     to a directory of yours"
                )
            })?;
            print(&format!("{}\n", path.display()))?;
        }
    }
    Ok(0)
}
