//! Why a process is slow, as text and JSON.

use std::fmt::Write as _;

use gputop_explain::why::{Answer, GpuLoad, Share};
use gputop_model::phases::{PhaseCount, PhasePlace, PhaseWindow};
use gputop_model::reading::Missing;
use serde::Serialize;

use super::explanation::wrapped;
use crate::dashboard::why::WhyReport;

const SCHEMA: u32 = 1;
/// Maximum number of phases and lines that are shown.
const MAX_PHASES: usize = 8;
const MAX_PLACES: usize = 3;
/// Minimum share of a line that is shown.
const MIN_SHARE: f64 = 0.05;
/// Maximum width of the bar of a phase with all samples, in cells, and the width below which there are no bars.
const MAX_BAR: usize = 24;
const MIN_BAR: usize = 6;
/// Width of a share with its error, and a gap: `100 % (±12)  `.
const SHARE: usize = 13;

/// Returns the answer, the phases as bars, and the lines that ran most often.
pub fn text(report: &WhyReport<'_>, width: usize) -> String {
    let mut out = String::new();
    for line in wrapped(&report.answer.text(), width.saturating_sub(2)) {
        let _ = writeln!(out, " {line}");
    }
    let bars = bars(report.window, width.saturating_sub(1), "#");
    if !bars.is_empty() {
        out.push('\n');
    }
    for bar in bars {
        let _ = writeln!(out, " {bar}");
    }
    let places = places(report.window);
    if !places.is_empty() {
        out.push('\n');
    }
    for place in places {
        let _ = writeln!(out, " {place}");
    }
    let notes = notes(report);
    if !notes.is_empty() {
        out.push('\n');
    }
    for line in notes.iter().flat_map(|note| wrapped(note, width.saturating_sub(2))) {
        let _ = writeln!(out, " {line}");
    }
    out
}

/// Returns the share of each phase with its error, its name, and a bar of this glyph. Without enough samples for
/// numbers, there are none. Where lines are short, the bar is shorter; next, it and the error are left out.
pub fn bars(window: &PhaseWindow, width: usize, glyph: &str) -> Vec<String> {
    let samples = window.samples();
    let shown = window.phases.iter().take(MAX_PHASES);
    let names = shown.clone().map(|one| one.phase.label().chars().count()).max().unwrap_or(0);
    let room = width.checked_sub(SHARE + names);
    let cells = room.map_or(0, |room| room.saturating_sub(2)).min(MAX_BAR);
    let bar = |one: &PhaseCount| {
        let share = Share::new(one.count, samples);
        let (name, percent) = (one.phase.label(), share.value() * 100.0);
        if room.is_none() {
            return format!("{percent:>3.0} %  {name}");
        }
        let error = format!("(±{:.0})", share.error() * 100.0);
        let share = format!("{percent:>3.0} % {error}");
        if cells < MIN_BAR {
            return format!("{share:<SHARE$}{name}");
        }
        let filled = (percent / 100.0 * cells as f64).round() as usize;
        format!("{share:<SHARE$}{name:<names$}  {}", glyph.repeat(filled.max(1)))
    };
    shown.filter(|_| Share::new(0, samples).is_counted()).map(bar).collect()
}

/// Returns the lines that ran most often: "62 %  train.py:57  loss.item()".
pub fn places(window: &PhaseWindow) -> Vec<String> {
    let samples = window.samples();
    let place = |place: &PhasePlace| {
        let share = Share::new(place.count, samples).value() * 100.0;
        let at = format!("{}:{}", place.file_name(), place.line);
        let text = place.text.as_deref().unwrap_or(&place.function);
        format!("{share:>3.0} %  {at}  {text}")
    };
    let is_large = |place: &&PhasePlace| Share::new(place.count, samples).value() >= MIN_SHARE;
    let shown = window.places.iter().filter(is_large).take(MAX_PLACES);
    shown.filter(|_| Share::new(0, samples).is_counted()).map(place).collect()
}

/// Returns what else slows the program down, how many samples there are, and what could not be read.
pub fn notes(report: &WhyReport<'_>) -> Vec<String> {
    let window = report.window;
    let mut notes: Vec<String> =
        report.answer.also.iter().map(|also| format!("Also: {also}")).collect();
    let seconds = window.length.0 as f64 / 1e3;
    notes.push(format!("{} samples in {seconds:.0} s.", window.samples()));
    notes.extend(unread(report).into_iter().map(|(what, why)| format!("Not read: {what}: {why}.")));
    notes
}

