//! `gputop record`: records a host to a file until interrupted, and periodically adds memory maps of all allocator
//! pools. Several hosts are recorded to a directory with one file per host (`record/hosts.rs`).

mod hosts;
mod remote_incidents;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use color_eyre::Result;
use color_eyre::eyre::bail;
use gputop_explain::ranks::JoinedJobs;
use gputop_model::newest::Newest;
use gputop_model::protocol::Update;
use gputop_model::protocol::stream::Source;
use gputop_model::{
    Bytes, DetectedBy, Hello, Incident, IncidentKey, Link, Millis, Record, Severity,
};

use self::remote_incidents::RemoteIncidentEvents;
use super::async_runtime::runtime;
use super::connect::{AllowedActions, PushArgs, prepare};
use super::dashboard;
use super::print::{erase_line, say};
#[cfg(local)]
use super::settings::agent_options;
use super::settings::{
    ConfigArgs, NotificationArgs, SamplingArgs, Settings, length_argument, maps_argument,
};
use super::targets::HostArgs;
#[cfg(local)]
use crate::collect::agent::Options;
#[cfg(local)]
use crate::collect::local;
use crate::incident::{IncidentSink, MAX_WAITING_FRAMES, WatchResult, Watcher};
use crate::source::holder_schedule::HolderScheduler;
use crate::source::layout::FILE_EXTENSION;
use crate::source::map_schedule::{MapPeriod, MapScheduler};
use crate::source::record::{RecordError, Recorder};
use crate::source::recording_file::check_unlocked;
use crate::source::remote::{self, Target};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    #[command(flatten)]
    hosts: HostArgs,
    #[command(flatten)]
    push: PushArgs,
    /// Write to this file, or for several hosts to this directory [default: gputop-HOST-DATE.gpt.zst, or gputop-DATE
    /// for several hosts]
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// Overwrite existing recordings
    #[arg(long)]
    force: bool,
    /// Wake GPUs that sleep because nothing uses them, and keep them awake
    #[arg(long)]
    wake: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Set the time between memory maps of PyTorch's pools, such as 1m, or `off` for no maps [default: 1m, longer if
    /// maps would exceed 6 MB a day]
    #[arg(long, value_name = "TIME", value_parser = maps_argument)]
    maps: Option<MapPeriod>,
    /// Stop after this time, such as 90s or 8h
    #[arg(long = "for", value_name = "TIME", value_parser = length_argument)]
    length: Option<Millis>,
    /// Stop when standard input is closed, for `gputop run --summary`
    #[arg(long, hide = true)]
    until_eof: bool,
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    notifications: NotificationArgs,
}

/// Maximum time to diagnose and save the last observations after a recording stops.
const FINISH_TIMEOUT: Duration = Duration::from_secs(3);

pub fn run(args: &Args, settings: &Settings) -> Result<u8> {
    let mut targets = args.hosts.targets(&settings.groups, &[])?;
    let runtime = runtime()?;
    if targets.len() > 1 {
        return runtime.block_on(hosts::record(targets, args, settings));
    }
    runtime.block_on(one(targets.pop(), args, settings))
}

