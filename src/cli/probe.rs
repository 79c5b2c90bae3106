//! `gputop probe`: allocates on the real card for a moment, and gives everything back.
//!
//! Exit codes: 0 done, also when the finding is that no context can be created; 1 refused or broken off, and why;
//! 2 bad input.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use color_eyre::Result;
use color_eyre::eyre::{OptionExt, bail};

use super::settings::{agent_options, limit_argument, size_argument};
use super::{dashboard, print, print_json, runtime};
use crate::collect;
use crate::export;
use crate::model::frame::Frame;
use crate::model::gpu::Gpu;
use crate::model::probe::{Outcome, Policy, Probe, ProbeRequest};
use crate::model::process::ProcessKey;
use crate::model::text::quoted;
use crate::model::units::{Bytes, GpuUuid, Millis, Pid, StartTicks};
use crate::source::{Update, local};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Which GPU, by its NVML index or its UUID, also a MIG device's [default: the process's, else the first of CUDA_VISIBLE_DEVICES, else 0]
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,
    /// Take the pattern's sizes from this process, and show its free blocks beside
    #[arg(long)]
    pid: Option<u32>,
    /// By which rules the pattern is run; may be given several times [default: all]
    #[arg(long, value_enum)]
    policy: Vec<PolicyArg>,
    /// Hold memory for so long at most
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = limit_argument)]
    limit: Millis,
    /// Leave so much free at all times [default: 2 % of the card, 10 % where others live there, at least 1 GiB]
    #[arg(long, value_name = "SIZE", value_parser = size_argument)]
    headroom: Option<Bytes>,
    /// Probe also a GPU in exclusive mode, or one with less free than the headroom: then half of what is free
    #[arg(long)]
    force: bool,
    /// Print JSON: sizes in bytes
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PolicyArg {
    /// PyTorch's caching allocator with its defaults
    Native,
    /// PyTorch's expandable_segments:True
    Expandable,
    /// Every request is the driver's: cudaMalloc
    Plain,
    /// The driver's stream-ordered pool: cudaMallocAsync
    Pool,
}

impl From<PolicyArg> for Policy {
    fn from(policy: PolicyArg) -> Self {
        match policy {
            PolicyArg::Native => Self::Native,
            PolicyArg::Expandable => Self::Expandable,
            PolicyArg::Plain => Self::Plain,
            PolicyArg::Pool => Self::Pool,
        }
    }
}

/// Two of these have the processes and, of each, its allocator.
const BRISK: Millis = Millis(100);
const PATIENCE: Duration = Duration::from_secs(10);

pub fn run(args: &Args) -> Result<u8> {
    let frame = frame(args.pid.map(Pid))?;
    if let Some(why) = dashboard::why_nothing(&frame) {
        super::say(&format!("gputop: {why}\n"));
        return Ok(1);
    }
    let process = match args.pid {
        Some(pid) => Some(process(Pid(pid), &frame)?),
        None => None,
    };
    let gpu = choose(args.gpu.as_deref(), process, &frame)?;
    let wish = ProbeRequest {
        gpu,
        process,
        limit: Some(args.limit),
        headroom: args.headroom,
        force: args.force,
        policies: args.policy.iter().map(|policy| (*policy).into()).collect(),
    };
    let probe = collect::probe::probe(&wish, &frame, Path::new("/proc"));
    tell(&probe, &frame, args.json)
}

fn tell(probe: &Probe, frame: &Frame, json: bool) -> Result<u8> {
    let is_done = matches!(probe.outcome, Outcome::Done | Outcome::NoContext);
    if json {
        print_json(&(serde_json::to_string_pretty(probe)? + "\n"))?;
    } else if is_done {
        print(&export::probe::text(probe, &name(&probe.gpu, frame)))?;
    }
    if let (false, Some(why)) = (is_done, &probe.reason) {
        super::say(&format!("gputop: not probed: {why}\n"));
    }
    Ok(if is_done { 0 } else { 1 })
}

fn name(uuid: &GpuUuid, frame: &Frame) -> String {
    let is_it = |gpu: &&Gpu| gpu.uuid == *uuid || gpu.mig.iter().any(|mig| mig.uuid == *uuid);
    match frame.gpus.iter().find(is_it) {
        Some(gpu) => format!("GPU {} {}", gpu.index, gpu.name),
        None => "GPU".into(),
    }
}

