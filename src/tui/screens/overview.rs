//! The first screen: every GPU, every process, and below them, where there is room, the selected GPU over time; of the
//! only GPU there is, the memory of its fullest PyTorch process.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use unicode_width::UnicodeWidthStr;

use super::gpu::GpuScreen;
use super::gpu_columns::{GpuRow, draw_gpus};
use super::memory::MemoryScreen;
use super::process::ProcessScreen;
use super::process_table::{Pressed, draw_lines, hit};
use super::{Hit, Screen, ScreenDef, Step, is_small, moved, small_overview};
use crate::model::frame::Frame;
use crate::model::history::{GpuMetric, HostMetric, SeriesKey};
use crate::model::host::Driver;
use crate::model::process::ProcessKey;
use crate::model::reading::Reading;
use crate::model::units::{Bytes, GpuUuid, Millis};
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::chrome;
use crate::tui::clipboard::Copied;
use crate::tui::copy_text;
use crate::tui::groups::{Group, TableRow};
use crate::tui::marks;
use crate::tui::pools::unread_words;
use crate::tui::rows::{ProcessRow, RowId};
use crate::tui::theme::Role;
use crate::tui::widgets::cells::{put, put_all, put_right};
use crate::tui::widgets::table::scrolled;
use crate::tui::widgets::time_axis::TimeAxis;
use crate::tui::widgets::timeline::{Timeline, sparkline};
use crate::tui::widgets::timelines::Timelines;

pub const DEF: ScreenDef = ScreenDef {
    id: "overview",
    title: "Overview",
    words: &[
        (
            "lighter cells",
            "In a chart: between the least and the greatest value of that column's time; solid cells are below the least.",
        ),
        marks::WORDS[0],
        marks::WORDS[1],
        marks::WORDS[2],
        (
            "processes",
            "VRAM that processes hold, as the driver counts it.",
        ),
        chrome::REDUCED,
        ("other", "VRAM in use by no process that is visible here."),
        (
            "driver",
            "VRAM that the driver keeps for itself (NVML: reserved).",
        ),
        (
            "alloc",
            "Live tensors of the processes whose allocator can be read.",
        ),
        ("idle", "What their allocators have cached, in no tensor."),
        (
            "USED",
            "Everything that is not free, the driver's part included.",
        ),
        (
            "no answer",
            "A driver call for that GPU has not returned; its last figures are shown, greyed.",
        ),
    ],
    sample: |_| Some(Box::new(Overview::default())),
};

/// What the cursor is on, whatever row it is in now.
#[derive(Debug, Clone, PartialEq)]
enum Anchor {
    Gpu(GpuUuid),
    Process(RowId),
    Group(String),
}

#[derive(Debug, Default)]
pub struct Overview {
    /// Counts GPUs first, then processes.
    cursor: usize,
    anchor: Option<Anchor>,
    /// Of the only GPU there is: its fullest process whose pool is known.
    memory: Option<MemoryScreen>,
}

/// Where the parts of the screen go.
struct Layout {
    host: Option<Rect>,
    gpus: Rect,
    processes: Rect,
    /// Where the count of unreadable processes stands, if there are any.
    unread: Option<Rect>,
    below: Option<Below>,
}

/// What the rows show that the tables leave.
#[derive(Debug, Clone, Copy)]
enum Below {
    Chart(Rect),
    Memory(Rect),
}

/// With less the memory of a process would be its accounting and no more: the chart says more of the rows above.
const MIN_MEMORY: u16 = 20;

impl Overview {
    fn anchor_at(app: &App, at: usize) -> Option<Anchor> {
        let gpus = app.frame.gpus.len();
        match at.checked_sub(gpus) {
            None => app
                .frame
                .gpus
                .get(at)
                .map(|gpu| Anchor::Gpu(gpu.uuid.clone())),
            Some(line) => Some(match app.lines.get(line)? {
                TableRow::Group(group) => Anchor::Group(group.title.clone()),
                TableRow::Process { .. } => Anchor::Process(app.row_of_line(line)?.id()),
            }),
        }
    }

