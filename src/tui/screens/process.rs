//! One process: its memory over time on each of its GPUs, kernel data about it, and its environment variables without
//! private values.

use std::sync::Arc;

use gputop_model::container::Runtime;
use gputop_model::event::Exit;
use gputop_model::gpu::ContextKind;
use gputop_model::history::{GpuMetric, ProcessMetric, Series, SeriesKey};
use gputop_model::incident::Incident;
use gputop_model::process::{Process, ProcessDetail, ProcessKey, RunState, Variable};
use gputop_model::protocol::Request;
use gputop_model::reading::{Missing, Reading, Reason};
use gputop_model::reported_pool::{PoolSource, ReportedPool};
use gputop_model::units::{Bytes, GpuUuid, Mono, Percent, UnixMillis};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};

use crate::dashboard::rows::{ProcessRow, RowId};
use crate::dashboard::sizes::gib;
use crate::dashboard::times::span_text;
use crate::dashboard::why;
use crate::export::why::{bars, notes, places};
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::screen::{Effect, Screen, ScreenDef, is_small};
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::area::{margin, split_bottom};
use crate::tui::widgets::cells::{put_fitting, put_line, put_line_right};
use crate::tui::widgets::facts::{self, Fact};
use crate::tui::widgets::scroll::Scroll;
use crate::tui::widgets::timeline::Timeline;
use crate::tui::widgets::timelines::Timelines;
use crate::tui::{marks, stacks};

pub const DEF: ScreenDef = ScreenDef {
    id: "process",
    title: "Process",
    glossary: &[
        marks::WORDS[0],
        marks::WORDS[1],
        marks::WORDS[2],
        (
            "VRAM",
            "Memory of this process as reported by the driver. NVML under-reports managed memory.",
        ),
        (
            "environment",
            "Environment variables. Values are shown only for variables relevant to GPU programs; all others are listed by name.",
        ),
        ("locked", "Host memory that cannot be swapped. It does not include all pinned buffers."),
    ],
    sample: |app| Some(Box::new(ProcessScreen::new(app.host.processes.rows.first()?.id()))),
};

/// Source labels of the pools of other frameworks: reported by the framework, or read by gputop.
const REPORTED: &str = "program, 1 s";
const READ: &str = "1 Hz";

#[derive(Debug)]
pub struct ProcessScreen {
    id: RowId,
    scroll: Scroll,
    is_detail_requested: bool,
    /// True while the process is sampled to find out why it is slow.
    is_sampling: bool,
}

impl ProcessScreen {
    pub fn new(id: RowId) -> Self {
        Self { id, scroll: Scroll::default(), is_detail_requested: false, is_sampling: false }
    }

    /// Returns the screen with the reason why the process is slow.
    pub fn sampling(id: RowId) -> Self {
        Self { is_sampling: true, ..Self::new(id) }
    }

