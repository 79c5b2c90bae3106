//! `gputop why PID`: says why a program is slow, or leaves its GPU idle, from samples of what it does.
//!
//! Exit codes: 0 a cause was found, 1 none; 2 permission denied, or process not found.

use std::path::Path;
use std::time::{Duration, Instant};

use color_eyre::Result;
use color_eyre::eyre::{OptionExt, bail};
use gputop_explain::why::Cause;
use gputop_model::protocol::{Request, Update};
use gputop_model::{Millis, PhaseRequest, Pid, ProcessKey};
use gputop_peek::process::access::Access;
use gputop_peek::process::stat::start_time;
use tokio::time::timeout;

use super::async_runtime::runtime;
use super::print::{print, print_json, width};
use super::settings::{ConfigArgs, SamplingArgs, Settings, agent_options, sampled_time_argument};
use crate::collect::local;
use crate::dashboard::host_state::HostState;
use crate::dashboard::why::{WINDOW, WhyReport, gpu_of, report};
use crate::export::why::{WhyDocument, text};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Python program that uses a GPU
    pid: u32,
    /// Watch the program for this time before the answer, such as 30s [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = sampled_time_argument)]
    watch: Option<Millis>,
    /// Print JSON, with the samples
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

/// A window may begin this much after the request.
const SLACK: Millis = Millis(1_000);
/// Time beyond the window after which gputop gives up.
const TIMEOUT: Duration = Duration::from_secs(30);

pub fn run(args: &Args, settings: &Settings) -> Result<u8> {
    let process = find(Pid(args.pid))?;
    let window = args.watch.unwrap_or(WINDOW);
    let runtime = runtime()?;
    let mut source = local::start(agent_options(settings.values.interval))?;
    // The window is longer than asked for, so that it is complete when it is printed.
    let request = PhaseRequest { process, window: Millis(window.0 + SLACK.0) };
    source.send(Request::Phases(Some(request)));
    let mut host = HostState::new(None);
    host.why.retain_gpus(window);
    let deadline = Instant::now() + Duration::from_millis(window.0) + TIMEOUT;
    let mut is_focused = false;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let update = runtime.block_on(async { timeout(left, source.next()).await });
        let Ok(update) = update else { bail!("PID {} was not sampled in time", args.pid) };
        let update = update.ok_or_eyre("the collectors of this host stopped")?;
        let is_frame = matches!(update, Update::Frame(_));
        host.update(update);
        if is_frame
            && !is_focused
            && let Some(gpu) = gpu_of(&host.frame, process)
        {
            source.send(Request::Focus(Some(gpu.uuid.clone())));
            is_focused = true;
        }
        match report(&host, process) {
            Some(Ok(report)) if report.window.length.0 + 200 >= window.0 => {
                return print_report(args, &report);
            }
            Some(Err(why)) => bail!("cannot watch PID {}: {why}", args.pid),
            _ => {}
        }
    }
}

fn find(pid: Pid) -> Result<ProcessKey> {
    let proc_root = Path::new("/proc");
    match start_time(proc_root, pid) {
        Ok(start) => Ok(ProcessKey { pid, start }),
        Err(error) => {
            let why = Access::new(proc_root).missing("the process", &error);
            bail!("cannot watch PID {pid}: {why}")
        }
    }
}

fn print_report(args: &Args, report: &WhyReport<'_>) -> Result<u8> {
    match args.json {
        true => print_json(&WhyDocument::of(report))?,
        false => print(&text(report, width()))?,
    }
    let cause = report.answer.cause;
    Ok(u8::from(matches!(cause, Cause::NotEnoughSamples | Cause::NoSingleCause)))
}
