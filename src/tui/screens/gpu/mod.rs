//! The screen of one GPU: its memory, history and processes, and everything that NVML reports about it.

mod facts;
pub mod timelines;

use gputop_model::gpu::{Gpu, HealthState};
use gputop_model::units::GpuUuid;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use self::facts::{dimmed, facts_of, identity_only};
use super::gpu_table::parts;
use super::process::ProcessScreen;
use super::process_table::{Pressed, draw_processes, hit};
use crate::dashboard::gpu_columns::{full_note, notes};
use crate::dashboard::memory_parts::{has_pools, split_of};
use crate::dashboard::rows::ProcessRow;
use crate::tui::action::{Action, moved};
use crate::tui::app::App;
use crate::tui::clipboard::Copied;
use crate::tui::screen::{Effect, Hit, Screen, ScreenDef, is_small, no_more_gpus};
use crate::tui::theme::Role;
use crate::tui::widgets::area::{margin, row};
use crate::tui::widgets::bar;
use crate::tui::widgets::cells::{put_fitting, put_line, put_line_right};
use crate::tui::widgets::facts::{
    Fact, capacity, draw as draw_facts, line_width, lines as fact_lines,
};
use crate::tui::widgets::scroll::Scroll;
use crate::tui::{copy_text, marks};

pub const DEF: ScreenDef = ScreenDef {
    id: "gpu",
    title: "GPU",
    glossary: &[
        marks::WORDS[0],
        marks::WORDS[1],
        marks::WORDS[2],
        (
            "FITS",
            "Largest tensor that a new process can allocate: the free memory, less about 0.5 GiB for its CUDA context.",
        ),
        ("every sample", "Read at every sampling interval."),
        ("10 s", "Read every 10 s, because it rarely changes or is expensive to query."),
        ("while shown", "Read only while this screen is open, because the call takes 2 to 40 ms."),
        ("once", "Read once, when gputop opened the GPU."),
    ],
    sample: |app| Some(Box::new(GpuScreen::new(app.host.frame.gpus.first()?.uuid.clone()))),
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pane {
    Processes,
    Facts,
}

#[derive(Debug)]
pub struct GpuScreen {
    uuid: GpuUuid,
    pane: Pane,
    cursor: usize,
    scroll: Scroll,
}

/// Areas of the GPU screen below the title and the bar. Areas that do not fit are empty.
struct ScreenParts {
    chart: Rect,
    processes: Rect,
    facts: Rect,
}

/// Minimum width of a facts column, in terminal columns.
const MIN_FACTS: u16 = 58;

impl GpuScreen {
    pub fn new(uuid: GpuUuid) -> Self {
        Self { uuid, pane: Pane::Processes, cursor: 0, scroll: Scroll::default() }
    }

    fn gpu<'a>(&self, app: &'a App) -> Option<&'a Gpu> {
        app.host.frame.gpus.iter().find(|gpu| gpu.uuid == self.uuid)
    }

    fn gpu_rows<'a>(&self, app: &'a App) -> impl Iterator<Item = &'a ProcessRow> {
        app.host.processes.rows.iter().filter(|row| row.id().gpu.as_ref() == Some(&self.uuid))
    }

    fn rows(&self, app: &App) -> Vec<ProcessRow> {
        self.gpu_rows(app).cloned().collect()
    }

    /// Moves forward or backward by a number of GPUs. Does nothing beyond the first or last GPU.
    fn switch(&mut self, app: &App, step: isize) -> Effect {
        let gpus = &app.host.frame.gpus;
        let at = gpus.iter().position(|gpu| gpu.uuid == self.uuid);
        let to = at.unwrap_or(0).checked_add_signed(step);
        let Some(gpu) = to.and_then(|to| gpus.get(to)) else {
            return Effect::Message(no_more_gpus(gpus.len(), step));
        };
        *self = Self { pane: self.pane, ..Self::new(gpu.uuid.clone()) };
        Effect::Done
    }

    fn parts(&self, app: &App, area: Rect) -> ScreenParts {
        let left = area.height.saturating_sub(2);
        let is_never_read = |gpu: &Gpu| {
            let has_no_values =
                matches!(gpu.health.state, HealthState::Asleep | HealthState::Denied);
            has_no_values && gpu.memory.total.get().is_none()
        };
        let has_chart = left >= 18 && !self.gpu(app).is_some_and(is_never_read);
        let chart = if has_chart { (left / 3).clamp(6, 14) } else { 0 };
        let wanted = u16::try_from(self.rows(app).len().max(1) + 1).unwrap_or(u16::MAX);
        let max_processes = if is_small(area) { left } else { (left - chart) / 3 + 1 };
        let processes = wanted.min(max_processes).min(left - chart);
        let rest = left.saturating_sub(chart + processes);
        let at = |y: u16, height: u16| Rect {
            x: area.x + 1,
            y: area.y + y,
            width: area.width.saturating_sub(2),
            height,
        };
        ScreenParts {
            chart: at(2, chart),
            processes: Rect { x: area.x, width: area.width, ..at(2 + chart, processes) },
            facts: at(2 + chart + processes + 1, rest.saturating_sub(1)),
        }
    }

    /// Returns true if a process uses the GPU, also if the filter hides it.
    fn has_processes(&self, app: &App) -> bool {
        let mut rows = app.host.processes.all_rows.iter();
        rows.any(|row| row.id().gpu.as_ref() == Some(&self.uuid))
    }

    fn draw_processes(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let rows = self.rows(app);
        if rows.is_empty() {
            let why = self.gpu(app).and_then(|gpu| gpu.processes.why());
            let text = match why {
                Some(why) => format!("Process list not available: {why}"),
                None if self.has_processes(app) => {
                    "No process on this GPU matches the filter".into()
                }
                None => "No process uses this GPU".into(),
            };
            put_line(buffer, margin(area), &text, Role::Dim, &app.ui.theme);
            return;
        }
        draw_processes(app, &rows, self.cursor, self.pane == Pane::Processes, area, buffer);
    }

    fn draw_facts(&self, gpu: &Gpu, app: &App, area: Rect, buffer: &mut Buffer) {
        let lines = wrapped_facts(gpu, app, area);
        let shown = capacity(area, MIN_FACTS);
        let first = self.scroll.first(lines.len(), shown);
        let last = lines.len().saturating_sub(shown);
        let look = (&app.ui.theme, app.ui.shows_sources);
        draw_facts(&lines, first, area, MIN_FACTS, look, buffer);
        if last > 0 && self.pane == Pane::Processes {
            let tab = app.ui.keymap.label(Action::NextPane);
            let hint = format!("{last} more lines, {tab} scrolls ");
            put_line_right(buffer, row(area, area.y - 1), &hint, Role::Dim, &app.ui.theme);
        }
    }
}

