//! Creates the tables of a summary, used by all printed formats.

use gputop_model::{Bytes, Millis, Percent};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::summary::{
    ComparedSubject, Energy, GpuSummary, IncidentSummary, Percentiles, PhaseShare, PhaseSummary,
    PoolSummary, ProcessSummary, Quantity, RunComparison, RunSummary,
};

/// A section of a summary: a heading, a table, and sentences below the table.
#[derive(Debug, Default)]
pub struct Section {
    pub title: String,
    /// Columns of the table. Columns not marked as text are right-aligned.
    pub columns: Vec<SummaryColumn>,
    pub rows: Vec<Vec<String>>,
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SummaryColumn {
    pub name: &'static str,
    pub is_text: bool,
}

/// Columns of text. All others contain numbers.
const TEXT_COLUMNS: &[&str] = &["COMMAND", "FIGURE", "MODEL", "USER"];

impl From<&'static str> for SummaryColumn {
    fn from(name: &'static str) -> Self {
        Self { name, is_text: TEXT_COLUMNS.contains(&name) }
    }
}

/// Number of phases of a process that are named, and the smallest share that is.
const MAX_PHASES: usize = 4;
const MIN_PHASE: Percent = Percent(1.0);

/// Text shown instead of a missing value.
const ABSENT: &str = "–";

pub fn sections(run: &RunSummary) -> Vec<Section> {
    let mut sections = vec![overview(run)];
    if !run.gpus.is_empty() {
        sections.push(gpus(run));
    }
    if !run.processes.is_empty() {
        sections.push(processes(run));
        sections.push(memory(run));
    }
    let warnings: Vec<String> = warnings(run).collect();
    if !warnings.is_empty() {
        sections.push(Section { title: "Warnings".into(), notes: warnings, ..Section::default() });
    }
    sections.push(Section {
        title: "Incidents".into(),
        notes: if run.incidents.is_empty() {
            vec!["No incidents were found.".into()]
        } else {
            run.incidents.iter().flat_map(incident).collect()
        },
        ..Section::default()
    });
    sections
}

fn overview(run: &RunSummary) -> Section {
    Section { notes: overview_words(run), ..Section::default() }
}

/// Describes host, start, duration and counts in two or more sentences.
pub fn overview_words(run: &RunSummary) -> Vec<String> {
    let host = match run.host.as_str() {
        "" => String::new(),
        host => format!(" on {host}"),
    };
    let mut lines = vec![format!(
        "{}{host}, {}, {}, {}.",
        start(run),
        duration(run.duration),
        counted(run.gpus.len() as u64, "GPU"),
        counted(run.processes.len() as u64, "process"),
    )];
    let samples = counted(run.samples, "sample");
    lines.push(match run.gaps {
        0 => format!("{samples} without gaps."),
        gaps => format!(
            "{samples} with {}, covering {}; all percentages and energy values refer to the covered time.",
            counted(gaps, "gap"),
            duration(run.covered)
        ),
    });
    if run.damaged_minutes > 0 {
        lines.push(format!(
            "The recording has {} with damaged data; unreadable parts are skipped.",
            counted(run.damaged_minutes, "minute")
        ));
    }
    if run.omitted_processes > 0 {
        lines.push("Further processes are omitted.".into());
    }
    lines
}

fn start(run: &RunSummary) -> String {
    let time = Timestamp::from_millisecond(run.start.0).unwrap_or(Timestamp::UNIX_EPOCH);
    let time = time.to_zoned(TimeZone::system());
    time.strftime("%Y-%m-%d %H:%M:%S %Z").to_string()
}

fn counted(count: u64, noun: &str) -> String {
    match (count, noun) {
        (1, _) => format!("1 {noun}"),
        (_, "process") => format!("{count} processes"),
        _ => format!("{count} {noun}s"),
    }
}

fn gpus(run: &RunSummary) -> Section {
    let row = |gpu: &GpuSummary| {
        let mut row = vec![gpu.index.to_string(), size(gpu.total)];
        row.extend(three(gpu.used));
        row.push(size(gpu.unused));
        let shares = [gpu.sm_percent, gpu.idle_percent, gpu.waiting_percent];
        row.extend(shares.map(percent));
        row.push(gpu.energy.map_or(ABSENT.into(), |e| energy(e.joules)));
        row.push(gpu.name.clone());
        row
    };
    Section {
        title: "GPUs".into(),
        columns: [
            "GPU", "TOTAL", "PEAK", "P95", "P50", "UNUSED", "SM", "IDLE", "WAIT", "ENERGY", "MODEL",
        ]
        .map(SummaryColumn::from)
        .into(),
        rows: run.gpus.iter().map(row).collect(),
        notes: run.gpus.iter().flat_map(|gpu| gpu_notes(gpu, run)).collect(),
    }
}

