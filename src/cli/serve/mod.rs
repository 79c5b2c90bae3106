//! Metrics for Prometheus (`gputop serve`): over HTTP, as a file for the node exporter, or once on stdout.
//!
//! One task for each host stores its latest frame. Scrapes format these frames and never call the driver. Many or slow
//! scrapes therefore do not affect sampling.

mod http;
mod page;

use std::io::{ErrorKind, Write};
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::builder::PossibleValuesParser;
use color_eyre::Result;
use color_eyre::eyre::{Context, bail, eyre};
use gputop_explain::ranks::JoinedJobs;
use gputop_model::protocol::stream::Source;
use gputop_model::text::{quoted, visible};
use gputop_model::units::Millis;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use self::http::NamedListener;
use self::page::{HostStatus, Page, report};
use super::async_runtime::runtime;
use super::connect::{AllowedActions, PushArgs, prepare_all};
use super::dashboard::NoAnswer;
use super::print::{print, say};
use super::record::stop_requested;
#[cfg(local)]
use super::settings::agent_options;
use super::settings::{ConfigArgs, NotificationArgs, SamplingArgs, Settings};
use super::targets::HostArgs;
#[cfg(local)]
use crate::collect::{agent, local};
use crate::export::metrics::{Format, Options, PROCESS_LABELS};
use crate::incident::{MAX_WAITING_FRAMES, Watcher};
use crate::source::remote::{self, Target};
use crate::user_files::{FileId, replace_with};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    #[command(flatten)]
    hosts: HostArgs,
    #[command(flatten)]
    push: PushArgs,
    /// Serve http://ADDRESS/metrics [default: 127.0.0.1:9836, or no port with --textfile]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Write the metrics to this file at each interval, for the textfile collector of the node exporter
    #[arg(long, value_name = "FILE")]
    textfile: Option<PathBuf>,
    /// Print the metrics once, or write them once with --textfile
    #[arg(long, conflicts_with = "listen")]
    once: bool,
    /// Choose the labels that describe a process, separated by commas
    #[arg(long, value_name = "LABEL", value_delimiter = ',', value_parser = label_names())]
    labels: Option<Vec<String>>,
    /// Set how many processes per host have their own metrics; the others are summed
    #[arg(long, value_name = "N", default_value_t = 200)]
    processes: usize,
    /// Wake GPUs that sleep because nothing uses them, and keep them awake
    #[arg(long)]
    wake: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    notifications: NotificationArgs,
}

impl Args {
    fn options(&self) -> Options {
        let is_chosen = |name: &str| match &self.labels {
            Some(names) => names.iter().any(|chosen| chosen == name),
            None => true,
        };
        let labels = PROCESS_LABELS.iter().filter(|label| is_chosen(label.name));
        Options { labels: labels.collect(), max_processes: self.processes }
    }
}

fn label_names() -> PossibleValuesParser {
    PossibleValuesParser::new(PROCESS_LABELS.iter().map(|label| label.name))
}

const DEFAULT_ADDRESS: &str = "127.0.0.1:9836";
/// Time between the two samples of `--once`. Rates require two samples.
const ONCE_INTERVAL: Millis = Millis(300);
/// Maximum time for which `--once` waits for all hosts.
const ONCE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time to diagnose and save the last observations on exit.
const FINISH_TIMEOUT: Duration = Duration::from_secs(3);

pub fn run(args: &Args, settings: &Settings) -> Result<u8> {
    let targets = args.hosts.targets(&settings.groups, &[])?;
    runtime()?.block_on(serve(targets, args, settings))
}

async fn serve(targets: Vec<Target>, args: &Args, settings: &Settings) -> Result<u8> {
    let listener = match (&args.listen, &args.textfile) {
        (Some(address), _) => Some(bind(address).await?),
        (None, None) if !args.once => Some(bind(DEFAULT_ADDRESS).await?),
        _ => None,
    };
    let interval = if args.once { ONCE_INTERVAL } else { settings.values.interval };
    // Run the task once, so that signals are handled before the command of a host starts: it has to end with gputop.
    let stopping = (!args.once).then(|| tokio::spawn(stop_requested(None, false)));
    tokio::task::yield_now().await;
    let (stop, stopped) = watch::channel(());
    let mut followers = JoinSet::new();
    let (mut hosts, jobs) = (Vec::new(), JoinedJobs::default());
    for (name, source) in sources(targets, interval, args)? {
        let watcher = if args.once {
            Watcher::none()
        } else {
            Watcher::start_with(settings.incident_sink(), MAX_WAITING_FRAMES, jobs.clone())?
        };
        let (status, latest) = watch::channel(HostStatus::default());
        followers.spawn(page::follow(name.clone(), source, watcher, status, stopped.clone()));
        hosts.push((name, latest));
    }
    drop(stopped);
    let page = Arc::new(Page::new(hosts, args.options()));
    if args.once {
        let is_complete = page.wait_complete(ONCE_TIMEOUT).await;
        let text = page.text(Format::Text);
        match &args.textfile {
            Some(path) => drop(write_file(path, &text)?),
            None => print(&String::from_utf8_lossy(&text))?,
        }
        if page.is_silent() {
            say(&format!("gputop: {}\n", NoAnswer(ONCE_TIMEOUT)));
        }
        remote::end_all();
        return Ok(if is_complete { 0 } else { 1 });
    }
    let mut written = None;
    let result = tokio::select! {
        result = http::serve(listener, Arc::clone(&page)) => result,
        result = write_files(args.textfile.as_deref(), interval, &page, &mut written) => result,
        result = stopped_by_signal(stopping) => result,
    };
    if let (Some(path), Some(written)) = (&args.textfile, written) {
        // Remove the file on exit. Otherwise, the node exporter would serve its last values forever.
        written.remove_at(path);
    }
    drop(stop);
    let mut watchers = Vec::new();
    while let Some(watcher) = followers.join_next().await {
        watchers.extend(watcher);
    }
    remote::end_all();
    let deadline = Instant::now() + FINISH_TIMEOUT;
    for watcher in watchers {
        let left = deadline.saturating_duration_since(Instant::now());
        for found in watcher.finish(left) {
            report(&found);
        }
    }
    result.map(|()| 0)
}

