//! The first screen: all GPUs, all processes and, if they fit, charts of the selected GPU over time.
//!
//! With a single GPU, the spare rows instead show the memory of the PyTorch process that uses the most memory.

use gputop_model::gpu::Gpu;
use gputop_model::history::{GpuMetric, HostMetric, SeriesKey};
use gputop_model::host::Driver;
use gputop_model::process::ProcessKey;
use gputop_model::reading::Reading;
use gputop_model::units::{Bytes, GpuUuid, Millis};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout as Areas, Position, Rect};
use unicode_width::UnicodeWidthStr;

use super::gpu::GpuScreen;
use super::gpu::timelines::bandwidth_and_power;
use super::gpu_table::draw_gpus;
use super::memory::MemoryScreen;
use super::process::ProcessScreen;
use super::process_table::{Pressed, draw_lines, hit, shows};
use super::small_overview;
use crate::dashboard::gpu_columns::{GpuRow, why_no_gpus};
use crate::dashboard::groups::{Group, TableRow};
use crate::dashboard::pools;
use crate::dashboard::pools::{first_fix, unread_text};
use crate::dashboard::rows::{ProcessRow, RowId};
use crate::dashboard::sizes::gib;
use crate::dashboard::time_axis::TimeAxis;
use crate::tui::action::{Action, moved};
use crate::tui::app::App;
use crate::tui::clipboard::Copied;
use crate::tui::screen::{Effect, Hit, Screen, ScreenDef, is_small, no_more_gpus};
use crate::tui::theme::Role;
use crate::tui::widgets::area::{row, split_bottom, split_left, split_top};
use crate::tui::widgets::cells::{put_all, put_line, put_line_right};
use crate::tui::widgets::table::scrolled;
use crate::tui::widgets::timeline::{self, Mark, Timeline, sparkline};
use crate::tui::{chrome, copy_text, marks};

pub const DEF: ScreenDef = ScreenDef {
    id: "overview",
    title: "Overview",
    glossary: &[
        (
            "lighter cells",
            "Charts: up to the maximum within the column's time interval. Solid cells reach up to the mean; of data older than ten minutes, up to the middle between minimum and maximum.",
        ),
        marks::WORDS[0],
        marks::WORDS[1],
        marks::WORDS[2],
        ("processes", "VRAM used by processes, as reported by the driver."),
        chrome::NVIDIA_SMI_HELP,
        (
            "other",
            "VRAM of processes outside their allocator: CUDA context, libraries, other allocators.",
        ),
        ("unattributed", "VRAM not used by any visible process."),
        ("driver", "VRAM that the driver reserves for itself (NVML: reserved)."),
        ("alloc", "Live tensors of processes with a readable allocator."),
        ("idle", "Memory cached by readable allocators but not in tensors."),
        ("^", "Peak VRAM of a process that has exited."),
        ("USED", "All memory that is not free, including memory reserved by the driver."),
        (
            "no answer",
            "A driver call for this GPU has not returned. Its last known values are shown in grey.",
        ),
    ],
    sample: |_| Some(Box::new(Overview::default())),
};

/// The item under the cursor, which stays selected when its row moves.
#[derive(Debug, Clone, PartialEq)]
enum Anchor {
    Gpu(GpuUuid),
    Process(RowId),
    Group(String),
}

#[derive(Debug, Default)]
pub struct Overview {
    /// Row index. GPUs come first, then the lines of the process table.
    cursor: usize,
    anchor: Option<Anchor>,
    /// Memory of the largest process with a known pool, if there is only one GPU.
    memory: Option<MemoryScreen>,
}

/// Screen area of each panel.
struct Layout {
    host: Rect,
    gpus: Rect,
    /// The line that shows which GPUs are visible. Empty if all are.
    range: Rect,
    /// The line between the tables that states the unit and explains the columns. Empty if it does not fit.
    legend: Rect,
    processes: Rect,
    /// The line with the number of unreadable processes. Empty if there are none.
    unread: Rect,
    below: Option<Below>,
}

/// Content of the rows left free by the tables.
#[derive(Debug, Clone, Copy)]
enum Below {
    Charts(Rect),
    Memory(Rect),
}