async fn one(target: Option<Target>, args: &Args, settings: &Settings) -> Result<u8> {
    // Fail before connecting.
    args.output.as_deref().map_or(Ok(()), check_unlocked)?;
    let mut source = source(target, args, settings)?;
    let hello = first_hello(&mut source).await?;
    let path = args.output.clone().unwrap_or_else(|| default_name(&hello.host));
    let recorder = recorder(&path, &hello, args.force)?;
    let maps = args.maps.unwrap_or_default();
    let mut recording = HostRecording::start(
        None,
        source,
        &hello,
        recorder,
        maps,
        settings.incident_sink(),
        JoinedJobs::default(),
    )?;
    let mut stop = std::pin::pin!(stop_requested(args.length, args.until_eof));
    loop {
        let has_more = tokio::select! {
            advanced = recording.advance() => advanced.inspect_err(|_| {
                // Remove a file without frames. It is useless, and the next attempt would require --force.
                if recording.frames == 0 {
                    recording.recorder.discard();
                }
            })?,
            stopped = &mut stop => {
                stopped?;
                break;
            }
        };
        if !has_more {
            break;
        }
        progress(&format!(
            "{}: {} frames, {}",
            path.display(),
            recording.frames,
            Bytes(recording.recorder.bytes())
        ));
    }
    let frames = recording.frames;
    let finished = recording.finish();
    remote::end_all();
    clear_progress();
    let bytes = Bytes(finished?);
    say(&format!("gputop: recorded {frames} frames to {} ({bytes})\n", path.display()));
    Ok(0)
}

fn source(target: Option<Target>, args: &Args, settings: &Settings) -> Result<Source> {
    let interval = settings.values.interval;
    match target {
        Some(target) => {
            let connection = prepare(target, interval, &args.push, AllowedActions::default())?;
            Ok(remote::start(connection)?)
        }
        #[cfg(local)]
        None => {
            Ok(local::start(Options { keeps_gpus_awake: args.wake, ..agent_options(interval) })?)
        }
        #[cfg(not(local))]
        None => bail!(
            "cannot record this host: {}. Name a host: `gputop record HOST`",
            super::unavailable::NO_COLLECTORS
        ),
    }
}

fn recorder(path: &Path, hello: &Hello, force: bool) -> Result<Recorder, RecordError> {
    if force { Recorder::overwrite(path, hello) } else { Recorder::create(path, hello) }
}

/// The incidents reported so far, each with the ID of its last reported error card and its severity.
type Reported = Newest<(IncidentKey, String, Severity)>;

/// Maximum number of reported incidents to remember, and their maximum memory.
const MAX_REPORTED: usize = 256;
const MAX_REPORTED_BYTES: usize = 1 << 20;

struct HostRecording {
    /// Host name to show in messages, if several hosts are recorded.
    name: Option<String>,
    source: Source,
    recorder: Recorder,
    rounds: MapScheduler,
    watcher: Watcher,
    remote_incidents: RemoteIncidentEvents,
    frames: u64,
    is_disconnected: bool,
    /// Requests the memory holders of processes. `None` if names of tensors must not be recorded.
    holders: Option<HolderScheduler>,
    reported: Reported,
}

impl HostRecording {
    fn start(
        name: Option<String>,
        source: Source,
        hello: &Arc<Hello>,
        recorder: Recorder,
        maps: MapPeriod,
        sink: Option<IncidentSink>,
        jobs: JoinedJobs,
    ) -> Result<Self> {
        let record_names = sink.as_ref().is_some_and(|sink| sink.record_names);
        let watcher = Watcher::start_with(sink, MAX_WAITING_FRAMES, jobs)?;
        watcher.see(&Update::Hello(Arc::clone(hello)));
        let mut remote_incidents = RemoteIncidentEvents::default();
        remote_incidents.hello(hello);
        Ok(Self {
            name,
            source,
            recorder,
            rounds: MapScheduler::new(maps),
            watcher,
            remote_incidents,
            frames: 0,
            is_disconnected: false,
            holders: record_names.then(HolderScheduler::default),
            reported: Newest::new(MAX_REPORTED, MAX_REPORTED_BYTES),
        })
    }

    /// Handles one update or incident from the recorded host. Returns false when the source ends. The future is
    /// cancel-safe.
    async fn advance(&mut self) -> Result<bool> {
        let watched = self.watcher.backlog();
        let update = tokio::select! {
            update = self.source.next_for(&watched) => update,
            found = self.watcher.next() => {
                self.report(&found);
                return Ok(true);
            }
        };
        let Some(update) = update else { return Ok(false) };
        self.watcher.see(&update);
        self.write(update)?;
        Ok(true)
    }

