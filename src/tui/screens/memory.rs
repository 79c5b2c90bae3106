//! The memory of one process on one device, from inside its allocator: the accounting, what fits, the pool over time,
//! the map of its segments, the histogram of its free blocks, and the metrics by their standard names.
//!
//! Statistics come with every frame; the map is asked for while this screen is open and may be a second older. Parts
//! of the screen leave from below when there is little room; in a pane too small for any of them it is a few lines.

use std::sync::Arc;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::memory_figures::{Card, Figures, Read, STEP, down, gib};
use super::memory_metrics::{Metric, metric_lines};
use super::{Screen, ScreenDef, Step, moved};
use crate::allocator::warnings::Note;
use crate::model::gpu::Gpu;
use crate::model::history::SeriesKey;
use crate::model::pool::Pool;
use crate::model::process::ProcessKey;
use crate::model::stack::StackWhy;
use crate::model::units::{Bytes, GpuUuid, Millis, Mono};
use crate::source::Request;
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::pools;
use crate::tui::rows::{ProcessRow, RowId};
use crate::tui::stacks;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::bar::{self, Part};
use crate::tui::widgets::cells::{fit, put, put_all, put_right, wrap_words};
use crate::tui::widgets::pool_chart::PoolChart;
use crate::tui::widgets::segment_map::{self, Cursor, Fill, SegmentLayout};
use crate::tui::widgets::table::scrolled;
use crate::tui::widgets::{histogram, segment_map::pool_words, segment_map::stream_words};

pub const DEF: ScreenDef = ScreenDef {
    id: "memory",
    title: "Memory",
    words: &[
        (
            "allocated",
            "Bytes in live tensors: torch.cuda.memory_allocated().",
        ),
        (
            "idle",
            "Cached by the allocator, in no tensor: reserved - allocated.",
        ),
        (
            "stuck",
            "The part of idle beside live tensors (inactive split): only smaller requests of its stream can use it. \
             Of expandable segments, what is not a whole free page.",
        ),
        (
            "returnable",
            "The part of idle in whole free segments, which the allocator gives back by itself when it must.",
        ),
        (
            "kept",
            "Whole free segments of a CUDA graph or a MemPool: nobody else can use them.",
        ),
        (
            "waiting",
            "Freed, but another stream may still use it (record_stream).",
        ),
        (
            "other",
            "What the process holds beside its pool: CUDA context, libraries, other allocators. ~ when the samples \
             are of different moments.",
        ),
        (
            "elsewhere",
            "Used on this card by other processes, or by none that is visible here.",
        ),
        (
            "FITS",
            "The largest request that succeeds now: from the cache, from the driver, or after the cache is flushed.",
        ),
        (
            "retry",
            "A request for which the allocator had to flush its cache first.",
        ),
    ],
    sample: |app| {
        let with_pool = app.rows.iter().find(|row| row.pool().is_some());
        let row = with_pool.or(app.rows.first())?;
        Some(Box::new(MemoryScreen::new(row.id())))
    },
};

/// What the keys move in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pane {
    Map,
    Histogram,
    Metrics,
}

#[derive(Debug)]
pub struct MemoryScreen {
    process: ProcessKey,
    /// The GPU it was opened on.
    gpu: Option<GpuUuid>,
    /// The device as chosen with [ and ], by the process's own number.
    ordinal: Option<u32>,
    pane: Pane,
    cursor: Cursor,
    scroll: usize,
    /// The Python stack is to be asked for.
    ask_stack: bool,
    /// The newest map of this pool.
    read: Option<Read>,
}

impl MemoryScreen {
    pub fn new(id: RowId) -> Self {
        Self {
            process: id.key,
            gpu: id.gpu,
            ordinal: None,
            pane: Pane::Map,
            cursor: Cursor::default(),
            scroll: 0,
            ask_stack: false,
            read: None,
        }
    }

