//! The first screen: all GPUs, all processes and, below them, the GPUs over time.
//!
//! The place of each part depends only on the size of the screen and the number of GPUs, so that nothing moves when a
//! process starts, exits or fails.

use gputop_model::gpu::{Gpu, HealthState};
use gputop_model::units::GpuUuid;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout as Areas, Position, Rect};

use super::gpu::GpuScreen;
use super::gpu::timelines::charts_of;
use super::gpu_table::draw_gpus;
use super::process::ProcessScreen;
use super::process_table::{Pressed, draw_lines, hit};
use super::{small_overview, strips};
use crate::dashboard::gpu_columns::{GpuRow, why_no_gpus};
use crate::dashboard::groups::{Group, TableRow};
use crate::dashboard::rows::{ProcessRow, RowId};
use crate::dashboard::sizes::gib;
use crate::tui::action::{Action, moved};
use crate::tui::app::App;
use crate::tui::clipboard::Copied;
use crate::tui::screen::{Effect, Hit, Screen, ScreenDef, is_small, no_more_gpus};
use crate::tui::theme::Role;
use crate::tui::widgets::area::{row, split_bottom, split_left, split_top};
use crate::tui::widgets::cells::{put_line, put_line_right};
use crate::tui::widgets::plot::plot;
use crate::tui::widgets::table::scrolled;
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
        (
            "memory bar",
            "Parts of a GPU's memory that add up to its total, from left to right: allocated, cached, other, processes whose allocator is not readable, unattributed, driver, free.",
        ),
        ("processes", "VRAM used by processes, as reported by the driver."),
        chrome::NVIDIA_SMI_HELP,
        (
            "other",
            "VRAM of processes outside their allocator: CUDA context, libraries, other allocators.",
        ),
        ("unattributed", "VRAM not used by any visible process."),
        ("driver", "VRAM that the driver reserves for itself (NVML: reserved)."),
        ("alloc", "Live tensors of processes with a readable allocator."),
        ("cache", "Memory cached by readable allocators but not in tensors."),
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
}

/// Screen area of each panel.
struct Layout {
    gpus: Rect,
    /// The line that shows which GPUs are visible. Empty if all are.
    range: Rect,
    processes: Rect,
    below: Option<Below>,
}

/// The GPUs over time, below the tables.
#[derive(Debug, Clone, Copy)]
enum Below {
    /// Large charts of one or two GPUs.
    Charts(Rect),
    /// A strip for each GPU.
    Strips(Rect),
}

/// Minimum height of the process table, with its heading, above charts or strips.
const MIN_PROCESS_ROWS: u16 = 9;

/// Minimum size of a GPU's two charts.
const MIN_CHARTS_WIDTH: u16 = 56;
const MIN_CHARTS_HEIGHT: u16 = 8;
/// Maximum number of GPUs with large charts.
const MAX_GPUS_WITH_CHARTS: usize = 2;

