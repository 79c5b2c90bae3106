//! `gputop demo`: plays the built-in recording, which is also shown on hosts without an NVIDIA driver.

use std::borrow::Cow;

use color_eyre::Result;
use color_eyre::eyre::bail;
use gputop_model::protocol::Position;
use gputop_model::units::Millis;

use super::async_runtime::runtime;
use super::settings::{RecordingViewArgs, Settings, has_terminal};
use crate::dashboard::incidents::IncidentInbox;
use crate::dashboard::recording::Recording;
use crate::dashboard::return_point::ReturnPoint;
use crate::source::replay::{Options, Recording as File, play};
use crate::tui;
use crate::tui::guide::Guide;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Show gputop's main features in seven steps, each with the key to press
    #[arg(long)]
    tour: bool,
    #[command(flatten)]
    pub view: RecordingViewArgs,
}

/// Recording of training and other programs on two H200s (benches/hardware/story).
pub const DEMO: &[u8] = include_bytes!("../../assets/demo.gpt.zst");

/// Time at which the demo opens: both GPUs are busy, one program has run out of memory, another fills a GPU within two minutes,
/// and ten seconds later one rank holds up the other.
const OPENING: Millis = Millis(140_000);

pub fn run(args: &Args, settings: &Settings) -> Result<u8> {
    if !has_terminal() {
        bail!(
            "cannot play the built-in recording: stdout is not a terminal. Run `gputop demo` in a terminal"
        );
    }
    let guide = if args.tour { Guide::Tour(0) } else { Guide::Keys };
    play_demo(settings, None, guide)
}

/// Plays the built-in recording, and shows the reason why this host's own GPUs cannot be shown.
#[cfg(local)]
pub fn show_instead(settings: &Settings, reason: String) -> Result<u8> {
    play_demo(settings, Some(reason), Guide::Keys)
}

/// Plays the built-in recording in a loop.
fn play_demo(settings: &Settings, reason: Option<String>, guide: Guide) -> Result<u8> {
    let file = File::from_bytes(Cow::Borrowed(DEMO))?;
    let recording = Recording {
        name: "demo".into(),
        reason,
        repeats: true,
        is_jumping: false,
        is_reason_new: true,
        return_point: ReturnPoint::default(),
        position: Position { speed: 1.0, paused: guide != Guide::Keys, ..Position::default() },
    };
    // Keep the recording paused during the tour, because the tour describes the state at `OPENING`.
    let paused = recording.position.paused;
    let mut app = settings.app(Some(recording));
    app.ui.guide = Some(guide);
    let source = play(file, Options { repeat: true, start: OPENING, paused, ..Options::default() });
    let environment = settings.environment();
    let inbox = IncidentInbox::without_store();
    let left = runtime()?.block_on(tui::run(app, source, environment, inbox))?;
    Ok(left.exit_code())
}
