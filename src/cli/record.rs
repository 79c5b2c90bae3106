//! `gputop record`: a host into a file, a whole second at a time, until interrupted; of every pool a map now and
//! then. Several hosts are a folder with a file for each (`record/many.rs`).

mod hosts;
mod remote_incidents;

use std::collections::HashMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use color_eyre::Result;
use color_eyre::eyre::bail;
use jiff::SignedDuration;

use self::remote_incidents::RemoteIncidentEvents;
use super::connect::{AllowedActions, FarArgs, prepare};
#[cfg(local)]
use super::settings::agent_options;
use super::settings::{Settings, interval_argument, maps_argument};
use super::targets::HostArgs;
use super::{dashboard, erase_line, runtime, say};
use crate::diagnose::live::CaseKey;
use crate::model::host::Hello;
use crate::model::incident::Severity;
use crate::model::link::Link;
use crate::model::units::{Bytes, Millis};
use crate::source::Update;
use crate::source::layout::ENDING;
#[cfg(local)]
use crate::source::local;
use crate::source::map_schedule::{Every, Rounds};
use crate::source::record::Recorder;
use crate::source::remote::{self, Target};
use crate::source::stream::Source;
use crate::watch::{Keep, WatchResult, Watcher};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    #[command(flatten)]
    hosts: HostArgs,
    #[command(flatten)]
    far: FarArgs,
    /// The file to write; without it, gputop-HOST-DATE.gpt.zst here. Of several hosts the folder, with a file for each;
    /// without it, gputop-DATE here
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// Replace what is there if it is a recording
    #[arg(long)]
    force: bool,
    /// Time between samples: 1s, 500ms, 2m
    #[arg(long, short, value_parser = interval_argument)]
    pub interval: Option<Millis>,
    /// Time between maps of PyTorch's pools: 1m, 10s; off for none. Without it 1m, less often where maps are so large
    /// that they would take more than 6 MB a day
    #[arg(long, value_name = "TIME", value_parser = maps_argument)]
    maps: Option<Every>,
    /// Stop after this time: 90s, 8h
    #[arg(long = "for", value_name = "TIME")]
    length: Option<SignedDuration>,
}

/// How long what was seen last may take to be judged and kept.
const FINISH: Duration = Duration::from_secs(3);

pub fn run(args: &Args, settings: &Settings) -> Result<u8> {
    let mut targets = args.hosts.targets(&settings.groups, &[])?;
    let runtime = runtime()?;
    if targets.len() > 1 {
        return runtime.block_on(hosts::record(targets, args, settings));
    }
    runtime.block_on(one(targets.pop(), args, settings))
}

async fn one(target: Option<Target>, args: &Args, settings: &Settings) -> Result<u8> {
    let mut source = match target {
        #[cfg(local)]
        None => local::start(agent_options(settings.interval))?,
        #[cfg(not(local))]
        None => bail!("which host? {}: `gputop record HOST`", super::NO_COLLECTORS),
        Some(target) => remote::start(prepare(
            target,
            settings.interval,
            &args.far,
            AllowedActions::default(),
        )?)?,
    };
    let hello = first_words(&mut source).await?;
    let path = args
        .output
        .clone()
        .unwrap_or_else(|| default_name(&hello.host));
    let recorder = if args.force {
        Recorder::overwrite(&path, &hello)?
    } else {
        Recorder::create(&path, &hello)?
    };
    let maps = args.maps.unwrap_or_default();
    let mut tape = Tape::start(None, source, &hello, recorder, maps, settings.keep())?;
    let mut end = std::pin::pin!(ended(args.length));
    loop {
        let goes_on = tokio::select! {
            went_on = tape.go_on() => went_on?,
            stopped = &mut end => {
                stopped?;
                break;
            }
        };
        if !goes_on {
            break;
        }
        progress(&format!(
            "{}: {} frames, {}",
            path.display(),
            tape.frames,
            Bytes(tape.recorder.bytes())
        ));
    }
    remote::end_all();
    let frames = tape.finish()?;
    let bytes = Bytes(std::fs::metadata(&path).map_or(0, |file| file.len()));
    clear_progress();
    say(&format!(
        "gputop: {frames} frames in {} ({bytes})
",
        path.display()
    ));
    Ok(0)
}

/// A host on its way into a file.
struct Tape {
    /// What it is called where there are several.
    name: Option<String>,
    source: Source,
    recorder: Recorder,
    rounds: Rounds,
    watcher: Watcher,
    telling: RemoteIncidentEvents,
    frames: u64,
    lost: bool,
    told: HashMap<CaseKey, String>,
}

impl Tape {
    fn start(
        name: Option<String>,
        source: Source,
        hello: &Arc<Hello>,
        recorder: Recorder,
        maps: Every,
        keep: Option<Keep>,
    ) -> Result<Self> {
        let watcher = Watcher::start(keep)?;
        watcher.see(&Update::Hello(Arc::clone(hello)));
        let mut telling = RemoteIncidentEvents::default();
        telling.hello(hello);
        Ok(Self {
            name,
            source,
            recorder,
            rounds: Rounds::new(maps),
            watcher,
            telling,
            frames: 0,
            lost: false,
            told: HashMap::new(),
        })
    }

