//! `gputop once`: prints one sample as a table, JSON or CSV, or a report at each interval.

use std::sync::Arc;
use std::time::{Duration, Instant};

use color_eyre::eyre::OptionExt;
use color_eyre::{Report, Result};
use gputop_model::document::Document;
use gputop_model::gpu::UnattributedCause;
use gputop_model::protocol::Update;
use gputop_model::protocol::stream::Source;
use gputop_model::text::Escaped;
use gputop_model::{Frame, Gpu, Hello, Millis, Reason};
use gputop_peek::bfc;

use super::async_runtime::runtime;
use super::dashboard::{self, NoAnswer};
use super::print::{print, print_json, write_out};
use super::settings::{ConfigArgs, GlyphArgs, SamplingArgs, Settings, agent_options, has_terminal};
use crate::collect::agent::Options;
use crate::collect::local;
use crate::dashboard::host_state::HostState;
use crate::export::{self, report, tables};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Print JSON, with the unit in each name and a reason for each missing value
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print CSV, with one line for each process on each GPU
    #[arg(long)]
    csv: bool,
    /// Print a report in sentences at each interval until interrupted, for screen readers and logs
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    watch: bool,
    /// Wake GPUs that sleep because nothing uses them, and keep them awake
    #[arg(long)]
    wake: bool,
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
/// Maximum number of frames to wait for values that follow soon, and for the search for pools of JAX and TensorFlow, which
/// takes seconds in a process with much memory.
const MAX_FRAMES: u32 = 5;
const MAX_SEARCH_FRAMES: u32 = 20;
/// Maximum time to wait for the next sample of a report. The longest sampling interval is one hour.
const WATCH_TIMEOUT: Duration = Duration::from_secs(3_700);

