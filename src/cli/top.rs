//! `gputop`: the dashboard of this host; without an NVIDIA driver the reason, and the built-in recording.

use std::sync::Arc;
use std::time::Duration;

use color_eyre::Result;
use color_eyre::eyre::bail;

use super::connect::{FarArgs, prepare};
use super::settings::{Settings, agent_options, has_terminal, interval_argument};
use super::{demo, desk, runtime, targets};
use crate::collect::agent::Options;
use crate::model::frame::Frame;
use crate::model::host::Hello;
use crate::model::reading::Reason;
use crate::model::text::visible;
use crate::model::units::Millis;
use crate::source::remote::{self, Target};
use crate::source::stream::Source;
use crate::source::{Update, local};
use crate::tui::app::App;
use crate::tui::{self, Left};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Another host, as ssh takes it: [user@]host[:port]; or `via:CMD`, a command that runs `gputop agent`
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    #[command(flatten)]
    far: FarArgs,
    /// Let signals be sent to processes of a far host
    #[arg(long)]
    allow_signals: bool,
    /// Time between samples: 1s, 500ms, 2m
    #[arg(long, short, value_parser = interval_argument)]
    pub interval: Option<Millis>,
}

/// How long the driver may take before the screen opens without it.
const PATIENCE: Duration = Duration::from_secs(3);

pub fn run(args: &Args, settings: &Settings) -> Result<u8> {
    let target = targets::target(&args.targets, &super::subcommands())?;
    let runtime = runtime()?;
    let _guard = runtime.enter();
    let mut app = settings.app(None);
    let mut source = match target {
        None => local::start(Options {
            readonly: settings.readonly,
            ..agent_options(settings.interval)
        })?,
        Some(target) => {
            app.readonly |= !args.allow_signals;
            app.hello = Arc::new(awaited(&target));
            remote::start(prepare(
                target,
                settings.interval,
                &args.far,
                args.allow_signals,
            )?)?
        }
    };
    let is_here = args.targets.is_empty();
    let first = runtime.block_on(first_frame(&mut source, &mut app));
    if let Some(reason) = first.as_deref().and_then(why_nothing) {
        if !has_terminal() || !is_here {
            super::say(&format!("gputop: {reason}\n"));
            return Ok(1);
        }
        drop(source);
        return demo::show(settings, Some(reason));
    }
    if !has_terminal() {
        bail!(
            "standard output is no terminal; `gputop once` prints one sample, `gputop record` writes a recording"
        );
    }
    let (desk, service) = desk::serve(settings.keep());
    let left = runtime.block_on(tui::run(app, source, settings.outside(), desk))?;
    service.finish();
    Ok(leave(left))
}

/// What is known of a host before it says a word: its name.
fn awaited(target: &Target) -> Hello {
    Hello {
        host: visible(target.name().as_bytes(), 60),
        ..Hello::default()
    }
}

/// Feeds the app until the first frame; `None` when the driver takes too long to wait for.
async fn first_frame(source: &mut Source, app: &mut App) -> Option<Arc<Frame>> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let update = tokio::time::timeout_at(deadline, source.next())
            .await
            .ok()??;
        let frame = if let Update::Frame(frame) = &update {
            Some(Arc::clone(frame))
        } else {
            None
        };
        app.update(update);
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
pub fn leave(left: Left) -> u8 {
    match left {
        Left::ByUser | Left::TerminalGone => 0,
        Left::BySignal(number) => u8::try_from(128 + number).unwrap_or(2),
    }
}