    fn write(&mut self, update: Update) -> Result<()> {
        let recorder = &mut self.recorder;
        match update {
            Update::Frame(frame) => {
                if let Some(why) = dashboard::why_no_gpus(&frame).filter(|_| self.frames == 0) {
                    bail!("cannot record: {why}");
                }
                recorder.frame(&frame)?;
                self.remote_incidents.frame(&frame);
                if let Some(request) = self.rounds.frame(&frame) {
                    self.source.send(request);
                }
                if let Some(request) =
                    self.holders.as_mut().and_then(|holders| holders.frame(&frame))
                {
                    self.source.send(request);
                }
                self.frames += 1;
            }
            Update::Event(event) => recorder.event(&event)?,
            Update::Hello(hello) => self.remote_incidents.hello(&hello),
            Update::RemoteIncident(incident) => {
                if let Some(event) = self.remote_incidents.event(&incident) {
                    recorder.event(&event)?;
                }
            }
            Update::Map(map) if self.rounds.takes(&map) => {
                self.rounds.wrote(recorder.map(&map)?);
                self.source.send(self.rounds.ask_next());
            }
            Update::FailureMap(failed) if self.rounds.takes_failed(&failed.map) => {
                self.rounds.wrote(recorder.failure_map(&failed)?);
            }
            Update::HolderSummary(mut summary) => {
                if self.holders.is_none() {
                    Arc::make_mut(&mut summary).forget_names();
                }
                recorder.holder_summary(&summary)?;
            }
            Update::Holders(process, reading)
                if self.holders.as_mut().is_some_and(|holders| holders.answered(process)) =>
            {
                if let Ok(holders) = &*reading {
                    recorder.holders(holders)?;
                }
            }
            Update::Phases(_, window) => {
                if let Ok(window) = &*window {
                    recorder.phases(window)?;
                }
            }
            Update::Stacks(_, stack) => {
                if let Ok(stack) = &*stack {
                    recorder.stack(stack)?;
                }
            }
            Update::NoMap(pool, _) if self.rounds.answered(pool) => {
                self.source.send(self.rounds.ask_next());
            }
            Update::Link(link) => {
                report_link(&link, self.name.as_deref(), &mut self.is_disconnected);
            }
            _ => {}
        }
        Ok(())
    }

    /// Closes the recording, and waits until the last incidents are saved. Returns the length of the file.
    fn finish(mut self) -> Result<u64, RecordError> {
        let name = self.name.clone();
        let closed = self.recorder.close();
        for found in self.watcher.finish(FINISH_TIMEOUT) {
            report(&found, name.as_deref(), &mut self.reported);
        }
        closed
    }

    fn report(&mut self, found: &WatchResult) {
        report(found, self.name.as_deref(), &mut self.reported);
    }
}

/// Returns the host's greeting. Fails if a remote host is not reached at the first attempt.
async fn first_hello(source: &mut Source) -> Result<Arc<Hello>> {
    loop {
        match source.next().await {
            Some(Update::Hello(hello)) => return Ok(hello),
            Some(Update::Link(Link::Lost { why, .. })) => bail!("cannot record: {why}"),
            Some(_) => {}
            None => bail!("cannot record: the data source closed before the first sample"),
        }
    }
}

/// Prints a fatal incident or a stall above the progress line.
fn report(found: &WatchResult, name: Option<&str>, reported: &mut Reported) {
    match found {
        WatchResult::Incident(record) => {
            if let Some(text) = news(record, reported) {
                notify(name, &text);
            }
        }
        WatchResult::Error(why) => notify(name, why),
    }
}