    /// Returns the process's rows, one for each of its GPUs.
    fn rows<'a>(&self, app: &'a App) -> Vec<&'a ProcessRow> {
        rows_of(app, self.id.key)
    }

    fn detail<'a>(&self, app: &'a App) -> Option<&'a Result<ProcessDetail, Missing>> {
        app.host.detail.as_ref().filter(|(key, _)| *key == self.id.key).map(|(_, detail)| &**detail)
    }

    fn facts(&self, app: &App, width: u16) -> Vec<Fact> {
        let theme = &app.ui.theme;
        let rows = self.rows(app);
        let mut list = Vec::new();
        if self.is_sampling {
            list.extend(why_facts(app, self.id.key, width));
        }
        list.extend(gpu_facts(&rows, app.host.hello.reduced, theme));
        for stack in app.host.stacks(self.id.key) {
            list.extend(stacks::facts(stack, app.host.frame.mono, theme));
        }
        if let Some(ended) = rows.iter().find_map(|row| row.ended()) {
            list.extend(exit_facts(&ended.exit, theme));
        }
        if let Some(known) = app.host.incident_of(self.id.key) {
            list.extend(incident_facts(&known.incident, app));
        }
        if let Some(process) = rows.iter().find_map(|row| row.facts()) {
            list.extend(host_facts(process, rows.iter().all(|row| row.ended().is_some()), app));
        }
        match self.detail(app) {
            Some(Ok(detail)) => list.extend(detail_facts(detail, theme)),
            Some(Err(why)) => list.extend([
                Fact::Blank,
                Fact::Value("detail", format!("{} {why}", theme.glyphs.absent), Role::Dim, ""),
            ]),
            None => {
                list.extend([Fact::Blank, Fact::Value("detail", "reading".into(), Role::Dim, "")]);
            }
        }
        list
    }

    /// Returns the lines below the charts.
    fn lines(&self, app: &App, area: Rect) -> Vec<Fact> {
        let width = margin(area).width;
        let mut facts = self.facts(app, width);
        // A heading would take one of a few lines.
        if is_small(area) && matches!(facts.first(), Some(Fact::Heading(_))) {
            facts.remove(0);
        }
        facts::lines(&facts, width)
    }
}

/// Returns the rows of a process, one for each of its GPUs.
fn rows_of(app: &App, process: ProcessKey) -> Vec<&ProcessRow> {
    app.host.processes.all_rows.iter().filter(|row| row.id().key == process).collect()
}

/// Returns the charts of the process on each of its GPUs, and of its host memory.
pub(super) fn timelines(app: &App, process: ProcessKey) -> Timelines<'_> {
    let rows = rows_of(app, process);
    let mut charts = Vec::new();
    let mut uuids: Vec<_> = rows.iter().filter_map(|row| row.id().gpu).collect();
    uuids.extend(
        rows.iter().filter_map(|row| row.ended()).flat_map(|ended| ended.exit.gpus.clone()),
    );
    uuids.dedup();
    for uuid in uuids {
        let gpu = app.host.frame.gpus.iter().find(|gpu| gpu.uuid == uuid);
        let total = gpu.and_then(|gpu| app.host.chart_memory(gpu));
        let name = gpu.map_or("GPU".into(), |gpu| format!("GPU {}", gpu.index));
        let series = app.host.history.series(&SeriesKey::Vram(process, uuid.clone()));
        charts.push(Timeline::bytes(format!("VRAM on {name}"), series, total));
        let sm = SeriesKey::Gpu(uuid, GpuMetric::Sm);
        charts.push(Timeline::percent(format!("SM of {name}"), app.host.history.series(&sm)));
    }
    let rss = app.host.history.series(&SeriesKey::Process(process, ProcessMetric::Rss));
    charts.push(Timeline::bytes("host memory (RSS)", rss, rss.and_then(scale)));
    let ended = rows.iter().find_map(|row| Some(row.ended()?.mono));
    Timelines {
        charts,
        marks: marks::of_process(app, process, ended),
        axis: app.host.time_axis(ended),
    }
}

/// Returns the areas of the title, the charts (which may be empty) and the facts.
fn areas(area: Rect) -> [Rect; 3] {
    let chart = match area.height.saturating_sub(1) {
        left if left >= 14 => (left / 3).clamp(6, 14),
        _ => 0,
    };
    Layout::vertical([Constraint::Length(1), Constraint::Length(chart), Constraint::Fill(1)])
        .areas(area)
}

/// Returns the names of the sources for VRAM, utilization and context type.
fn gpu_sources(is_nvidia_smi: bool) -> (&'static str, &'static str, &'static str) {
    if is_nvidia_smi {
        ("nvidia-smi, every sample", "nvidia-smi, 5 s", "nvidia-smi")
    } else {
        ("NVML, on change", "NVML, 5 s", "NVML")
    }
}

