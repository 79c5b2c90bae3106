//! `gputop`: the dashboard of this host; without an NVIDIA driver the reason, and the built-in recording.

use std::sync::Arc;
use std::time::Duration;

use color_eyre::Result;
use color_eyre::eyre::bail;
use tokio::runtime::Runtime;

use super::connect::{AllowedActions, FarArgs, prepare, prepare_all, way_in};
#[cfg(local)]
use super::demo;
#[cfg(local)]
use super::settings::agent_options;
use super::settings::{Settings, has_terminal, interval_argument};
use super::targets::HostArgs;
use super::{incident_inbox, malloc_tuning, runtime};
#[cfg(local)]
use crate::collect::agent::Options;
use crate::model::frame::Frame;
use crate::model::host::Hello;
use crate::model::permissions::Permissions;
use crate::model::reading::Reason;
use crate::model::text::visible;
use crate::model::units::Millis;
use crate::source::Update;
#[cfg(local)]
use crate::source::local;
use crate::source::remote::{self, Connection, Target};
use crate::tui::{self, CloseReason, Host};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    #[command(flatten)]
    hosts: HostArgs,
    #[command(flatten)]
    far: FarArgs,
    #[command(flatten)]
    may: AllowedActions,
    /// Time between samples: 1s, 500ms, 2m
    #[arg(long, short, value_parser = interval_argument)]
    pub interval: Option<Millis>,
}

/// How long the driver may take before the screen opens without it.
const PATIENCE: Duration = Duration::from_secs(3);

pub fn run(args: &Args, settings: &Settings) -> Result<u8> {
    let targets = args
        .hosts
        .targets(&settings.groups, &super::subcommands())?;
    let runtime = runtime()?;
    let _guard = runtime.enter();
    match <[Target; 1]>::try_from(targets) {
        Ok([target]) => far(target, args, settings, &runtime),
        Err(targets) if targets.is_empty() => here(settings, &runtime),
        Err(targets) => fleet(targets, args, settings, &runtime),
    }
}

/// A client sees other hosts alone.
#[cfg(not(local))]
fn here(_: &Settings, _: &Runtime) -> Result<u8> {
    bail!(
        "which host? {}: `gputop HOST`, or `gputop demo`",
        super::NO_COLLECTORS
    )
}

/// This host; where nothing can be seen on it, why, and the built-in recording.
#[cfg(local)]
fn here(settings: &Settings, runtime: &Runtime) -> Result<u8> {
    let source = local::start(Options {
        permissions: Permissions::readonly(settings.readonly),
        ..agent_options(settings.interval)
    })?;
    let mut host = Host::new(settings.app(None), source);
    let first = runtime.block_on(first_frame(&mut host));
    if let Some(reason) = first.as_deref().and_then(why_nothing) {
        if !has_terminal() {
            super::say(&format!("gputop: {reason}\n"));
            return Ok(1);
        }
        drop(host.source);
        return demo::show(settings, Some(reason));
    }
    show_one(host, settings, runtime)
}

fn far(target: Target, args: &Args, settings: &Settings, runtime: &Runtime) -> Result<u8> {
    let connection = prepare(target, settings.interval, &args.far, args.may)?;
    let mut host = host(connection, args, settings)?;
    let first = runtime.block_on(first_frame(&mut host));
    if let Some(reason) = first.as_deref().and_then(why_nothing) {
        super::say(&format!("gputop: {}: {reason}\n", host.app.hello.host));
        return Ok(1);
    }
    show_one(host, settings, runtime)
}

fn show_one(host: Host, settings: &Settings, runtime: &Runtime) -> Result<u8> {
    expect_terminal()?;
    let (desk, service) = incident_inbox::serve(settings.keep());
    let left = runtime.block_on(tui::run_host(host, settings.outside(), desk));
    remote::end_all();
    let left = left?;
    service.finish();
    Ok(leave(left))
}

fn fleet(targets: Vec<Target>, args: &Args, settings: &Settings, runtime: &Runtime) -> Result<u8> {
    expect_terminal()?;
    malloc_tuning::share_among_many_threads();
    let connections = prepare_all(targets, settings.interval, &args.far, args.may);
    let hosts = connections.into_iter().map(|connection| {
        let mut host = host(connection, args, settings)?;
        host.app.name = Some(host.app.hello.host.clone());
        Ok(host)
    });
    let hosts = hosts.collect::<Result<Vec<Host>>>()?;
    let (desk, service) = incident_inbox::serve(settings.keep());
    let fleet = settings.app(None);
    let left = runtime.block_on(tui::run_fleet(
        hosts,
        (fleet, None),
        settings.outside(),
        desk,
    ));
    remote::end_all();
    let left = left?;
    service.finish();
    Ok(leave(left))
}

fn host(connection: Connection, args: &Args, settings: &Settings) -> Result<Host> {
    let mut app = settings.app(None);
    app.permissions = app.permissions.and(Permissions {
        signals: args
            .may
            .signals
            .then_some(())
            .ok_or("on a far host they want --allow-signals"),
        probes: args
            .may
            .probe
            .then_some(())
            .ok_or("on a far host it wants --allow-probe"),
        watches: args
            .may
            .watch
            .then_some(())
            .ok_or("naming a log on a remote host requires --allow-watch"),
    });
    app.hello = Arc::new(awaited(&connection.target));
    let way_in = way_in(&connection);
    Ok(Host {
        login: way_in,
        ..Host::new(app, remote::start(connection)?)
    })
}

fn expect_terminal() -> Result<()> {
    if !has_terminal() {
        let once = if cfg!(local) {
            "`gputop once` prints one sample, "
        } else {
            ""
        };
        bail!("standard output is no terminal; {once}`gputop record` writes a recording");
    }
    Ok(())
}

/// What is known of a host before it says a word: its name.
fn awaited(target: &Target) -> Hello {
    Hello {
        host: visible(target.name().as_bytes(), 60),
        ..Hello::default()
    }
}

/// Feeds the app until the first frame; `None` when the driver takes too long to wait for.
async fn first_frame(host: &mut Host) -> Option<Arc<Frame>> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let update = tokio::time::timeout_at(deadline, host.source.next())
            .await
            .ok()??;
        let frame = if let Update::Frame(frame) = &update {
            Some(Arc::clone(frame))
        } else {
            None
        };
        if matches!(update, Update::Event(_) | Update::RemoteIncident(_)) {
            host.before.push(update.clone());
        }
        host.app.update(update);
        if frame.is_some() {
            return frame;
        }
    }
}

/// Why there is nothing to see on this host, if there is nothing.
pub fn why_nothing(frame: &Frame) -> Option<String> {
    let why = frame
        .driver
        .as_ref()?
        .gpus
        .why()
        .filter(|_| frame.gpus.is_empty())?;
    // Still loading: the screen opens and waits.
    (why.reason != Reason::NotRead).then(|| why.to_string())
}

/// The exit code for how the dashboard was left.
pub fn leave(left: CloseReason) -> u8 {
    match left {
        CloseReason::User | CloseReason::TerminalClosed => 0,
        CloseReason::Signal(number) => u8::try_from(128 + number).unwrap_or(2),
    }
}
