//! `gputop once`: prints one sample as a table, JSON or CSV, or a report at each interval.

use std::sync::Arc;
use std::time::Duration;

use color_eyre::Result;
use color_eyre::eyre::{OptionExt, bail};
use gputop_model::document::Document;
use gputop_model::gpu::UnattributedCause;
use gputop_model::protocol::Update;
use gputop_model::protocol::stream::Source;
use gputop_model::text::Escaped;
use gputop_model::{Frame, Hello, Millis, Reason};

use super::async_runtime::runtime;
use super::dashboard;
use super::print::{print, print_json, write_out};
use super::settings::{ConfigArgs, GlyphArgs, SamplingArgs, Settings, agent_options, has_terminal};
use crate::collect::local;
use crate::dashboard::host_state::HostState;
use crate::export::{self, report, tables};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Print JSON, with sizes in bytes, power in mW, and a reason for each missing value
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print CSV, with one line for each process on each GPU
    #[arg(long)]
    csv: bool,
    /// Print a report in sentences at each interval until interrupted, for screen readers and logs
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    watch: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    glyphs: GlyphArgs,
}

/// Time between the two samples needed to compute rates.
pub(super) const RATE_INTERVAL: Millis = Millis(300);
pub(super) const DRIVER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time to wait for the next sample of a report. The longest sampling interval is one hour.
const WATCH_TIMEOUT: Duration = Duration::from_secs(3_700);

pub fn run(args: &Args, settings: &Settings) -> Result<u8> {
    if args.watch {
        return watch(settings);
    }
    let (hello, frame) = frame(RATE_INTERVAL, DRIVER_TIMEOUT, is_complete)?;
    if let Some(why) = dashboard::why_no_gpus(&frame) {
        if args.json {
            print_json(&Document::new(&hello, frame, None))?;
        }
        super::print::say(&format!("gputop: {why} {NEXT_STEPS}\n"));
        return Ok(1);
    }
    match (args.json, args.csv) {
        (true, _) => print_json(&Document::new(&hello, frame, None))?,
        (_, true) => print(&export::csv::frame(&frame))?,
        _ => {
            let mut host = HostState::new(None);
            host.update(Update::Hello(hello));
            host.update(Update::Frame(frame));
            let theme = &settings.theme;
            print(&tables::overview(&host, width(), &theme.glyphs, &theme.zone))?;
        }
    }
    Ok(0)
}

/// Prints a report at each interval until interrupted.
fn watch(settings: &Settings) -> Result<u8> {
    let runtime = runtime()?;
    let mut source = local::start(agent_options(settings.values.interval))?;
    let mut host = HostState::new(None);
    let mut frames = 0;
    loop {
        let update = async { tokio::time::timeout(WATCH_TIMEOUT, source.next()).await };
        let Ok(update) = runtime.block_on(update) else {
            bail!(no_answer(WATCH_TIMEOUT));
        };
        let update = update.ok_or_eyre(NO_SAMPLE)?;
        let is_frame = matches!(update, Update::Frame(_));
        host.update(update);
        if !is_frame {
            continue;
        }
        if let Some(why) = dashboard::why_no_gpus(&host.frame) {
            super::print::say(&format!("gputop: {why} {NEXT_STEPS}\n"));
            return Ok(1);
        }
        frames += 1;
        if is_complete(&host.frame, frames)
            && !write_out(&Escaped(&report::of(&host, &settings.theme.zone)).to_string())?
        {
            return Ok(0);
        }
    }
}

/// What to run on a host without a GPU.
const NEXT_STEPS: &str = "Run `gputop doctor` for details, `gputop demo` to see a recording, or `gputop HOST` for another host.";

const NO_SAMPLE: &str =
    "no sample from this host: the collectors stopped. `gputop doctor` shows what works";

/// Returns the first sample of this host that `is_enough` accepts. `is_enough` receives the frame and the number of
/// frames so far.
pub(super) fn frame(
    interval: Millis,
    timeout: Duration,
    is_enough: impl Fn(&Frame, u32) -> bool,
) -> Result<(Arc<Hello>, Arc<Frame>)> {
    let runtime = runtime()?;
    let mut source = local::start(agent_options(interval))?;
    let sample = sample(&mut source, is_enough);
    let sample = runtime.block_on(async { tokio::time::timeout(timeout, sample).await });
    let Ok(sample) = sample else {
        bail!(no_answer(timeout));
    };
    sample.ok_or_eyre(NO_SAMPLE)
}

fn no_answer(timeout: Duration) -> String {
    format!(
        "no answer from the NVIDIA driver within {} s: it may be hung, and `nvidia-smi` may hang too. Check `dmesg` for Xid errors",
        timeout.as_secs()
    )
}

async fn sample(
    source: &mut Source,
    is_enough: impl Fn(&Frame, u32) -> bool,
) -> Option<(Arc<Hello>, Arc<Frame>)> {
    let mut hello = Arc::default();
    let mut frames = 0;
    while let Some(update) = source.next().await {
        match update {
            Update::Hello(new) => hello = new,
            Update::Frame(frame) => {
                frames += 1;
                if is_enough(&frame, frames) {
                    return Some((hello, frame));
                }
            }
            _ => {}
        }
    }
    None
}

/// Returns true if a frame is complete. On a host with GPUs, this is the second frame, because rates need two. On a
/// host without GPUs, it is the first.
fn is_complete(frame: &Frame, frames: u32) -> bool {
    if frame.gpus.is_empty() {
        return dashboard::why_no_gpus(frame).is_some();
    }
    let is_waiting = frame
        .processes
        .iter()
        .flat_map(|p| &*p.list)
        .any(|p| p.cpu.why().is_some_and(|why| why.reason == Reason::NotRead));
    let mut unattributed = frame.gpus.iter().flat_map(|gpu| &gpu.unattributed);
    let is_waiting =
        is_waiting || unattributed.any(|part| part.cause == UnattributedCause::NotRead);
    frames >= 2 && (!is_waiting || frames > 5)
}

/// Returns the terminal's width, or a width that fits all columns if the output is a pipe.
fn width() -> u16 {
    let size = if has_terminal() { crossterm::terminal::size().ok() } else { None };
    size.map_or(160, |(width, _)| if width == 0 { 160 } else { width.max(60) })
}
