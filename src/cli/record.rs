//! `gputop record`: a host into a file, a whole second at a time, until interrupted; of every pool a map now and
//! then.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use color_eyre::Result;
use color_eyre::eyre::bail;
use jiff::SignedDuration;

use super::connect::{FarArgs, May, prepare};
#[cfg(local)]
use super::settings::agent_options;
use super::settings::{Settings, interval_argument, maps_argument};
use super::{runtime, say, targets, top};
use crate::diagnose::live::CaseKey;
use crate::model::host::Hello;
use crate::model::incident::Severity;
use crate::model::link::Link;
use crate::model::units::{Bytes, Millis};
use crate::source::Update;
#[cfg(local)]
use crate::source::local;
use crate::source::record::Recorder;
use crate::source::remote;
use crate::source::rounds::{Every, Rounds};
use crate::source::stream::Source;
use crate::watch::{Found, Watcher};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Another host, as ssh takes it: [user@]host[:port]; or `via:CMD`, a command that runs `gputop agent`
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    #[command(flatten)]
    far: FarArgs,
    /// The file to write; without it, gputop-HOST-DATE.gpt.zst here
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// Replace the file if it is a recording
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
    runtime()?.block_on(record(args, settings))
}

async fn record(args: &Args, settings: &Settings) -> Result<u8> {
    let mut targets = targets::targets(&args.targets, None, &settings.groups, &[])?;
    if targets.len() > 1 {
        bail!("a recording is of one host: one `gputop record` for each");
    }
    let mut source = match targets.pop() {
        #[cfg(local)]
        None => local::start(agent_options(settings.interval))?,
        #[cfg(not(local))]
        None => bail!("which host? {}: `gputop record HOST`", super::NO_COLLECTORS),
        Some(target) => remote::start(prepare(
            target,
            settings.interval,
            &args.far,
            May::default(),
        )?)?,
    };
    let hello = first_words(&mut source).await?;
    let path = args
        .output
        .clone()
        .unwrap_or_else(|| default_name(&hello.host));
    let mut recorder = if args.force {
        Recorder::overwrite(&path, &hello)?
    } else {
        Recorder::create(&path, &hello)?
    };
    let mut end = std::pin::pin!(ended(args.length));
    let mut rounds = Rounds::new(args.maps.unwrap_or_default());
    let (mut frames, mut lost) = (0_u64, false);
    let mut told = HashMap::new();
    let mut watcher = Watcher::start(settings.keep())?;
    watcher.see(&Update::Hello(Arc::clone(&hello)));
    loop {
        let update = tokio::select! {
            update = source.next() => update,
            found = watcher.next() => {
                report(&found, &mut told);
                continue;
            }
            stopped = &mut end => {
                stopped?;
                break;
            }
        };
        if let Some(update) = &update {
            watcher.see(update);
        }
        match update {
            Some(Update::Frame(frame)) => {
                if let Some(why) = top::why_nothing(&frame).filter(|_| frames == 0) {
                    bail!("nothing to record: {why}");
                }
                recorder.frame(&frame)?;
                if let Some(request) = rounds.frame(&frame) {
                    source.send(request);
                }
                frames += 1;
                progress(&path, frames, recorder.bytes());
            }
            Some(Update::Event(event)) => recorder.event(&event)?,
            Some(Update::Map(map)) if rounds.takes(&map) => {
                let before = recorder.bytes();
                recorder.map(&map)?;
                rounds.wrote(recorder.bytes() - before);
                source.send(rounds.ask_next());
            }
            Some(Update::FailureMap(failed)) if rounds.takes_failed(&failed.map) => {
                let before = recorder.bytes();
                recorder.failure_map(&failed)?;
                rounds.wrote(recorder.bytes() - before);
            }
            Some(Update::Stacks(_, stack)) => {
                if let Ok(stack) = &*stack {
                    recorder.stack(stack)?;
                }
            }
            Some(Update::NoMap(pool, _)) if rounds.answered(pool) => source.send(rounds.ask_next()),
            Some(Update::Link(link)) => tell_of(&link, &mut lost),
            Some(_) => {}
            None => break,
        }
    }
    remote::end_all();
    recorder.finish()?;
    for found in watcher.finish(FINISH) {
        report(&found, &mut told);
    }
    let bytes = Bytes(std::fs::metadata(&path).map_or(0, |file| file.len()));
    clear_progress();
    say(&format!(
        "gputop: {frames} frames in {} ({bytes})
",
        path.display()
    ));
    Ok(0)
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
fn report(found: &Found, told: &mut HashMap<CaseKey, String>) {
    match found {
        Found::Incident(revision, uid) if revision.incident.severity == Severity::Fatal => {
            let id = revision.incident.id.clone();
            if told.insert(revision.key.clone(), id.clone()) == Some(id) {
                return;
            }
            clear_progress();
            let kept = uid.as_ref().map_or(String::new(), |uid| {
                format!(" (`gputop incidents show {uid}`)")
            });
            say(&format!(
                "gputop: {}: {}{kept}\n",
                revision.incident.id, revision.incident.title
            ));
        }
        Found::Incident(..) => {}
        Found::Trouble(why) => {
            clear_progress();
            say(&format!("gputop: {why}\n"));
        }
    }
}

/// That a far host is not heard any more is said once, and that it is heard again.
fn tell_of(link: &Link, lost: &mut bool) {
    match link {
        Link::Lost { why, .. } if !std::mem::replace(lost, true) => {
            clear_progress();
            say(&format!(
                "gputop: the link is lost ({why}); it is tried again until it is back\n"
            ));
        }
        Link::Up if std::mem::take(lost) => {
            clear_progress();
            say("gputop: the link is back\n");
        }
        _ => {}
    }
}

fn default_name(host: &str) -> PathBuf {
    let host: String = host
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        .collect();
    let date = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S");
    PathBuf::from(format!("gputop-{host}-{date}.gpt.zst"))
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

fn progress(path: &std::path::Path, frames: u64, bytes: u64) {
    if std::io::stderr().is_terminal() {
        say(&format!(
            "\r\x1b[Kgputop: recording {}: {frames} frames, {}; ^C ends",
            path.display(),
            Bytes(bytes)
        ));
    }
}

fn clear_progress() {
    if std::io::stderr().is_terminal() {
        say("\r\x1b[K");
    }
}
