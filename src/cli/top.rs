//! `gputop`: the dashboard of this host; without an NVIDIA driver the reason, and the built-in recording.

use std::time::Duration;

use color_eyre::Result;
use color_eyre::eyre::bail;

use super::settings::{Settings, agent_options, has_terminal, interval_argument};
use super::{demo, desk, runtime, targets};
use crate::collect::agent::Options;
use crate::model::frame::Frame;
use crate::model::reading::Reason;
use crate::model::units::Millis;
use crate::source::stream::Source;
use crate::source::{Update, local};
use crate::tui::app::App;
use crate::tui::{self, Left};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    #[arg(value_name = "TARGET", hide = true)]
    targets: Vec<String>,
    /// Time between samples: 1s, 500ms, 2m
    #[arg(long, short, value_parser = interval_argument)]
    pub interval: Option<Millis>,
}

/// How long the driver may take before the screen opens without it.
const PATIENCE: Duration = Duration::from_secs(3);

pub fn run(args: &Args, settings: &Settings) -> Result<u8> {
    if let Some(word) = args.targets.first() {
        bail!(targets::refuse(word, &super::subcommands()));
    }
    let runtime = runtime()?;
    let _guard = runtime.enter();
    let mut source = local::start(Options {
        readonly: settings.readonly,
        ..agent_options(settings.interval)
    })?;
    let mut app = settings.app(None);
    let first = runtime.block_on(first_frame(&mut source, &mut app));
    if let Some(reason) = first.as_deref().and_then(why_nothing) {
        if !has_terminal() {
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

/// Feeds the app until the first frame; `None` when the driver takes too long to wait for.
async fn first_frame(source: &mut Source, app: &mut App) -> Option<std::sync::Arc<Frame>> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let update = tokio::time::timeout_at(deadline, source.next())
            .await
            .ok()??;
        let frame = if let Update::Frame(frame) = &update {
            Some(std::sync::Arc::clone(frame))
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