    fn go(&mut self, app: &App, at: usize) {
        self.cursor = at.min((app.frame.gpus.len() + app.lines.len()).saturating_sub(1));
        self.anchor = Self::anchor_at(app, self.cursor);
    }

    /// The line of the process table that the cursor is on.
    fn process_cursor(&self, app: &App) -> Option<usize> {
        self.cursor.checked_sub(app.frame.gpus.len())
    }

    /// The GPU under the cursor, or that of the process under it.
    fn selected_gpu<'a>(&self, app: &'a App) -> Option<&'a crate::model::gpu::Gpu> {
        match self.process_cursor(app) {
            None => app.frame.gpus.get(self.cursor),
            Some(line) => app
                .row_of_line(line)
                .and_then(|row| {
                    app.frame
                        .gpus
                        .iter()
                        .find(|gpu| gpu.index == row.gpu_index())
                })
                .or(app.frame.gpus.first()),
        }
    }

    fn open(&self, app: &App) -> Step {
        match Self::anchor_at(app, self.cursor) {
            Some(Anchor::Gpu(uuid)) => Step::Open(Box::new(GpuScreen::new(uuid))),
            Some(Anchor::Process(id)) => Step::Open(Box::new(ProcessScreen::new(id))),
            Some(Anchor::Group(title)) => Step::Fold(title),
            None => Step::Stay,
        }
    }

    /// The memory of the process under the cursor; of a GPU, of the largest one whose pool is known.
    fn open_memory(&self, app: &App) -> Step {
        let row = match Self::anchor_at(app, self.cursor) {
            Some(Anchor::Process(_)) => self.process(app),
            Some(Anchor::Gpu(uuid)) => MemoryScreen::largest(&app.all_rows, &uuid),
            Some(Anchor::Group(_)) | None => None,
        };
        match row {
            Some(row) => Step::Open(Box::new(MemoryScreen::new(row.id()))),
            None => Step::Stay,
        }
    }

    /// Keeps the memory that the spare rows show that of the fullest process.
    fn follow_memory(&mut self, app: &App) {
        let fullest = match app.frame.gpus.as_slice() {
            [gpu] => MemoryScreen::largest(&app.all_rows, &gpu.uuid),
            _ => None,
        };
        let id = fullest
            .filter(|row| row.pool().is_some())
            .map(ProcessRow::id);
        let shown = self.memory.as_ref().map(MemoryScreen::process_key);
        if shown != id.as_ref().map(|id| id.key) {
            self.memory = id.map(MemoryScreen::below);
        }
        if let Some(memory) = &mut self.memory {
            memory.follow(app);
        }
    }

    fn layout(&self, app: &App, gpu_rows: usize, area: Rect) -> Layout {
        let unread = u16::from(area.height >= 12 && unread_words(&app.frame).is_some());
        let whole = area;
        let area = Rect {
            height: area.height - unread,
            ..area
        };
        let compact = app.density.is_compact();
        let host = u16::from(!compact && area.height >= 12);
        let rows = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let below = area.height - host;
        // The processes always have a heading and three rows.
        let gpus = rows(gpu_rows + 1)
            .min(below.saturating_sub(5))
            .max(2)
            .min(below);
        let left = below - gpus;
        let gap = u16::from(left >= 10);
        let wanted = rows(app.lines.len().max(1) + 2);
        let spare = left.saturating_sub(gap).saturating_sub(wanted);
        let memory = self.memory.is_some() && spare >= MIN_MEMORY;
        let below = match spare {
            _ if compact => 0,
            spare if memory => spare,
            0..7 => 0,
            spare => spare.min(14),
        };
        let gap = if compact { 0 } else { gap };
        let top = area.y + host;
        let full = Rect {
            x: area.x,
            y: top,
            width: area.width,
            height: gpus,
        };
        Layout {
            host: (host > 0).then_some(Rect { height: 1, ..area }),
            gpus: full,
            processes: Rect {
                y: top + gpus + gap,
                height: left - gap - below,
                ..full
            },
            unread: (unread > 0).then_some(Rect {
                y: whole.bottom() - 1,
                height: 1,
                ..whole
            }),
            below: (below > 0).then(|| {
                let rows = Rect {
                    y: area.bottom() - below,
                    height: below,
                    ..full
                };
                if memory {
                    Below::Memory(rows)
                } else {
                    Below::Chart(rows)
                }
            }),
        }
    }

    /// The row of the GPU table that is to be in sight, and the first that is drawn.
    fn gpu_rows(&self, app: &App, rows: &[GpuRow], area: Rect) -> (usize, usize) {
        let on_gpu = self.process_cursor(app).is_none();
        let of_gpu = |row: &GpuRow| on_gpu && row.position() == self.cursor;
        let at = rows.iter().position(of_gpu).unwrap_or(0);
        let height = usize::from(area.height.saturating_sub(1));
        (at, scrolled(at, rows.len(), height))
    }

    /// The cursor's place for what is drawn at `place`.
    fn pressed(&self, app: &App, place: Position, body: Rect) -> Option<Pressed> {
        let rows = GpuRow::of_frame(&app.frame);
        let layout = self.layout(app, rows.len(), body);
        if layout.processes.contains(place) {
            let at = self.process_cursor(app).unwrap_or(0);
            let lines = app.lines.len();
            return Some(match hit(app, lines, at, place, layout.processes)? {
                Pressed::Row(line) => Pressed::Row(line + app.frame.gpus.len()),
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
        if app.rows.is_empty() && area.height > 1 {
            put(
                buffer,
                area.x + 2,
                area.y + 1,
                &nothing_to_show(app),
                area.width,
                app.theme.style(Role::Dim),
            );
        }
        if below > 0 && area.height > 2 {
            let text = format!("{} {below} more ", app.theme.glyphs.ellipsis);
            put_right(
                buffer,
                area.x,
                area.right(),
                area.bottom() - 1,
                &text,
                app.theme.style(Role::Dim),
            );
        }
    }

    fn draw_chart(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let Some(gpu) = self.selected_gpu(app) else {
            return;
        };
        let total = gpu.memory.total.get().unwrap_or(Bytes(1));
        let series = |metric| {
            app.history
                .series(&SeriesKey::Gpu(gpu.uuid.clone(), metric))
        };
        let title = |what| format!("GPU {} {what}", gpu.index);
        let used = Timeline::bytes(title("VRAM used"), series(GpuMetric::Used), total);
        Timelines {
            charts: vec![used, Timeline::percent(title("SM"), series(GpuMetric::Sm))],
            axis: app.time_axis(None),
            marks: marks::of_gpu(app, &gpu.uuid),
        }
        .draw(area, buffer, &app.theme);
    }
}

/// Where the cursor stands on the first such line of the process table.
fn below_gpus(app: &App, wanted: impl Fn(&TableRow) -> bool) -> Option<usize> {
    let line = app.lines.iter().position(wanted)?;
    Some(line + app.frame.gpus.len())
}

/// Why the GPU table is empty: a driver that hangs, that failed while we watched, that has no GPU.
pub fn no_gpus(frame: &Frame) -> String {
    let why = frame.driver.as_ref().and_then(|driver| driver.gpus.why());
    why.map_or("no GPU yet".into(), ToString::to_string)
}

/// `!  2 processes unreadable (ptrace): ! for the way out`
fn draw_unread(app: &App, area: Rect, buffer: &mut Buffer) {
    let Some(words) = unread_words(&app.frame) else {
        return;
    };
    let key = app.keymap.label(Action::Unread);
    let text = format!("{words}: {key} for the way out");
    let warn = app.theme.style(Role::Warn);
    let pieces = [("!  ", warn), (text.as_str(), warn)];
    put_all(buffer, area.x, area.y, area.right(), &pieces);
}

fn nothing_to_show(app: &App) -> String {
    if !app.filter.is_empty() {
        return format!("no process matches `{}`", app.filter);
    }
    match app.frame.gpus.iter().find_map(|gpu| gpu.processes.why()) {
        Some(why) => format!("the driver's process list: {why}"),
        None => "no process is on a GPU".into(),
    }
}

/// CPU, memory, load, driver: one line, of which a narrow screen shows the beginning in whole pieces.
fn draw_host(app: &App, area: Rect, buffer: &mut Buffer) {
    let theme = &app.theme;
    let absent = theme.glyphs.absent;
    let Some(host) = &app.frame.host else { return };
    let size = |reading: &Reading<Bytes>| reading.get().map_or(absent.into(), Bytes::short);
    let mut at = area.x + 1;
    let mut piece = |name: &str, value: &str, role: Role, buffer: &mut Buffer| {
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
    let cpu = host
        .cpu
        .get()
        .map_or(absent.into(), |p| format!("{:.0}%", p.0));
    let cores = host
        .cores
        .get()
        .map_or(cpu.clone(), |n| format!("{cpu:>4} of {n} cores"));
    let behind = piece("CPU", &cores, Role::Text, buffer);
    if area.width >= 140 {
        let spark = Rect {
            x: behind,
            width: 16,
            ..area
        };
        let series = app.history.series(&SeriesKey::Host(HostMetric::Cpu));
        sparkline(
            series,
            TimeAxis::until(app.frame.mono, Millis(120_000)),
            100.0,
            &[],
            spark,
            buffer,
            theme,
        );
        piece("", &" ".repeat(16), Role::Text, buffer);
    }
    let memory = format!(
        "{} of {}",
        size(&host.memory_used),
        size(&host.memory_total)
    );
    piece("RAM", &memory, Role::Text, buffer);
    if let Some(swap) = host.swap_used.get().filter(|b| *b > Bytes::gib(1)) {
        piece("swap", &swap.short(), Role::Warn, buffer);
    }
    let load = host.load.value().map_or(absent.into(), |l| {
        l.iter().map(|v| format!("{v:.1} ")).collect::<String>()
    });
    piece("load", load.trim_end(), Role::Text, buffer);
    let driver = app.frame.driver.as_ref();
    let mut of_driver = |name, of: fn(&Driver) -> &Reading<String>| {
        let text = driver.and_then(|driver| of(driver).value());
        piece(
            name,
            text.map_or(absent, String::as_str),
            Role::Text,
            buffer,
        );
    };
    of_driver("driver", |driver| &driver.version);
    of_driver("CUDA", |driver| &driver.cuda);
}

/// Says in the heading that the GPU table goes on, when it does.
fn out_of_sight(rows: &[GpuRow], offset: usize, area: Rect, app: &App, buffer: &mut Buffer) {
    let shown = usize::from(area.height.saturating_sub(1)).min(rows.len() - offset.min(rows.len()));
    if shown < rows.len() {
        let text = format!(" {} to {} of {} ", offset + 1, offset + shown, rows.len());
        put_right(
            buffer,
            area.x,
            area.right(),
            area.y,
            &text,
            app.theme.style(Role::Warn),
        );
    }
}

impl Screen for Overview {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        if is_small(area) {
            return small_overview::draw(app, self.selected_gpu(app), area, buffer);
        }
        let rows = GpuRow::of_frame(&app.frame);
        let layout = self.layout(app, rows.len(), area);
        if let Some(host) = layout.host {
            draw_host(app, host, buffer);
        }
        let on_gpu = self.process_cursor(app).is_none();
        let (at, offset) = self.gpu_rows(app, &rows, layout.gpus);
        let cursor = on_gpu.then(|| at - offset);
        draw_gpus(
            &rows[offset.min(rows.len())..],
            cursor,
            layout.gpus,
            app,
            buffer,
        );
        if rows.is_empty() {
            let (x, y) = (layout.gpus.x + 2, layout.gpus.y + 1);
            let style = app.theme.style(Role::Warn);
            put(buffer, x, y, &no_gpus(&app.frame), area.width, style);
        }
        out_of_sight(&rows, offset, layout.gpus, app, buffer);
        self.draw_processes(app, layout.processes, buffer);
        match (layout.below, &self.memory) {
            (Some(Below::Memory(rows)), Some(memory)) => memory.draw(app, rows, buffer),
            (Some(Below::Chart(rows)), _) => self.draw_chart(app, rows, buffer),
            _ => {}
        }
        if let Some(line) = layout.unread {
            draw_unread(app, line, buffer);
        }
    }

    fn act(&mut self, action: Action, app: &App) -> Step {
        let gpus = app.frame.gpus.len();
        let count = gpus + app.lines.len();
        if let Some(at) = moved(self.cursor, count, 10, action) {
            self.go(app, at);
            return Step::Stay;
        }
        match action {
            Action::Open => return self.open(app),
            Action::Memory => return self.open_memory(app),
            Action::NextPane if self.cursor < gpus => self.go(app, gpus),
            Action::NextPane => self.go(app, 0),
            Action::NextGpu => self.go(app, (self.cursor + 1).min(gpus.saturating_sub(1))),
            Action::PreviousGpu => self.go(app, self.cursor.min(gpus).saturating_sub(1)),
            _ => return Step::Ignored,
        }
        Step::Stay
    }

    fn charts(&self, app: &App, body: Rect) -> Option<Rect> {
        if is_small(body) {
            return None;
        }
        let rows = GpuRow::of_frame(&app.frame).len();
        match self.layout(app, rows, body).below? {
            Below::Chart(rows) => Some(rows),
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
            Some(Anchor::Gpu(uuid)) => app.frame.gpus.iter().position(|gpu| gpu.uuid == *uuid),
            Some(Anchor::Process(id)) => {
                let row = app.rows.iter().position(|row| row.id() == *id);
                let shows = |line: &TableRow| line.row().is_some() && line.row() == row;
                below_gpus(app, shows)
            }
            Some(Anchor::Group(title)) => below_gpus(app, |line| {
                line.group().is_some_and(|group| group.title == *title)
            }),
            None => None,
        };
        match found {
            Some(at) => self.cursor = at,
            None => self.go(app, self.cursor),
        }
        self.follow_memory(app);
    }

    fn map(&self, app: &App, body: Rect) -> Option<(ProcessKey, u32)> {
        if is_small(body) {
            return None;
        }
        let layout = self.layout(app, GpuRow::of_frame(&app.frame).len(), body);
        match layout.below {
            Some(Below::Memory(rows)) => self.memory.as_ref()?.map(app, rows),
            _ => None,
        }
    }

    fn process<'a>(&self, app: &'a App) -> Option<&'a ProcessRow> {
        app.row_of_line(self.process_cursor(app)?)
    }

    fn gpu(&self, app: &App) -> Option<GpuUuid> {
        let gpus = &app.frame.gpus;
        let under = self.selected_gpu(app).or_else(|| gpus.first())?;
        Some(under.uuid.clone())
    }

    fn group<'a>(&self, app: &'a App) -> Option<&'a Group> {
        app.lines.get(self.process_cursor(app)?)?.group()
    }

    fn copied(&self, app: &App) -> Option<Copied> {
        let on_gpu = self.process_cursor(app).is_none();
        let gpu = app.frame.gpus.get(self.cursor).filter(|_| on_gpu);
        gpu.map(copy_text::gpu)
    }

    fn footer(&self) -> &'static [Action] {
        &[
            Action::Open,
            Action::Memory,
            Action::NextPane,
            Action::Filter,
            Action::Sort,
            Action::Signal,
            Action::Pause,
            Action::ScrollBack,
        ]
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}
