//! `gputop line`: one line for a status bar, such as tmux's `status-right`.

use std::time::Duration;

use color_eyre::Result;
use color_eyre::eyre::{OptionExt, bail};

use super::settings::agent_options;
use super::{dashboard, print, runtime};
use crate::export;
use crate::model::gpu::Gpu;
use crate::model::units::Millis;
use crate::source::{Update, local};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Only this GPU, by its NVML index
    #[arg(long, value_name = "N")]
    gpu: Option<u32>,
    /// Columns at most: several GPUs are folded to fit
    #[arg(long, value_name = "COLUMNS", default_value_t = 60)]
    width: usize,
}

/// The first frame has all that the line shows. It waits for the processes a quarter of this.
const BRISK: Millis = Millis(80);
/// A status bar is drawn every few seconds: a driver that needs longer has no place in it.
const PATIENCE: Duration = Duration::from_secs(3);

pub fn run(args: &Args) -> Result<u8> {
    let mut source = local::start(agent_options(BRISK))?;
    let frame = async {
        while let Some(update) = source.next().await {
            match update {
                Update::Frame(frame)
                    if !frame.gpus.is_empty() || dashboard::why_nothing(&frame).is_some() =>
                {
                    return Some(frame);
                }
                _ => {}
            }
        }
        None
    };
    let frame = runtime()?.block_on(async { tokio::time::timeout(PATIENCE, frame).await });
    let Ok(frame) = frame else {
        bail!("the driver has not answered for {} s", PATIENCE.as_secs());
    };
    let frame = frame.ok_or_eyre("nothing could be collected on this host")?;
    if let Some(why) = dashboard::why_nothing(&frame) {
        super::say(&format!("gputop: {why}\n"));
        return Ok(1);
    }
    let wanted = |gpu: &&Gpu| args.gpu.is_none_or(|index| gpu.index == index);
    let gpus: Vec<&Gpu> = frame.gpus.iter().filter(wanted).collect();
    if let (Some(index), []) = (args.gpu, &*gpus) {
        let last = frame.gpus.iter().map(|gpu| gpu.index).max().unwrap_or(0);
        bail!("--gpu {index}: this machine has the GPUs 0 to {last}");
    }
    print(&(export::line::of(&gpus, &frame, args.width) + "\n"))?;
    Ok(0)
}
