//! `gputop whatif SOURCE`: what the same program would have reserved under other settings of PyTorch's allocator, and
//! whether it would have fitted: on a screen, or printed where there is no terminal.
//!
//! The card's size and what others hold of it are the recording's, of a process those of its GPU now.
//!
//! A source is a memory snapshot with its trace, or a running process, of which only the blocks that live now are
//! known: they are asked for anew, in the order of their addresses.
//!
//! Exit codes: 0 replayed; 1 nothing to replay, and why; 2 denied or gone, or a wrong argument.

#[cfg(local)]
mod gpu;
#[cfg(local)]
mod process;

use std::path::PathBuf;

use color_eyre::Result;
use color_eyre::eyre::{bail, eyre};

#[cfg(local)]
use self::process::of_process;
use super::settings::{Settings, has_terminal};
use super::{dashboard, print, print_json, runtime, say, snapshot};
use crate::allocator::config::Config;
use crate::allocator::rules::{NEWEST, Rules, Torch, torch_of};
use crate::allocator::trace::Trace;
use crate::allocator::whatif::{Room, available, largest_fit, replay, succeeds};
use crate::export::whatif::{Device, Document, Played, Recording};
use crate::model::frame::SCHEMA;
use crate::model::reading::{Missing, Reading, Reason};
use crate::model::text::visible;
use crate::model::units::{Bytes, Pid};
use crate::tui;
use crate::tui::screens::whatif::WhatifScreen;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// A memory snapshot with a trace (`gputop run --trace-allocs` writes one), or the PID of a running process
    source: String,
    /// A setting to try, as PYTORCH_CUDA_ALLOC_CONF has it; may be given several times. Without: the present one, the
    /// default, and the usual remedies
    #[arg(long, value_name = "CONF")]
    conf: Vec<String>,
    /// The card's memory: `24GiB`. Without: as recorded, of a process that of its GPU; where that is not known, nothing
    /// runs out of memory
    #[arg(long, value_name = "SIZE", value_parser = size_argument)]
    card: Option<Bytes>,
    /// What of the card is not the allocator's: CUDA context, libraries, other programs. Without: as recorded, of a
    /// process as it is now
    #[arg(long, value_name = "SIZE", value_parser = size_argument)]
    outside: Option<Bytes>,
    /// Whether one more request of this size would succeed at the end
    #[arg(long, value_name = "SIZE", value_parser = size_argument)]
    want: Option<Bytes>,
    /// The release of PyTorch, whose rules count: `2.8`. Without: as recorded, or the newest known
    #[arg(long, value_name = "VERSION", value_parser = torch_argument)]
    torch: Option<Torch>,
    /// Only this device, by its number inside the process
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// Print JSON: sizes in bytes, with the curves
    #[arg(long)]
    json: bool,
}

/// The remedies that are tried where no setting is named.
const REMEDIES: &[&str] = &[
    "expandable_segments:True",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "garbage_collection_threshold:0.8",
    "roundup_power2_divisions:4",
];

/// A card of which an OOM leaves more than this part to others is not the one it happened on.
const SAME_CARD: u64 = 10;

/// A setting to be played.
struct Setting {
    /// `present` or `default`, where it is one of them.
    name: &'static str,
    conf: String,
    rules: Rules,
}

/// The settings of gputop itself are read only where there is a screen to be drawn by them.
pub fn run(args: &Args, own: impl FnOnce() -> Result<Settings>) -> Result<u8> {
    // What is wrong with the arguments is said before a large file is read.
    for conf in &args.conf {
        config(conf, args.torch.unwrap_or(NEWEST))?;
    }
    let name = visible(args.source.as_bytes(), 200);
    let mut no_card = Missing::new(Reason::NotRead, "the file does not say what card it was");
    let mut traces = match args.source.parse() {
        Ok(pid) => match of_process(Pid(pid), args.card.is_none()) {
            Ok((traces, why)) => {
                no_card = why.unwrap_or(no_card);
                traces
            }
            Err((why, code)) => {
                say(&format!("gputop: PID {pid}: {why}\n"));
                return Ok(code);
            }
        },
        Err(_) => of_file(&args.source)?,
    };
    if let Some(wanted) = args.device {
        traces.retain(|trace| trace.device == wanted);
    }
    traces.retain(|trace| !(trace.ops.is_empty() && trace.start.is_empty()));
    if traces.is_empty() {
        let on = args
            .device
            .map_or(String::new(), |n| format!(" on device {n}"));
        say(&format!("gputop: {name}: nothing was allocated{on}\n"));
        return Ok(1);
    }
    let devices: Result<Vec<Device>> = traces
        .iter()
        .map(|trace| play(trace, args, &no_card))
        .collect();
    let document = Document {
        schema: SCHEMA,
        source: name,
        devices: devices?,
    };
    if has_terminal() && !args.json {
        let own = own()?;
        let (app, outside) = (own.app(None), own.outside());
        let screen = Box::new(WhatifScreen::new(document));
        let left = runtime()?.block_on(tui::show(screen, app, outside))?;
        return Ok(dashboard::leave(left));
    }
    if args.json {
        print_json(&(serde_json::to_string_pretty(&document)? + "\n"))?;
    } else {
        print(&document.text())?;
    }
    Ok(0)
}

