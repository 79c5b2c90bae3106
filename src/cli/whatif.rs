//! `gputop whatif SOURCE`: replays a program's allocations under other settings of PyTorch's allocator. Shows or prints
//! how much memory each setting would have reserved, and whether it would have fit.
//!
//! A source is a memory snapshot with its trace, or a running process. For a process, only the current blocks are
//! known; the replay requests them in address order.
//!
//! For a snapshot, the GPU's size and the memory used by other programs come from the file. For a process, both are
//! read from its GPU.
//!
//! Exit codes: 0 replayed; 1 nothing to replay; 2 permission denied, process not found, or an invalid argument.

#[cfg(local)]
mod gpu;
#[cfg(local)]
mod process;

use std::path::PathBuf;

use color_eyre::Result;
use color_eyre::eyre::{bail, eyre};
use gputop_allocator::config::Config;
use gputop_allocator::rules::{NEWEST, Rules, TorchVersion, torch_of};
use gputop_allocator::trace::Trace;
use gputop_allocator::whatif::{Room, available, largest_fit, replay, succeeds};
use gputop_model::frame::SCHEMA;
use gputop_model::text::visible;
use gputop_model::{Bytes, Missing, Pid, Reading, Reason};

#[cfg(local)]
use self::process::of_process;
use super::print::{print, print_json, say};
use super::settings::{ScreenArgs, Settings, has_terminal, size_argument};
use super::{dashboard, snapshot};
use crate::export::whatif::{Device, Document, Played, Recording};
use crate::tui::screens::whatif::WhatifScreen;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Memory snapshot with a trace (see `gputop run --trace-allocs`), or PID of a running process
    source: String,
    /// Try this setting, as in PYTORCH_CUDA_ALLOC_CONF; repeatable [default: the present setting, PyTorch's default,
    /// and common fixes]
    #[arg(long, value_name = "CONF")]
    conf: Vec<String>,
    /// Assume a GPU with this much memory, such as 24GiB [default: the recorded size, or else that of the process's
    /// GPU, or else no limit]
    #[arg(long, value_name = "SIZE", value_parser = size_argument)]
    card: Option<Bytes>,
    /// Assume that this much GPU memory is used outside the allocator: CUDA context, libraries, other programs
    /// [default: the recorded amount, or for a process the current amount]
    #[arg(long, value_name = "SIZE", value_parser = size_argument)]
    outside: Option<Bytes>,
    /// Check if one more request of this size would succeed at the end of the replay
    #[arg(long, value_name = "SIZE", value_parser = size_argument)]
    want: Option<Bytes>,
    /// Use the allocator rules of this PyTorch release, such as 2.8 [default: the recorded release, or else the newest
    /// known]
    #[arg(long, value_name = "VERSION", value_parser = torch_argument)]
    torch: Option<TorchVersion>,
    /// Show only the device with this index in the process
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// Print JSON, with sizes in bytes and the curves
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub screen: ScreenArgs,
}

/// Allocator settings to try if none is given.
const COMMON_FIXES: &[&str] = &[
    "expandable_segments:True",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "garbage_collection_threshold:0.8",
    "roundup_power2_divisions:4",
];

/// Reciprocal of the maximum fraction of GPU memory used outside the allocator at an OOM: 10 means 1/10. If the
/// fraction is larger, the OOM is assumed to have happened on a different GPU.
const MAX_OUTSIDE_FRACTION: u64 = 10;

/// Allocator setting to replay.
struct ReplaySetting {
    /// Name of the setting: `present`, `default`, or empty for all other settings.
    name: &'static str,
    conf: String,
    rules: Rules,
}

/// Replays the source and shows the result. Reads gputop's own settings only if it opens a screen.
pub fn run(args: &Args, settings: impl FnOnce() -> Result<Settings>) -> Result<u8> {
    // Report invalid arguments before reading a large file.
    for conf in &args.conf {
        config(conf, args.torch.unwrap_or(NEWEST))?;
    }
    let name = visible(args.source.as_bytes(), 200);
    let mut no_card =
        Missing::new(Reason::NotRead, "the file does not contain the size of the GPU");
    let mut traces = match args.source.parse() {
        Ok(pid) => match of_process(Pid(pid), args.card.is_none()) {
            Ok((traces, why)) => {
                no_card = why.unwrap_or(no_card);
                traces
            }
            Err((why, code)) => {
                say(&format!("gputop: cannot read the allocator of PID {pid}: {why}\n"));
                return Ok(code);
            }
        },
        Err(_) => of_file(&args.source)?,
    };
    if let Some(selected) = args.device {
        traces.retain(|trace| trace.device == selected);
    }
    traces.retain(|trace| !(trace.ops.is_empty() && trace.start.is_empty()));
    if traces.is_empty() {
        let on = args.device.map_or(String::new(), |n| format!(" on device {n}"));
        say(&format!("gputop: cannot replay {name}: nothing was allocated{on}\n"));
        return Ok(1);
    }
    let devices: Result<Vec<Device>> =
        traces.iter().map(|trace| play(trace, args, &no_card)).collect();
    let document = Document { schema: SCHEMA, source: name, devices: devices? };
    if has_terminal() && !args.json {
        return dashboard::show_screen(Box::new(WhatifScreen::new(document)), &settings()?);
    }
    if args.json {
        print_json(&document)?;
    } else {
        print(&document.text())?;
    }
    Ok(0)
}

