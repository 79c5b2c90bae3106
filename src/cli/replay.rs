//! `gputop replay FILE…`: plays recordings on the same screens as live hosts, several of them on a shared clock.

use std::path::{Path, PathBuf};

use color_eyre::Result;
use color_eyre::eyre::{Context, bail};
use gputop_model::protocol::Position;
use gputop_model::text::visible;

use super::async_runtime::runtime;
use super::settings::{RecordingViewArgs, Settings, has_terminal};
use crate::dashboard::incidents::IncidentInbox;
use crate::dashboard::recording::Recording;
use crate::dashboard::return_point::ReturnPoint;
use crate::source::layout::FILE_EXTENSION;
use crate::source::replay::{Options, Recording as File, play, play_all};
use crate::tui::app::App;
use crate::tui::{self, MonitoredHost};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Recordings made by `gputop record`, or directories of them
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Start at this speed, from 0.125 to 64
    #[arg(long, default_value_t = 1.0)]
    speed: f32,
    /// Start paused on the first frame
    #[arg(long)]
    paused: bool,
    #[command(flatten)]
    pub view: RecordingViewArgs,
}

/// Maximum number of recordings to play from one directory.
const MAX_FILES: usize = 1_024;

pub fn run(args: &Args, settings: &Settings) -> Result<u8> {
    if !(0.125..=64.0).contains(&args.speed) {
        bail!("--speed {}: out of range; use 0.125 to 64", args.speed);
    }
    let options = Options { speed: args.speed, paused: args.paused, ..Options::default() };
    let files = files(&args.files)?;
    let opened = files.iter().map(|file| File::open(file));
    let recordings = opened.collect::<Result<Vec<_>, _>>()?;
    if !has_terminal() {
        bail!(
            "cannot play the recording: stdout is not a terminal. Use `zstdcat {} | jq` to read it in a script",
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
                settings.environment(),
                IncidentInbox::without_store(),
            ))?
        }
        Err(recordings) => {
            let names: Vec<String> = files.iter().map(|file| name(file, FILE_EXTENSION)).collect();
            let fleet = app(
                settings,
                options,
                args.files.iter().map(|file| name(file, "")).next().unwrap_or_default(),
            );
            let (list, sources) =
                play_all(names.iter().cloned().zip(recordings).collect(), options)?;
            let hosts = sources.into_iter().zip(names).map(|(source, name)| {
                let mut app = app(settings, options, name.clone());
                app.host.name = Some(name);
                MonitoredHost::new(app, source)
            });
            runtime()?.block_on(tui::run_fleet(
                hosts.collect(),
                (fleet, Some(list)),
                settings.environment(),
                IncidentInbox::without_store(),
            ))?
        }
    };
    Ok(left.exit_code())
}

/// Returns an app with the initial playback position already set, because the user may press a key before the first
/// update.
fn app(settings: &Settings, options: Options, name: String) -> App {
    settings.app(Some(Recording {
        name,
        reason: None,
        repeats: false,
        is_jumping: false,
        is_reason_new: false,
        return_point: ReturnPoint::default(),
        position: Position { speed: options.speed, paused: options.paused, ..Position::default() },
    }))
}

/// Returns the display name of a recording: its file name without `ending`.
fn name(file: &Path, ending: &str) -> String {
    let name = file.file_name().unwrap_or_default().as_encoded_bytes();
    visible(name.strip_suffix(ending.as_bytes()).unwrap_or(name), 40)
}

/// Replaces each directory in `paths` with its recordings, sorted by name.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let shown = path.display();
        let entries =
            std::fs::read_dir(path).wrap_err_with(|| format!("cannot read directory {shown}"))?;
        let paths = entries.take(MAX_FILES).flatten().map(|entry| entry.path());
        let is_recording = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            name.ends_with(FILE_EXTENSION.as_bytes())
        };
        let mut inside: Vec<PathBuf> = paths.filter(is_recording).collect();
        if inside.is_empty() {
            bail!("no recording in directory {shown}: no file name ends with {FILE_EXTENSION}");
        }
        inside.sort_unstable();
        files.append(&mut inside);
    }
    Ok(files)
}
