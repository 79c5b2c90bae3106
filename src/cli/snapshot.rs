//! `gputop snapshot FILE.pickle`: PyTorch's memory snapshot, on a screen or printed.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use color_eyre::Result;
use color_eyre::eyre::{bail, eyre};

use super::decompress::unpacked;
use super::progress::{Followed, Progress};
use super::settings::{Settings, has_terminal};
use super::{dashboard, print, print_json, runtime};
use crate::export::snapshot::{AnalysedDevice, SnapshotOutput, json, text};
use crate::model::text::visible;
use crate::snapshot::{self, Snapshot, Study};
use crate::tui;
use crate::tui::screens::snapshot::{Opened, SnapshotScreen};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// What torch.cuda.memory._dump_snapshot or `gputop run --trace-allocs` wrote; .gz and .zst are unpacked
    file: PathBuf,
    /// Print JSON: sizes in bytes
    #[arg(long)]
    json: bool,
    /// Only this device, by its number inside the process
    #[arg(long, value_name = "N")]
    device: Option<u32>,
}

/// The settings are read only where there is a screen to be drawn by them.
pub fn run(args: &Args, settings: impl FnOnce() -> Result<Settings>) -> Result<u8> {
    let mut snapshot = read(&args.file)?;
    if let Some(wanted) = args.device {
        let numbers = snapshot.devices.iter().map(|d| d.ordinal.to_string());
        let numbers: Vec<String> = numbers.collect();
        snapshot.devices.retain(|device| device.ordinal == wanted);
        if snapshot.devices.is_empty() {
            bail!("--device {wanted}: the snapshot has {}", listed(&numbers));
        }
    }
    let name = visible(args.file.display().to_string().as_bytes(), 200);
    let studies: Vec<Study> = snapshot.devices.iter().map(Study::of).collect();
    if has_terminal() && !args.json {
        let settings = settings()?;
        let (app, outside) = (settings.app(None), settings.outside());
        let screen = Box::new(SnapshotScreen::new(Opened {
            name,
            snapshot,
            studies,
        }));
        let left = runtime()?.block_on(tui::show(screen, app, outside))?;
        return Ok(dashboard::leave(left));
    }
    let devices = snapshot.devices.iter().zip(&studies);
    let shown = SnapshotOutput {
        name: &name,
        snapshot: &snapshot,
        devices: devices
            .map(|(device, study)| AnalysedDevice { device, study })
            .collect(),
    };
    if args.json {
        print_json(&json(&shown)?)?;
    } else {
        print(&text(&shown))?;
    }
    Ok(0)
}

/// `device 0`, `the devices 0, 1`
fn listed(numbers: &[String]) -> String {
    match numbers {
        [] => "no device: nothing was allocated".to_owned(),
        [one] => format!("device {one}"),
        several => format!("the devices {}", several.join(", ")),
    }
}

/// Reads a snapshot from a file.
///
/// # Errors
/// With one sentence: what is wrong with the file, where, and what to do.
pub fn read(path: &Path) -> Result<Snapshot> {
    let name = visible(path.display().to_string().as_bytes(), 200);
    let fault = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => eyre!("{name}: there is no such file"),
        io::ErrorKind::PermissionDenied => eyre!("{name}: no permission to read it"),
        _ => eyre!("{name}: {error}"),
    };
    // Before it is opened: opening a pipe would wait for somebody to write into it.
    let kind = path.metadata().map_err(fault)?;
    if kind.is_dir() {
        bail!("{name}: it is a directory; name the .pickle file in it");
    }
    if !kind.is_file() {
        bail!("{name}: it is no regular file");
    }
    // Of what is packed it is the packed size that is known, so it is that which is followed.
    let followed = Followed {
        reader: File::open(path).map_err(fault)?,
        progress: Progress::of(&name, Some(kind.len())),
    };
    let input = unpacked(followed).map_err(fault)?;
    snapshot::read(input, kind.len()).map_err(|error| eyre!("{name}: {error}"))
}