/// Returns the fact lines of a GPU for an area. Facts of an unresponsive GPU are dimmed.
fn wrapped_facts(gpu: &Gpu, app: &App, area: Rect) -> Vec<Fact> {
    let facts = match gpu.health.state {
        HealthState::Answering => facts_of(gpu, &app.host.frame, &app.ui.theme),
        HealthState::Asleep | HealthState::Denied | HealthState::Lost => identity_only(gpu),
        _ => dimmed(facts_of(gpu, &app.host.frame, &app.ui.theme)),
    };
    fact_lines(&facts, line_width(area, MIN_FACTS))
}

/// Draws the title `GPU 0  NVIDIA H200  0000:3b:00` and the messages about the GPU.
fn draw_title(gpu: &Gpu, app: &App, area: Rect, buffer: &mut Buffer) {
    let theme = &app.ui.theme;
    let name = format!("GPU {}  {}", gpu.index, gpu.name);
    let full = full_note(&app.host.processes.all_rows, gpu);
    let notes: Vec<_> = full.into_iter().chain(notes(gpu, &app.host.frame)).collect();
    let bus = gpu.board.pci_bus.value().map(|bus| (bus.as_str(), Role::Dim));
    let bus = bus.filter(|_| !is_small(area));
    let notes = notes.iter().map(|note| (&*note.text, note.emphasis.into()));
    let parts = std::iter::once((name.as_str(), Role::Title)).chain(bus).chain(notes);
    put_fitting(buffer, margin(area), parts, theme);
}

