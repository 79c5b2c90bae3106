//! Formats the text that `gputop snapshot` prints if stdout is not a terminal.

use std::fmt::Write as _;

use gputop_allocator::snapshot::history::{Amount, ByStack};
use gputop_allocator::snapshot::stacks::Stacks;
use gputop_allocator::snapshot::{Device, DeviceAnalysis, Setting, Snapshot, TraceEvent};
use gputop_model::units::Bytes;

const MAX_LINES: usize = 20;

/// A snapshot with the analysis of each device, as it is printed and shown.
#[derive(Debug, Default)]
pub struct AnalysedSnapshot {
    /// Name of the file.
    pub name: String,
    pub snapshot: Snapshot,
    /// One analysis for each device of the snapshot.
    pub studies: Vec<DeviceAnalysis>,
}

impl AnalysedSnapshot {
    pub fn of(name: String, snapshot: Snapshot) -> Self {
        let studies = snapshot.devices.iter().map(DeviceAnalysis::of).collect();
        Self { name, snapshot, studies }
    }

    pub fn devices(&self) -> impl Iterator<Item = (&Device, &DeviceAnalysis)> {
        self.snapshot.devices.iter().zip(&self.studies)
    }
}

pub const NO_TRACE: &str = "no history recorded; call `torch.cuda.memory._record_memory_history()` at the start of the program";

pub fn text(shown: &AnalysedSnapshot) -> String {
    let mut out = format!("{}\n", shown.name);
    for (device, study) in shown.devices() {
        let _ = writeln!(out, "\ndevice {}", device.ordinal);
        write_pool(&mut out, device, study);
        write_free(&mut out, study);
        let stacks = &shown.snapshot.stacks;
        write_holders(&mut out, device, study, stacks);
        write_trace(&mut out, device, study, stacks);
    }
    write_settings(&mut out, &shown.snapshot);
    out
}

fn write_settings(out: &mut String, snapshot: &Snapshot) {
    let settings = settings(snapshot);
    let width = settings.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    if !settings.is_empty() {
        out.push_str("\nallocator settings\n");
    }
    for (name, value) in settings {
        let _ = writeln!(out, "  {name:<width$}  {value}");
    }
}

/// Returns the allocator options and their values. Omits tables that contain only zeros, because they have no effect.
pub fn settings(snapshot: &Snapshot) -> Vec<(&str, String)> {
    let shown = snapshot.settings.iter().filter_map(|(name, value)| {
        let words = match value {
            Setting::Text(text) if text.is_empty() => "not set".to_owned(),
            Setting::Text(text) => text.clone(),
            // PyTorch stores "no limit" as the largest unsigned number. A snapshot may show it as -1 or as a very large
            // number.
            Setting::Number(n) if name.starts_with("max_") && !(0.0..1e15).contains(n) => {
                "no limit".to_owned()
            }
            Setting::Number(n) => n.to_string(),
            Setting::Switch(true) => "True".to_owned(),
            Setting::Switch(false) => "False".to_owned(),
            Setting::Table(pairs) if pairs.iter().all(|(_, value)| *value == 0.0) => return None,
            Setting::Table(pairs) => {
                let pairs: Vec<_> = pairs.iter().map(|(k, v)| format!("{k}:{v}")).collect();
                format!("[{}]", pairs.join(","))
            }
        };
        Some((name.as_str(), words))
    });
    shown.collect()
}

fn write_pool(out: &mut String, device: &Device, study: &DeviceAnalysis) {
    let found = &study.fragmentation;
    let lines = [
        ("allocated", found.allocated),
        ("  requested", device.requested()),
        ("active, not allocated", found.active),
        ("cached", found.free),
        ("  fragmented", found.fragmented),
        ("  returnable", found.returnable),
        ("reserved", device.reserved()),
        ("largest free block", found.largest),
    ];
    for (name, bytes) in lines {
        let _ = writeln!(out, "  {name:<22}{:>14}", bytes.to_string());
    }
    let _ = writeln!(out, "  {:<22}{:>14}", "segments", device.map.segments.len());
}