/// Returns what could not be read, and why.
fn unread(report: &WhyReport<'_>) -> Vec<(&'static str, String)> {
    let window = report.window;
    let stacks = window.no_stacks.as_ref().map(|why| ("stacks", why.to_string()));
    let missing = [
        ("CPU time of the thread", window.thread.cpu.why()),
        ("storage", window.read.why()),
        ("CPU quota", window.quota_stopped.why()),
    ];
    let known = missing.into_iter().filter_map(|(what, why)| Some((what, why?)));
    let failed = known.filter(|(_, why)| **why != Missing::default());
    let missing = failed.map(|(what, why)| (what, why.to_string()));
    let gpu = match &report.gpu {
        None => Some(("GPU", "the driver lists no GPU for this process".to_owned())),
        Some(gpu) if gpu.sm_active.is_none() => {
            let why = "not measured by the driver";
            Some(("SM active", why.to_owned()))
        }
        Some(_) => None,
    };
    stacks.into_iter().chain(missing).chain(gpu).collect()
}

/// The output of `gputop why --json`.
#[derive(Serialize)]
pub struct WhyDocument<'a> {
    schema: u32,
    pid: u32,
    cause: &'static str,
    /// The sentence with its evidence and advice.
    text: String,
    sentence: &'a str,
    evidence: &'a [String],
    advice: Option<&'a str>,
    also: &'a [String],
    samples: u32,
    phases: Vec<PhaseEntry>,
    places: Vec<PlaceEntry<'a>>,
    gpu: Option<GpuEntry>,
    unread: Vec<UnreadEntry>,
    /// The evidence for the sentence.
    window: &'a PhaseWindow,
}

#[derive(Serialize)]
struct PhaseEntry {
    phase: gputop_model::Phase,
    share: f64,
    /// Half of the 95 % interval.
    error: f64,
}

#[derive(Serialize)]
struct PlaceEntry<'a> {
    share: f64,
    phase: gputop_model::Phase,
    file: &'a str,
    line: u32,
    function: &'a str,
    text: Option<&'a str>,
}

#[derive(Serialize)]
struct GpuEntry {
    index: u32,
    utilization_percent: Option<f64>,
    sm_active_percent: Option<f64>,
    tensor_active_percent: Option<f64>,
    memory_rate_percent: Option<f64>,
    watts: Option<f64>,
    watts_limit: Option<f64>,
    sm_clock_mhz: Option<f64>,
    pcie_rx_bytes_per_second: Option<f64>,
}

#[derive(Serialize)]
struct UnreadEntry {
    what: &'static str,
    why: String,
}

impl<'a> WhyDocument<'a> {
    pub fn of(report: &'a WhyReport<'_>) -> Self {
        let (window, answer): (&PhaseWindow, &Answer) = (report.window, &report.answer);
        let samples = window.samples();
        let share = |count| Share::new(count, samples);
        Self {
            schema: SCHEMA,
            pid: window.process.pid.0,
            cause: answer.cause.id(),
            text: answer.text(),
            sentence: &answer.sentence,
            evidence: &answer.evidence,
            advice: answer.advice.as_deref(),
            also: &answer.also,
            samples,
            phases: window
                .phases
                .iter()
                .map(|one| PhaseEntry::of(*one, share(one.count)))
                .collect(),
            places: window
                .places
                .iter()
                .map(|place| PlaceEntry::of(place, share(place.count)))
                .collect(),
            gpu: report.gpu.as_ref().map(GpuEntry::of),
            unread: unread(report)
                .into_iter()
                .map(|(what, why)| UnreadEntry { what, why })
                .collect(),
            window,
        }
    }
}

impl PhaseEntry {
    fn of(count: PhaseCount, share: Share) -> Self {
        Self { phase: count.phase, share: rounded(share.value()), error: rounded(share.error()) }
    }
}

impl<'a> PlaceEntry<'a> {
    fn of(place: &'a PhasePlace, share: Share) -> Self {
        Self {
            share: rounded(share.value()),
            phase: place.phase,
            file: &place.file,
            line: place.line,
            function: &place.function,
            text: place.text.as_deref(),
        }
    }
}

impl GpuEntry {
    fn of(gpu: &GpuLoad) -> Self {
        let tenth = |value: Option<f64>| value.map(|value| (value * 10.0).round() / 10.0);
        Self {
            index: gpu.index,
            utilization_percent: tenth(gpu.utilization),
            sm_active_percent: tenth(gpu.sm_active),
            tensor_active_percent: tenth(gpu.tensor_active),
            memory_rate_percent: tenth(gpu.memory_rate),
            watts: tenth(gpu.watts),
            watts_limit: tenth(gpu.watts_limit),
            sm_clock_mhz: tenth(gpu.sm_clock),
            pcie_rx_bytes_per_second: tenth(gpu.pcie_rx),
        }
    }
}

fn rounded(share: f64) -> f64 {
    (share * 1e3).round() / 1e3
}
