//! `gputop replay FILE`: a recording on the same screens as a live host.

use std::path::PathBuf;

use color_eyre::Result;
use color_eyre::eyre::bail;

use super::settings::{Settings, has_terminal};
use super::{runtime, top};
use crate::model::text::visible;
use crate::source::replay::{Options, Recording as File, play};
use crate::tui;
use crate::tui::app::Recording;
use crate::tui::incidents::Desk;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// A file made by `gputop record`
    file: PathBuf,
    /// Begin at this speed: 0.125 to 64
    #[arg(long, default_value_t = 1.0)]
    speed: f32,
    /// Begin held on the first frame
    #[arg(long)]
    paused: bool,
}

pub fn run(args: &Args, settings: &Settings) -> Result<u8> {
    if !(0.125..=64.0).contains(&args.speed) {
        bail!(
            "a speed of {} is out of range; from 0.125 to 64",
            args.speed
        );
    }
    let file = File::open(&args.file)?;
    if !has_terminal() {
        bail!(
            "standard output is no terminal; `zstdcat {} | jq` reads a recording without one",
            args.file.display()
        );
    }
    let name = args.file.file_name().unwrap_or_default();
    let name = visible(name.as_encoded_bytes(), 40);
    let recording = Recording {
        name,
        reason: None,
        position: crate::source::Position::default(),
    };
    let app = settings.app(Some(recording));
    let source = play(
        file,
        Options {
            speed: args.speed,
            paused: args.paused,
            repeat: false,
        },
    );
    Ok(top::leave(runtime()?.block_on(tui::run(
        app,
        source,
        settings.outside(),
        Desk::unserved(),
    ))?))
}