/// Waits until the task ends, or forever without one.
async fn stopped_by_signal(task: Option<JoinHandle<std::io::Result<()>>>) -> Result<()> {
    match task {
        Some(task) => Ok(task.await??),
        None => std::future::pending().await,
    }
}

/// Returns the data source of each host, with the host's name unless it is this host.
fn sources(
    targets: Vec<Target>,
    interval: Millis,
    args: &Args,
) -> Result<Vec<(Option<String>, Source)>> {
    #[cfg(local)]
    if targets.is_empty() {
        let options = agent::Options { keeps_gpus_awake: args.wake, ..agent_options(interval) };
        return Ok(vec![(None, local::start(options)?)]);
    }
    #[cfg(not(local))]
    if targets.is_empty() {
        bail!(
            "cannot serve this host: {}. Name a host: `gputop serve HOST`",
            super::unavailable::NO_COLLECTORS
        );
    }
    let connections = prepare_all(targets, interval, &args.push, AllowedActions::default());
    let sources = connections.into_iter().map(|connection| {
        let name = visible(connection.target.name().as_bytes(), 60);
        Ok((Some(name), remote::start(connection)?))
    });
    sources.collect()
}

/// Opens the port and prints its address. Warns if other hosts can reach the port.
async fn bind(address: &str) -> Result<NamedListener> {
    let shown = quoted(address);
    let found = address.to_socket_addrs().map(|mut found| found.next());
    let Ok(Some(resolved)) = found else {
        bail!("cannot listen on `{shown}`: use an address and a port, such as {DEFAULT_ADDRESS}");
    };
    let listener = match TcpListener::bind(resolved).await {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => bail!(
            "cannot listen on {shown}: another program uses this port. Choose a different port with --listen"
        ),
        other => other.wrap_err_with(|| eyre!("cannot listen on {shown}"))?,
    };
    let local = listener.local_addr()?;
    if !local.ip().is_loopback() {
        say(&format!(
            "gputop: warning: other hosts can read the metrics at {local}, without encryption or a password\n"
        ));
    }
    say(&format!("gputop: serving http://{local}/metrics\n"));
    let given = address.rsplit_once(':').map(|(name, _)| name.to_owned());
    let own = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    Ok(NamedListener { listener, names: given.into_iter().chain(own).collect() })
}

/// Writes the metrics file at each interval, and stores its identity in `written`. Fails if the first attempt fails.
/// Reports repeated errors only once.
async fn write_files(
    path: Option<&Path>,
    interval: Millis,
    page: &Page,
    written: &mut Option<FileId>,
) -> Result<()> {
    let Some(path) = path else { return std::future::pending().await };
    let mut clock = tokio::time::interval(Duration::from_millis(interval.0));
    let mut is_first = true;
    let mut is_reported = false;
    loop {
        clock.tick().await;
        match write_file(path, &page.text(Format::Text)) {
            Err(error) if is_first => return Err(error),
            Err(error) if !is_reported => {
                say(&format!("gputop: {error:#}\n"));
                is_reported = true;
            }
            Err(_) => {}
            Ok(file) => {
                *written = Some(file);
                is_reported = false;
            }
        }
        is_first = false;
    }
}

/// Replaces the file atomically. The mode of the new file follows the umask, so that a node exporter running as a
/// different user can read the file. The node exporter ignores the temporary file, whose extension is not `prom`.
fn write_file(path: &Path, text: &[u8]) -> Result<FileId> {
    let shown = || quoted(&path.to_string_lossy());
    replace_with(path, 0o666, |file| file.write_all(text)).map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => {
            eyre!("cannot write {}: {error}, so it is not replaced. Name another file", shown())
        }
        _ => eyre!(error).wrap_err(format!("cannot write {}", shown())),
    })
}
