//! `gputop demo`: plays the built-in recording, which is also shown on hosts without an NVIDIA driver.

use std::borrow::Cow;

use color_eyre::Result;
use color_eyre::eyre::bail;

use super::settings::{RecordingViewArgs, Settings, has_terminal};
use super::{exit_code, runtime};
use crate::source::replay::{Options, Recording as File, play};
use crate::tui;
use crate::tui::app::Recording;
use crate::tui::incidents::IncidentInbox;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    #[command(flatten)]
    pub view: RecordingViewArgs,
}

/// A recorded training run on four H200 GPUs.
pub const DEMO: &[u8] = include_bytes!("../../assets/demo.gpt.zst");

pub fn run(settings: &Settings) -> Result<u8> {
    if !has_terminal() {
        bail!(
            "cannot play the built-in recording: stdout is not a terminal. Run `gputop demo` in a terminal"
        );
    }
    show(settings, None)
}

/// Plays the built-in recording in a loop. `reason` explains why it is shown if the user did not request it.
pub fn show(settings: &Settings, reason: Option<String>) -> Result<u8> {
    let file = File::from_bytes(Cow::Borrowed(DEMO))?;
    let recording = Recording {
        name: "demo".into(),
        reason,
        position: crate::protocol::Position::default(),
    };
    let app = settings.app(Some(recording));
    let source = play(
        file,
        Options {
            repeat: true,
            ..Options::default()
        },
    );
    Ok(exit_code(runtime()?.block_on(tui::run(
        app,
        source,
        settings.environment(),
        IncidentInbox::unserved(),
    ))?))
}