    /// Of a GPU's processes the one whose pool is known and that holds the most; else the one that holds the most.
    pub fn largest<'a>(rows: &'a [ProcessRow], gpu: &GpuUuid) -> Option<&'a ProcessRow> {
        rows.iter()
            .filter(|row| row.ended().is_none() && row.id().gpu.as_ref() == Some(gpu))
            .max_by_key(|row| (row.pool().is_some(), row.vram().get()))
    }

    /// The process's pools, by their number inside it.
    fn devices<'a>(&self, app: &'a App) -> Vec<&'a Pool> {
        let pools = app.frame.pools.as_ref();
        let mut list: Vec<&Pool> = pools
            .into_iter()
            .flat_map(|pools| pools.of(self.process))
            .collect();
        list.sort_by_key(|pool| pool.ordinal);
        list
    }

    /// The chosen device's, else the one of the GPU it was opened on, else the first.
    fn pool<'a>(&self, app: &'a App) -> Option<&'a Pool> {
        let devices = self.devices(app);
        let chosen = |pool: &&&Pool| Some(pool.ordinal) == self.ordinal;
        let opened = |pool: &&&Pool| {
            let on = pools::gpu_of(&app.frame, pool).map(|gpu| &gpu.uuid);
            on.is_some() && on == self.gpu.as_ref()
        };
        devices
            .iter()
            .find(chosen)
            .or_else(|| devices.iter().find(opened))
            .or(devices.first())
            .copied()
    }

    fn row<'a>(&self, app: &'a App) -> Option<&'a ProcessRow> {
        let mut rows = app.all_rows.iter().filter(|r| r.id().key == self.process);
        let first = rows.clone().next();
        rows.find(|row| row.id().gpu == self.gpu).or(first)
    }

    fn switch(&mut self, app: &App, step: isize) {
        let devices = self.devices(app);
        let now = self.pool(app).map(|pool| pool.ordinal);
        let at = devices.iter().position(|pool| Some(pool.ordinal) == now);
        let next = at.and_then(|at| devices.get(at.checked_add_signed(step)?));
        if let Some(pool) = next {
            self.ordinal = Some(pool.ordinal);
            (self.read, self.cursor, self.scroll) = (None, Cursor::default(), 0);
        }
    }

    fn move_cursor(&mut self, action: Action) -> Option<()> {
        let layout = self.read.as_ref().and_then(Read::drawn)?;
        let at = layout.nearest(self.cursor);
        self.cursor = match action {
            Action::Left => layout.left(at),
            Action::Right => layout.right(at),
            _ => Cursor {
                row: moved(at.row, layout.rows(), 10, action)?,
                ..self.cursor
            },
        };
        Some(())
    }
}

impl Screen for MemoryScreen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let Some(pool) = self.pool(app) else {
            return draw_without(self, app, area, buffer);
        };
        let figures = Figures::of(&app.frame, pool, self.read.as_ref());
        let view = Shown {
            screen: self,
            app,
            theme: &app.theme,
            pool,
            gpu: pools::gpu_of(&app.frame, pool),
            notes: app.pool_notes(self.process, pool.ordinal),
            figures,
            wide: area.width >= 96,
        };
        if area.height < 12 || area.width < 60 {
            view.small(area, buffer);
        } else {
            view.large(area, buffer);
        }
    }

    fn act(&mut self, action: Action, app: &App) -> Step {
        match action {
            Action::Memory => {}
            Action::Stack => self.ask_stack = true,
            Action::NextGpu => self.switch(app, 1),
            Action::PreviousGpu => self.switch(app, -1),
            Action::NextPane => {
                self.pane = match self.pane {
                    Pane::Map => Pane::Metrics,
                    Pane::Metrics => Pane::Histogram,
                    Pane::Histogram => Pane::Map,
                };
            }
            action if self.pane == Pane::Metrics => match moved(self.scroll, 100, 10, action) {
                Some(at) => self.scroll = at,
                None => return Step::Ignored,
            },
            action => {
                let moves = matches!(action, Action::Left | Action::Right)
                    || moved(0, 1, 1, action).is_some();
                if !moves {
                    return Step::Ignored;
                }
                self.move_cursor(action);
            }
        }
        Step::Stay
    }

    fn follow(&mut self, app: &App) {
        let Some(ordinal) = self.pool(app).map(|pool| pool.ordinal) else {
            return;
        };
        let mine = app
            .map
            .as_ref()
            .filter(|map| map.process == self.process && map.ordinal == ordinal);
        let Some(map) = mine else {
            self.read = None;
            return;
        };
        if !self
            .read
            .as_ref()
            .is_some_and(|read| Arc::ptr_eq(&read.map, map))
        {
            self.read = Some(Read::new(Arc::clone(map)));
        }
    }

    fn wants(&mut self, _app: &App) -> Option<Request> {
        std::mem::take(&mut self.ask_stack).then_some(Request::Stacks(self.process))
    }

    fn map(&self, app: &App) -> Option<(ProcessKey, u32)> {
        Some((self.process, self.pool(app)?.ordinal))
    }

    fn footer(&self) -> &'static [Action] {
        &[
            Action::Back,
            Action::Right,
            Action::NextPane,
            Action::NextGpu,
            Action::Stack,
            Action::ZoomOut,
            Action::Help,
        ]
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}