/// Number of rows needed to show a process's memory. With fewer rows, only the accounting would fit, and a chart of the
/// GPU is more useful.
const MIN_MEMORY_ROWS: u16 = 20;

/// Minimum size of a GPU's two charts.
const MIN_CHARTS_WIDTH: u16 = 56;
const MIN_CHARTS_HEIGHT: u16 = 4;
/// Height of a GPU's charts from which they are wide rather than higher. Wide charts show more detail.
const GOOD_CHARTS_HEIGHT: u16 = 8;
/// Maximum height of a row of charts.
const MAX_CHARTS_HEIGHT: u16 = 24;

/// Returns the number of GPUs in each chart row, and the row height. Returns `None` if the charts of all GPUs do not
/// fit.
fn chart_grid(gpus: usize, area: Rect) -> Option<(u16, u16)> {
    let gpus = u16::try_from(gpus).ok().filter(|gpus| *gpus > 0)?;
    let max_height = if gpus == 1 { 2 * MAX_CHARTS_HEIGHT } else { MAX_CHARTS_HEIGHT };
    let grid = |across: u16| {
        let rows = gpus.div_ceil(across);
        (gpus.div_ceil(rows), (area.height / rows).min(max_height))
    };
    let most = (area.width / MIN_CHARTS_WIDTH).clamp(1, gpus);
    let good = (1..=most).map(grid).find(|(_, height)| *height >= GOOD_CHARTS_HEIGHT);
    good.or_else(|| Some(grid(most)).filter(|(_, height)| *height >= MIN_CHARTS_HEIGHT))
}

/// Returns the number of free rows taken by the charts.
fn chart_rows(gpus: usize, free: Rect) -> u16 {
    match (chart_grid(gpus, free), u16::try_from(gpus)) {
        (Some((across, height)), Ok(gpus)) => gpus.div_ceil(across) * height,
        _ if free.height < MIN_CHARTS_HEIGHT => 0,
        _ => free.height.min(MAX_CHARTS_HEIGHT),
    }
}

/// The legend if no process has a readable allocator.
const DRIVER_LEGEND: &str = " GiB  VRAM memory of a process on its GPU, as the driver reports it";

/// The memory unit of this screen, and the meaning of each column for PyTorch's allocator.
const LEGEND: [(&str, &str); 5] = [
    ("ALLOC", " GiB ALLOC tensors"),
    ("IDLE", " + IDLE cache"),
    ("RESV", " = RESV"),
    ("STUCK", "  STUCK in IDLE"),
    ("FITS", "  FITS max request"),
];

/// Legend text added if it fits, because FITS is often larger than the free memory of the GPU.
const FITS_LEGEND: &str = " from FREE and own cache";

/// Legend text added while a value of FITS is only a minimum.
const MINIMUM_LEGEND: &str = "  +more";

/// Legend text added while an exited process is listed.
const PEAK_LEGEND: &str = "  ^peak";

/// Returns the line between the tables. Parts that do not fit are omitted.
fn legend_text(app: &App, width: u16) -> String {
    let is_shown = |title: &str| pools::any(&app.host.frame) && shows(app, title, width);
    let mut legend = if is_shown("ALLOC") {
        LEGEND.iter().filter(|(title, _)| is_shown(title)).map(|(_, text)| *text).collect()
    } else {
        DRIVER_LEGEND.to_owned()
    };
    let is_minimum = |row: &ProcessRow| row.fits_text().is_some_and(|text| text.ends_with('+'));
    let gpus = app.host.frame.gpus.iter();
    let marks: Vec<Mark> = gpus.flat_map(|gpu| marks::of_gpu(app, &gpu.uuid)).collect();
    let marks = match timeline::legend(&marks, app.host.time_axis(None), usize::MAX, &app.ui.theme)
    {
        legend if legend.is_empty() => legend,
        legend => format!("  {legend}"),
    };
    let notes = [
        (app.host.processes.rows.iter().any(is_minimum), MINIMUM_LEGEND),
        (app.host.processes.rows.iter().any(|row| row.ended().is_some()), PEAK_LEGEND),
        (true, &marks),
    ];
    let notes = notes.iter().filter(|(is_needed, _)| *is_needed).map(|(_, note)| note);
    let notes_width: usize = notes.clone().map(|note| note.width()).sum();
    if is_shown("FITS") && legend.width() + FITS_LEGEND.width() + notes_width <= usize::from(width)
    {
        legend.push_str(FITS_LEGEND);
    }
    for note in notes {
        if legend.width() + note.width() <= usize::from(width) {
            legend.push_str(note);
        }
    }
    legend
}

