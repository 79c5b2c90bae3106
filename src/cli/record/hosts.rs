//! Records several hosts to a directory with one recording per host. Recordings can be played alone, or together on a
//! shared clock.
//!
//! A host's file is created when the host is first reached. A failure of one host does not affect other hosts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use color_eyre::Result;
use color_eyre::eyre::bail;
use gputop_explain::ranks::JoinedJobs;
use gputop_model::protocol::Update;
use gputop_model::protocol::stream::Source;
use gputop_model::text::visible;
use gputop_model::{Bytes, Hello};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::super::connect::{AllowedActions, prepare_all};
use super::super::settings::Settings;
use super::{
    Args, HostRecording, check_unlocked, clear_progress, date, notify, progress, recorder,
    report_link, stop_requested,
};
use crate::cli::print::say;
use crate::incident::IncidentSink;
use crate::source::layout::FILE_EXTENSION;
use crate::source::map_schedule::MapPeriod;
use crate::source::remote::{self, Connection, Target};

/// Maximum number of hosts whose recordings use the large compression window. With more hosts, all recordings use a
/// smaller one.
const MAX_LARGE_WINDOWS: usize = 4;
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Default)]
struct RecordedTotal {
    hosts: AtomicUsize,
    frames: AtomicU64,
    bytes: AtomicU64,
}

/// Remote host that has not been reached yet.
struct PendingHost {
    name: String,
    path: PathBuf,
    connection: Connection,
    is_among_many: bool,
    force: bool,
    maps: MapPeriod,
    sink: Option<IncidentSink>,
    /// The ranks of all hosts.
    jobs: JoinedJobs,
}

pub(super) async fn record(targets: Vec<Target>, args: &Args, settings: &Settings) -> Result<u8> {
    let jobs = JoinedJobs::default();
    let folder = args.output.clone();
    let folder = folder.unwrap_or_else(|| PathBuf::from(format!("gputop-{}", date())));
    let paths = paths(&folder, &targets, args.force)?;
    let host_names: Vec<String> = targets.iter().map(shown).collect();
    let count = targets.len();
    let connections =
        prepare_all(targets, settings.values.interval, &args.push, AllowedActions::default());
    std::fs::create_dir_all(&folder)?;
    let total = Arc::new(RecordedTotal::default());
    let (stop, stopped) = watch::channel(());
    let mut recordings = JoinSet::new();
    for ((connection, path), name) in connections.into_iter().zip(paths).zip(host_names) {
        let host = PendingHost {
            name,
            path,
            connection,
            is_among_many: count > MAX_LARGE_WINDOWS,
            force: args.force,
            maps: args.maps.unwrap_or_default(),
            sink: settings.incident_sink(),
            jobs: jobs.clone(),
        };
        let (total, stopped) = (Arc::clone(&total), stopped.clone());
        recordings.spawn(async move {
            let name = host.name.clone();
            let result = host.record(&total, stopped).await;
            result.inspect_err(|error| notify(Some(&name), &format!("{error}"))).is_ok()
        });
    }
    drop(stopped);
    let show_progress = || progress(&progress_text(&folder, count, &total));
    let is_complete = finish(recordings, stop, args, show_progress).await?;
    remote::end_all();
    clear_progress();
    let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
    let (hosts, frames) = (total.hosts.load(Ordering::Relaxed), load(&total.frames));
    say(&format!(
        "gputop: recorded {frames} frames from {hosts} of {count} hosts to {} ({})\n",
        folder.display(),
        Bytes(load(&total.bytes))
    ));
    Ok(if is_complete && hosts == count { 0 } else { 2 })
}

/// Returns the file of each host. Fails if one exists that must not be replaced, or is being recorded.
fn paths(folder: &Path, targets: &[Target], force: bool) -> Result<Vec<PathBuf>> {
    if folder.exists() && !folder.is_dir() {
        bail!(
            "cannot record to {}: it is a file, but several hosts need a directory. Choose another name",
            folder.display()
        );
    }
    let names = file_names(targets);
    let paths: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    paths.iter().try_for_each(|path| check_unlocked(path))?;
    if let Some(existing) = paths.iter().find(|path| path.exists() && !force) {
        bail!(
            "cannot record to {}: the file exists. Choose another directory, or overwrite it with --force",
            existing.display()
        );
    }
    Ok(paths)
}