fn gpu_facts(rows: &[&ProcessRow], is_nvidia_smi: bool, theme: &Theme) -> Vec<Fact> {
    let (vram_source, utilization_source, context_source) = gpu_sources(is_nvidia_smi);
    let mut list = vec![Fact::Heading("On the GPU".into())];
    for row in rows {
        let gpu = row.gpu_label().map_or("a GPU".into(), |gpu| format!("GPU {gpu}"));
        let name = if row.ended().is_some() { "peak VRAM" } else { "VRAM" };
        let words = |vram: &Bytes| format!("{vram}  on {gpu}");
        list.push(Fact::reading(name, &row.vram(), vram_source, theme, words));
        if let Some(growth) = row.growth_text() {
            let words = format!("{growth} GiB per minute");
            list.push(Fact::Value("growth", words, Role::Text, "last minute"));
        }
        let share = |name, share: &Reading<Percent>| {
            let words = |percent: &Percent| format!("{:.0} %", percent.0);
            Fact::reading(name, share, utilization_source, theme, words)
        };
        if row.ended().is_none() {
            list.push(share("SM", &row.sm()));
        }
        if let Some(listed) = row.listed() {
            list.push(share("memory bandwidth", &listed.memory_bandwidth));
            let words = context_text(listed.kind).into();
            list.push(Fact::Value("context", words, Role::Text, context_source));
        }
    }
    list.extend(rows.iter().flat_map(|row| pool_facts(row, theme)));
    list
}

/// Returns a summary of the pool on one GPU. The memory screen shows the details.
fn pool_facts(row: &ProcessRow, theme: &Theme) -> Vec<Fact> {
    if row.ended().is_some() {
        return Vec::new();
    }
    let pools = row.reported_pools();
    let conf = row.facts().and_then(|process| process.pool_conf.as_deref());
    let reported: Vec<Fact> = pools.flat_map(|pool| reported_facts(pool, conf, theme)).collect();
    if row.pool().is_none() && !reported.is_empty() {
        return reported;
    }
    let mut list = read_facts(row, theme);
    list.extend(reported);
    list
}

/// Returns the values of a pool of JAX, TensorFlow or CuPy. A missing value is replaced by the reason why it is missing.
fn reported_facts(pool: &ReportedPool, conf: Option<&str>, theme: &Theme) -> Vec<Fact> {
    let source = match pool.source {
        PoolSource::Memory => READ,
        PoolSource::Hook => REPORTED,
    };
    let fact = |name, reading: &Reading<Bytes>, peak: Option<Bytes>| {
        let peak = peak.map_or(String::new(), |peak| format!("  peak {peak}"));
        Fact::reading(name, reading, source, theme, |now| format!("{now}{peak}"))
    };
    let mut facts = vec![
        Fact::Value("allocator", pool.name(), Role::Text, source),
        fact("allocated", &pool.allocated, pool.allocated_peak.get()),
        fact("reserved", &pool.reserved, pool.reserved_peak.get()),
        fact("cached", &pool.cached(), None),
        fact("limit", &pool.limit, None),
        fact("largest free block", &pool.largest_free_block, None),
    ];
    let hint = pool.preallocation(conf);
    facts.extend(hint.map(|hint| Fact::Value("unused", hint, Role::Warn, "")));
    facts
}

fn read_facts(row: &ProcessRow, theme: &Theme) -> Vec<Fact> {
    let Some(pool) = row.pool() else {
        let why = format!("{} {}", theme.glyphs.absent, row.why_no_pool());
        return vec![Fact::Value("allocator", why, Role::Dim, "")];
    };
    let stats = &pool.stats;
    let of = |now: Bytes, peak: Bytes| format!("{now}  peak {peak}");
    let fact = |name, text| Fact::Value(name, text, Role::Text, "20 Hz");
    let fits = match row.fits_text() {
        Some(fits) => format!("{fits} GiB  largest request that would succeed now"),
        None => format!("{} unknown without the memory map, see M", theme.glyphs.absent),
    };
    vec![
        fact("allocator", format!("{}  M Show memory", pool.library)),
        fact("allocated", of(stats.allocated.last(), stats.allocated_peak)),
        fact("reserved", of(stats.reserved.last(), stats.reserved_peak)),
        fact("cached", stats.cached().to_string()),
        fact("fragmented", stats.inactive_split.to_string()),
        fact("fits", fits),
        fact("retries, OOMs", format!("{}, {}", stats.num_alloc_retries, stats.num_ooms)),
    ]
}