fn play(trace: &Trace, args: &Args, no_card: &Missing) -> Result<Device> {
    let torch = args.torch.or(trace.recorded.torch);
    let room = room(trace, args)?;
    let settings = settings(args, trace.recorded.conf.as_deref(), torch.unwrap_or(NEWEST))?;
    let played = settings.into_iter().map(|setting| {
        let outlook = replay(trace, &setting.rules, room.unwrap_or(Room::UNLIMITED));
        Played {
            fits: room.map(|_| largest_fit(&outlook.end)),
            wanted: args.want.map(|size| succeeds(&outlook.end, size)),
            no_effect: setting.no_effect(),
            name: setting.name,
            conf: setting.conf,
            outlook,
        }
    });
    let reading = |size: Option<Bytes>| {
        size.map_or_else(|| Reading::Missing(no_card.clone()), Reading::Value)
    };
    Ok(Device {
        ordinal: trace.device,
        recording: Recording {
            operations: trace.ops.len(),
            blocks_before: trace.start.len(),
            begins_late: trace.cut,
            peak_reserved: trace.recorded.reserved_peak,
        },
        torch,
        card: reading(room.map(|room| room.card)),
        outside: reading(room.map(|room| room.outside)),
        want: args.want,
        settings: played.collect(),
    })
}

/// Returns the size of the GPU and the memory used outside the allocator, from the arguments, the recording, or an OOM
/// in the recording. `None` means no limit.
fn room(trace: &Trace, args: &Args) -> Result<Option<Room>> {
    let available = available(trace);
    let Some(card) = args.card.or(trace.recorded.card) else {
        return Ok(available.map(|card| Room { card, outside: Bytes(0) }));
    };
    let known = args.outside.or(trace.recorded.outside);
    // If the OOM happened on a GPU of this size, assume that the CUDA context and other programs used all memory that
    // was not available to the allocator.
    let rest = available.and_then(|available| card.0.checked_sub(available.0).map(Bytes));
    let inferred = rest.filter(|rest| rest.0 <= card.0 / MAX_OUTSIDE_FRACTION);
    let outside = known.or(inferred).unwrap_or_default();
    if card <= outside {
        bail!(
            "no memory left for the allocator: {outside} of the GPU's {card} is used outside it. Increase --card or reduce --outside"
        );
    }
    Ok(Some(Room { card, outside }))
}

impl ReplaySetting {
    /// Returns the reason why an option in the setting has no effect, if there is such an option.
    fn no_effect(&self) -> Option<&'static str> {
        (self.rules.garbage_collection_threshold > 0.0 && self.rules.limit(Bytes::gib(1)).is_none())
            .then_some("no effect without a memory fraction")
    }
}

fn settings(args: &Args, present: Option<&str>, torch: TorchVersion) -> Result<Vec<ReplaySetting>> {
    let fraction = present.and_then(|conf| Config::parse(conf).memory_fraction);
    let setting = |name, conf: &str| -> Result<ReplaySetting> {
        let mut config = config(conf, torch)?;
        // Apply the memory fraction to every setting, because it is a limit set by the program.
        config.memory_fraction = config.memory_fraction.or(fraction);
        Ok(ReplaySetting { name, conf: conf.trim().to_owned(), rules: config.rules(torch) })
    };
    let mut all = Vec::new();
    // Accept the present setting even if it seems invalid, because the program ran with it.
    if let Some(conf) = present {
        all.push(ReplaySetting {
            name: "present",
            conf: visible(conf.as_bytes(), 200),
            rules: Config::parse(conf).rules(torch),
        });
    }
    if !args.conf.is_empty() {
        for conf in &args.conf {
            let name = if conf.trim().is_empty() { "default" } else { "" };
            all.push(setting(name, conf)?);
        }
        return Ok(all);
    }
    all.push(setting("default", "")?);
    for conf in COMMON_FIXES {
        // Skip settings that this torch release does not support.
        if Config::read(conf, torch).is_ok() && present != Some(conf) {
            all.push(setting("", conf)?);
        }
    }
    Ok(all)
}

fn config(conf: &str, torch: TorchVersion) -> Result<Config> {
    Config::read(conf, torch)
        .map_err(|why| eyre!("--conf {}: {why}", visible(conf.as_bytes(), 200)))
}

fn of_file(path: &str) -> Result<Vec<Trace>> {
    let path = PathBuf::from(path);
    let snapshot = snapshot::read(&path)?;
    Ok(snapshot.devices.iter().map(|device| snapshot.trace(device)).collect())
}

#[cfg(not(local))]
fn of_process(_: Pid, _: bool) -> Result<(Vec<Trace>, Option<Missing>), (String, u8)> {
    Err((super::unavailable::NO_COLLECTORS.to_owned(), 2))
}

fn torch_argument(text: &str) -> Result<TorchVersion, String> {
    torch_of(text).ok_or_else(|| "not a PyTorch release; use 2.8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_releases() {
        assert_eq!(torch_argument("2.8.0+cu126"), Ok((2, 8)));
        assert!(torch_argument("new").is_err());
    }
}
