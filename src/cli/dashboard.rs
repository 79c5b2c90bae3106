//! `gputop [TARGET…]`: the dashboard of this host or of remote hosts. Without an NVIDIA driver it shows the reason and
//! the built-in recording.

use std::sync::Arc;
use std::time::Duration;

use color_eyre::Result;
use color_eyre::eyre::bail;
#[cfg(local)]
use gputop_model::permissions::Permissions;
use gputop_model::protocol::{Update, backlog};
use gputop_model::text::visible;
use gputop_model::{Frame, Hello, Link, Reason};
use tokio::runtime::Runtime;

use super::async_runtime::runtime;
use super::connect::{AllowedActions, PushArgs, interactive_login, prepare, prepare_all};
#[cfg(local)]
use super::demo;
use super::incident_inbox;
#[cfg(local)]
use super::settings::agent_options;
use super::settings::{Settings, has_terminal};
use super::subcommands::SUBCOMMANDS;
use super::targets::HostArgs;
#[cfg(not(local))]
use super::unavailable::NO_COLLECTORS;
#[cfg(local)]
use crate::collect::agent::Options;
#[cfg(local)]
use crate::collect::local;
use crate::source::remote::{self, Connection, Target};
use crate::tui::screen::Screen;
use crate::tui::{self, MonitoredHost};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    #[command(flatten)]
    hosts: HostArgs,
    #[command(flatten)]
    push: PushArgs,
    #[command(flatten)]
    allowed: AllowedActions,
    /// Wake GPUs that sleep because nothing uses them, and keep them awake
    #[arg(long)]
    wake: bool,
}

/// Maximum time to wait for the driver before the dashboard opens without GPU data.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(3);

pub fn run(args: &Args, settings: &Settings) -> Result<u8> {
    let targets = args.hosts.targets(&settings.groups, SUBCOMMANDS)?;
    let runtime = runtime()?;
    let _guard = runtime.enter();
    match <[Target; 1]>::try_from(targets) {
        Ok([target]) => remote_host(target, args, settings, &runtime),
        Err(targets) if targets.is_empty() => this_host(args, settings, &runtime),
        Err(targets) => fleet(targets, args, settings, &runtime),
    }
}

/// Returns an error, because a client build can show only remote hosts.
#[cfg(not(local))]
fn this_host(_: &Args, _: &Settings, _: &Runtime) -> Result<u8> {
    bail!(
        "cannot show this host: {}. Name a host (`gputop HOST`), or run `gputop demo`",
        NO_COLLECTORS
    )
}

/// Shows this host. If no GPU can be read, shows the reason and plays the built-in recording.
#[cfg(local)]
fn this_host(args: &Args, settings: &Settings, runtime: &Runtime) -> Result<u8> {
    let source = local::start(Options {
        permissions: Permissions::readonly(settings.values.readonly),
        keeps_gpus_awake: args.wake,
        ..agent_options(settings.values.interval)
    })?;
    let mut host = MonitoredHost::new(settings.app(None), source);
    let first = runtime.block_on(first_frame(&mut host));
    if let Some(reason) = first.as_deref().and_then(why_no_gpus) {
        if !has_terminal() {
            super::print::say(&format!("gputop: {reason}\n"));
            return Ok(1);
        }
        drop(host.source);
        return demo::show_instead(settings, reason);
    }
    show_one(host, settings, runtime)
}

fn remote_host(target: Target, args: &Args, settings: &Settings, runtime: &Runtime) -> Result<u8> {
    let connection = prepare(target, settings.values.interval, &args.push, args.allowed)?;
    let mut host = host(connection, args, settings)?;
    let first = runtime.block_on(first_frame(&mut host));
    if let Some(reason) = first.as_deref().and_then(why_no_gpus) {
        super::print::say(&format!("gputop: {}: {reason}\n", host.app.host.hello.host));
        return Ok(1);
    }
    show_one(host, settings, runtime)
}

fn show_one(host: MonitoredHost, settings: &Settings, runtime: &Runtime) -> Result<u8> {
    expect_terminal()?;
    let (inbox, service) = incident_inbox::serve(settings.incident_sink());
    let left = runtime.block_on(tui::run_host(host, settings.environment(), inbox));
    remote::end_all();
    let left = left?;
    service.finish();
    Ok(left.exit_code())
}

