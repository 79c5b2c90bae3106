//! `gputop demo`: the recording that is part of the program, also shown where there is no driver.

use std::borrow::Cow;

use color_eyre::Result;
use color_eyre::eyre::bail;

use super::settings::{Settings, has_terminal};
use super::{dashboard, runtime};
use crate::source::replay::{Options, Recording as File, play};
use crate::tui;
use crate::tui::app::Recording;
use crate::tui::incidents::IncidentInbox;

/// A training run on an H200, as it was recorded.
pub const DEMO: &[u8] = include_bytes!("../../assets/demo.gpt.zst");

pub fn run(settings: &Settings) -> Result<u8> {
    if !has_terminal() {
        bail!("standard output is no terminal; the built-in recording can only be watched on one");
    }
    show(settings, None)
}

/// Plays the built-in recording, over and over; `reason` says why, when nobody asked for it.
pub fn show(settings: &Settings, reason: Option<String>) -> Result<u8> {
    let file = File::from_bytes(Cow::Borrowed(DEMO))?;
    let recording = Recording {
        name: "demo".into(),
        reason,
        position: crate::source::Position::default(),
    };
    let app = settings.app(Some(recording));
    let source = play(
        file,
        Options {
            repeat: true,
            ..Options::default()
        },
    );
    Ok(dashboard::leave(runtime()?.block_on(tui::run(
        app,
        source,
        settings.outside(),
        IncidentInbox::unserved(),
    ))?))
}