/// Returns the exit status and the evidence for it.
fn exit_facts(exit: &Exit, theme: &Theme) -> Vec<Fact> {
    let number = |name, reading: &Reading<i32>| {
        Fact::reading(name, reading, "kernel", theme, i32::to_string)
    };
    let killed = |killed: &bool| if *killed { "yes" } else { "no" }.to_owned();
    let mut list = vec![
        Fact::Blank,
        Fact::Heading("Exit".into()),
        number("exit code", &exit.status),
        number("signal", &exit.signal),
    ];
    if !exit.oom.killed.is_not_read() {
        list.push(Fact::reading("OOM killer", &exit.oom.killed, "kernel", theme, killed));
    }
    if let Some(evidence) = &exit.oom.evidence {
        list.push(Fact::Text(evidence.text().to_owned(), Role::Text));
    }
    list
}

/// Returns the process's incident and the keys that open its explanation.
fn incident_facts(incident: &Incident, app: &App) -> [Fact; 4] {
    let keys = [Action::Open, Action::Why].map(|action| app.ui.keymap.label(action));
    let headline = format!("{} ({})", incident.headline, incident.severity.word());
    [
        Fact::Blank,
        Fact::Heading(format!("Incident  {} or {} Explain", keys[0], keys[1])),
        Fact::Value("error", headline, Role::of_severity(incident.severity), ""),
        Fact::Text(incident.title.clone(), Role::Text),
    ]
}

fn context_text(kind: ContextKind) -> &'static str {
    match kind {
        ContextKind::Compute => "compute",
        ContextKind::Graphics => "graphics",
        ContextKind::Mixed => "compute and graphics",
        ContextKind::Unknown => "unknown",
    }
}

/// Returns why the process is slow, with the phases as bars and the lines that ran most often.
fn why_facts(app: &App, process: ProcessKey, width: u16) -> Vec<Fact> {
    let mut list = vec![Fact::Heading("Why slow".into())];
    let bar = app.ui.theme.glyphs.levels[7];
    let text = |text: String| Fact::Text(text, Role::Text);
    let dim = |text: String| Fact::Text(text, Role::Dim);
    match why::report(&app.host, process) {
        Some(Ok(report)) => {
            list.push(text(report.answer.text()));
            list.extend(bars(report.window, width.into(), bar).into_iter().map(text));
            list.extend(places(report.window).into_iter().map(text));
            list.extend(notes(&report).into_iter().map(dim));
        }
        Some(Err(missing)) => list.push(dim(format!("{} {missing}", app.ui.theme.glyphs.absent))),
        None if app.host.recording.is_some() => {
            let text = "this recording has no samples of what the process does up to this time";
            list.push(dim(format!("{} {text}", app.ui.theme.glyphs.absent)));
        }
        None => list.push(dim("reading".into())),
    }
    list.push(Fact::Blank);
    list
}

fn state_text(state: RunState) -> &'static str {
    match state {
        RunState::Running => "running",
        RunState::Sleeping => "sleeping",
        RunState::Blocked => "blocked in the kernel; cannot be killed until the call returns",
        RunState::Stopped => "stopped",
        RunState::Zombie => "exited, not yet reaped by its parent; may still hold VRAM",
        RunState::Unknown => "unknown",
    }
}