impl Overview {
    fn anchor_at(app: &App, at: usize) -> Option<Anchor> {
        let gpus = app.host.frame.gpus.len();
        match at.checked_sub(gpus) {
            None => app.host.frame.gpus.get(at).map(|gpu| Anchor::Gpu(gpu.uuid.clone())),
            Some(line) => Some(match app.host.processes.lines.get(line)? {
                TableRow::Group(group) => Anchor::Group(group.title.clone()),
                TableRow::Process { .. } => {
                    Anchor::Process(app.host.processes.row_of_line(line)?.id())
                }
            }),
        }
    }

    fn go(&mut self, app: &App, at: usize) {
        self.cursor = at.min(Self::last_row(app));
        self.anchor = Self::anchor_at(app, self.cursor);
    }

    fn last_row(app: &App) -> usize {
        (app.host.frame.gpus.len() + app.host.processes.lines.len()).saturating_sub(1)
    }

    /// Returns the process table line under the cursor.
    fn process_cursor(&self, app: &App) -> Option<usize> {
        self.cursor.checked_sub(app.host.frame.gpus.len())
    }

    /// Returns the GPU under the cursor, or the GPU of the process under the cursor.
    fn selected_gpu<'a>(&self, app: &'a App) -> Option<&'a Gpu> {
        match self.process_cursor(app) {
            None => app.host.frame.gpus.get(self.cursor),
            Some(line) => app
                .host
                .processes
                .row_of_line(line)
                .and_then(|row| app.host.frame.gpus.iter().find(|gpu| gpu.index == row.gpu_index()))
                .or(app.host.frame.gpus.first()),
        }
    }

    fn open(&self, app: &App) -> Effect {
        match Self::anchor_at(app, self.cursor) {
            Some(Anchor::Gpu(uuid)) => Effect::Open(Box::new(GpuScreen::new(uuid))),
            Some(Anchor::Process(id)) => Effect::Open(Box::new(ProcessScreen::new(id))),
            Some(Anchor::Group(title)) => Effect::Fold(title),
            None => Effect::Done,
        }
    }

    /// Moves the cursor to the next or previous GPU, starting at the GPU of the process under the cursor.
    fn switch_gpu(&mut self, app: &App, step: isize) -> Effect {
        let gpus = &app.host.frame.gpus;
        let selected = self.selected_gpu(app).map(|gpu| &gpu.uuid);
        let at = gpus.iter().position(|gpu| Some(&gpu.uuid) == selected).unwrap_or(0);
        match at.checked_add_signed(step).filter(|at| *at < gpus.len()) {
            Some(at) => self.go(app, at),
            None => return Effect::Message(no_more_gpus(gpus.len(), step)),
        }
        Effect::Done
    }

    /// Uses the spare rows to show the memory of the largest process.
    fn follow_memory(&mut self, app: &App) {
        let fullest = match app.host.frame.gpus.as_slice() {
            [gpu] => MemoryScreen::largest(&app.host.processes.all_rows, &gpu.uuid),
            _ => None,
        };
        let id = fullest.filter(|row| row.pool().is_some()).map(ProcessRow::id);
        let shown = self.memory.as_ref().map(MemoryScreen::process_key);
        if shown != id.as_ref().map(|id| id.key) {
            self.memory = id.map(MemoryScreen::embedded);
        }
        if let Some(memory) = &mut self.memory {
            memory.follow(app);
        }
    }

    fn layout(&self, app: &App, gpu_rows: usize, area: Rect) -> Layout {
        let unread = u16::from(area.height >= 12 && unread_text(&app.host.frame).is_some());
        let [rest, unread] = split_bottom(area, unread);
        let compact = app.ui.density.is_compact();
        let host = u16::from(!compact && rest.height >= 12);
        let [host, tables] = split_top(rest, host);
        let rows = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        // Always leave room for the heading and three rows of the process table.
        let gpus =
            rows(gpu_rows + 1).min(tables.height.saturating_sub(5)).max(2).min(tables.height);
        let range = u16::from(rows(gpu_rows + 1) > gpus && gpus > 2);
        let left = tables.height - gpus;
        let gap = u16::from(left >= 10);
        let wanted = rows(app.host.processes.lines.len().max(1) + 2);
        let spare = left.saturating_sub(gap).saturating_sub(wanted);
        let memory = self.memory.is_some() && spare >= MIN_MEMORY_ROWS;
        let below = match spare {
            _ if compact => 0,
            spare if memory => spare,
            spare => chart_rows(app.host.frame.gpus.len(), Rect { height: spare, ..area }),
        };
        let gap = if compact && spare == 0 { 0 } else { gap };
        let [gpus, range, legend, processes, below] = Areas::vertical([
            Constraint::Length(gpus - range),
            Constraint::Length(range),
            Constraint::Length(gap),
            Constraint::Fill(1),
            Constraint::Length(below),
        ])
        .areas(tables);
        Layout {
            host,
            gpus,
            range,
            legend,
            processes,
            unread,
            below: match memory {
                _ if below.is_empty() => None,
                true => Some(Below::Memory(below)),
                false => Some(Below::Charts(below)),
            },
        }
    }

    /// Returns the GPU row that must stay visible, and the first row to draw.
    fn gpu_rows(&self, app: &App, rows: &[GpuRow], area: Rect) -> (usize, usize) {
        let on_gpu = self.process_cursor(app).is_none();
        let at = rows.iter().position(|row| on_gpu && row.position() == self.cursor).unwrap_or(0);
        (at, scrolled(at, rows.len(), usize::from(area.height.saturating_sub(1))))
    }

    /// Returns the row or heading at a mouse position.
    fn pressed(&self, app: &App, place: Position, body: Rect) -> Option<Pressed> {
        let rows = GpuRow::of_frame(&app.host.frame);
        let layout = self.layout(app, rows.len(), body);
        if layout.processes.contains(place) {
            let at = self.process_cursor(app).unwrap_or(0);
            let lines = app.host.processes.lines.len();
            return Some(
                match hit(app, &app.host.processes.rows, lines, at, place, layout.processes)? {
                    Pressed::Row(line) => Pressed::Row(line + app.host.frame.gpus.len()),
                    heading => heading,
                },
            );
        }
        if !layout.gpus.contains(place) || place.y == layout.gpus.y {
            return None;
        }
        let (_, offset) = self.gpu_rows(app, &rows, layout.gpus);
        let row = rows.get(offset + usize::from(place.y - layout.gpus.y - 1))?;
        Some(Pressed::Row(row.position()))
    }

    fn draw_processes(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let cursor = self.process_cursor(app);
        let (at, marked) = (cursor.unwrap_or(0), cursor.is_some());
        let below = draw_lines(app, at, marked, area, buffer);
        if app.host.processes.rows.is_empty() && area.height > 1 {
            let [_, line] = split_left(row(area, area.y + 1), 2);
            put_line(buffer, line, &app.host.why_no_rows(), Role::Dim, &app.ui.theme);
        }
        if below > 0 && area.height > 2 {
            let text = format!("{} {below} more ", app.ui.theme.glyphs.ellipsis);
            put_line_right(buffer, row(area, area.bottom() - 1), &text, Role::Dim, &app.ui.theme);
        }
    }

    /// Draws the charts of all GPUs, or only those of the selected GPU if not all fit.
    fn draw_charts(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let gpus = &app.host.frame.gpus;
        let Some((across, height)) = chart_grid(gpus.len(), area) else {
            return self.draw_chart(app, self.selected_gpu(app), area, buffer);
        };
        let width = area.width / across;
        for (gpu, cell) in gpus.iter().zip(0..) {
            let cell = Rect {
                x: area.x + cell % across * width,
                y: area.y + cell / across * height,
                width,
                height,
            };
            self.draw_chart(app, Some(gpu), cell, buffer);
        }
    }

    fn draw_chart(&self, app: &App, gpu: Option<&Gpu>, area: Rect, buffer: &mut Buffer) {
        let Some(gpu) = gpu else { return };
        let total = app.host.chart_memory(gpu);
        let series = |metric| app.host.history.series(&SeriesKey::Gpu(gpu.uuid.clone(), metric));
        let title = |what, now: Option<String>| {
            let now = now.map_or(String::new(), |now| format!(" {now}"));
            format!("GPU {} {what}{now}", gpu.index)
        };
        // Omit the current values if the charts end at an earlier time, because the two would not match.
        let is_same_time = app.host.time_window.end().is_none() || app.host.is_rewound();
        let shown = Some(gpu).filter(|_| is_same_time);
        let vram = shown.and_then(|gpu| gpu.memory.taken());
        let vram = vram.map(|used| format!("{} GiB", gib(used)));
        let sm = shown.and_then(|gpu| gpu.sm.get());
        let sm = sm.map(|sm| format!("{:.0}%", sm.0));
        let mut rows = vec![[
            Timeline::bytes(title("VRAM used", vram), series(GpuMetric::Used), total),
            Timeline::percent(title("SM", sm), series(GpuMetric::Sm)),
        ]];
        if app.host.frame.gpus.len() == 1 && area.height >= 2 * GOOD_CHARTS_HEIGHT {
            rows.push(bandwidth_and_power(gpu, app));
        }
        let (axis, marks) = (app.host.time_axis(None), marks::of_gpu(app, &gpu.uuid));
        let area = Rect { width: area.width.saturating_sub(1), ..area };
        let areas = Areas::vertical(rows.iter().map(|_| Constraint::Fill(1))).split(area);
        for (charts, row) in rows.iter().zip(areas.iter()) {
            let halves: [Rect; 2] =
                Areas::horizontal([Constraint::Fill(1); 2]).spacing(1).areas(*row);
            for (chart, half) in charts.iter().zip(halves) {
                chart.draw(axis, &marks, half, buffer, &app.ui.theme);
            }
        }
    }
}

