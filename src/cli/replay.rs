//! `gputop replay FILE…`: recordings on the same screens as live hosts; several on one clock.

use std::path::{Path, PathBuf};

use color_eyre::Result;
use color_eyre::eyre::{Context, bail};

use super::settings::{Settings, has_terminal};
use super::{dashboard, runtime};
use crate::model::text::visible;
use crate::source::Position;
use crate::source::layout::ENDING;
use crate::source::replay::{Options, Recording as File, play, play_all};
use crate::tui::app::{App, Recording};
use crate::tui::incidents::IncidentInbox;
use crate::tui::{self, Host};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Files made by `gputop record`, or the folder that it made of several hosts; several are played side by side
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Begin at this speed: 0.125 to 64
    #[arg(long, default_value_t = 1.0)]
    speed: f32,
    /// Begin held on the first frame
    #[arg(long)]
    paused: bool,
}

/// More files of one folder are not played.
const MAX_FILES: usize = 1_024;

pub fn run(args: &Args, settings: &Settings) -> Result<u8> {
    if !(0.125..=64.0).contains(&args.speed) {
        bail!(
            "a speed of {} is out of range; from 0.125 to 64",
            args.speed
        );
    }
    let options = Options {
        speed: args.speed,
        paused: args.paused,
        repeat: false,
    };
    let files = files(&args.files)?;
    let opened = files.iter().map(|file| File::open(file));
    let recordings = opened.collect::<Result<Vec<_>, _>>()?;
    if !has_terminal() {
        bail!(
            "standard output is no terminal; `zstdcat {} | jq` reads a recording without one",
            files[0].display()
        );
    }
    let left = match <[File; 1]>::try_from(recordings) {
        Ok([recording]) => {
            let app = app(settings, options, name(&files[0], ""));
            let source = play(recording, options);
            runtime()?.block_on(tui::run(
                app,
                source,
                settings.outside(),
                IncidentInbox::unserved(),
            ))?
        }
        Err(recordings) => {
            let names = files.iter().map(|file| name(file, ENDING));
            let names: Vec<String> = names.collect();
            let fleet = app(
                settings,
                options,
                args.files
                    .iter()
                    .map(|file| name(file, ""))
                    .next()
                    .unwrap_or_default(),
            );
            let (list, sources) =
                play_all(names.iter().cloned().zip(recordings).collect(), options)?;
            let hosts = sources.into_iter().zip(names).map(|(source, name)| {
                let mut app = app(settings, options, name.clone());
                app.name = Some(name);
                Host::new(app, source)
            });
            runtime()?.block_on(tui::run_fleet(
                hosts.collect(),
                (fleet, Some(list)),
                settings.outside(),
                IncidentInbox::unserved(),
            ))?
        }
    };
    Ok(dashboard::leave(left))
}

/// A key may come before the first word of where it stands.
fn app(settings: &Settings, options: Options, name: String) -> App {
    settings.app(Some(Recording {
        name,
        reason: None,
        position: Position {
            speed: options.speed,
            paused: options.paused,
            ..Position::default()
        },
    }))
}

/// What it is shown as: the name of the file, without this ending.
fn name(file: &Path, ending: &str) -> String {
    let name = file.file_name().unwrap_or_default().as_encoded_bytes();
    let stem = name.strip_suffix(ending.as_bytes()).unwrap_or(name);
    visible(stem, 40)
}

/// With the recordings of each folder in its place, by their names.
fn files(words: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for word in words {
        if !word.is_dir() {
            files.push(word.clone());
            continue;
        }
        let shown = word.display();
        let entries =
            std::fs::read_dir(word).wrap_err_with(|| format!("cannot read the folder {shown}"))?;
        let paths = entries.take(MAX_FILES).flatten().map(|entry| entry.path());
        let is_recording = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            name.ends_with(ENDING.as_bytes())
        };
        let mut inside: Vec<PathBuf> = paths.filter(is_recording).collect();
        if inside.is_empty() {
            bail!("the folder {shown} holds no recording: files that end with {ENDING}");
        }
        inside.sort();
        files.append(&mut inside);
    }
    Ok(files)
}