fn play(trace: &Trace, args: &Args, no_card: &Missing) -> Result<Device> {
    let torch = args.torch.or(trace.recorded.torch);
    let room = room(trace, args)?;
    let settings = settings(
        args,
        trace.recorded.conf.as_deref(),
        torch.unwrap_or(NEWEST),
    )?;
    let played = settings.into_iter().map(|setting| {
        let outlook = replay(trace, &setting.rules, room.unwrap_or(Room::ENDLESS));
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

/// The card, as told or as recorded; without either, what an OOM of the recording says of it. `None`: no limit.
fn room(trace: &Trace, args: &Args) -> Result<Option<Room>> {
    let available = available(trace);
    let Some(card) = args.card.or(trace.recorded.card) else {
        return Ok(available.map(|card| Room {
            card,
            outside: Bytes(0),
        }));
    };
    let told = args.outside.or(trace.recorded.outside);
    // What an OOM leaves of the card is the context and others, if it was this card that it happened on.
    let left = available.and_then(|available| card.0.checked_sub(available.0).map(Bytes));
    let same_card = left.filter(|left| left.0 <= card.0 / SAME_CARD);
    let outside = told.or(same_card).unwrap_or_default();
    if card <= outside {
        bail!(
            "nothing of the card's {card} is left for the allocator: {outside} of it is others' (--card and --outside \
             set both)"
        );
    }
    Ok(Some(Room { card, outside }))
}

impl Setting {
    /// Why an option of it changes nothing.
    fn no_effect(&self) -> Option<&'static str> {
        (self.rules.garbage_collection_threshold > 0.0 && self.rules.limit(Bytes::gib(1)).is_none())
            .then_some("no effect without a memory fraction")
    }
}

fn settings(args: &Args, present: Option<&str>, torch: Torch) -> Result<Vec<Setting>> {
    let fraction = present.and_then(|conf| Config::parse(conf).memory_fraction);
    let setting = |name, conf: &str| -> Result<Setting> {
        let mut config = config(conf, torch)?;
        // A limit that somebody set is none of the allocator's habits: it stays.
        config.memory_fraction = config.memory_fraction.or(fraction);
        Ok(Setting {
            name,
            conf: conf.trim().to_owned(),
            rules: Rules::new(torch, &config),
        })
    };
    let mut all = Vec::new();
    // What the program had ran, whatever is thought of it here.
    if let Some(conf) = present {
        all.push(Setting {
            name: "present",
            conf: visible(conf.as_bytes(), 200),
            rules: Rules::new(torch, &Config::parse(conf)),
        });
    }
    if !args.conf.is_empty() {
        for conf in &args.conf {
            let name = if conf.trim().is_empty() {
                "default"
            } else {
                ""
            };
            all.push(setting(name, conf)?);
        }
        return Ok(all);
    }
    all.push(setting("default", "")?);
    for conf in REMEDIES {
        // One that this release does not know is no remedy.
        if Config::read(conf, torch).is_ok() && present != Some(conf) {
            all.push(setting("", conf)?);
        }
    }
    Ok(all)
}

fn config(conf: &str, torch: Torch) -> Result<Config> {
    Config::read(conf, torch)
        .map_err(|why| eyre!("--conf {}: {why}", visible(conf.as_bytes(), 200)))
}

fn of_file(path: &str) -> Result<Vec<Trace>> {
    let path = PathBuf::from(path);
    let snapshot = snapshot::read(&path)?;
    Ok(snapshot
        .devices
        .iter()
        .map(|device| snapshot.trace(device))
        .collect())
}

#[cfg(not(local))]
fn of_process(_: Pid, _: bool) -> Result<(Vec<Trace>, Option<Missing>), (String, u8)> {
    Err((super::NO_COLLECTORS.to_owned(), 2))
}

fn torch_argument(text: &str) -> Result<Torch, String> {
    torch_of(text).ok_or_else(|| "a release is written `2.8`".to_owned())
}

/// `24GiB`, `24G`, `512MiB`, `4096 B`.
fn size_argument(text: &str) -> Result<Bytes, String> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim().to_ascii_lowercase();
    let shift = match unit.trim_end_matches("ib") {
        "t" | "tb" => 40,
        "g" | "gb" => 30,
        "m" | "mb" => 20,
        "k" | "kb" => 10,
        "b" => 0,
        "" => return Err(format!("in which unit? `{text}GiB`, `{text}MiB`")),
        _ => return Err("a size is written `24GiB` or `512MiB`".to_owned()),
    };
    let number: f64 = number
        .parse()
        .map_err(|_| "a size is written `24GiB` or `512MiB`".to_owned())?;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss
    )]
    let bytes = (number * (1_u64 << shift) as f64) as u64;
    if bytes == 0 || bytes > 1 << 50 {
        return Err("a size is from 1 byte to 1 PiB".to_owned());
    }
    Ok(Bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_releases_are_read_as_people_write_them() {
        assert_eq!(size_argument("24GiB"), Ok(Bytes::gib(24)));
        assert_eq!(size_argument("1.5 g"), Ok(Bytes::mib(1536)));
        assert_eq!(size_argument("512MB"), Ok(Bytes::mib(512)));
        assert!(
            size_argument("24")
                .expect_err("no unit")
                .contains("`24GiB`")
        );
        for wrong in ["", "GiB", "-1G", "1e99G", "0G", "4 pages"] {
            assert!(size_argument(wrong).is_err(), "{wrong}");
        }
        assert_eq!(torch_argument("2.8.0+cu126"), Ok((2, 8)));
        assert!(torch_argument("new").is_err());
    }
}