/// Returns the cursor position of a process.
fn process_position(app: &App, id: &RowId) -> Option<usize> {
    let row = app.host.processes.rows.iter().position(|row| row.id() == *id)?;
    below_gpus(app, |line| line.row() == Some(row))
}

/// Returns the cursor position of the first matching line in the process table.
fn below_gpus(app: &App, matches: impl Fn(&TableRow) -> bool) -> Option<usize> {
    let line = app.host.processes.lines.iter().position(matches)?;
    Some(line + app.host.frame.gpus.len())
}

/// Draws the unreadable-process line: `!  2 processes unreadable (ptrace): run sudo gputop  ! Show fixes`.
fn draw_unread(app: &App, area: Rect, buffer: &mut Buffer) {
    let Some(words) = unread_text(&app.host.frame) else {
        return;
    };
    let key = format!("  {} Show fixes", app.ui.keymap.label(Action::Unread));
    let with_fix = first_fix(&app.host.frame).map(|fix| format!("{words}: {fix}{key}"));
    let fits = |text: &String| text.width() + 4 <= usize::from(area.width);
    let text = with_fix.filter(fits).unwrap_or_else(|| words + &key);
    let warn = app.ui.theme.style(Role::Warn);
    let pieces = [("!  ", warn), (text.as_str(), warn)];
    put_all(buffer, area.x, area.y, area.right(), &pieces);
}