/// The title, and why there is nothing below it.
fn draw_without(screen: &MemoryScreen, app: &App, area: Rect, buffer: &mut Buffer) {
    let theme = &app.theme;
    let row = screen.row(app);
    let name = row.map_or("process".into(), process_name);
    let title = format!("{name} {}", screen.process.pid);
    let x = area.x + 1;
    let width = area.width.saturating_sub(2);
    put(buffer, x, area.y, &title, width, theme.style(Role::Title));
    let why = match row {
        Some(row) if row.ended().is_some() => "the process has ended".to_owned(),
        None => "the process has left the GPU".to_owned(),
        Some(_) => pools::why_none(&app.frame, screen.process).to_string(),
    };
    let mut lines = vec![format!("its allocator cannot be shown: {why}")];
    if let Some(vram) = row.and_then(|row| row.vram().get()) {
        lines.push(format!("the driver counts {vram} for it"));
    }
    let lines = lines
        .iter()
        .flat_map(|line| wrap_words(line, usize::from(width.max(10))));
    let mut y = area.y + 1;
    for line in lines.take(usize::from(area.height.saturating_sub(1))) {
        put(buffer, x, y, &line, width, theme.style(Role::Warn));
        y += 1;
    }
    let stack = stack_lines(app, screen.process, width, 3);
    let rest = Rect {
        x,
        y: y.min(area.bottom()),
        width,
        height: area.bottom().saturating_sub(y),
    };
    draw_lines(&stack, rest, buffer, theme);
}

fn stack_lines(app: &App, process: ProcessKey, width: u16, most: usize) -> Vec<(String, Role)> {
    let Some(stack) = app.stacks(process).next() else {
        return Vec::new();
    };
    let stack = match stack {
        Ok(stack) => stack,
        Err(why) => return vec![(format!("Python stack  {why}"), Role::Dim)],
    };
    let why = stacks::why_words(stack, app.frame.mono);
    let mut lines = vec![(format!("Python stack  {why}"), Role::Dim)];
    let mut frames = wrap_words(&stacks::frames_words(stack), usize::from(width.max(10)));
    if frames.len() > most {
        let rest = frames.split_off(most - 1).join(" ");
        frames.push(fit(&rest, usize::from(width), app.theme.glyphs.ellipsis).into_owned());
    }
    lines.extend(frames.into_iter().map(|line| (line, Role::Text)));
    lines
}

fn draw_lines(lines: &[(String, Role)], area: Rect, buffer: &mut Buffer, theme: &Theme) {
    for (y, (text, role)) in (area.y..area.bottom()).zip(lines) {
        let text = fit(text, usize::from(area.width), theme.glyphs.ellipsis);
        put(buffer, area.x, y, &text, area.width, theme.style(*role));
    }
}

/// What runs, without its arguments: `train.py`.
fn process_name(row: &ProcessRow) -> String {
    let command = row.command();
    let first = command.value().and_then(|c| c.split(' ').next());
    first.unwrap_or("process").to_owned()
}

/// `NVIDIA GeForce RTX 4090` as `RTX 4090`.
fn card_name(gpu: &Gpu) -> &str {
    let name = gpu.name.strip_prefix("NVIDIA ").unwrap_or(&gpu.name);
    name.strip_prefix("GeForce ").unwrap_or(name)
}

/// `0.2s`, `14s`
fn ago(now: Mono, at: Mono) -> String {
    let ms = now.since(at).0;
    if ms < 10_000 {
        format!("{}.{}s", ms / 1_000, ms / 100 % 10)
    } else {
        crate::tui::widgets::timeline::span_words(Millis(ms))
    }
}

/// One line of the accounting.
struct Line {
    shape: Option<(&'static str, Role)>,
    name: &'static str,
    words: String,
    size: String,
    peak: String,
    compare: String,
}

/// What one drawing needs.
struct Shown<'a> {
    screen: &'a MemoryScreen,
    app: &'a App,
    theme: &'a Theme,
    pool: &'a Pool,
    gpu: Option<&'a Gpu>,
    notes: Vec<Note>,
    figures: Figures,
    /// There is room for whole words.
    wide: bool,
}