fn host_facts(process: &Process, has_exited: bool, app: &App) -> Vec<Fact> {
    let theme = &app.ui.theme;
    let text =
        |name, reading: &Reading<String>| Fact::reading(name, reading, "", theme, String::clone);
    let started = if process.started == UnixMillis(0) {
        theme.glyphs.absent.to_owned()
    } else {
        theme.clock(process.started, "%Y-%m-%d %H:%M:%S")
    };
    let state = if has_exited { "exited" } else { state_text(process.state) };
    let mut list = vec![
        Fact::Blank,
        Fact::Heading("On the host".into()),
        Fact::Value("name", process.name.clone(), Role::Text, "/proc"),
        Fact::Value("state", state.into(), Role::Text, "every sample"),
        text("user", &process.user),
        Fact::Value("started", started, Role::Text, "/proc"),
    ];
    if !has_exited {
        let source = "every sample";
        let cpu = |percent: &Percent| format!("{:.0} % of one core", percent.0);
        list.push(Fact::reading("CPU", &process.cpu, source, theme, cpu));
        let rss = Bytes::to_string;
        list.push(Fact::reading("RSS", &process.rss, source, theme, rss));
    }
    let rank = |name, rank| Fact::reading(name, rank, "environment", theme, u32::to_string);
    // A program without a launcher or a container has nothing to say here.
    if !is_none(&process.rank) {
        list.extend([rank("rank", &process.rank), rank("local rank", &process.local_rank)]);
    }
    if !is_none(&process.job) {
        list.push(text("job", &process.job));
    }
    if !is_none(&process.container) {
        list.extend(container_facts(process, theme));
    }
    if let Reading::Value(command) = &process.command {
        list.push(Fact::Long("command", command.clone()));
    }
    list
}

/// Returns true if there is no value, although everything about the process could be read.
fn is_none<T>(reading: &Reading<T>) -> bool {
    reading.why().is_some_and(|why| why.reason == Reason::Unsupported)
}

/// Returns the container's name and runtime, and its ID if it differs from the name.
fn container_facts(process: &Process, theme: &Theme) -> Vec<Fact> {
    let Some(words) = process.container_text() else {
        let (id, source) = (&process.container, "");
        return vec![Fact::reading("container", id, source, theme, String::clone)];
    };
    let source = match process.container_runtime {
        Some(Runtime::Apptainer | Runtime::Singularity) => "mounts",
        _ => "cgroup",
    };
    let mut list = vec![Fact::Value("container", words, Role::Text, source)];
    match (&process.container_name, &process.container) {
        (Reading::Value(_), Reading::Value(id)) => {
            list.push(Fact::Value("  id", id.clone(), Role::Text, source));
        }
        (name, _) if !name.is_not_read() => {
            list.push(Fact::reading("  name", name, "", theme, String::clone));
        }
        _ => {}
    }
    list
}

fn detail_facts(detail: &ProcessDetail, theme: &Theme) -> Vec<Fact> {
    let text =
        |name, reading: &Reading<String>| Fact::reading(name, reading, "", theme, String::clone);
    let parents =
        detail.parents.iter().map(|p| format!("{} {}", p.pid, p.name)).collect::<Vec<_>>();
    let limit = detail.open_files_limit.get().map_or(String::new(), |n| format!(" of {n}"));
    let mut list = vec![
        Fact::reading("threads", &detail.threads, "/proc", theme, u32::to_string),
        Fact::reading("open files", &detail.open_files, "/proc", theme, |n| format!("{n}{limit}")),
        Fact::reading("swapped", &detail.swapped, "/proc", theme, ToString::to_string),
        Fact::reading("locked", &detail.locked, "/proc", theme, ToString::to_string),
        text("directory", &detail.cwd),
        text("executable", &detail.executable),
        Fact::Long(
            "parents",
            if parents.is_empty() { "none visible".into() } else { parents.join(" < ") },
        ),
        match &detail.cgroup {
            Reading::Value(path) => Fact::Long("cgroup", path.clone()),
            Reading::Missing(_) => text("cgroup", &detail.cgroup),
        },
        Fact::Blank,
    ];
    list.extend(environment_facts(&detail.environment, theme));
    list
}

