//! `gputop probe`: allocates GPU memory briefly and frees all of it.
//!
//! Exit codes: 0 done, even if the result is that no CUDA context can be created; 1 refused or aborted; 2 usage error.

use std::path::Path;
use std::sync::Arc;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use color_eyre::Result;
use color_eyre::eyre::{OptionExt, bail};
use gputop_model::pool_location::listed;
use gputop_model::probe::Outcome;
use gputop_model::text::quoted;
use gputop_model::{
    Bytes, Frame, Gpu, GpuUuid, Millis, Pid, Policy, Probe, ProbeRequest, ProcessKey, StartTicks,
};

use super::print::{print, print_json};
use super::settings::{agent_options, limit_argument, size_argument};
use super::{dashboard, once};
use crate::collect;
use crate::collect::agent::Options;
use crate::export;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// GPU or MIG device, by NVML index or UUID [default: the GPU of --pid, the first of CUDA_VISIBLE_DEVICES, or 0]
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,
    /// Use the allocation sizes of this process, and show its free blocks for comparison
    #[arg(long)]
    pid: Option<u32>,
    /// Run the allocation pattern under this policy; repeatable [default: all]
    #[arg(long, value_parser = policy_argument())]
    policy: Vec<Policy>,
    /// Hold memory for at most this time
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = limit_argument)]
    limit: Millis,
    /// Keep this much memory free [default: 2 % of the GPU, 10 % if other processes use it, at least 1 GiB]
    #[arg(long, value_name = "SIZE", value_parser = size_argument)]
    headroom: Option<Bytes>,
    /// Also probe a GPU in exclusive mode, and use half of the free memory if less than the headroom is free
    #[arg(long)]
    force: bool,
    /// Print JSON, with sizes in bytes
    #[arg(long)]
    json: bool,
}

/// Sampling interval. Two samples are enough to find the processes and their allocators.
const SAMPLE_INTERVAL: Millis = Millis(100);

