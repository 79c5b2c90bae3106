//! `gputop ranks`: prints the ranks of the distributed jobs on this host, and who waits for whom.
//!
//! Exit codes: 0 ranks found, 1 none.

use std::time::{Duration, Instant};

use color_eyre::Result;
use color_eyre::eyre::OptionExt;
use gputop_model::Millis;
use gputop_model::protocol::{Request, Update};
use gputop_model::text::Escaped;
use tokio::time::timeout;

use super::async_runtime::runtime;
use super::dashboard;
use super::once::width;
use super::print::{print, print_json, say, write_out};
use super::settings::{
    ConfigArgs, GlyphArgs, SamplingArgs, Settings, agent_options, sampled_time_argument,
};
use crate::collect::local;
use crate::dashboard::host_state::HostState;
use crate::dashboard::jobs::Ras;
use crate::export::ranks::{RankDocument, ras_lines, slow_lines, text};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Show only the job of this process, or with this store address [default: all]
    #[arg(value_name = "PID|JOB")]
    job: Option<String>,
    /// Print JSON, with the process groups of each rank. With --watch, print one line at each interval
    #[arg(long)]
    json: bool,
    /// Print again at each interval until interrupted
    #[arg(long)]
    watch: bool,
    /// Count the collectives of all ranks 50 times a second for this time, and name the rank that comes last to most of them
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "10s", value_parser = sampled_time_argument, conflicts_with = "watch")]
    slow: Option<Millis>,
    /// Ask NCCL about the ranks on all hosts, twice within 5 s. NCCL asks all processes of the job, which wakes a thread in each
    #[arg(long, conflicts_with_all = ["watch", "slow"])]
    ras: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    glyphs: GlyphArgs,
}

/// Number of looks before the first output. A rank waits only if its counters do not move between looks.
const LOOKS: u32 = 3;
/// Maximum time until the first rank is found.
const FIND_TIMEOUT: Duration = Duration::from_secs(8);
/// Maximum time to wait for a sample. The longest sampling interval is one hour.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(3_700);

pub fn run(args: &Args, settings: &Settings) -> Result<u8> {
    let runtime = runtime()?;
    let mut source = local::start(agent_options(settings.values.interval))?;
    let mut host = HostState::new(None);
    host.jobs.only.clone_from(&args.job);
    let (started, mut looks, mut counts_since) = (Instant::now(), 0, None);
    loop {
        let update = runtime.block_on(async { timeout(SAMPLE_TIMEOUT, source.next()).await })?;
        let update = update.ok_or_eyre("the collectors of this host stopped")?;
        let is_frame = matches!(update, Update::Frame(_));
        host.update(update);
        if !is_frame {
            continue;
        }
        if let Some(why) = dashboard::why_no_gpus(&host.frame) {
            say(&format!("gputop: {why}\n"));
            return Ok(1);
        }
        if host.jobs.reports().is_empty() {
            if started.elapsed() > FIND_TIMEOUT && !args.watch {
                say(&format!("gputop: {}\n", host.jobs.why_none(&host.frame)));
                return Ok(1);
            }
            continue;
        }
        looks += 1;
        if looks < LOOKS {
            continue;
        }
        if let Some(time) = args.slow {
            let since = *counts_since.get_or_insert_with(|| {
                source.send(Request::Arrivals(true));
                Instant::now()
            });
            let is_counted = host.jobs.arrivals().is_some();
            if !is_counted || since.elapsed() < Duration::from_millis(time.0) {
                continue;
            }
        }
        if args.ras {
            match host.jobs.ras() {
                None => {
                    let process = host.jobs.lines.first().map(|line| line.rank.process);
                    host.jobs.ask_ras();
                    process.into_iter().for_each(|key| source.send(Request::Ras(key)));
                    continue;
                }
                Some(Ras::Asked) => continue,
                Some(Ras::Answered(_)) => {}
            }
        }
        match (args.watch, args.json) {
            (false, true) => print_json(&RankDocument::of(&host)).map(|()| 0)?,
            (false, false) if args.slow.is_some() => {
                let lines =
                    slow_lines(&host.jobs).into_iter().map(|(line, _)| format!(" {line}\n"));
                print(&lines.collect::<String>()).map(|()| 0)?
            }
            (false, false) if args.ras => {
                let lines = ras_lines(&host.jobs).into_iter().map(|(line, _)| format!(" {line}\n"));
                print(&lines.collect::<String>()).map(|()| 0)?
            }
            (false, false) => print(&printed(&host, settings)).map(|()| 0)?,
            (true, json) => {
                let text = match json {
                    true => serde_json::to_string(&RankDocument::of(&host))? + "\n",
                    false => printed(&host, settings) + "\n",
                };
                match write_out(&Escaped(&text).to_string())? {
                    true => continue,
                    false => 0,
                }
            }
        };
        return Ok(0);
    }
}

fn printed(host: &HostState, settings: &Settings) -> String {
    let theme = &settings.theme;
    text(host, width(), &theme.glyphs, &theme.zone)
}