/// The first frame that has what is needed: the GPUs with who lives there, and the process with its allocator where one
/// is asked about.
pub(super) fn frame(pid: Option<Pid>) -> Result<Arc<Frame>> {
    let mut source = local::start(agent_options(BRISK))?;
    let mut frames = 0;
    let found = async {
        while let Some(update) = source.next().await {
            let Update::Frame(frame) = update else {
                continue;
            };
            frames += 1;
            let is_known = pid.is_none_or(|pid| {
                let mut pools = frame.pools.iter().flat_map(|pools| pools.list.iter());
                pools.any(|pool| pool.process.pid == pid)
            });
            let has_gpus = !frame.gpus.is_empty() && frames >= 2 && (is_known || frames > 10);
            if has_gpus || dashboard::why_nothing(&frame).is_some() {
                return Some(frame);
            }
        }
        None
    };
    let found = runtime()?.block_on(async { tokio::time::timeout(PATIENCE, found).await });
    let Ok(found) = found else {
        bail!(
            "the driver has not answered for {} s; `nvidia-smi` would hang as well",
            PATIENCE.as_secs()
        );
    };
    found.ok_or_eyre("nothing could be collected on this host")
}

fn process(pid: Pid, frame: &Frame) -> Result<ProcessKey> {
    let list = frame.processes.iter().flat_map(|list| list.list.iter());
    let found = list.map(|process| process.key).find(|key| key.pid == pid);
    if let Some(key) = found {
        return Ok(key);
    }
    if !Path::new("/proc").join(pid.to_string()).exists() {
        bail!("there is no process {pid}; `gputop once` lists those on a GPU");
    }
    // On no GPU yet, or in a container of its own: its allocator may be readable all the same.
    Ok(ProcessKey {
        pid,
        start: StartTicks(0),
    })
}

fn choose(wanted: Option<&str>, process: Option<ProcessKey>, frame: &Frame) -> Result<GpuUuid> {
    if let Some(wanted) = wanted {
        return match named(wanted, frame) {
            Some(uuid) => Ok(uuid),
            None => bail!(
                "there is no GPU `{}` here; `gputop once` lists them, `nvidia-smi -L` their UUIDs",
                quoted(wanted)
            ),
        };
    }
    if let Some(uuid) = process.and_then(|process| gpu_of(process, frame)) {
        return Ok(uuid);
    }
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let first = visible.split(',').next().unwrap_or_default().trim();
    let first = named(first, frame).or_else(|| Some(frame.gpus.first()?.uuid.clone()));
    first.ok_or_eyre("there is no GPU here")
}

/// By index or UUID; the beginning of a UUID does where only one begins so, as CUDA takes it.
fn named(wanted: &str, frame: &Frame) -> Option<GpuUuid> {
    if wanted.is_empty() {
        return None;
    }
    if let Ok(index) = wanted.parse::<u32>() {
        let gpu = frame.gpus.iter().find(|gpu| gpu.index == index)?;
        return Some(gpu.uuid.clone());
    }
    let uuids = frame
        .gpus
        .iter()
        .flat_map(|gpu| std::iter::once(&gpu.uuid).chain(gpu.mig.iter().map(|mig| &mig.uuid)));
    let mut found = uuids.filter(|uuid| uuid.0.starts_with(wanted));
    let uuid = found.next()?;
    found.next().is_none().then(|| uuid.clone())
}

/// Where the process holds most of its pools, else the first GPU that lists it.
fn gpu_of(process: ProcessKey, frame: &Frame) -> Option<GpuUuid> {
    let pools = frame.pools.iter().flat_map(|pools| pools.of(process));
    let most = pools
        .filter_map(|pool| Some((pool.stats.reserved.last(), pool.gpu.value()?)))
        .max_by_key(|(reserved, _)| *reserved);
    if let Some((_, uuid)) = most {
        return Some(uuid.clone());
    }
    let is_there = |gpu: &&Gpu| {
        let listed = gpu.processes.value().into_iter().flatten();
        listed
            .filter_map(|entry| entry.process)
            .any(|key| key == process)
    };
    frame.gpus.iter().find(is_there).map(|gpu| gpu.uuid.clone())
}