/// Returns the parser of `--policy`. The help lists the choices in this order.
fn policy_argument() -> impl TypedValueParser<Value = Policy> {
    const CHOICES: [(Policy, &str); 4] = [
        (Policy::Native, "PyTorch's caching allocator with default settings"),
        (Policy::Expandable, "PyTorch's caching allocator with expandable_segments:True"),
        (Policy::Plain, "cudaMalloc for every request"),
        (Policy::Pool, "cudaMallocAsync, the driver's stream-ordered pool"),
    ];
    let named =
        |(policy, help): (Policy, &'static str)| PossibleValue::new(policy.name()).help(help);
    PossibleValuesParser::new(CHOICES.map(named)).map(|name| {
        let choice = CHOICES.into_iter().find(|(policy, _)| policy.name() == name);
        choice.map_or(Policy::Unknown, |(policy, _)| policy)
    })
}

pub fn run(args: &Args) -> Result<u8> {
    let frame = frame(args.pid.map(Pid))?;
    if let Some(why) = dashboard::why_no_gpus(&frame) {
        super::print::say(&format!("gputop: {why}\n"));
        return Ok(1);
    }
    let process = match args.pid {
        Some(pid) => Some(process(Pid(pid), &frame)?),
        None => None,
    };
    let gpu = choose(args.gpu.as_deref(), process, &frame)?;
    let request = ProbeRequest {
        gpu,
        process,
        limit: Some(args.limit),
        headroom: args.headroom,
        force: args.force,
        policies: args.policy.clone(),
    };
    let probe = collect::probe::probe(&request, &frame, Path::new("/proc"));
    report(&probe, &frame, args.json)
}

fn report(probe: &Probe, frame: &Frame, json: bool) -> Result<u8> {
    let is_done = matches!(probe.outcome, Outcome::Done | Outcome::NoContext);
    if json {
        print_json(probe)?;
    } else if is_done {
        print(&export::probe::text(probe, &name(&probe.gpu, frame)))?;
    }
    if let (false, Some(why)) = (is_done, &probe.reason) {
        super::print::say(&format!("gputop: not probed: {why}\n"));
    }
    Ok(if is_done { 0 } else { 1 })
}

fn name(uuid: &GpuUuid, frame: &Frame) -> String {
    let is_probed = |gpu: &&Gpu| gpu.uuid == *uuid || gpu.mig.iter().any(|mig| mig.uuid == *uuid);
    match frame.gpus.iter().find(is_probed) {
        Some(gpu) => format!("GPU {} {}", gpu.index, gpu.name),
        None => "GPU".into(),
    }
}

/// Returns the first frame that lists the GPUs, their processes and, if `pid` is given, that process's allocator.
pub(super) fn frame(pid: Option<Pid>) -> Result<Arc<Frame>> {
    let is_enough = |frame: &Frame, frames| {
        let is_known = pid.is_none_or(|pid| {
            let mut pools = frame.pools.iter().flat_map(|pools| pools.list.iter());
            pools.any(|pool| pool.process.pid == pid)
        });
        let has_gpus = !frame.gpus.is_empty() && frames >= 2 && (is_known || frames > 10);
        has_gpus || dashboard::why_no_gpus(frame).is_some()
    };
    let options = Options { keeps_gpus_awake: true, ..agent_options(SAMPLE_INTERVAL) };
    let (_, frame) = once::frame(options, once::DRIVER_TIMEOUT, is_enough)?;
    Ok(frame)
}

fn process(pid: Pid, frame: &Frame) -> Result<ProcessKey> {
    let list = frame.processes.iter().flat_map(|list| list.list.iter());
    let found = list.map(|process| process.key).find(|key| key.pid == pid);
    if let Some(key) = found {
        return Ok(key);
    }
    if !Path::new("/proc").join(pid.to_string()).exists() {
        bail!("no process with PID {pid}. `gputop once` lists the processes on GPUs");
    }
    // Accept an unlisted process, because the process may not use a GPU yet or may run in a container.
    Ok(ProcessKey { pid, start: StartTicks(0) })
}

fn choose(name: Option<&str>, process: Option<ProcessKey>, frame: &Frame) -> Result<GpuUuid> {
    if let Some(name) = name {
        return match named(name, frame) {
            Some(uuid) => Ok(uuid),
            None => bail!(
                "no GPU `{}` on this host. `gputop once` lists the GPUs, and `nvidia-smi -L` their UUIDs",
                quoted(name)
            ),
        };
    }
    if let Some(uuid) = process.and_then(|process| gpu_of(process, frame)) {
        return Ok(uuid);
    }
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let first = visible.split(',').next().unwrap_or_default().trim();
    let first = named(first, frame).or_else(|| Some(frame.gpus.first()?.uuid.clone()));
    first.ok_or_eyre("no GPU found on this host")
}

/// Returns the GPU or MIG device with this index or UUID. As in CUDA, a unique UUID prefix suffices.
fn named(name: &str, frame: &Frame) -> Option<GpuUuid> {
    if name.is_empty() {
        return None;
    }
    if let Ok(index) = name.parse::<u32>() {
        let gpu = frame.gpus.iter().find(|gpu| gpu.index == index)?;
        return Some(gpu.uuid.clone());
    }
    let uuids = frame
        .gpus
        .iter()
        .flat_map(|gpu| std::iter::once(&gpu.uuid).chain(gpu.mig.iter().map(|mig| &mig.uuid)));
    let mut found = uuids.filter(|uuid| uuid.0.starts_with(name));
    let uuid = found.next()?;
    found.next().is_none().then(|| uuid.clone())
}

/// Returns the GPU with the process's largest pool, or the first GPU that lists the process if no pool is known.
fn gpu_of(process: ProcessKey, frame: &Frame) -> Option<GpuUuid> {
    let pools = frame.pools.iter().flat_map(|pools| pools.of(process));
    let largest = pools
        .filter_map(|pool| Some((pool.stats.reserved.last(), pool.gpu.value()?)))
        .max_by_key(|(reserved, _)| *reserved);
    if let Some((_, uuid)) = largest {
        return Some(uuid.clone());
    }
    let gpu = frame.gpus.iter().find(|gpu| listed(gpu, process).is_some());
    gpu.map(|gpu| gpu.uuid.clone())
}
