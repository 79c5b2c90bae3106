//! `gputop summary RECORDING [RECORDING]`: prints the summary of a recording, or compares two.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use color_eyre::Result;
use color_eyre::eyre::{bail, eyre};
use gputop_allocator::rules::NEWEST;
use gputop_model::history::{DAY, History};
use gputop_model::protocol::{Line, Update};
use gputop_model::text::visible;
use gputop_model::{Bytes, Mono, Record};

use super::print::{print, print_json, say};
use crate::export::summary::{self as export, Chart, Report};
use crate::incident::RecordingDiagnosis;
use crate::source::replay::Recording;
use crate::summary::{RETENTION, RecordedLine, RunSummary, Totals, compare, read, smallest_gpu};
use crate::tui::summary_charts;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Recording made by `gputop record` or `gputop run --summary`
    recording: PathBuf,
    /// Second recording, to compare with the first
    other: Option<PathBuf>,
    /// Print Markdown
    #[arg(long, conflicts_with_all = ["json", "html"])]
    markdown: bool,
    /// Print JSON, with sizes in bytes
    #[arg(long, conflicts_with = "html")]
    json: bool,
    /// Print a self-contained HTML file with charts
    #[arg(long)]
    html: bool,
    /// Allocation trace from `gputop run --trace-allocs`, to find the smallest GPU on which the program would have fit
    #[arg(long, value_name = "FILE", conflicts_with = "other")]
    trace: Vec<PathBuf>,
}

/// Maximum number of threads that read a recording. Each thread needs 16 MiB to decompress one recorded minute.
const MAX_THREADS: usize = 4;
/// Minimum number of recorded minutes per thread.
const MIN_MINUTES: usize = 30;
/// Number of recorded minutes after an event during which its incident may still change.
const SETTLING_MINUTES: usize = 2;

pub fn run(args: &Args) -> Result<u8> {
    let recording = Recording::open(&args.recording)?;
    let mut first = summarize(&recording, &name(&args.recording))?;
    for trace in &args.trace {
        if let Err(why) = add_fit(&mut first, trace) {
            say(&format!(
                "gputop: cannot determine whether a smaller GPU would be large enough: {why}\n"
            ));
        }
    }
    let mut charts = Vec::new();
    if args.html {
        charts.extend(charts_of(&recording, &first));
    }
    let report = match &args.other {
        None => Report::Run(Box::new(first)),
        Some(other) => {
            let recording = Recording::open(other)?;
            let second = summarize(&recording, &name(other))?;
            if args.html {
                charts.extend(charts_of(&recording, &second));
            }
            Report::Comparison(Box::new(compare(first, second)))
        }
    };
    match (args.json, args.markdown, args.html) {
        (true, ..) => print_json(&report)?,
        (_, true, _) => print(&export::markdown(&report))?,
        (.., true) => print(&export::html(&report, &charts))?,
        _ => print(&export::text(&report, super::print::width()))?,
    }
    Ok(0)
}

fn name(path: &Path) -> String {
    visible(path.file_name().unwrap_or_default().as_encoded_bytes(), 60)
}

/// Summarizes a recording. Reads it once, in several threads, and diagnoses the minutes that contain events.
pub fn summarize(recording: &Recording, name: &str) -> Result<RunSummary> {
    let minutes = recording.minute_count();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(MAX_THREADS).min(minutes / MIN_MINUTES).max(1);
    let bounds = |part: usize| minutes * part / threads..minutes * (part + 1) / threads;
    let parts = thread::scope(|scope| {
        let handles: Vec<_> = (1..threads)
            .map(|part| scope.spawn(move || Part::read(recording, bounds(part))))
            .collect();
        let first = Part::read(recording, bounds(0));
        let rest = handles.into_iter().map(thread::ScopedJoinHandle::join);
        let mut parts = vec![first];
        for part in rest {
            parts.push(part.map_err(|_| eyre!("cannot read the recording: a thread failed"))?);
        }
        Ok::<_, color_eyre::Report>(parts)
    })?;
    let mut parts = parts.into_iter();
    let mut whole = parts.next().unwrap_or_default();
    for part in parts {
        whole.totals.append(part.totals);
        whole.with_events.extend(part.with_events);
        whole.damaged += part.damaged;
    }
    let incidents = diagnose(recording, &whole.with_events);
    let run = whole.totals.finish(name, recording.hello(), whole.damaged, &incidents);
    if run.samples == 0 {
        bail!(
            "cannot summarize {name}: it is damaged, and no sample in it can be read. Use an intact copy of the recording"
        );
    }
    Ok(run)
}

/// Totals and events from one part of a recording.
#[derive(Default)]
struct Part {
    totals: Totals,
    /// Indices of the minutes with events, in ascending order.
    with_events: Vec<usize>,
    /// Number of recorded minutes with unreadable data.
    damaged: u64,
}