/// Returns the description of a fatal incident, or of ranks that stall: once, and again if its diagnosis or severity
/// changes.
fn news(record: &Record, reported: &mut Reported) -> Option<String> {
    let Incident { id, title, severity, detected_by, uid, .. } = &record.incident;
    if *severity != Severity::Fatal && *detected_by != DetectedBy::Ranks {
        return None;
    }
    let is_same = |(key, ..): &(IncidentKey, String, Severity)| key.is_same(&record.key);
    let is_known = |known: &(_, String, Severity)| known.1 == *id && known.2 == *severity;
    if reported.iter().any(|known| is_same(known) && is_known(known)) {
        return None;
    }
    reported.retain(|known| !is_same(known));
    reported.push((record.key.clone(), id.clone(), *severity));
    let command = uid.as_ref().map(|uid| format!(" (`gputop incidents show {uid}`)"));
    Some(format!("{id}: {title}{}", command.unwrap_or_default()))
}

/// Reports once that the connection was lost, and once that it was restored.
fn report_link(link: &Link, name: Option<&str>, is_disconnected: &mut bool) {
    match link {
        Link::Lost { why, .. } if !std::mem::replace(is_disconnected, true) => {
            notify(name, &format!("connection lost ({why}); reconnecting"));
        }
        Link::Up if std::mem::take(is_disconnected) => notify(name, "connection restored"),
        _ => {}
    }
}

fn default_name(host: &str) -> PathBuf {
    let host: String = host.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    PathBuf::from(format!("gputop-{host}-{}{FILE_EXTENSION}", date()))
}

pub(super) fn date() -> String {
    jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string()
}

/// Waits until the recording time is over, a stop signal arrives, or standard input is closed (only with `until_eof`).
pub(super) async fn stop_requested(length: Option<Millis>, until_eof: bool) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let time = length.map_or(Duration::MAX, |length| Duration::from_millis(length.0));
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
        _ = hang_up.recv() => {}
        () = tokio::time::sleep(time) => {}
        () = end_of_input(), if until_eof => {}
    }
    Ok(())
}

/// Waits until standard input is closed. The waiting thread may run until the process exits.
async fn end_of_input() {
    let (closed, is_closed) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = closed.send(());
    });
    let _ = is_closed.await;
}

/// Prints a message above the progress line, with the host's name if several hosts are recorded.
fn notify(name: Option<&str>, message: &str) {
    clear_progress();
    let name = name.map_or(String::new(), |name| format!("{name}: "));
    say(&format!("gputop: {name}{message}\n"));
}

fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        erase_line();
        say(&format!("gputop: recording {text} (Ctrl-C to stop)"));
    }
}

fn clear_progress() {
    if std::io::stderr().is_terminal() {
        erase_line();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_reported_once_and_again_when_its_timeout_ends_the_job() {
        let mut reported = Reported::new(MAX_REPORTED, MAX_REPORTED_BYTES);
        let record = |title: &str, severity, detected_by| {
            let incident = Incident {
                id: "rank-stall".into(),
                title: title.into(),
                severity,
                detected_by,
                uid: Some("k3f9".into()),
                ..Incident::default()
            };
            let key = IncidentKey { boot_id: "boot".into(), ..IncidentKey::default() };
            Record { key, incident, ..Record::default() }
        };
        let mut say = |record: &Record| news(record, &mut reported);
        let minute = record("Rank 3 holds up 7 ranks for 60 s.", Severity::Note, DetectedBy::Ranks);
        let text = "rank-stall: Rank 3 holds up 7 ranks for 60 s. (`gputop incidents show k3f9`)";
        assert_eq!(say(&minute).as_deref(), Some(text));
        let longer = record("Rank 3 holds up 7 ranks for 2:00.", Severity::Note, DetectedBy::Ranks);
        assert_eq!(say(&longer), None);
        let timeout =
            record("Rank 3 holds up 7 ranks for 600 s.", Severity::Fatal, DetectedBy::Ranks);
        assert!(say(&timeout).is_some());
        assert_eq!(say(&timeout), None);
        let note = record("A note.", Severity::Note, DetectedBy::Log);
        assert_eq!(say(&note), None);
    }
}
