//! Several hosts: a folder with a recording of each, which is whole by itself and is played beside the others on one clock.
//!
//! A host that is not reached at first has its file as soon as it is; one that fails costs the others nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use color_eyre::Result;
use color_eyre::eyre::bail;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::super::connect::{AllowedActions, prepare_all};
use super::super::malloc_tuning;
use super::super::say;
use super::super::settings::Settings;
use super::{Args, Tape, clear_progress, date, ended, progress, tell, tell_of};
use crate::model::host::Hello;
use crate::model::text::visible;
use crate::model::units::Bytes;
use crate::source::Update;
use crate::source::layout::ENDING;
use crate::source::map_schedule::Every;
use crate::source::record::Recorder;
use crate::source::remote::{self, Connection, Target};
use crate::source::stream::Source;
use crate::watch::Keep;

/// So many hosts have the larger window of a single recording.
const FEW: usize = 4;
/// How often the line that counts is written anew.
const PERIOD: Duration = Duration::from_millis(500);

/// What all of them have written.
#[derive(Default)]
struct Total {
    hosts: AtomicUsize,
    frames: AtomicU64,
    bytes: AtomicU64,
}

/// One of them, before it is heard.
struct One {
    name: String,
    path: PathBuf,
    connection: Connection,
    is_among_many: bool,
    force: bool,
    maps: Every,
    keep: Option<Keep>,
}

pub(super) async fn record(targets: Vec<Target>, args: &Args, settings: &Settings) -> Result<u8> {
    let folder = args.output.clone();
    let folder = folder.unwrap_or_else(|| PathBuf::from(format!("gputop-{}", date())));
    if folder.exists() && !folder.is_dir() {
        bail!(
            "{} is a file, and a recording of several hosts is a folder: choose another name",
            folder.display()
        );
    }
    let names = file_names(&targets);
    let paths: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    if let Some(there) = paths.iter().find(|path| path.exists() && !args.force) {
        bail!(
            "{} exists; choose another folder, or replace what is in it with --force",
            there.display()
        );
    }
    let of_names: Vec<String> = targets.iter().map(shown).collect();
    let count = targets.len();
    malloc_tuning::share_among_many_threads();
    let connections = prepare_all(
        targets,
        settings.interval,
        &args.far,
        AllowedActions::default(),
    );
    std::fs::create_dir_all(&folder)?;
    let total = Arc::new(Total::default());
    let (stop, stopped) = watch::channel(());
    let mut tapes = JoinSet::new();
    for ((connection, path), name) in connections.into_iter().zip(paths).zip(of_names) {
        let one = One {
            name,
            path,
            connection,
            is_among_many: count > FEW,
            force: args.force,
            maps: args.maps.unwrap_or_default(),
            keep: settings.keep(),
        };
        let (total, stopped) = (Arc::clone(&total), stopped.clone());
        tapes.spawn(async move {
            let name = one.name.clone();
            let went = one.record(&total, stopped).await;
            went.inspect_err(|error| tell(Some(&name), &format!("{error}")))
                .is_ok()
        });
    }
    drop(stopped);
    let mut end = std::pin::pin!(ended(args.length));
    let mut clock = tokio::time::interval(PERIOD);
    let (mut is_whole, mut stop) = (true, Some(stop));
    loop {
        tokio::select! {
            tape = tapes.join_next() => match tape {
                Some(went) => is_whole &= went.unwrap_or(false),
                None => break,
            },
            asked = &mut end, if stop.is_some() => {
                asked?;
                // Each closes its file.
                stop = None;
            }
            _ = clock.tick() => progress(&words(&folder, count, &total)),
        }
    }
    remote::end_all();
    clear_progress();
    let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
    let (hosts, frames) = (total.hosts.load(Ordering::Relaxed), load(&total.frames));
    say(&format!(
        "gputop: {frames} frames of {hosts} of {count} hosts in {} ({})\n",
        folder.display(),
        Bytes(load(&total.bytes))
    ));
    Ok(if is_whole && hosts == count { 0 } else { 2 })
}

