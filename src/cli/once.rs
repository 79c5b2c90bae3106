//! `gputop once`: one sample as a table, JSON or CSV.

use std::sync::Arc;
use std::time::Duration;

use color_eyre::Result;
use color_eyre::eyre::{OptionExt, bail};

use super::settings::{Settings, agent_options, has_terminal};
use super::{dashboard, print, print_json, runtime};
use crate::export;
use crate::model::document::Document;
use crate::model::frame::Frame;
use crate::model::gpu::UnattributedCause;
use crate::model::host::Hello;
use crate::model::reading::Reason;
use crate::model::units::Millis;
use crate::source::stream::Source;
use crate::source::{Update, local};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Print JSON: sizes in bytes, power in milliwatts, a missing value as its reason
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print CSV: a line for each process on each GPU
    #[arg(long)]
    csv: bool,
}

/// Rates need two readings; they are this far apart.
const APART: Millis = Millis(300);
const PATIENCE: Duration = Duration::from_secs(10);

pub fn run(args: &Args, settings: &Settings) -> Result<u8> {
    let (hello, frame) = frame(is_complete)?;
    if let Some(why) = dashboard::why_nothing(&frame) {
        if args.json {
            print_json(&Document::new(&hello, frame, None).json()?)?;
        }
        super::say(&format!("gputop: {why}\n"));
        return Ok(1);
    }
    match (args.json, args.csv) {
        (true, _) => print_json(&Document::new(&hello, frame, None).json()?)?,
        (_, true) => print(&export::csv::frame(&frame))?,
        _ => {
            let mut app = settings.app(None);
            app.update(Update::Hello(hello));
            app.update(Update::Frame(frame));
            print(&export::table::app(&app, width()))?;
        }
    }
    Ok(0)
}

/// The first sample of this host that is `enough`, of which it is told how many there were.
///
/// # Errors
/// When the driver does not answer, or nothing can be collected.
pub(super) fn frame(enough: impl Fn(&Frame, u32) -> bool) -> Result<(Arc<Hello>, Arc<Frame>)> {
    let runtime = runtime()?;
    let mut source = local::start(agent_options(APART))?;
    let sample = sample(&mut source, enough);
    let sample = runtime.block_on(async { tokio::time::timeout(PATIENCE, sample).await });
    let Ok(sample) = sample else {
        bail!(
            "the driver has not answered for {} s; `nvidia-smi` would hang as well",
            PATIENCE.as_secs()
        );
    };
    sample.ok_or_eyre("nothing could be collected on this host")
}

async fn sample(
    source: &mut Source,
    enough: impl Fn(&Frame, u32) -> bool,
) -> Option<(Arc<Hello>, Arc<Frame>)> {
    let mut hello = Arc::default();
    let mut frames = 0;
    while let Some(update) = source.next().await {
        match update {
            Update::Hello(new) => hello = new,
            Update::Frame(frame) => {
                frames += 1;
                if enough(&frame, frames) {
                    return Some((hello, frame));
                }
            }
            _ => {}
        }
    }
    None
}

/// The second frame, which has rates; the first when there is no GPU.
fn is_complete(frame: &Frame, frames: u32) -> bool {
    if frame.gpus.is_empty() {
        return dashboard::why_nothing(frame).is_some();
    }
    let waits = frame
        .processes
        .iter()
        .flat_map(|p| &*p.list)
        .any(|p| p.cpu.why().is_some_and(|why| why.reason == Reason::NotRead));
    let mut unattributed = frame.gpus.iter().flat_map(|gpu| &gpu.unattributed);
    let waits = waits || unattributed.any(|part| part.cause == UnattributedCause::NotRead);
    frames >= 2 && (!waits || frames > 5)
}

/// The terminal's width; a pipe gets all columns.
fn width() -> u16 {
    let size = if has_terminal() {
        crossterm::terminal::size().ok()
    } else {
        None
    };
    size.map_or(
        160,
        |(width, _)| if width == 0 { 160 } else { width.max(60) },
    )
}