fn environment_facts(environment: &Reading<Vec<Variable>>, theme: &Theme) -> Vec<Fact> {
    let variables = match environment {
        Reading::Value(variables) => variables,
        Reading::Missing(_) => {
            return vec![Fact::reading("environment", environment, "", theme, |_| String::new())];
        }
    };
    let mut list = vec![Fact::Heading("Environment".into())];
    for variable in variables {
        if let Some(value) = &variable.value {
            list.push(Fact::Long("", format!("{}={value}", variable.name)));
        }
    }
    let names: Vec<&str> =
        variables.iter().filter(|v| v.value.is_none()).map(|v| v.name.as_str()).collect();
    if !names.is_empty() {
        list.push(Fact::Long("by name only", names.join(" ")));
    }
    list
}

/// Draws the title `train.py  1097  grows by 8 GiB/min  60.3 GiB on GPU 0`, with the most important parts first.
fn draw_title(rows: &[&ProcessRow], key: ProcessKey, app: &App, area: Rect, buffer: &mut Buffer) {
    let theme = &app.ui.theme;
    let facts = rows.iter().find_map(|row| row.facts());
    let name = rows.first().map(|row| row.program()).unwrap_or_default();
    let size = |vram: Bytes| {
        if vram < Bytes::mib(52) { vram.to_string() } else { format!("{} GiB", gib(vram)) }
    };
    let vram = rows
        .iter()
        .filter_map(|row| Some(format!("{} on GPU {}", size(row.vram().get()?), row.gpu_label()?)));
    let vram = vram.collect::<Vec<_>>().join(", ");
    let ended = rows.iter().find_map(|row| row.ended());
    let peak = if ended.is_some() { "peak " } else { "" };
    let vram = (!vram.is_empty()).then(|| format!("{peak}{vram}"));
    let concerns = match ended {
        Some(ended) => vec![ended.words(&theme.zone, "%H:%M:%S")],
        None => concerns(rows, app),
    };
    let rank = facts.and_then(|facts| facts.rank.get()).map(|rank| format!("rank {rank}"));
    let user = facts.and_then(|facts| facts.user.value().cloned());
    let age = rows.iter().find_map(|row| row.shown_age()).map(span_text);
    let pid = key.pid.to_string();
    let concerns = concerns.iter().map(|concern| (concern.as_str(), Role::Warn));
    let others = [(vram, Role::Processes), (rank, Role::Text), (user, Role::Dim), (age, Role::Dim)];
    let others = others.iter().filter_map(|(text, role)| Some((text.as_deref()?, *role)));
    let name = [(name.as_str(), Role::Title), (pid.as_str(), Role::Title)];
    put_fitting(buffer, margin(area), name.into_iter().chain(concerns).chain(others), theme);
}

/// Returns what matters about a running process, the most urgent first: its growth, its memory cache, or that it does not
/// use its GPU.
fn concerns(rows: &[&ProcessRow], app: &App) -> Vec<String> {
    if let Some(growth) = rows.iter().find_map(|row| row.growth_phrases()) {
        return growth.into_iter().rev().collect();
    }
    let warning = || rows.iter().find_map(|row| row.warning()).map(|kind| kind.word().to_owned());
    let unused = || rows.iter().find_map(|row| row.unused_for());
    let unused = || {
        let unused = unused()?;
        let since = app.host.frame.time.0.saturating_sub_unsigned(unused.time.0);
        let since = app.ui.theme.clock(UnixMillis(since), "%H:%M:%S");
        let before = if unused.is_at_least { " or before" } else { "" };
        Some(format!("has not used its GPU since {since}{before}"))
    };
    warning().or_else(unused).into_iter().collect()
}