impl Shown<'_> {
    fn small(&self, area: Rect, buffer: &mut Buffer) {
        let mut lines = self.small_lines(area.width);
        let theme = self.theme;
        let top = Rect { height: 1, ..area };
        self.title(top, buffer);
        if area.height > 1 {
            let row = Rect {
                y: area.y + 1,
                ..top
            };
            self.bar(row, buffer);
        }
        let below = area.height.saturating_sub(2);
        lines.truncate(usize::from(below));
        for (y, (text, role)) in (area.y + 2..).zip(&lines) {
            let text = fit(text, usize::from(area.width), theme.glyphs.ellipsis);
            put(buffer, area.x, y, &text, area.width, theme.style(*role));
        }
        let used = u16::try_from(lines.len()).unwrap_or(below);
        if below > used + 2 {
            let rest = Rect {
                y: area.y + 2 + used,
                height: below - used,
                ..area
            };
            self.lower(rest, buffer);
        }
    }

    fn small_lines(&self, width: u16) -> Vec<(String, Role)> {
        let figures = &self.figures;
        let tenths = |size: Bytes| format!("{:.1}", size.as_gib());
        let size = |size: Option<Bytes>| size.map_or(self.theme.glyphs.absent.into(), tenths);
        // Rounded down: what is promised to fit does.
        let step = STEP * 10;
        let fits = figures.fits.largest().map(|f| Bytes(f.0 / step * step));
        let mut lines = vec![
            (
                format!(
                    "alloc {} idle {} stuck {} FITS {}",
                    tenths(figures.allocated),
                    tenths(figures.idle),
                    size(figures.idle_parts.map(|p| p.stuck)),
                    size(fits)
                ),
                Role::Text,
            ),
            (self.counters(), self.counters_role()),
        ];
        lines.extend(
            self.notes
                .iter()
                .map(|note| (note.text.clone(), Role::Warn)),
        );
        lines.extend(stack_lines(self.app, self.screen.process, width, 1));
        let headline = figures.headline();
        lines.extend(
            wrap_words(&headline, usize::from(width.max(10)))
                .into_iter()
                .map(|line| (line, Role::Dim)),
        );
        lines
    }

    fn large(&self, area: Rect, buffer: &mut Buffer) {
        let inner = Rect {
            x: area.x + 1,
            width: area.width.saturating_sub(2),
            ..area
        };
        let mut y = area.y;
        let mut next = |height: u16| {
            let row = Rect {
                y,
                height: height.min(area.bottom().saturating_sub(y)),
                ..inner
            };
            y += row.height;
            row
        };
        self.title(next(1), buffer);
        self.headline(next(1), buffer);
        let lines = self.lines();
        self.table(&lines, next(1 + len(&lines)), buffer);
        self.fits_line(next(1), buffer);
        if let Some(note) = self.notes.first().filter(|_| area.height >= 16) {
            self.note(note, next(1), buffer);
        }
        let stack = self.stack_lines(inner.width, if area.height < 32 { 1 } else { 3 });
        // What nobody asked for does not take the chart's place.
        let least = if self.is_stack_asked() { 16 } else { 26 };
        if area.height >= least && !stack.is_empty() {
            draw_lines(
                &stack,
                next(u16::try_from(stack.len()).unwrap_or(0)),
                buffer,
                self.theme,
            );
        }
        let left = area.bottom().saturating_sub(y);
        let chart = match left {
            0..=9 => 0,
            10..=13 => 3,
            14..=20 => 5,
            more => (more / 4).clamp(6, 12),
        };
        let (chart, lower) = {
            let top = y;
            let chart = Rect {
                y: top,
                height: chart,
                ..inner
            };
            (
                chart,
                Rect {
                    y: top + chart.height,
                    height: left - chart.height,
                    ..inner
                },
            )
        };
        self.chart(chart, buffer);
        self.lower(lower, buffer);
    }

    /// The newest Python stack: what it was taken for, and at most so many lines of its frames.
    fn stack_lines(&self, width: u16, most: usize) -> Vec<(String, Role)> {
        stack_lines(self.app, self.screen.process, width, most)
    }

    fn is_stack_asked(&self) -> bool {
        let newest = self.app.stacks(self.screen.process).next();
        newest.is_some_and(|stack| {
            stack
                .as_ref()
                .map_or(true, |stack| stack.why == StackWhy::Request)
        })
    }

    fn title(&self, area: Rect, buffer: &mut Buffer) {
        let theme = self.theme;
        let name = self
            .screen
            .row(self.app)
            .map_or("process".into(), process_name);
        let pid = format!(" {}  ", self.screen.process.pid);
        let gpu = match self.gpu {
            Some(gpu) => format!("GPU{} {}", gpu.index, card_name(gpu)),
            None => format!(
                "cuda:{} (which GPU that is could not be told)",
                self.pool.ordinal
            ),
        };
        let devices = self.screen.devices(self.app).len();
        let devices = if devices > 1 {
            format!("  cuda:{} of {devices} ([ ])", self.pool.ordinal)
        } else {
            String::new()
        };
        let state = if area.width < 60 {
            format!("{} ago", self.age())
        } else {
            self.map_state()
        };
        let right = put_right(
            buffer,
            area.x,
            area.right(),
            area.y,
            &state,
            theme.style(Role::Dim),
        );
        let library = format!("  {}", self.pool.library);
        let dim = theme.style(Role::Dim);
        let pieces = [
            (name.as_str(), theme.style(Role::Title)),
            (pid.as_str(), theme.style(Role::Title)),
            (gpu.as_str(), theme.style(Role::Text)),
            (devices.as_str(), theme.style(Role::Key)),
            (library.as_str(), dim),
        ];
        put_all(buffer, area.x, area.y, right.saturating_sub(1), &pieces);
    }

    /// How old the newest of what is shown is.
    fn age(&self) -> String {
        let at = match &self.screen.read {
            Some(read) => read.map.at,
            None => self.pool.at,
        };
        ago(self.app.frame.mono, at)
    }

    fn map_state(&self) -> String {
        let exact = match &self.screen.read {
            None => "",
            Some(read) if read.map.exact => "exact, ",
            Some(_) => "approximate, ",
        };
        format!("{exact}read {} ago", self.age())
    }

    fn headline(&self, area: Rect, buffer: &mut Buffer) {
        let text = self.figures.headline();
        let text = fit(&text, usize::from(area.width), self.theme.glyphs.ellipsis);
        let role = if text.contains("yet one") {
            Role::Warn
        } else {
            Role::Good
        };
        put(
            buffer,
            area.x,
            area.y,
            &text,
            area.width,
            self.theme.style(role),
        );
    }

    fn bar(&self, area: Rect, buffer: &mut Buffer) {
        let (figures, glyphs) = (&self.figures, &self.theme.glyphs);
        let card = figures.card.unwrap_or_default();
        let parts = [
            (figures.allocated, glyphs.allocated, Role::Allocated),
            (figures.idle, glyphs.idle, Role::Idle),
            (
                figures.other.unwrap_or_default(),
                glyphs.other,
                Role::OtherVram,
            ),
            (card.elsewhere, glyphs.whole, Role::Processes),
            (card.driver, glyphs.driver, Role::Driver),
            (card.free, glyphs.free, Role::Free),
        ]
        .map(|(size, glyph, role)| Part {
            amount: size.0,
            glyph,
            style: self.theme.style(role),
        });
        bar::draw(buffer, area.x, area.y, area.width, &parts);
    }

    fn lines(&self) -> Vec<Line> {
        let (figures, glyphs) = (&self.figures, &self.theme.glyphs);
        let stats = &self.pool.stats;
        let peak = |size: Bytes| if size.0 > 0 { gib(size) } else { String::new() };
        let absent = || glyphs.absent.to_owned();
        let line = |shape, name, words: &str, size: String| Line {
            shape,
            name,
            words: words.into(),
            size,
            peak: String::new(),
            compare: String::new(),
        };
        let mut lines = vec![Line {
            peak: peak(stats.allocated_peak),
            compare: "memory_allocated()".into(),
            ..line(
                Some((glyphs.allocated, Role::Allocated)),
                "allocated",
                "in live tensors",
                gib(figures.allocated),
            )
        }];
        lines.push(Line {
            compare: format!(
                "reserved {}",
                gib(Bytes(figures.allocated.0 + figures.idle.0))
            ),
            ..line(
                Some((glyphs.idle, Role::Idle)),
                "idle",
                "reserved - allocated",
                gib(figures.idle),
            )
        });
        match figures.idle_parts {
            None => lines.push(line(
                None,
                "  stuck",
                "expandable segments: only the map tells",
                absent(),
            )),
            Some(parts) => {
                lines.push(line(
                    None,
                    "  stuck",
                    "beside live tensors",
                    gib(parts.stuck),
                ));
                let words = self.whole_words();
                lines.push(line(None, "  returnable", words, gib(parts.returnable)));
                if parts.kept.0 > 0 {
                    let words = "for CUDA graphs, MemPools";
                    lines.push(line(None, "  kept", words, gib(parts.kept)));
                }
                if parts.waiting.0 > 0 {
                    let words = "for another stream";
                    lines.push(line(None, "  waiting", words, gib(parts.waiting)));
                }
            }
        }
        let about = if figures.approximate { "~" } else { "" };
        let other = figures
            .other
            .map_or_else(absent, |o| format!("{about}{}", gib(o)));
        let shape = Some((glyphs.other, Role::OtherVram));
        lines.push(line(shape, "other", "context, libraries", other));
        lines.push(self.process_line());
        if let Some(card) = figures.card {
            if card.elsewhere.0 > 0 {
                let shape = Some((glyphs.whole, Role::Processes));
                let words = "other processes on the card";
                lines.push(line(shape, "elsewhere", words, gib(card.elsewhere)));
            }
            let words = self.free_words(card);
            let shape = Some((glyphs.free, Role::Free));
            lines.push(line(shape, "free", &words, gib(card.free)));
        }
        lines
    }

    fn free_words(&self, card: Card) -> String {
        let elsewhere = if card.elsewhere.0 > 0 {
            " - elsewhere"
        } else {
            ""
        };
        let (total, driver) = (gib(card.total), gib(card.driver));
        if self.wide {
            format!("card {total} - driver {driver} - process{elsewhere}")
        } else {
            format!("{total} - {driver} - process{elsewhere}")
        }
    }

    fn whole_words(&self) -> &'static str {
        match &self.screen.read {
            Some(read) if read.fragmentation.expandable => "whole segments and pages",
            _ => "whole segments",
        }
    }

    fn process_line(&self) -> Line {
        let vram = pools::vram(&self.app.frame, self.pool);
        let peak = self.gpu.and_then(|gpu| {
            let key = SeriesKey::Vram(self.screen.process, gpu.uuid.clone());
            let day = Millis(86_400_000);
            let series = self.app.history.series(&key)?;
            series.window(self.app.frame.mono, day, 1)[0]
        });
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let peak = peak.map_or(String::new(), |span| gib(Bytes(span.1 as u64)));
        Line {
            shape: None,
            name: "process",
            words: String::new(),
            size: gib(self.figures.process),
            peak,
            compare: match vram {
                Some(vram) => format!("nvidia-smi {} MiB", vram.0 >> 20),
                None => "not listed by the driver".into(),
            },
        }
    }

    /// The bar with the headings in its row, and the lines below it.
    fn table(&self, lines: &[Line], area: Rect, buffer: &mut Buffer) {
        let theme = self.theme;
        // Wider, the eye would lose the line between a name and its figure.
        let area = Rect {
            width: area.width.min(120),
            ..area
        };
        let compare = if self.wide { 26 } else { 20 };
        let right = area.right().saturating_sub(compare + 2);
        let (peak_at, size_at) = (right, right.saturating_sub(8));
        let dim = theme.style(Role::Dim);
        let bar = Rect {
            width: size_at.saturating_sub(area.x + 9),
            ..area
        };
        self.bar(bar, buffer);
        put_right(buffer, area.x, size_at, area.y, "GiB", dim);
        put_right(buffer, area.x, peak_at, area.y, "peak", dim);
        put(buffer, right + 2, area.y, "compare", compare, dim);
        for (y, line) in (area.y + 1..area.bottom()).zip(lines) {
            if let Some((glyph, role)) = line.shape {
                put(buffer, area.x, y, glyph, 1, theme.style(role));
            }
            let text = theme.style(Role::Text);
            put(buffer, area.x + 2, y, line.name, 13, text);
            let room = size_at.saturating_sub(area.x + 15 + 8);
            let words = fit(&line.words, usize::from(room), theme.glyphs.ellipsis);
            put(buffer, area.x + 15, y, &words, room, dim);
            put_right(buffer, area.x, size_at, y, &line.size, text);
            put_right(buffer, area.x, peak_at, y, &line.peak, dim);
            put(buffer, right + 2, y, &line.compare, compare, dim);
        }
    }

    fn fits_line(&self, area: Rect, buffer: &mut Buffer) {
        let theme = self.theme;
        let size = |size: Option<Bytes>| size.map_or(theme.glyphs.absent.into(), down);
        let fits = &self.figures.fits;
        let names = if self.wide {
            [" cache ", "   driver ", "   after flush "]
        } else {
            ["cache ", "  driver ", "  flushed "]
        };
        let steps = [
            (names[0], size(fits.cache)),
            (names[1], size(fits.driver)),
            (names[2], size(fits.flushed)),
        ];
        let (dim, text) = (theme.style(Role::Dim), theme.style(Role::Text));
        let mut pieces = vec![("FITS ", theme.style(Role::Title))];
        for (name, size) in &steps {
            pieces.extend([(*name, dim), (size.as_str(), text)]);
        }
        let end = put_all(buffer, area.x, area.y, area.right(), &pieces);
        put_right(
            buffer,
            end + 2,
            area.right(),
            area.y,
            &self.counters(),
            theme.style(self.counters_role()),
        );
    }

    /// `RETRIES 2 (11:58)   OOM 1`
    fn counters(&self) -> String {
        use crate::allocator::warnings::NoteKind::{OomCaught, RetriesRising};
        let stats = &self.pool.stats;
        let since = |kind| {
            let note = self.notes.iter().find(|note| note.kind == kind);
            note.map_or(String::new(), |note| {
                format!(" ({})", self.clock(note.since))
            })
        };
        let caught = if stats.num_ooms > 0 { " (caught)" } else { "" };
        let oom = match since(OomCaught) {
            time if time.is_empty() => caught.to_owned(),
            time => time,
        };
        format!(
            "RETRIES {}{}  OOM {}{oom}",
            stats.num_alloc_retries,
            since(RetriesRising),
            stats.num_ooms
        )
    }

    fn counters_role(&self) -> Role {
        let stats = &self.pool.stats;
        if stats.num_ooms > 0 {
            Role::Bad
        } else if stats.num_alloc_retries > 0 {
            Role::Warn
        } else {
            Role::Dim
        }
    }

    /// A moment of the past by the wall clock.
    fn clock(&self, at: Mono) -> String {
        let frame = &self.app.frame;
        let back = i64::try_from(frame.mono.since(at).0).unwrap_or(0);
        let time = crate::model::units::UnixMillis(frame.time.0.saturating_sub(back));
        self.theme.clock(time, "%H:%M")
    }

    fn note(&self, note: &Note, area: Rect, buffer: &mut Buffer) {
        let text = format!("note  since {}: {}", self.clock(note.since), note.text);
        let text = fit(&text, usize::from(area.width), self.theme.glyphs.ellipsis);
        put(
            buffer,
            area.x,
            area.y,
            &text,
            area.width,
            self.theme.style(Role::Warn),
        );
    }

    /// All notes, where the first one is not all there are.
    fn note_lines(&self) -> Vec<Metric> {
        if self.notes.len() < 2 {
            return Vec::new();
        }
        let heading = Metric {
            name: "NOTES".into(),
            value: String::new(),
            words: String::new(),
        };
        let line = |note: &Note| Metric {
            name: format!("since {}", self.clock(note.since)),
            value: " ".into(),
            words: note.text.clone(),
        };
        std::iter::once(heading)
            .chain(self.notes.iter().map(line))
            .collect()
    }

    fn chart(&self, area: Rect, buffer: &mut Buffer) {
        let top = self
            .gpu
            .and_then(|gpu| gpu.memory.total.get())
            .unwrap_or(self.pool.stats.reserved_peak);
        PoolChart {
            history: &self.app.history,
            process: self.screen.process,
            ordinal: self.pool.ordinal,
            end: self.app.frame.mono,
            length: self.app.chart_length(),
            top,
        }
        .draw(area, buffer, self.theme);
    }

    /// Map, histogram and metrics: as many as there is room for; Tab brings the others.
    fn lower(&self, area: Rect, buffer: &mut Buffer) {
        if area.height < 2 {
            return;
        }
        let Some(read) = &self.screen.read else {
            let text = "MAP  the map is being read";
            put(
                buffer,
                area.x,
                area.y,
                text,
                area.width,
                self.theme.style(Role::Dim),
            );
            return;
        };
        let mut metrics = metric_lines(self.pool, read, self.theme);
        metrics.extend(self.note_lines());
        let both = area.height >= 20;
        let below = u16::try_from(metrics.len())
            .unwrap_or(u16::MAX)
            .min(area.height / 2);
        let upper = Rect {
            height: area.height - if both { below } else { 0 },
            ..area
        };
        let lower = Rect {
            y: upper.bottom(),
            height: area.height - upper.height,
            ..area
        };
        match self.screen.pane {
            Pane::Metrics if !both => self.metrics(&metrics, area, buffer),
            pane => {
                self.blocks(read, pane, upper, buffer);
                self.metrics(&metrics, lower, buffer);
            }
        }
    }

    /// Map and histogram side by side, or the one of them that is chosen.
    fn blocks(&self, read: &Read, pane: Pane, area: Rect, buffer: &mut Buffer) {
        let line = u16::from(area.height >= 4);
        let under = Rect {
            y: area.bottom() - line,
            height: line,
            ..area
        };
        let area = Rect {
            height: area.height - line,
            ..area
        };
        if area.width < 76 {
            match pane {
                Pane::Histogram => {
                    histogram::draw(&read.fragmentation.histogram, area, buffer, self.theme);
                }
                _ => self.map(read, area, under, buffer),
            }
            return;
        }
        let right = (area.width * 2 / 5).clamp(32, 60);
        let left = Rect {
            width: area.width - right - 2,
            ..area
        };
        self.map(read, left, under, buffer);
        let right = Rect {
            x: area.right() - right,
            width: right,
            ..area
        };
        histogram::draw(&read.fragmentation.histogram, right, buffer, self.theme);
    }

    /// `under` is the line for what the cursor is on, if there is one.
    fn map(&self, read: &Read, area: Rect, under: Rect, buffer: &mut Buffer) {
        let theme = self.theme;
        let cells = Rect {
            y: area.y + 1,
            height: area.height - 1,
            ..area
        };
        let layout = read.layout(segment_map::cells_per_row(cells), usize::from(cells.height));
        let cursor = layout.nearest(self.screen.cursor);
        let title = map_title(&layout, read, area.width);
        put(
            buffer,
            area.x,
            area.y,
            "MAP",
            area.width,
            theme.style(Role::Title),
        );
        put(
            buffer,
            area.x + 5,
            area.y,
            &title,
            area.width.saturating_sub(5),
            theme.style(Role::Dim),
        );
        let offset = scrolled(cursor.row, layout.rows(), usize::from(cells.height));
        layout.draw(&read.map, offset, Some(cursor), cells, buffer, theme);
        if under.height > 0 {
            self.under(read, &layout, cursor, under, buffer);
        }
    }

    /// What the cell under the cursor holds.
    fn under(
        &self,
        read: &Read,
        layout: &SegmentLayout,
        cursor: Cursor,
        area: Rect,
        buffer: &mut Buffer,
    ) {
        let Some(under) = layout.under(&read.map, cursor) else {
            return;
        };
        let theme = self.theme;
        let segment = under.segment;
        let kind = if segment.expandable {
            " expandable"
        } else {
            ""
        };
        let mut text = format!(
            "{:x} {}{kind} {} stream {} +{}:",
            segment.address,
            segment.size.short(),
            pool_words(segment.pool),
            stream_words(segment.stream),
            Bytes(under.from).short()
        );
        let shown = if area.width >= 96 { 8 } else { 4 };
        for block in under.blocks.iter().take(shown) {
            let fill = Fill::of(block.state);
            text.push_str(&format!(" {} {}", fill.glyph(theme), block.size.short()));
        }
        if under.blocks.len() > shown {
            text.push_str(&format!(" and {} more", under.blocks.len() - shown));
        }
        let text = fit(&text, usize::from(area.width), theme.glyphs.ellipsis);
        put(
            buffer,
            area.x,
            area.y,
            &text,
            area.width,
            theme.style(Role::Text),
        );
    }

    fn metrics(&self, lines: &[Metric], area: Rect, buffer: &mut Buffer) {
        if area.height == 0 {
            return;
        }
        let theme = self.theme;
        let last = lines.len().saturating_sub(usize::from(area.height));
        let first = self.screen.scroll.min(last);
        for (y, line) in (area.y..area.bottom()).zip(lines.iter().skip(first)) {
            let style = theme.style(if line.value.is_empty() {
                Role::Title
            } else {
                Role::Dim
            });
            put(buffer, area.x, y, &line.name, 26, style);
            let value = theme.style(Role::Text);
            put_right(buffer, area.x + 26, area.x + 38, y, &line.value, value);
            let room = area.width.saturating_sub(40);
            let words = fit(&line.words, usize::from(room), theme.glyphs.ellipsis);
            put(buffer, area.x + 40, y, &words, room, theme.style(Role::Dim));
        }
    }
}

fn len(lines: &[Line]) -> u16 {
    u16::try_from(lines.len()).unwrap_or(u16::MAX)
}

fn map_title(layout: &SegmentLayout, read: &Read, width: u16) -> String {
    let cell = layout.cell.to_string();
    let cell = cell
        .strip_suffix(".00 MiB")
        .map_or_else(|| layout.cell.short(), |whole| format!("{whole} MiB"));
    let wide = if width >= 60 {
        ", rows = segments, large first"
    } else if width >= 40 {
        ", rows = segments"
    } else {
        ""
    };
    let exact = if read.map.exact {
        ""
    } else {
        "; approximate: it changed while read"
    };
    format!("cell {cell}{wide}{exact}")
}
