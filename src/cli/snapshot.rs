//! `gputop snapshot FILE.pickle`: shows or prints a PyTorch memory snapshot, or the differences between two.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use color_eyre::Result;
use color_eyre::eyre::{bail, eyre};
use gputop_allocator::snapshot::compare::{self, SnapshotMemory};
use gputop_allocator::snapshot::{self, Snapshot};
use gputop_model::text::visible;

use super::dashboard;
use super::decompress::decompressed;
use super::print::{print, print_json};
use super::progress::{Progress, WithProgress};
use super::settings::{ScreenArgs, Settings, has_terminal};
use crate::export::snapshot::{
    AnalysedSnapshot, comparison_document, comparison_text, document, text,
};
use crate::tui::screens::snapshot::SnapshotScreen;
use crate::tui::screens::snapshot_comparison::SnapshotComparisonScreen;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Snapshot from torch.cuda.memory._dump_snapshot or `gputop run --trace-allocs`, also as .gz or .zst
    file: PathBuf,
    /// Later snapshot, to show what grew, appeared or disappeared since the first
    other: Option<PathBuf>,
    /// Print JSON, with sizes in bytes
    #[arg(long)]
    json: bool,
    /// Show only the device with this index, as numbered by the process
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    #[command(flatten)]
    pub screen: ScreenArgs,
}

/// Shows or prints the snapshot. Reads gputop's settings only if it opens a screen.
pub fn run(args: &Args, settings: impl FnOnce() -> Result<Settings>) -> Result<u8> {
    if let Some(other) = &args.other {
        return compare(args, other, settings);
    }
    let snapshot = read_devices(&args.file, args.device)?;
    let analysed = AnalysedSnapshot::of(name(&args.file), snapshot);
    if has_terminal() && !args.json {
        return dashboard::show_screen(Box::new(SnapshotScreen::new(analysed)), &settings()?);
    }
    if args.json {
        print_json(&document(&analysed))?;
    } else {
        print(&text(&analysed))?;
    }
    Ok(0)
}

fn compare(args: &Args, other: &Path, settings: impl FnOnce() -> Result<Settings>) -> Result<u8> {
    let memory = |path: &Path| read_devices(path, args.device).map(SnapshotMemory::of);
    // Read both files in parallel, because reading 100 MB keeps a core busy for most of a second.
    let (first, second) = thread::scope(|scope| {
        let second = scope.spawn(|| memory(other));
        (memory(&args.file), second.join())
    });
    let second = second.map_err(|_| eyre!("cannot read {}: a thread failed", name(other)))?;
    let both = compare::compare(first?, second?);
    let names = [name(&args.file), name(other)];
    if has_terminal() && !args.json {
        let screen = SnapshotComparisonScreen::new(names, both);
        return dashboard::show_screen(Box::new(screen), &settings()?);
    }
    if args.json {
        print_json(&comparison_document(&names, &both))?;
    } else {
        print(&comparison_text(&names, &both))?;
    }
    Ok(0)
}

fn read_devices(path: &Path, selected: Option<u32>) -> Result<Snapshot> {
    let mut snapshot = read(path)?;
    if let Some(selected) = selected {
        let numbers: Vec<String> = snapshot.devices.iter().map(|d| d.ordinal.to_string()).collect();
        snapshot.devices.retain(|device| device.ordinal == selected);
        if snapshot.devices.is_empty() {
            bail!(
                "--device {selected}: no such device; the snapshot has {}",
                device_list(&numbers)
            );
        }
    }
    Ok(snapshot)
}

fn name(path: &Path) -> String {
    visible(path.display().to_string().as_bytes(), 200)
}

/// Formats device numbers: `device 0` or `devices 0, 1`.
fn device_list(numbers: &[String]) -> String {
    match numbers {
        [] => "no devices, because nothing was allocated".to_owned(),
        [one] => format!("device {one}"),
        several => format!("devices {}", several.join(", ")),
    }
}

/// Reads a snapshot from a file. Errors are user-facing messages.
pub fn read(path: &Path) -> Result<Snapshot> {
    let name = name(path);
    let fault = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => eyre!("cannot read {name}: no such file"),
        io::ErrorKind::PermissionDenied => eyre!("cannot read {name}: permission denied"),
        _ => eyre!("cannot read {name}: {error}"),
    };
    // Check the file type first, because opening a named pipe would wait for a writer.
    let kind = path.metadata().map_err(fault)?;
    if kind.is_dir() {
        bail!("cannot read {name}: it is a directory. Name the .pickle file in it");
    }
    if !kind.is_file() {
        bail!("cannot read {name}: not a regular file");
    }
    // Count compressed bytes as progress, because the uncompressed size is unknown.
    let reader = WithProgress {
        reader: File::open(path).map_err(fault)?,
        progress: Progress::new(&name, Some(kind.len())),
    };
    let input = decompressed(reader).map_err(fault)?;
    snapshot::read(input.content, kind.len()).map_err(|error| eyre!("{name}: {error}"))
}