fn write_free(out: &mut String, study: &DeviceAnalysis) {
    let histogram = &study.fragmentation.histogram;
    if histogram.is_empty() {
        return;
    }
    let _ = writeln!(out, "\ncached blocks by size{:>12}{:>14}", "count", "bytes");
    for bucket in histogram.iter().filter(|bucket| bucket.count > 0) {
        let (up_to, bytes) = (bucket.up_to.short(), bucket.bytes.to_string());
        let _ = writeln!(out, "  <= {up_to:>6}{:>20}{bytes:>14}", bucket.count);
    }
}

fn write_holders(out: &mut String, device: &Device, study: &DeviceAnalysis, stacks: &Stacks) {
    let list = study.by_stack(device);
    if !list.is_empty() {
        out.push_str("\nallocated, by stack\n");
        write_list(out, stacks, &list, UNKNOWN);
    }
}

fn write_trace(out: &mut String, device: &Device, study: &DeviceAnalysis, stacks: &Stacks) {
    let count = device.events.len();
    if count == 0 {
        let _ = writeln!(out, "\n{NO_TRACE}");
        return;
    }
    let span = study.span(device);
    let over = study.length(device).map(|us| format!(" in {}", seconds(us)));
    let _ = writeln!(
        out,
        "\ntrace: {count} events{}; peak requested {} (after event {}), peak reserved {}",
        over.unwrap_or_default(),
        span.allocated.1,
        study.peak,
        span.reserved
    );
    for (at, event) in device.ooms().take(MAX_LINES) {
        let when = device.since_first(event).map(|us| format!(" +{}", seconds(us)));
        let _ = writeln!(
            out,
            "  OUT OF MEMORY at event {at}{}: {}  {}",
            when.unwrap_or_default(),
            oom_words(event),
            stacks.words(event.stack)
        );
    }
    let growth = study.history.growth(device, 0, count);
    let grown: Vec<ByStack> = growth.into_iter().filter(|by| by.amount.bytes > 0).collect();
    if !grown.is_empty() {
        out.push_str("\ngrew over the trace, by stack\n");
        write_list(out, stacks, &grown, BEFORE);
    }
}

pub const UNKNOWN: &str = "no stack recorded";
pub const BEFORE: &str = "allocated before the trace, or without a stack";

fn write_list(out: &mut String, stacks: &Stacks, list: &[ByStack], unknown: &str) {
    for by in list.iter().take(MAX_LINES) {
        let words = match by.stack {
            0 => unknown.to_owned(),
            stack => stacks.words(stack),
        };
        let _ = writeln!(out, "{}  {words}", amount(by.amount));
    }
    if let Some(more) = list.len().checked_sub(MAX_LINES).filter(|&more| more > 0) {
        let _ = writeln!(out, "  and {more} more");
    }
}

fn amount(amount: Amount) -> String {
    format!("{:>14}{:>8}", signed(amount.bytes), amount.blocks)
}

/// Formats a signed size: `1.20 GiB`, `-300.00 MiB`.
pub fn signed(bytes: i64) -> String {
    let size = Bytes(bytes.unsigned_abs());
    if bytes < 0 { format!("-{size}") } else { size.to_string() }
}

/// Describes an out-of-memory event: `900.00 MiB requested, 12.00 MiB free on the GPU`.
pub fn oom_words(event: &TraceEvent) -> String {
    format!("{} requested, {} free on the GPU", Bytes(event.size), Bytes(event.addr))
}

/// Formats a duration from microseconds: `12.345 s`, `1.234 ms`.
pub fn seconds(us: u64) -> String {
    match us {
        0..1_000_000 => format!("{}.{:03} ms", us / 1_000, us % 1_000),
        _ => format!("{}.{:03} s", us / 1_000_000, us / 1_000 % 1_000),
    }
}
