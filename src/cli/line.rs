//! `gputop line`: prints one line for a status bar, such as tmux's `status-right`.

use std::time::Duration;

use color_eyre::Result;
use color_eyre::eyre::bail;
use gputop_model::{Frame, Gpu, Millis};

use super::print::print;
use super::settings::agent_options;
use super::{dashboard, once};
use crate::export::status_line;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Show only the GPU with this NVML index
    #[arg(long, value_name = "N")]
    gpu: Option<u32>,
    /// Limit the line to this width; several GPUs are summarized to fit
    #[arg(long, value_name = "COLUMNS", default_value_t = 60)]
    width: usize,
}

/// Sampling interval. The second frame is normally complete: the first one lacks the figures that rarely change, such as
/// ECC errors. A frame waits for process data, but for at most a quarter of the interval.
const SAMPLE_INTERVAL: Millis = Millis(80);
/// Maximum wait for the driver and for GPUs that have to wake. Status bars are redrawn every few seconds, so a longer
/// wait is pointless.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(5);

pub fn run(args: &Args) -> Result<u8> {
    let is_complete = |frame: &Frame, _| {
        let are_complete = !frame.gpus.is_empty() && frame.gpus.iter().all(Gpu::is_complete);
        are_complete || dashboard::why_no_gpus(frame).is_some()
    };
    // A status bar never wakes a GPU.
    let options = agent_options(SAMPLE_INTERVAL);
    let (_, frame) = match once::frame(options, DRIVER_TIMEOUT, is_complete) {
        Ok(sample) => sample,
        Err(error) => return once::no_sample(error),
    };
    if let Some(why) = dashboard::why_no_gpus(&frame) {
        super::print::say(&format!("gputop: {why}\n"));
        return Ok(1);
    }
    let is_selected = |gpu: &&Gpu| args.gpu.is_none_or(|index| gpu.index == index);
    let gpus: Vec<&Gpu> = frame.gpus.iter().filter(is_selected).collect();
    if let (Some(index), []) = (args.gpu, &*gpus) {
        let last = frame.gpus.iter().map(|gpu| gpu.index).max().unwrap_or(0);
        bail!("--gpu {index}: no such GPU; this host has GPUs 0 to {last}");
    }
    print(&(status_line::of(&gpus, &frame, args.width) + "\n"))?;
    Ok(0)
}