fn gpu_notes(gpu: &GpuSummary, run: &RunSummary) -> Vec<String> {
    let mut notes = Vec::new();
    let reasons = gpu.throttle_reasons.iter();
    let reasons: Vec<String> = reasons
        .filter(|share| share.percent.0 > 0.0)
        .map(|share| format!("{} {}", share.reason.words(), percent(Some(share.percent))))
        .collect();
    if !reasons.is_empty() {
        notes.push(format!("GPU {}: throttled by {}.", gpu.index, reasons.join(", ")));
    }
    if let Some(Energy { covered, .. }) = gpu.energy.filter(|e| e.covered < run.duration) {
        notes.push(format!(
            "GPU {}: the energy was measured for {} of {}.",
            gpu.index,
            duration(covered),
            duration(run.duration)
        ));
    }
    notes
}

fn processes(run: &RunSummary) -> Section {
    let row = |process: &ProcessSummary| {
        vec![
            process.process.pid.to_string(),
            indices(&process.gpus),
            process.rank.map_or(String::new(), |rank| rank.to_string()),
            duration(process.duration),
            percent(process.waiting_percent),
            size(process.fit.map(|fit| fit.card)),
            process.user.clone().unwrap_or_default(),
            process.command.clone().unwrap_or_else(|| ABSENT.into()),
        ]
    };
    let mut section = Section {
        title: "Processes".into(),
        columns: ["PID", "GPU", "RANK", "TIME", "WAIT", "FITS", "USER", "COMMAND"]
            .map(SummaryColumn::from)
            .into(),
        rows: run.processes.iter().map(row).collect(),
        notes: run
            .processes
            .iter()
            .flat_map(|p| phase_words(p).into_iter().chain(fit_words(p)))
            .collect(),
    };
    section.remove_if_absent("FITS");
    section.remove_if_absent("RANK");
    section
}

/// Describes what the process did while its GPUs had little to do. The phases of the data loader are one.
fn phase_words(process: &ProcessSummary) -> Option<String> {
    let PhaseSummary { sampled_percent, phases } = process.phases.as_ref()?;
    let (loader, others): (Vec<&PhaseShare>, Vec<_>) =
        phases.iter().partition(|share| share.phase.is_loader());
    let loader = loader.iter().map(|share| share.percent.0).sum();
    let others = others.iter().map(|share| (share.phase.label(), share.percent.0));
    let mut shares: Vec<(&str, f64)> = others.chain([("data loader", loader)]).collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    let shares = shares.iter().filter(|share| share.1 >= MIN_PHASE.0).take(MAX_PHASES);
    let shares: Vec<String> =
        shares.map(|(name, share)| format!("{name} {}", percent(Some(Percent(*share))))).collect();
    (!shares.is_empty()).then(|| {
        format!(
            "PID {}: {} of the time. Its stack was sampled in {} of the time, while its GPU had little to do.",
            process.process.pid,
            shares.join(", "),
            percent(Some(*sampled_percent))
        )
    })
}

/// Describes the smallest GPU for the process: `PID 418 would have fit on a GPU with 24 GiB: …`.
pub fn fit_words(process: &ProcessSummary) -> Option<String> {
    let fit = process.fit?;
    Some(format!(
        "PID {} would have fit on a GPU with {} GiB: a replay of its allocation trace reserves at most {}, and {} is used outside the allocator.",
        process.process.pid,
        fit.card.0 >> 30,
        fit.peak_reserved,
        fit.outside
    ))
}

fn memory(run: &RunSummary) -> Section {
    let mut rows = Vec::new();
    for process in &run.processes {
        let row = |gpu: String, vram: [String; 3], pool: Option<&PoolSummary>| {
            let mut row = vec![process.process.pid.to_string(), gpu];
            row.extend(vram);
            row.extend(three(pool.and_then(|pool| pool.reserved)));
            row.extend(three(pool.and_then(|pool| pool.allocated)));
            row.push(size(pool.and_then(|pool| pool.unused)));
            row
        };
        let vram = three(process.vram);
        match process.pools.split_first() {
            None => rows.push(row(indices(&process.gpus), vram, None)),
            Some((first, rest)) => {
                rows.push(row(pool_gpu(first), vram, Some(first)));
                let blank = || [(); 3].map(|()| String::new());
                rows.extend(rest.iter().map(|pool| row(pool_gpu(pool), blank(), Some(pool))));
            }
        }
    }
    Section {
        title: "Process memory: peak, 95th percentile and median".into(),
        columns: [
            "PID", "GPU", "VRAM", "P95", "P50", "RESV", "P95", "P50", "ALLOC", "P95", "P50",
            "UNUSED",
        ]
        .map(SummaryColumn::from)
        .into(),
        rows,
        notes: Vec::new(),
    }
}

fn pool_gpu(pool: &PoolSummary) -> String {
    pool.gpu.map_or(ABSENT.into(), |gpu| gpu.to_string())
}

fn indices(gpus: &[u32]) -> String {
    gpus.iter().map(u32::to_string).collect::<Vec<String>>().join(",")
}