fn fleet(targets: Vec<Target>, args: &Args, settings: &Settings, runtime: &Runtime) -> Result<u8> {
    expect_terminal()?;
    let connections = prepare_all(targets, settings.values.interval, &args.push, args.allowed);
    let hosts = connections.into_iter().map(|connection| {
        let mut host = host(connection, args, settings)?;
        host.app.host.name = Some(host.app.host.hello.host.clone());
        Ok(host)
    });
    let hosts = hosts.collect::<Result<Vec<MonitoredHost>>>()?;
    let (inbox, service) = incident_inbox::serve(settings.incident_sink());
    let fleet = settings.app(None);
    let left =
        runtime.block_on(tui::run_fleet(hosts, (fleet, None), settings.environment(), inbox));
    remote::end_all();
    let left = left?;
    service.finish();
    Ok(left.exit_code())
}

fn host(connection: Connection, args: &Args, settings: &Settings) -> Result<MonitoredHost> {
    let mut app = settings.app(None);
    app.host.permissions = app.host.permissions.and(args.allowed.permissions([
        "signals on a remote host require --allow-signals",
        "probes on a remote host require --allow-probe",
        "naming a log on a remote host requires --allow-watch",
    ]));
    app.host.hello = Arc::new(pending_hello(&connection.target));
    let way_in = interactive_login(&connection);
    Ok(MonitoredHost { login: way_in, ..MonitoredHost::new(app, remote::start(connection)?) })
}

fn expect_terminal() -> Result<()> {
    if !has_terminal() {
        let alternatives = if cfg!(local) {
            "Use `gputop once` for one sample, or `gputop record` for a recording"
        } else {
            "Use `gputop record` for a recording"
        };
        bail!("stdout is not a terminal, so the dashboard cannot start. {alternatives}");
    }
    Ok(())
}

/// Returns a placeholder greeting with only the host's name, used until the host sends its own.
fn pending_hello(target: &Target) -> Hello {
    Hello { host: visible(target.name().as_bytes(), 60), ..Hello::default() }
}

/// Updates the app until the first frame arrives, and returns that frame. Returns `None` after the timeout, if the
/// connection is lost, or after too many other updates. The screen shows the reason, or the frame when it arrives.
async fn first_frame(host: &mut MonitoredHost) -> Option<Arc<Frame>> {
    let deadline = tokio::time::Instant::now() + DRIVER_TIMEOUT;
    let mut bytes = 0;
    while bytes < backlog::MAX_BYTES {
        let update = tokio::time::timeout_at(deadline, host.source.next()).await.ok()??;
        let frame = if let Update::Frame(frame) = &update { Some(Arc::clone(frame)) } else { None };
        if matches!(update, Update::Event(_) | Update::RemoteIncident(_)) {
            bytes += update.memory_size();
            host.before.push(update.clone());
        }
        let is_lost = matches!(update, Update::Link(Link::Lost { .. }));
        host.app.update(update);
        if frame.is_some() || is_lost {
            return frame;
        }
    }
    None
}

/// Returns the reason why a frame lists no GPUs, or `None` if it lists GPUs or the driver is still loading.
pub fn why_no_gpus(frame: &Frame) -> Option<String> {
    let why = frame.driver.as_ref()?.gpus.why().filter(|_| frame.gpus.is_empty())?;
    // While the driver is still loading, the dashboard opens and waits for it.
    (why.reason != Reason::NotRead).then(|| why.to_string())
}

/// No GPU of a host has answered in time.
#[cfg(local)]
#[derive(Debug, thiserror::Error)]
#[error(
    "no answer from the NVIDIA driver within {} s: it may be hung, and `nvidia-smi` may hang too. Check `dmesg` for Xid \
     errors. If the GPUs only need that long to start, keep the driver loaded: nvidia-smi -pm 1",
    .0.as_secs()
)]
pub(super) struct NoAnswer(pub(super) Duration);

/// Shows a single screen that needs no host.
pub fn show_screen(screen: Box<dyn Screen>, settings: &Settings) -> Result<u8> {
    let (app, environment) = (settings.app(None), settings.environment());
    let left = runtime()?.block_on(tui::show(screen, app, environment))?;
    Ok(left.exit_code())
}