/// Draws a line with the host's CPU use, memory use and load, and its driver version. A narrow screen shows the first
/// items that fit.
fn draw_host(app: &App, area: Rect, buffer: &mut Buffer) {
    let theme = &app.ui.theme;
    let absent = theme.glyphs.absent;
    let Some(host) = &app.host.frame.host else { return };
    let size = |reading: &Reading<Bytes>| reading.get().map_or(absent.into(), Bytes::short);
    let mut at = area.x + 1;
    let mut draw_item = |name: &str, value: &str, role: Role, buffer: &mut Buffer| {
        let width = u16::try_from(name.width() + value.width() + 1).unwrap_or(u16::MAX);
        if at.saturating_add(width) <= area.right() {
            let pieces = [
                (name, theme.style(Role::Dim)),
                (" ", theme.style(Role::Dim)),
                (value, theme.style(role)),
            ];
            at = put_all(buffer, at, area.y, area.right(), &pieces) + 2;
        }
        at
    };
    let cpu = host.cpu.get().map_or(absent.into(), |p| format!("{:.0}%", p.0));
    let cores = host.cores.get().map_or(cpu.clone(), |n| format!("{cpu:>4} of {n} cores"));
    let end = draw_item("CPU", &cores, Role::Text, buffer);
    if area.width >= 140 {
        let spark = Rect { x: end, width: 16, ..area };
        let series = app.host.history.series(&SeriesKey::Host(HostMetric::Cpu));
        sparkline(
            series,
            TimeAxis::until(app.host.frame.mono, Millis(120_000)),
            100.0,
            &[],
            spark,
            buffer,
            theme,
        );
        draw_item("", &" ".repeat(16), Role::Text, buffer);
    }
    let memory = format!("{} of {}", size(&host.memory_used), size(&host.memory_total));
    draw_item("RAM", &memory, Role::Text, buffer);
    if let Some(swap) = host.swap_used.get().filter(|b| *b > Bytes::gib(1)) {
        draw_item("swap", &swap.short(), Role::Warn, buffer);
    }
    let load = host
        .load
        .value()
        .map_or(absent.into(), |l| l.iter().map(|v| format!("{v:.1} ")).collect::<String>());
    draw_item("load", load.trim_end(), Role::Text, buffer);
    let driver = app.host.frame.driver.as_ref();
    let mut driver_item = |name, of: fn(&Driver) -> &Reading<String>| {
        let text = driver.and_then(|driver| of(driver).value());
        draw_item(name, text.map_or(absent, String::as_str), Role::Text, buffer);
    };
    driver_item("driver", |driver| &driver.version);
    driver_item("CUDA", |driver| &driver.cuda);
}