fn warnings(run: &RunSummary) -> impl Iterator<Item = String> {
    run.processes.iter().flat_map(|process| {
        process.warnings.iter().map(|warning| {
            format!(
                "{} PID {}, device {}, {}: {}.",
                after(warning.after),
                process.process.pid,
                warning.ordinal,
                warning.kind,
                warning.text
            )
        })
    })
}

/// Formats an incident as one line, and its first fix as a second line.
pub fn incident(incident: &IncidentSummary) -> Vec<String> {
    let severity = incident.severity.word();
    let subject = match (incident.process, incident.gpu) {
        (Some(process), _) => format!(" PID {}", process.pid),
        (None, Some(gpu)) => format!(" GPU {gpu}"),
        (None, None) => String::new(),
    };
    let mut lines = vec![format!(
        "{}{subject}, {severity}, {}: {}",
        after(incident.after),
        incident.id,
        incident.title
    )];
    if let Some(fix) = &incident.first_fix {
        let change = fix.change.trim();
        lines.push(match change {
            "" => format!("Fix: {}", fix.title),
            change => format!("Fix: {}: {change}", fix.title),
        });
    }
    lines
}

/// Returns the sections of a comparison: an overview, and one section for each compared subject, such as a GPU.
pub fn compared(both: &RunComparison) -> Vec<Section> {
    let mut overview = Section::default();
    for (name, run) in [("A", &both.a), ("B", &both.b)] {
        let lines = overview_words(run).into_iter();
        overview.notes.extend(lines.map(|line| format!("{name}: {line}")));
    }
    let section = |subject: &ComparedSubject| Section {
        title: subject.title.clone(),
        columns: ["FIGURE", "A", "B", "DIFFERENCE"].map(SummaryColumn::from).into(),
        rows: subject
            .figures
            .iter()
            .map(|figure| {
                let difference = figure.difference.map_or(ABSENT.into(), signed);
                let value = |value: Option<Quantity>| value.map_or(ABSENT.into(), quantity);
                let (a, b) = (value(figure.a), value(figure.b));
                vec![figure.title.to_owned(), a, b, difference]
            })
            .collect(),
        notes: Vec::new(),
    };
    let mut sections = vec![overview];
    sections.extend(both.subjects.iter().map(section));
    for (name, run) in [("A", &both.a), ("B", &both.b)] {
        if !run.incidents.is_empty() {
            sections.push(Section {
                title: format!("Incidents in {name}"),
                notes: run.incidents.iter().flat_map(incident).collect(),
                ..Section::default()
            });
        }
    }
    sections
}

impl Section {
    fn remove_if_absent(&mut self, name: &str) {
        let Some(at) = self.columns.iter().position(|column| column.name == name) else { return };
        if self.rows.iter().all(|row| ["", ABSENT].contains(&&*row[at])) {
            self.columns.remove(at);
            self.rows.iter_mut().for_each(|row| drop(row.remove(at)));
        }
    }
}

fn size(size: Option<Bytes>) -> String {
    size.map_or(ABSENT.into(), Bytes::short)
}

fn three(sizes: Option<Percentiles>) -> [String; 3] {
    let sizes = sizes.map(|sizes| [sizes.peak, sizes.p95, sizes.p50]);
    sizes.map_or([(); 3].map(|()| ABSENT.into()), |sizes| sizes.map(Bytes::short))
}

fn percent(share: Option<Percent>) -> String {
    match share {
        None => ABSENT.into(),
        Some(Percent(share)) if share > 0.0 && share < 1.0 => "<1%".into(),
        Some(Percent(share)) => format!("{share:.0}%"),
    }
}

/// Formats a time relative to the start of the recording: `+3:07`.
fn after(time: Millis) -> String {
    let seconds = time.0 / 1_000;
    match seconds / 3_600 {
        0 => format!("+{}:{:02}", seconds / 60, seconds % 60),
        hours => format!("+{hours}:{:02}:{:02}", seconds / 60 % 60, seconds % 60),
    }
}

/// Formats a duration: `45s`, `12m30s`, `23h59m`.
pub fn duration(time: Millis) -> String {
    let seconds = time.0.saturating_add(500) / 1_000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
    }
}

/// Formats an energy in watt-hours: `12.3Wh`, `4.56kWh`.
pub fn energy(joules: f64) -> String {
    let hours = joules / 3_600.0;
    match hours.abs() {
        size if size >= 999.5 => format!("{:.2}kWh", hours / 1_000.0),
        size if size >= 99.95 => format!("{hours:.0}Wh"),
        _ => format!("{hours:.1}Wh"),
    }
}

fn quantity(value: Quantity) -> String {
    match value {
        Quantity::Bytes(n) => Bytes(n as u64).to_string(),
        Quantity::Percent(n) => format!("{n:.1} %"),
        Quantity::Millis(n) => duration(Millis(n as u64)),
        Quantity::Joules(n) => energy(n),
    }
}

fn signed(difference: Quantity) -> String {
    let size = quantity(difference.with_number(difference.number().abs()));
    match difference.number() {
        n if n > 0.0 => format!("+{size}"),
        n if n < 0.0 => format!("-{size}"),
        _ => "=".into(),
    }
}