impl Screen for GpuScreen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let Some(gpu) = self.gpu(app) else {
            put_line(
                buffer,
                margin(area),
                "The driver no longer reports this GPU",
                Role::Warn,
                &app.ui.theme,
            );
            return;
        };
        draw_title(gpu, app, area, buffer);
        if let Some(split) = split_of(gpu, &app.host.frame)
            && area.height > 1
        {
            bar::draw(
                buffer,
                area.x + 1,
                area.y + 1,
                area.width.saturating_sub(2),
                &parts(&split, has_pools(&split), &app.ui.theme),
            );
        }
        let parts = self.parts(app, area);
        if parts.chart.height > 0 {
            timelines::of_gpu(gpu, app).draw(parts.chart, buffer, &app.ui.theme);
        }
        self.draw_processes(app, parts.processes, buffer);
        if parts.facts.height > 0 {
            self.draw_facts(gpu, app, parts.facts, buffer);
        }
    }

    fn click(&mut self, app: &App, place: Position, body: Rect) -> Hit {
        let parts = self.parts(app, body);
        if parts.facts.contains(place) {
            self.pane = Pane::Facts;
            return Hit::Row;
        }
        if !parts.processes.contains(place) {
            return Hit::Nothing;
        }
        let rows = self.rows(app);
        match hit(app, rows.len(), self.cursor, place, parts.processes) {
            Some(Pressed::Heading(column)) => Hit::Column(column),
            Some(Pressed::Row(line)) => {
                let same = self.pane == Pane::Processes && line == self.cursor;
                (self.pane, self.cursor) = (Pane::Processes, line);
                if same { Hit::SameRow } else { Hit::Row }
            }
            None => Hit::Nothing,
        }
    }

    fn act(&mut self, action: Action, app: &App, body: Rect) -> Effect {
        let rows = self.rows(app);
        match (self.pane, action) {
            (_, Action::NextPane) => {
                self.pane = if self.pane == Pane::Facts { Pane::Processes } else { Pane::Facts };
            }
            (_, Action::NextGpu) => return self.switch(app, 1),
            (_, Action::PreviousGpu) => return self.switch(app, -1),
            (Pane::Processes, Action::Open) => {
                if let Some(row) = rows.get(self.cursor.min(rows.len().saturating_sub(1))) {
                    return Effect::Open(Box::new(ProcessScreen::new(row.id())));
                }
            }
            (Pane::Processes, action) => match moved(self.cursor, rows.len(), 10, action) {
                Some(at) => self.cursor = at,
                None => return Effect::Ignored,
            },
            (Pane::Facts, action) => {
                let area = self.parts(app, body).facts;
                let count = self.gpu(app).map(|gpu| wrapped_facts(gpu, app, area).len());
                return self.scroll.act(action, count.unwrap_or(0), capacity(area, MIN_FACTS));
            }
        }
        Effect::Done
    }

    fn plots(&self, app: &App, body: Rect) -> Vec<Rect> {
        let chart = self.parts(app, body).chart;
        self.gpu(app).map_or_else(Vec::new, |gpu| timelines::of_gpu(gpu, app).plots(chart))
    }

    fn process<'a>(&self, app: &'a App) -> Option<&'a ProcessRow> {
        let mut rows = self.gpu_rows(app);
        let at = self.cursor.min(self.rows(app).len().saturating_sub(1));
        (self.pane == Pane::Processes).then(|| rows.nth(at)).flatten()
    }

    fn copied(&self, app: &App) -> Option<Copied> {
        match self.process(app) {
            Some(_) => None,
            None => self.gpu(app).map(copy_text::gpu),
        }
    }

    fn has_use_for(&self, action: Action, app: &App) -> bool {
        action != Action::NextGpu || app.host.frame.gpus.len() > 1
    }

    fn footer(&self) -> &'static [Action] {
        &[
            Action::Back,
            Action::Open,
            Action::Memory,
            Action::NextPane,
            Action::NextGpu,
            Action::Probe,
            Action::ZoomOut,
            Action::ScrollBack,
        ]
    }

    fn focus(&self) -> Option<GpuUuid> {
        Some(self.uuid.clone())
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}
