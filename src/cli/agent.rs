//! `gputop agent`: what the far side of a connection runs. Its input and output are the connection; it ends with them.

use std::io::{self, IsTerminal};

use color_eyre::Result;
use color_eyre::eyre::bail;

use super::settings::agent_options;
use super::{incident_sync, runtime};
use crate::collect::agent::Options;
use crate::model::permissions::Permissions;
use crate::model::units::Millis;
use crate::source::local;
use crate::source::remote::serve::serve;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Send signals when the other side asks for them
    #[arg(long)]
    allow_signals: bool,
    /// Probe GPUs when the other side asks for it
    #[arg(long)]
    allow_probe: bool,
    /// Follow log files that the client names, if the owner of the process owns them and can read them
    #[arg(long)]
    allow_watch: bool,
}

/// Until the other side says another.
const INTERVAL: Millis = Millis(1_000);

pub fn run(args: &Args) -> Result<u8> {
    if io::stdout().is_terminal() {
        bail!("`gputop agent` is what `gputop HOST` runs there; it has nothing to say to a person");
    }
    let runtime = runtime()?;
    let _guard = runtime.enter();
    let source = local::start(Options {
        permissions: Permissions {
            signals: args
                .allow_signals
                .then_some(())
                .ok_or("the agent there has no --allow-signals"),
            probes: args
                .allow_probe
                .then_some(())
                .ok_or("the agent there has no --allow-probe"),
            watches: args
                .allow_watch
                .then_some(())
                .ok_or("the remote agent runs without --allow-watch"),
        },
        is_remote: true,
        ..agent_options(INTERVAL)
    })?;
    // Whoever asked is gone, whatever hangs here.
    let leave = || std::process::exit(0);
    let input = io::BufReader::new(io::stdin());
    let served = runtime.block_on(serve(
        source,
        incident_sync::serve(),
        input,
        io::stdout().lock(),
        leave,
    ));
    match served {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(0),
    }
}