/// Returns the number of GPUs in each chart row, and the row height. Returns `None` if the charts do not fit, or if there
/// are more than a few GPUs.
fn chart_grid(gpus: usize, area: Rect) -> Option<(u16, u16)> {
    let gpus = u16::try_from(gpus).ok().filter(|_| (1..=MAX_GPUS_WITH_CHARTS).contains(&gpus))?;
    let grid = |across: u16| (across, area.height / gpus.div_ceil(across));
    let most = (area.width / MIN_CHARTS_WIDTH).clamp(1, gpus);
    (1..=most).map(grid).find(|(_, height)| *height >= MIN_CHARTS_HEIGHT)
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

    fn layout(app: &App, gpu_rows: usize, area: Rect) -> Layout {
        let rows = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        // Always leave room for the heading and some rows of the process table.
        let gpus = rows(gpu_rows + 1).min(area.height.saturating_sub(5)).max(2).min(area.height);
        let range = u16::from(rows(gpu_rows + 1) > gpus && gpus > 2);
        let [gpus, rest] = split_top(area, gpus);
        let [gpus, range] = split_bottom(gpus, range);
        let count = app.host.frame.gpus.len();
        // Charts take at most two thirds.
        let spare = rest.height.saturating_sub(MIN_PROCESS_ROWS).min(rest.height * 2 / 3);
        let height = match (
            chart_grid(count, Rect { height: spare, ..area }),
            strips::height_in(spare, count),
        ) {
            _ if app.ui.density.is_compact() => 0,
            (Some(_), _) => spare,
            (None, Some(height)) => strips::rows_of(height, count),
            (None, None) => 0,
        };
        let [processes, below] = split_bottom(rest, height);
        let has_charts = chart_grid(count, below).is_some();
        let below = (!below.is_empty()).then_some(match has_charts {
            true => Below::Charts(below),
            false => Below::Strips(below),
        });
        Layout { gpus, range, processes, below }
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
        let layout = Self::layout(app, rows.len(), body);
        if layout.processes.contains(place) {
            let at = self.process_cursor(app).unwrap_or(0);
            let lines = app.host.processes.lines.len();
            return Some(match hit(app, lines, at, place, layout.processes)? {
                Pressed::Row(line) => Pressed::Row(line + app.host.frame.gpus.len()),
                heading => heading,
            });
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

    /// Draws the charts of each GPU.
    fn draw_charts(app: &App, area: Rect, buffer: &mut Buffer) {
        // Omit the current values if the charts end at an earlier time, because the two would not match.
        let is_same_time = app.host.time_window.end().is_none() || app.host.is_rewound();
        let axis = app.host.time_axis(None);
        for (gpu, places) in app.host.frame.gpus.iter().zip(chart_places(app, area)) {
            let is_answering = gpu.health.state == HealthState::Answering;
            let shown = Some(gpu).filter(|_| is_same_time && is_answering);
            let vram = shown.and_then(|gpu| gpu.memory.taken());
            let sm = shown.and_then(|gpu| gpu.sm.get());
            let note = strips::why_it_ends(gpu, app);
            let values = [
                note.clone().or(vram.map(|used| format!("{} GiB", gib(used)))),
                note.or(sm.map(|sm| format!("{:.0}%", sm.0))),
            ];
            let mut charts = charts_of(gpu, app);
            for (chart, value) in charts.iter_mut().zip(values) {
                let value = value.map_or_else(String::new, |value| format!(" {value}"));
                chart.title = format!("GPU {} {}{value}", gpu.index, chart.title);
            }
            let marks = marks::of_gpu(app, &gpu.uuid);
            for (chart, place) in charts.iter().zip(places) {
                chart.draw(axis, &marks, place, buffer, &app.ui.theme);
            }
        }
    }
}

/// Returns the areas of the charts of each GPU: memory and SM and, for a single GPU if there is room, bandwidth and power.
fn chart_places(app: &App, area: Rect) -> Vec<Vec<Rect>> {
    let gpus = app.host.frame.gpus.len();
    let Some((across, height)) = chart_grid(gpus, area) else { return Vec::new() };
    let width = area.width / across;
    let rows = if gpus == 1 && height >= 2 * MIN_CHARTS_HEIGHT { 2 } else { 1 };
    let places_of = |cell: u16| {
        let cell = Rect {
            x: area.x + cell % across * width,
            y: area.y + cell / across * height,
            width: width.saturating_sub(1),
            height,
        };
        let rows = Areas::vertical(vec![Constraint::Fill(1); rows]).split(cell);
        let halves = rows.iter().flat_map(|row| {
            let halves: [Rect; 2] =
                Areas::horizontal([Constraint::Fill(1); 2]).spacing(1).areas(*row);
            halves
        });
        halves.collect()
    };
    (0..).take(gpus).map(places_of).collect()
}

/// Returns true if there is no room for the tables. A window that is small as a whole has no lines above the body. In a
/// larger one, the tables are drawn if all GPUs and some processes fit.
fn is_too_small(app: &App, body: Rect) -> bool {
    let wanted = app.host.frame.gpus.len() + 6;
    let is_below_header = body.y > 0 && body.width >= 60;
    is_small(body) && !(is_below_header && usize::from(body.height) >= wanted)
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
        if is_too_small(app, area) {
            let process = self.process(app);
            return small_overview::draw(app, self.selected_gpu(app), process, area, buffer);
        }
        let rows = GpuRow::of_host(&app.host);
        let layout = Self::layout(app, rows.len(), area);
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
        self.draw_processes(app, layout.processes, buffer);
        match layout.below {
            Some(Below::Charts(rows)) => Self::draw_charts(app, rows, buffer),
            Some(Below::Strips(rows)) => strips::draw(app, self.selected_gpu(app), rows, buffer),
            None => {}
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

    fn plots(&self, app: &App, body: Rect) -> Vec<Rect> {
        if is_too_small(app, body) {
            return Vec::new();
        }
        let rows = GpuRow::of_frame(&app.host.frame).len();
        match Self::layout(app, rows, body).below {
            Some(Below::Charts(area)) => {
                chart_places(app, area).into_iter().flatten().filter_map(plot).collect()
            }
            Some(Below::Strips(area)) => strips::plots(area),
            None => Vec::new(),
        }
    }

    fn click(&mut self, app: &App, place: Position, body: Rect) -> Hit {
        if is_too_small(app, body) {
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
        match action {
            Action::Incidents | Action::Why => app.host.shown_incidents().next().is_some(),
            Action::Ranks => !app.host.jobs.lines.is_empty(),
            _ => true,
        }
    }

    fn footer(&self) -> &'static [Action] {
        &[
            Action::Open,
            Action::Ranks,
            Action::Holders,
            Action::Memory,
            Action::Slow,
            Action::Why,
            Action::Incidents,
            Action::Filter,
            Action::Sort,
            Action::SortVram,
            Action::Group,
            Action::Tag,
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
