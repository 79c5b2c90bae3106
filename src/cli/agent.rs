//! `gputop agent`: the remote end of a connection. It communicates over stdin and stdout, and exits when they close.

use std::io::{self, IsTerminal};

use color_eyre::Result;
use color_eyre::eyre::bail;
use gputop_model::units::Millis;

use super::async_runtime::runtime;
use super::connect::AllowedActions;
use super::incident_sync;
use super::settings::agent_options;
use crate::collect::agent::Options;
use crate::collect::local;
use crate::source::remote::serve::serve;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Allow the client to send signals
    #[arg(long)]
    allow_signals: bool,
    /// Allow the client to probe GPUs
    #[arg(long)]
    allow_probe: bool,
    /// Let the client choose log files to watch for a process; the process's owner must own the files and be able to
    /// read them
    #[arg(long)]
    allow_watch: bool,
}

/// Sampling interval until the client sets a different one.
const DEFAULT_INTERVAL: Millis = Millis(1_000);

pub fn run(args: &Args) -> Result<u8> {
    if io::stdout().is_terminal() {
        bail!(
            "cannot run the agent: stdout is a terminal. Run `gputop HOST`, which starts the agent on the remote host"
        );
    }
    let runtime = runtime()?;
    let _guard = runtime.enter();
    let allowed = AllowedActions {
        signals: args.allow_signals,
        probe: args.allow_probe,
        watch: args.allow_watch,
    };
    let source = local::start(Options {
        permissions: allowed.permissions([
            "the remote agent runs without --allow-signals",
            "the remote agent runs without --allow-probe",
            "the remote agent runs without --allow-watch",
        ]),
        is_remote: true,
        ..agent_options(DEFAULT_INTERVAL)
    })?;
    // Exit without waiting for collectors, which may hang in a driver call.
    let leave = || std::process::exit(0);
    let input = io::BufReader::new(io::stdin());
    let served =
        runtime.block_on(serve(source, incident_sync::serve(), input, io::stdout().lock(), leave));
    match served {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(0),
    }
}