/// Waits until all recordings are finished, and asks them to finish when the user or the time limit ends them. Returns
/// true if all succeeded.
async fn finish(
    mut recordings: JoinSet<bool>,
    stop: watch::Sender<()>,
    args: &Args,
    show_progress: impl Fn(),
) -> Result<bool> {
    let mut end = std::pin::pin!(stop_requested(args.length, args.until_eof));
    let mut clock = tokio::time::interval(PROGRESS_INTERVAL);
    let (mut is_complete, mut stop) = (true, Some(stop));
    loop {
        tokio::select! {
            finished = recordings.join_next() => match finished {
                Some(succeeded) => is_complete &= succeeded.unwrap_or(false),
                None => break,
            },
            requested = &mut end, if stop.is_some() => {
                requested?;
                // Dropping the sender tells each recording to close its file.
                stop = None;
            }
            _ = clock.tick() => show_progress(),
        }
    }
    Ok(is_complete)
}

fn progress_text(folder: &Path, count: usize, total: &RecordedTotal) -> String {
    format!(
        "{}: {} of {count} hosts, {} frames, {}",
        folder.display(),
        total.hosts.load(Ordering::Relaxed),
        total.frames.load(Ordering::Relaxed),
        Bytes(total.bytes.load(Ordering::Relaxed))
    )
}

impl PendingHost {
    async fn record(self, total: &RecordedTotal, mut stopped: watch::Receiver<()>) -> Result<()> {
        let mut source = remote::start(self.connection)?;
        let hello = tokio::select! {
            hello = first_hello(&mut source, &self.name) => hello,
            _ = stopped.changed() => None,
        };
        let Some(hello) = hello else {
            bail!("not recorded: the host was not reached");
        };
        let recorder = recorder(&self.path, &hello, self.force)?;
        let recorder = if self.is_among_many { recorder.with_small_window() } else { recorder };
        total.hosts.fetch_add(1, Ordering::Relaxed);
        let name = Some(self.name);
        let mut recording =
            HostRecording::start(name, source, &hello, recorder, self.maps, self.sink, self.jobs)?;
        loop {
            let (frames, bytes) = (recording.frames, recording.recorder.bytes());
            let advanced = tokio::select! {
                advanced = recording.advance() => advanced,
                _ = stopped.changed() => break,
            };
            let has_more = advanced.inspect_err(|_| {
                if frames == 0 {
                    total.hosts.fetch_sub(1, Ordering::Relaxed);
                    recording.recorder.discard();
                }
            })?;
            total.frames.fetch_add(recording.frames - frames, Ordering::Relaxed);
            total.bytes.fetch_add(recording.recorder.bytes() - bytes, Ordering::Relaxed);
            if !has_more {
                break;
            }
        }
        recording.finish()?;
        Ok(())
    }
}

/// Waits until the host is reached. Returns the host's greeting.
async fn first_hello(source: &mut Source, name: &str) -> Option<Arc<Hello>> {
    let mut is_disconnected = false;
    loop {
        match source.next().await? {
            Update::Hello(hello) => return Some(hello),
            Update::Link(link) => report_link(&link, Some(name), &mut is_disconnected),
            _ => {}
        }
    }
}

fn shown(target: &Target) -> String {
    visible(target.name().as_bytes(), 60)
}

/// Returns a file name for each host's recording. The names come from the command line only, because remote hosts must
/// not choose file names.
fn file_names(targets: &[Target]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for target in targets {
        let name: String = target
            .name()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let name = name.split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-");
        // Truncate a long name at the front, because `via:` commands differ at the end.
        let from = name.len().saturating_sub(MAX_NAME);
        let name = name[from..].trim_start_matches('-');
        let stem = (1..).find_map(|number| {
            let stem = match number {
                1 => name.to_owned(),
                _ => format!("{name}-{number}"),
            };
            (!names.contains(&format!("{stem}{FILE_EXTENSION}"))).then_some(stem)
        });
        names.push(format!("{}{FILE_EXTENSION}", stem.unwrap_or_default()));
    }
    names
}

const MAX_NAME: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derives_unique_and_safe_file_names() {
        let words = [
            "gpu1",
            "me@gpu1:22",
            "via:ssh ../../x -- gputop agent",
            "via:ssh ../../x --- gputop agent",
            "10.0.0.7",
        ];
        let targets: Vec<Target> =
            words.iter().map(|word| Target::parse(word).expect("a target")).collect();
        let names = file_names(&targets);
        let stems =
            ["gpu1", "me-gpu1-22", "ssh-x-gputop-agent", "ssh-x-gputop-agent-2", "10-0-0-7"];
        assert_eq!(names, stems.map(|stem| format!("{stem}{FILE_EXTENSION}")));
    }
}