/// If not all GPUs fit, shows the visible range below the GPU table.
fn draw_range(rows: &[GpuRow], offset: usize, layout: &Layout, app: &App, buffer: &mut Buffer) {
    if !layout.range.is_empty() {
        let shown = usize::from(layout.gpus.height.saturating_sub(1));
        let text = format!(" {} to {} of {} ", offset + 1, offset + shown, rows.len());
        put_line_right(buffer, layout.range, &text, Role::Warn, &app.ui.theme);
    }
}

impl Screen for Overview {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        if is_small(area) {
            let process = self.process(app);
            return small_overview::draw(app, self.selected_gpu(app), process, area, buffer);
        }
        let rows =
            GpuRow::with_growth(&app.host.frame, &app.host.holders, &app.host.processes.all_rows);
        let layout = self.layout(app, rows.len(), area);
        if !layout.host.is_empty() {
            draw_host(app, layout.host, buffer);
        }
        let on_gpu = self.process_cursor(app).is_none();
        let (at, offset) = self.gpu_rows(app, &rows, layout.gpus);
        let cursor = on_gpu.then(|| at - offset);
        draw_gpus(&rows[offset.min(rows.len())..], cursor, layout.gpus, app, buffer);
        if rows.is_empty() {
            let [_, line] = split_top(layout.gpus, 1);
            let [_, line] = split_left(line, 2);
            put_line(buffer, line, &why_no_gpus(&app.host.frame), Role::Warn, &app.ui.theme);
        }
        draw_range(&rows, offset, &layout, app, buffer);
        if !layout.legend.is_empty() {
            let legend = legend_text(app, layout.legend.width);
            put_line(buffer, layout.legend, &legend, Role::Dim, &app.ui.theme);
        }
        self.draw_processes(app, layout.processes, buffer);
        match (layout.below, &self.memory) {
            (Some(Below::Memory(rows)), Some(memory)) => memory.draw(app, rows, buffer),
            (Some(Below::Charts(rows)), _) => self.draw_charts(app, rows, buffer),
            _ => {}
        }
        if !layout.unread.is_empty() {
            draw_unread(app, layout.unread, buffer);
        }
    }

    fn act(&mut self, action: Action, app: &App, _body: Rect) -> Effect {
        let gpus = app.host.frame.gpus.len();
        let count = gpus + app.host.processes.lines.len();
        if let Some(at) = moved(self.cursor, count, 10, action) {
            self.go(app, at);
            return Effect::Done;
        }
        match action {
            Action::Open => return self.open(app),
            Action::NextPane if self.cursor < gpus => self.go(app, gpus),
            Action::NextPane => self.go(app, 0),
            Action::NextGpu => return self.switch_gpu(app, 1),
            Action::PreviousGpu => return self.switch_gpu(app, -1),
            _ => return Effect::Ignored,
        }
        Effect::Done
    }

    fn charts(&self, app: &App, body: Rect) -> Option<Rect> {
        if is_small(body) {
            return None;
        }
        let rows = GpuRow::of_frame(&app.host.frame).len();
        match self.layout(app, rows, body).below? {
            Below::Charts(rows) => Some(rows),
            Below::Memory(rows) => self.memory.as_ref()?.charts(app, rows),
        }
    }

    fn click(&mut self, app: &App, place: Position, body: Rect) -> Hit {
        if is_small(body) {
            return Hit::Nothing;
        }
        match self.pressed(app, place, body) {
            None => Hit::Nothing,
            Some(Pressed::Heading(column)) => Hit::Column(column),
            Some(Pressed::Row(line)) if line == self.cursor => Hit::SameRow,
            Some(Pressed::Row(line)) => {
                self.go(app, line);
                Hit::Row
            }
        }
    }

    fn follow(&mut self, app: &App) {
        let found = match &self.anchor {
            Some(Anchor::Gpu(uuid)) => app.host.frame.gpus.iter().position(|gpu| gpu.uuid == *uuid),
            Some(Anchor::Process(id)) => process_position(app, id)
                .or_else(|| process_position(app, &app.host.processes.nearest_listed(id)?)),
            Some(Anchor::Group(title)) => {
                below_gpus(app, |line| line.group().is_some_and(|group| group.title == *title))
            }
            None => None,
        };
        match found {
            Some(at) => self.go(app, at),
            None if self.anchor.is_none() => self.go(app, self.cursor),
            // Keep the anchor: the filter may hide all processes during typing, and a process may be missing from one
            // frame of a recording.
            None => self.cursor = self.cursor.min(Self::last_row(app)),
        }
        self.follow_memory(app);
    }

    fn map(&self, app: &App, body: Rect) -> Option<(ProcessKey, u32)> {
        if is_small(body) {
            return None;
        }
        let layout = self.layout(app, GpuRow::of_frame(&app.host.frame).len(), body);
        match layout.below {
            Some(Below::Memory(rows)) => self.memory.as_ref()?.map(app, rows),
            _ => None,
        }
    }

    fn shows_all_processes(&self) -> bool {
        true
    }

    fn process<'a>(&self, app: &'a App) -> Option<&'a ProcessRow> {
        app.host.processes.row_of_line(self.process_cursor(app)?)
    }

    fn gpu(&self, app: &App) -> Option<GpuUuid> {
        let gpus = &app.host.frame.gpus;
        Some(self.selected_gpu(app).or_else(|| gpus.first())?.uuid.clone())
    }

    fn group<'a>(&self, app: &'a App) -> Option<&'a Group> {
        app.host.processes.lines.get(self.process_cursor(app)?)?.group()
    }

    fn copied(&self, app: &App) -> Option<Copied> {
        let on_gpu = self.process_cursor(app).is_none();
        let gpu = app.host.frame.gpus.get(self.cursor).filter(|_| on_gpu);
        gpu.map(copy_text::gpu)
    }

    fn has_use_for(&self, action: Action, app: &App) -> bool {
        action != Action::Incidents || app.host.shown_incidents().next().is_some()
    }

    fn footer(&self) -> &'static [Action] {
        &[
            Action::Open,
            Action::Memory,
            Action::Incidents,
            Action::Filter,
            Action::Sort,
            Action::SortVram,
            Action::Theme,
            Action::Density,
            Action::Signal,
            Action::NextPane,
            Action::Pause,
            Action::ScrollBack,
            Action::Stack,
            Action::FilterUser,
        ]
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}