impl Part {
    fn read(recording: &Recording, minutes: Range<usize>) -> Self {
        let mut part = Self::default();
        let start = recording.minute_span(minutes.start).0;
        // Also read the preceding minutes that affect warnings, so that the warnings are the same however the recording
        // is divided among threads.
        let since = Mono(start.0.saturating_sub(RETENTION.0));
        let before = |minute: &usize| {
            let (first, end) = recording.minute_span(*minute);
            end >= since && first <= start
        };
        let first = (0..minutes.start).rev().take_while(before).last();
        // Always read the preceding minute, because a gap after it belongs to this part.
        for minute in first.unwrap_or(minutes.start.saturating_sub(1))..minutes.start {
            part.read_minute(recording, minute);
        }
        part.totals = part.totals.continued();
        part.with_events.clear();
        part.damaged = 0;
        for minute in minutes {
            part.read_minute(recording, minute);
        }
        part
    }

    fn read_minute(&mut self, recording: &Recording, minute: usize) {
        let (mut has_events, mut is_damaged) = (false, false);
        let mut buffer = Vec::new();
        if recording.is_after_damage(minute) {
            self.damaged += 1;
            self.totals.push_damage();
        }
        let is_whole = recording.each_line(minute, |line| match read(line, &mut buffer) {
            Ok(RecordedLine::Frame(frame)) => self.totals.push(&frame),
            Ok(RecordedLine::Phases(window)) => self.totals.push_phases(&window),
            Ok(RecordedLine::Event) => has_events = true,
            Ok(RecordedLine::Other) => {}
            Err(_) => {
                is_damaged = true;
                self.totals.push_damage();
            }
        });
        if !is_whole {
            self.totals.push_damage();
        }
        self.damaged += u64::from(is_damaged || !is_whole);
        if has_events {
            self.with_events.push(minute);
        }
    }
}

/// Diagnoses the recorded minutes that contain events. Also reads the minutes around them that may affect the result.
fn diagnose(recording: &Recording, with_events: &[usize]) -> Vec<Record> {
    let mut diagnosis = RecordingDiagnosis::default();
    diagnosis.see(Update::Hello(Arc::new(recording.hello().clone())));
    let mut next = 0;
    for &minute in with_events {
        let since = recording.minute_span(minute).0.0.saturating_sub(RETENTION.0);
        let is_late = |minute: &usize| recording.minute_span(*minute).1.0 >= since;
        let earlier = (next..minute).rev().take_while(is_late).last();
        let end = (minute + 1 + SETTLING_MINUTES).min(recording.minute_count());
        for minute in earlier.unwrap_or(minute).max(next)..end {
            recording.each_line(minute, |line| {
                if let Ok(Some(update)) = read_whole(line) {
                    diagnosis.see(update);
                }
            });
        }
        next = next.max(end);
    }
    let (records, troubles) = diagnosis.finish();
    for trouble in troubles {
        say(&format!("gputop: {trouble}\n"));
    }
    records
}

/// Reads a recorded line for the diagnosis. Skips memory maps except those of failed allocations.
fn read_whole(line: &[u8]) -> Result<Option<Update>> {
    Ok(match Line::read(line)? {
        Line::Map(map) if !map.is_of_failure() => None,
        line => line.update()?,
    })
}

/// Replays an allocation trace on smaller GPUs. Adds the result to the process that wrote the trace.
pub fn add_fit(run: &mut RunSummary, path: &Path) -> Result<()> {
    let snapshot = super::snapshot::read(path)?;
    // Exclude memory that the driver reserves, because it is not available on a smaller GPU either.
    let reserved = run.driver_reserved.unwrap_or(Bytes(0));
    let mut result = Err(eyre!("the trace contains no devices"));
    for device in &snapshot.devices {
        let trace = snapshot.trace(device);
        let torch = trace.recorded.torch.unwrap_or(NEWEST);
        match smallest_gpu(&trace, torch, &run.processes, reserved) {
            Ok((at, fit)) => {
                run.processes[at].fit = Some(fit);
                return Ok(());
            }
            Err(why) => result = Err(why.into()),
        }
    }
    result
}

fn charts_of(recording: &Recording, run: &RunSummary) -> Vec<Chart> {
    let mut history = History::default();
    let end = recording.span().1;
    for minute in 0..recording.minute_count() {
        if end.since(recording.minute_span(minute).1) > DAY {
            continue;
        }
        match recording.minute_summary(minute) {
            Some(summary) => history.push_summary(&summary),
            // Read an unfinished minute line by line, because it has no summary.
            None => drop(recording.each_line(minute, |line| {
                if let Ok(Line::Update(Update::Frame(frame))) = Line::read(line) {
                    history.push(&frame);
                }
            })),
        }
    }
    summary_charts::draw(run, &history, recording.span())
        .into_iter()
        .map(|(title, svg)| Chart { title, svg })
        .collect()
}
