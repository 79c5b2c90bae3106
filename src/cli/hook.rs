//! `gputop hook`: installs the Python hook for programs started without `gputop run`.

use clap::Subcommand;
use color_eyre::Result;
use color_eyre::eyre::eyre;

use super::print::print;
use crate::collect::hook::install;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    #[command(subcommand)]
    command: HookCommand,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum HookCommand {
    /// Install the hook if it is missing, and print the directory to add to PYTHONPATH
    #[command(
        after_help = "Example:\n  PYTHONPATH=$(gputop hook path):$PYTHONPATH python train.py"
    )]
    Path,
}

pub fn run(args: &Args) -> Result<u8> {
    match args.command {
        HookCommand::Path => {
            let path = install().map_err(|error| {
                eyre!(
                    "cannot install the hook in the cache or state directory: {error}. Set XDG_CACHE_HOME to a directory \
                     that you own"
                )
            })?;
            print(&format!("{}\n", path.display()))?;
        }
    }
    Ok(0)
}