fn words(folder: &Path, count: usize, total: &Total) -> String {
    format!(
        "{}: {} of {count} hosts, {} frames, {}",
        folder.display(),
        total.hosts.load(Ordering::Relaxed),
        total.frames.load(Ordering::Relaxed),
        Bytes(total.bytes.load(Ordering::Relaxed))
    )
}

impl One {
    async fn record(self, total: &Total, mut stopped: watch::Receiver<()>) -> Result<()> {
        let mut source = remote::start(self.connection)?;
        let hello = tokio::select! {
            hello = first_words(&mut source, &self.name) => hello,
            _ = stopped.changed() => None,
        };
        let Some(hello) = hello else {
            bail!("nothing was recorded: it was not reached");
        };
        let recorder = if self.force {
            Recorder::overwrite(&self.path, &hello)?
        } else {
            Recorder::create(&self.path, &hello)?
        };
        let recorder = match self.is_among_many {
            true => recorder.among_many(),
            false => recorder,
        };
        total.hosts.fetch_add(1, Ordering::Relaxed);
        let name = Some(self.name);
        let mut tape = Tape::start(name, source, &hello, recorder, self.maps, self.keep)?;
        loop {
            let (frames, bytes) = (tape.frames, tape.recorder.bytes());
            let went_on = tokio::select! {
                went_on = tape.go_on() => went_on,
                _ = stopped.changed() => break,
            };
            let goes_on = went_on.inspect_err(|_| {
                if frames == 0 {
                    total.hosts.fetch_sub(1, Ordering::Relaxed);
                    let _ = std::fs::remove_file(&self.path);
                }
            })?;
            total
                .frames
                .fetch_add(tape.frames - frames, Ordering::Relaxed);
            total
                .bytes
                .fetch_add(tape.recorder.bytes() - bytes, Ordering::Relaxed);
            if !goes_on {
                break;
            }
        }
        tape.finish()?;
        Ok(())
    }
}

/// Who it says it is, once it is reached.
async fn first_words(source: &mut Source, name: &str) -> Option<Arc<Hello>> {
    let mut lost = false;
    loop {
        match source.next().await? {
            Update::Hello(hello) => return Some(hello),
            Update::Link(link) => tell_of(&link, Some(name), &mut lost),
            _ => {}
        }
    }
}

fn shown(target: &Target) -> String {
    visible(target.name().as_bytes(), 60)
}

/// A name for the file of each, from how it was named here: nothing that comes from there names a file.
fn file_names(targets: &[Target]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for target in targets {
        let name: String = target
            .name()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        // Commands begin alike.
        let parts = name.split('-').filter(|part| !part.is_empty());
        let name = parts.collect::<Vec<_>>().join("-");
        let from = name.len().saturating_sub(MAX_NAME);
        let name = name[from..].trim_start_matches('-');
        let stem = (1..).find_map(|number| {
            let stem = match number {
                1 => name.to_owned(),
                _ => format!("{name}-{number}"),
            };
            (!names.contains(&format!("{stem}{ENDING}"))).then_some(stem)
        });
        names.push(format!("{}{ENDING}", stem.unwrap_or_default()));
    }
    names
}

const MAX_NAME: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_a_file_of_its_own_that_is_harmless() {
        let words = [
            "gpu1",
            "me@gpu1:22",
            "via:ssh ../../x -- gputop agent",
            "via:ssh ../../x --- gputop agent",
            "10.0.0.7",
        ];
        let targets: Vec<Target> = words
            .iter()
            .map(|word| Target::parse(word).expect("a target"))
            .collect();
        let names = file_names(&targets);
        let stems = [
            "gpu1",
            "me-gpu1-22",
            "ssh-x-gputop-agent",
            "ssh-x-gputop-agent-2",
            "10-0-0-7",
        ];
        assert_eq!(names, stems.map(|stem| format!("{stem}{ENDING}")));
    }
}