    /// One thing more; false at the end of the source. Safe to cancel.
    async fn go_on(&mut self) -> Result<bool> {
        let update = tokio::select! {
            update = self.source.next() => update,
            found = self.watcher.next() => {
                self.report(&found);
                return Ok(true);
            }
        };
        let Some(update) = update else {
            return Ok(false);
        };
        self.watcher.see(&update);
        self.write(update)?;
        Ok(true)
    }

    fn write(&mut self, update: Update) -> Result<()> {
        let recorder = &mut self.recorder;
        match update {
            Update::Frame(frame) => {
                if let Some(why) = dashboard::why_nothing(&frame).filter(|_| self.frames == 0) {
                    bail!("nothing to record: {why}");
                }
                recorder.frame(&frame)?;
                self.telling.frame(&frame);
                if let Some(request) = self.rounds.frame(&frame) {
                    self.source.send(request);
                }
                self.frames += 1;
            }
            Update::Event(event) => recorder.event(&event)?,
            Update::Hello(hello) => self.telling.hello(&hello),
            Update::RemoteIncident(kept) => {
                if let Some(event) = self.telling.event(&kept) {
                    recorder.event(&event)?;
                }
            }
            Update::Map(map) if self.rounds.takes(&map) => {
                let before = recorder.bytes();
                recorder.map(&map)?;
                self.rounds.wrote(recorder.bytes() - before);
                self.source.send(self.rounds.ask_next());
            }
            Update::FailureMap(failed) if self.rounds.takes_failed(&failed.map) => {
                let before = recorder.bytes();
                recorder.failure_map(&failed)?;
                self.rounds.wrote(recorder.bytes() - before);
            }
            Update::Stacks(_, stack) => {
                if let Ok(stack) = &*stack {
                    recorder.stack(stack)?;
                }
            }
            Update::NoMap(pool, _) if self.rounds.answered(pool) => {
                self.source.send(self.rounds.ask_next());
            }
            Update::Link(link) => tell_of(&link, self.name.as_deref(), &mut self.lost),
            _ => {}
        }
        Ok(())
    }

    /// Closes the file and waits for what was seen last to be kept; how many frames there are.
    fn finish(mut self) -> Result<u64> {
        let name = self.name.clone();
        self.recorder.finish()?;
        for found in self.watcher.finish(FINISH) {
            report(&found, name.as_deref(), &mut self.told);
        }
        Ok(self.frames)
    }

    fn report(&mut self, found: &WatchResult) {
        report(found, self.name.as_deref(), &mut self.told);
    }
}

/// Who the host says it is; a far one that is not reached at once is not waited for.
async fn first_words(source: &mut Source) -> Result<Arc<Hello>> {
    loop {
        match source.next().await {
            Some(Update::Hello(hello)) => return Ok(hello),
            Some(Update::Link(Link::Lost { why, .. })) => bail!("nothing to record: {why}"),
            Some(_) => {}
            None => bail!("nothing could be collected on this host"),
        }
    }
}

/// Says what was found, above the line that counts frames: each incident once, and again when it is another one now.
fn report(found: &WatchResult, name: Option<&str>, told: &mut HashMap<CaseKey, String>) {
    match found {
        WatchResult::Incident(revision, uid) if revision.incident.severity == Severity::Fatal => {
            let id = revision.incident.id.clone();
            if told.insert(revision.key.clone(), id.clone()) == Some(id.clone()) {
                return;
            }
            let kept = uid.as_ref().map_or(String::new(), |uid| {
                format!(" (`gputop incidents show {uid}`)")
            });
            let title = &revision.incident.title;
            tell(name, &format!("{id}: {title}{kept}"));
        }
        WatchResult::Incident(..) => {}
        WatchResult::Trouble(why) => tell(name, why),
    }
}

/// That a far host is not heard any more is said once, and that it is heard again.
fn tell_of(link: &Link, name: Option<&str>, lost: &mut bool) {
    match link {
        Link::Lost { why, .. } if !std::mem::replace(lost, true) => {
            let text = format!("the link is lost ({why}); it is tried again until it is back");
            tell(name, &text);
        }
        Link::Up if std::mem::take(lost) => tell(name, "the link is back"),
        _ => {}
    }
}

fn default_name(host: &str) -> PathBuf {
    let host: String = host
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        .collect();
    PathBuf::from(format!("gputop-{host}-{}{ENDING}", date()))
}

fn date() -> String {
    jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string()
}

/// Until the time is over, or someone asks for the end.
async fn ended(length: Option<SignedDuration>) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let time = length.map_or(Duration::MAX, |l| {
        Duration::try_from(l).unwrap_or(Duration::ZERO)
    });
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
        _ = hang_up.recv() => {}
        () = tokio::time::sleep(time) => {}
    }
    Ok(())
}

/// A line above the one that counts frames, with the host it is about where there are several.
fn tell(name: Option<&str>, what: &str) {
    clear_progress();
    let name = name.map_or(String::new(), |name| format!("{name}: "));
    say(&format!("gputop: {name}{what}\n"));
}

fn progress(words: &str) {
    if std::io::stderr().is_terminal() {
        erase_line();
        say(&format!("gputop: recording {words}; ^C ends"));
    }
}

fn clear_progress() {
    if std::io::stderr().is_terminal() {
        erase_line();
    }
}