/// Returns the areas of the facts and of the line that counts further ones, which is empty if all lines fit.
fn facts_areas(area: Rect, lines: usize) -> [Rect; 2] {
    let area = margin(area);
    split_bottom(area, u16::from(lines > usize::from(area.height) && area.height > 1))
}

/// Returns the top of a chart of host memory: the power of two above its highest value.
fn scale(series: &Series) -> Option<Bytes> {
    let peak = series.peak_between(Mono(0), Mono(u64::MAX - 1))?;
    Some(Bytes((peak as u64).checked_next_power_of_two()?))
}

impl Screen for ProcessScreen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let rows = self.rows(app);
        if rows.is_empty() {
            let text = format!("Process {} no longer uses a GPU", self.id.key.pid);
            put_line(buffer, margin(area), &text, Role::Warn, &app.ui.theme);
            return;
        }
        draw_title(&rows, self.id.key, app, area, buffer);
        let [_, chart, area] = areas(area);
        if !chart.is_empty() {
            timelines(app, self.id.key).draw(margin(chart), buffer, &app.ui.theme);
        }
        let lines = self.lines(app, area);
        let [area, hint] = facts_areas(area, lines.len());
        let first = self.scroll.first(lines.len(), usize::from(area.height));
        let look = (&app.ui.theme, app.ui.shows_sources);
        facts::draw(&lines, first, area, area.width, look, buffer);
        let hidden = lines.len().saturating_sub(first + usize::from(area.height));
        if hidden > 0 {
            let text = format!("{} {hidden} more ", app.ui.theme.glyphs.ellipsis);
            put_line_right(buffer, hint, &text, Role::Dim, &app.ui.theme);
        }
    }

    fn act(&mut self, action: Action, app: &App, body: Rect) -> Effect {
        if action == Action::Open
            && let Some(known) = app.host.incident_of(self.id.key)
        {
            return Effect::Explain(Arc::clone(&known.incident));
        }
        if action == Action::Slow {
            self.is_sampling = !self.is_sampling;
            self.scroll = Scroll::default();
            return Effect::Done;
        }
        let [_, _, area] = areas(body);
        let count = self.lines(app, area).len();
        let [area, _] = facts_areas(area, count);
        self.scroll.act(action, count, usize::from(area.height))
    }

    fn next_request(&mut self, _app: &App) -> Option<Request> {
        let first = !std::mem::replace(&mut self.is_detail_requested, true);
        first.then_some(Request::Detail(self.id.key))
    }

    fn sampled(&self) -> Option<ProcessKey> {
        self.is_sampling.then_some(self.id.key)
    }

    /// The figures that tell a busy GPU from an idle one are read only for the GPU of the screen.
    fn focus(&self) -> Option<GpuUuid> {
        self.id.gpu.clone().filter(|_| self.is_sampling)
    }

    fn plots(&self, app: &App, body: Rect) -> Vec<Rect> {
        let [_, charts, _] = areas(body);
        timelines(app, self.id.key).plots(margin(charts))
    }

    fn exited_at(&self, app: &App) -> Option<Mono> {
        self.rows(app).iter().find_map(|row| Some(row.ended()?.mono))
    }

    fn process<'a>(&self, app: &'a App) -> Option<&'a ProcessRow> {
        let rows = self.rows(app);
        rows.iter().find(|row| row.id() == self.id).or(rows.first()).copied()
    }

    fn has_use_for(&self, action: Action, app: &App) -> bool {
        match action {
            Action::Why => app.host.incident_of(self.id.key).is_some(),
            _ => true,
        }
    }

    fn footer(&self) -> &'static [Action] {
        &[
            Action::Back,
            Action::Memory,
            Action::Slow,
            Action::Stack,
            Action::Log,
            Action::Why,
            Action::Signal,
            Action::Copy,
            Action::Down,
            Action::PageDown,
            Action::ZoomOut,
            Action::ScrollBack,
            Action::Pause,
        ]
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}