pub fn run(args: &Args, settings: &Settings) -> Result<u8> {
    if args.watch {
        return watch(args, settings);
    }
    let options = Options { keeps_gpus_awake: args.wake, ..agent_options(RATE_INTERVAL) };
    let (hello, frame) = match frame(options, DRIVER_TIMEOUT, is_complete) {
        Ok(sample) => sample,
        Err(error) => return no_sample(error),
    };
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
fn watch(args: &Args, settings: &Settings) -> Result<u8> {
    let runtime = runtime()?;
    let options =
        Options { keeps_gpus_awake: args.wake, ..agent_options(settings.values.interval) };
    let mut source = local::start(options)?;
    let mut host = HostState::new(None);
    let mut frames = 0;
    let started = Instant::now();
    loop {
        let update = async { tokio::time::timeout(WATCH_TIMEOUT, source.next()).await };
        let Ok(update) = runtime.block_on(update) else {
            return no_sample(NoAnswer(WATCH_TIMEOUT).into());
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
        let is_due = is_complete(&host.frame, frames) || started.elapsed() > DRIVER_TIMEOUT;
        if is_due && !write_out(&Escaped(&report::of(&host, &settings.theme.zone)).to_string())? {
            return Ok(0);
        }
    }
}

/// What to run on a host without a GPU.
const NEXT_STEPS: &str = "Run `gputop doctor` for details, `gputop demo` to see a recording, or `gputop HOST` for another host.";

const NO_SAMPLE: &str =
    "no sample from this host: the collectors stopped. `gputop doctor` shows what works";

/// Prints the reason why there is no sample, and returns the exit code 1. Returns any other error.
pub(super) fn no_sample(error: Report) -> Result<u8> {
    if !error.is::<NoAnswer>() {
        return Err(error);
    }
    super::print::say(&format!("gputop: {error}\n"));
    Ok(1)
}

/// Returns the first sample of this host that `is_enough` accepts, or at the timeout the latest one if a GPU has
/// answered. `is_enough` receives the frame and the number of frames so far.
pub(super) fn frame(
    options: Options,
    timeout: Duration,
    is_enough: impl Fn(&Frame, u32) -> bool,
) -> Result<(Arc<Hello>, Arc<Frame>)> {
    let runtime = runtime()?;
    let mut source = local::start(options)?;
    let mut latest = (Arc::default(), Arc::default());
    let sample = sample(&mut source, is_enough, &mut latest);
    let sample = runtime.block_on(async { tokio::time::timeout(timeout, sample).await });
    match sample {
        Ok(is_complete) => is_complete.map(|()| latest).ok_or_eyre(NO_SAMPLE),
        Err(_) if latest.1.gpus.iter().any(Gpu::has_answered) => Ok(latest),
        Err(_) => Err(NoAnswer(timeout).into()),
    }
}

/// Stores updates in `latest` until `is_enough` accepts a frame. Returns `None` if the source ends before that.
async fn sample(
    source: &mut Source,
    is_enough: impl Fn(&Frame, u32) -> bool,
    latest: &mut (Arc<Hello>, Arc<Frame>),
) -> Option<()> {
    let mut frames = 0;
    while let Some(update) = source.next().await {
        match update {
            Update::Hello(hello) => latest.0 = hello,
            Update::Frame(frame) => {
                frames += 1;
                latest.1 = frame;
                if is_enough(&latest.1, frames) {
                    return Some(());
                }
            }
            _ => {}
        }
    }
    None
}

/// Returns true if a frame is complete. On a host with GPUs, this is the second frame, because rates need two, once all
/// GPUs have answered and the processes were read: a GPU may need seconds to wake. On a host without GPUs, it is the first.
fn is_complete(frame: &Frame, frames: u32) -> bool {
    if frame.gpus.is_empty() {
        return dashboard::why_no_gpus(frame).is_some();
    }
    if !frame.gpus.iter().all(Gpu::has_answered) || frame.has_unread_processes() {
        return false;
    }
    let is_waiting = frame
        .processes
        .iter()
        .flat_map(|p| &*p.list)
        .any(|p| p.cpu.why().is_some_and(|why| why.reason == Reason::NotRead));
    let mut unattributed = frame.gpus.iter().flat_map(|gpu| &gpu.unattributed);
    let searching = bfc::Failure::Searching.missing();
    let mut unread = frame.pools.iter().flat_map(|pools| &*pools.unread);
    let is_searching = unread.any(|unread| unread.why == searching);
    let is_waiting = is_waiting
        || unattributed.any(|part| part.cause == UnattributedCause::NotRead)
        || !frame.gpus.iter().all(Gpu::is_complete)
        || frame.gpus.iter().any(Gpu::awaits_utilization);
    let waits =
        (is_waiting && frames <= MAX_FRAMES) || (is_searching && frames <= MAX_SEARCH_FRAMES);
    frames >= 2 && !waits
}

/// Returns the terminal's width. In a pipe, returns `COLUMNS`, or a width that fits all columns.
pub(super) fn width() -> u16 {
    let size = if has_terminal() { crossterm::terminal::size().ok() } else { None };
    let width = size.map(|(width, _)| width).filter(|width| *width > 0);
    let columns = || std::env::var("COLUMNS").ok()?.parse().ok();
    width.or_else(columns).map_or(160, |width: u16| width.clamp(60, 1_000))
}

#[cfg(test)]
mod tests {
    use gputop_model::frame::ProcessList;
    use gputop_model::{GpuProcess, Mono};

    use super::*;

    #[test]
    fn listed_processes_are_awaited_however_many_frames_come_before() {
        let mut gpu = Gpu { processes: vec![GpuProcess::default()].into(), ..Gpu::default() };
        gpu.health.state = gputop_model::HealthState::Answering;
        gpu.at = Mono(1);
        let mut frame = Frame { gpus: vec![gpu], ..Frame::default() };
        frame.processes = Some(ProcessList::default());
        assert!(frame.gpus[0].has_answered());
        assert!(!is_complete(&frame, 100));
        frame.processes = Some(ProcessList { at: Mono(1), ..ProcessList::default() });
        assert!(is_complete(&frame, 100));
    }
}
