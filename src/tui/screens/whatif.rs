//! Replays of an allocation history with several allocator settings: all curves in one chart, and the results in a
//! table below.
//!
//! All replays finish before the screen opens, so only the cursor changes. The setting under the cursor is drawn as
//! columns (live tensors, with the cache on top), the others as letters.

use gputop_allocator::whatif::Point;
use gputop_model::history::Span;
use gputop_model::units::Bytes;
use jiff::tz::TimeZone;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::dashboard::emphasis::Emphasis;
use crate::dashboard::table::{Align, Cell, Column, ColumnChoice, Hidden};
use crate::export::whatif::{Device, Document, Played};
use crate::tui::action::{Action, moved};
use crate::tui::app::App;
use crate::tui::clipboard::Copied;
use crate::tui::screen::{Effect, Screen, ScreenDef};
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::area::{margin, row};
use crate::tui::widgets::cells::{put, put_all, put_glyph, put_line, put_right};
use crate::tui::widgets::plot::{LABELS, edge_labels, plot};
use crate::tui::widgets::pool_chart;
use crate::tui::widgets::table::{View, draw, scrolled};

pub const DEF: ScreenDef = ScreenDef {
    id: "whatif",
    title: "What if",
    glossary: &[
        (
            "curves",
            "Reserved memory after each operation of the history. The setting under the cursor is drawn as columns, \
             the others as letters; x marks a failed request. A curve ends at the request that ends the program. \
             Where curves overlap, the first letter is visible.",
        ),
        (
            "setting",
            "Value of PYTORCH_CUDA_ALLOC_CONF. `present` is the program's current setting; `default` means that it is not set.",
        ),
        ("[ ]", "Show another device of the history."),
        (
            "RESERVED",
            "Peak memory that the allocator would have reserved from the driver. ALLOCATED is the part in live tensors at that time.",
        ),
        (
            "CACHED",
            "Reserved memory that is not in tensors when RESERVED peaks. This is fragmentation.",
        ),
        ("FITS", "Largest request that would still succeed at the end of the replay."),
        ("RETRIES", "Number of times the allocator would have flushed its cache to make room."),
        (
            "OOM AT",
            "Operation whose request fails. If this operation also failed in the recorded program, a line below the table says so.",
        ),
    ],
    // Provide no sample screen, because the sample data contains no replayed history.
    sample: |_| None,
};

const fn figure(
    title: &'static str,
    width: u16,
    priority: u8,
    cell: fn(&Played, &TimeZone) -> Cell,
) -> Column<Played> {
    Column::right(title, width, priority, cell, "")
}

const COLUMNS: &[Column<Played>] = &[
    // The curve's letter, drawn by `table`.
    Column { align: Align::Left, ..figure("", 1, 0, |_, _| Cell::text("")) },
    figure("RESERVED", 11, 1, |played, _| Cell::text(played.outlook.peak_reserved.to_string())),
    figure("ALLOCATED", 11, 5, |played, _| {
        Cell::text(played.outlook.allocated_at_peak().to_string())
    }),
    figure("CACHED", 11, 4, |played, _| Cell::text(played.outlook.cached_at_peak.to_string())),
    figure("FITS", 11, 6, |played, _| match played.fits() {
        Some(fits) => Cell::text(fits.to_string()),
        None => Cell::missing(),
    }),
    figure("RETRIES", 7, 7, |played, _| {
        let retries = played.outlook.num_alloc_retries;
        let emphasis = if retries > 0 { Emphasis::Warn } else { Emphasis::Normal };
        Cell::new(retries.to_string(), emphasis)
    }),
    figure("OOM AT", 7, 2, |played, _| match played.outlook.oom {
        Some(oom) => Cell::new(oom.operation.to_string(), Emphasis::Bad),
        None => Cell::missing(),
    }),
    Column {
        align: Align::Rest,
        ..figure("SETTING", 14, 3, |played, _| Cell::text(played.title()))
    },
];

#[derive(Debug)]
pub struct WhatifScreen {
    document: Document,
    /// Index of the displayed device.
    device_index: usize,
    /// Index of the setting under the cursor.
    selected: usize,
}

/// Minimum height of a useful chart.
const MIN_CHART: u16 = 5;

/// Colours of the curves that are not under the cursor. Without colour, the curves are distinguished by their letters.
const ROLES: &[Role] = &[
    Role::Chart,
    Role::Processes,
    Role::Active,
    Role::OtherVram,
    Role::Unattributed,
    Role::Driver,
];

/// Returns a curve's letter. x is excluded because it marks a failed request.
fn letter(n: usize) -> &'static str {
    const LETTERS: &str = "abcdefghijklmnopqrstuvw";
    LETTERS.get(n..=n).unwrap_or("+")
}

fn role(n: usize) -> Role {
    ROLES[n % ROLES.len()]
}

impl WhatifScreen {
    pub fn new(document: Document) -> Self {
        Self { document, device_index: 0, selected: 0 }
    }

    fn device(&self) -> Option<&Device> {
        self.document.devices.get(self.device_index)
    }

    fn played(&self) -> Option<&Played> {
        self.device()?.settings.get(self.selected)
    }

    fn show_device(&mut self, at: usize) {
        self.device_index = at.min(self.document.devices.len().saturating_sub(1));
        let count = self.device().map_or(0, |device| device.settings.len());
        self.selected = self.selected.min(count.saturating_sub(1));
    }

    /// Describes the device, its GPU, and the length of its history.
    fn about(&self, device: &Device) -> [(String, Role); 2] {
        let count = self.document.devices.len();
        let device_label = match count {
            1 => format!("device {}", device.ordinal),
            _ => format!("device {} ({} of {count})", device.ordinal, self.device_index + 1),
        };
        [
            (format!("{device_label}  {}", device.circumstances()), Role::Text),
            (device.recording.words(), Role::Dim),
        ]
    }

    fn table(&self, device: &Device, area: Rect, buffer: &mut Buffer, theme: &Theme) {
        let rows: Vec<(usize, &Played)> = device.settings.iter().enumerate().collect();
        let height = usize::from(area.height.saturating_sub(1));
        // In a narrow area, omit ALLOCATED, which is RESERVED without CACHED, because setting names are long.
        let mut hidden = Hidden::default();
        if area.width < 100 {
            let allocated = COLUMNS.iter().position(|c| c.title == "ALLOCATED");
            allocated.into_iter().for_each(|at| hidden.hide(at));
        }
        let view = View {
            cursor: Some(self.selected),
            offset: scrolled(self.selected, rows.len(), height),
            columns: ColumnChoice { hidden, ..ColumnChoice::default() },
            descending: false,
        };
        for (y, (n, _)) in (area.y + 1..area.bottom()).zip(rows.iter().skip(view.offset)) {
            put_glyph(buffer, area.x + 1, y, letter(*n), theme.style(role(*n)));
        }
        let cell = |column: &Column<Played>, (_, played): &(usize, &Played)| {
            (column.cell)(played, &theme.zone)
        };
        draw(COLUMNS, &rows, cell, &view, area, buffer, theme);
    }

    /// Returns remarks on the setting under the cursor, and the overall conclusion.
    fn below(&self, device: &Device) -> Vec<(String, Role)> {
        let mut lines = Vec::new();
        if let Some(played) = self.played() {
            let remarks = played.remarks(device.want);
            if !remarks.is_empty() {
                lines.push((remarks.join("; "), Role::Dim));
            }
        }
        lines.extend(device.verdict().map(|verdict| (verdict, Role::Text)));
        lines
    }

    /// Draws the chart, which needs one row for the legend, several for the columns and one for the axis.
    fn chart(&self, device: &Device, area: Rect, buffer: &mut Buffer, theme: &Theme) {
        let (Some(selected), Some(mut plot)) = (self.played(), plot(area)) else {
            return;
        };
        plot.width -= 1;
        self.legend(selected, area, buffer, theme);
        let top = device.settings.iter().map(|p| p.outlook.peak_reserved).max().unwrap_or_default();
        let dim = theme.style(Role::Dim);
        edge_labels(plot, &top.short(), buffer, theme);
        let operations = device.recording.operations;
        let columns = Columns { operations, width: usize::from(plot.width) };
        let (allocated, reserved) = columns.spans(selected);
        pool_chart::columns(&allocated, &reserved, top, plot, buffer, theme);
        // Draw the first setting last, on top of the other curves, because it is the baseline.
        for (n, played) in device.settings.iter().enumerate().rev() {
            if n == self.selected {
                continue;
            }
            let values = columns.reserved(played);
            for (x, value) in (plot.left()..plot.right()).zip(&values) {
                if let Some(value) = value {
                    let y = row_of(*value, top, plot);
                    put_glyph(buffer, x, y, letter(n), theme.style(role(n)));
                }
            }
        }
        for x in plot.left()..plot.right() {
            put_glyph(buffer, x, plot.bottom(), theme.glyphs.rule, dim);
        }
        put(buffer, plot.x, plot.bottom(), "operation 1", plot.width, dim);
        // Histories often end with a failure, so leave room for the failure mark beside the number.
        let right = plot.right().saturating_sub(2).max(plot.x);
        put_right(buffer, plot.x, right, plot.bottom(), &operations.to_string(), dim);
        for (n, played) in device.settings.iter().enumerate() {
            let Some(x) = played.outlook.oom.and_then(|oom| columns.column(oom.operation)) else {
                continue;
            };
            let x = plot.x + x;
            let y = if n == self.selected {
                plot.bottom()
            } else {
                row_of(played.outlook.peak_reserved, top, plot)
            };
            put_glyph(buffer, x, y, theme.glyphs.oom, theme.style(Role::Bad));
        }
    }

    fn legend(&self, selected: &Played, area: Rect, buffer: &mut Buffer, theme: &Theme) {
        let (glyphs, dim) = (&theme.glyphs, theme.style(Role::Dim));
        let title = format!("{} {}  ", letter(self.selected), selected.title());
        let pieces = [
            (title.as_str(), theme.style(Role::Title)),
            (glyphs.levels[8], theme.style(Role::Allocated)),
            (" allocated  ", dim),
            (theme.chart_glyph(glyphs.cached), theme.style(Role::Cached)),
            (" cached  ", dim),
            (glyphs.oom, theme.style(Role::Bad)),
            (" OOM  ", dim),
            ("letters: other settings", dim),
        ];
        put_all(buffer, area.x + LABELS, area.y, area.right(), &pieces);
    }
}

/// Maps a history's operations to chart columns.
#[derive(Clone, Copy)]
struct Columns {
    operations: usize,
    width: usize,
}

impl Columns {
    /// Returns the maximum in each column, or `None` past the end of a curve.
    fn values(self, played: &Played, value: fn(&Point) -> Bytes) -> Vec<Option<Bytes>> {
        let curve = &played.outlook.curve;
        let all = self.operations.div_ceil(curve.each.max(1));
        let at = |x: usize| x * all / self.width.max(1);
        let column = |x: usize| {
            let end = at(x + 1).max(at(x) + 1).min(curve.points.len());
            curve.points.get(at(x)..end)?.iter().map(value).max()
        };
        (0..self.width).map(column).collect()
    }

    fn reserved(self, played: &Played) -> Vec<Option<Bytes>> {
        self.values(played, |point| point.reserved)
    }

    /// Converts allocated and reserved memory to the pool chart's input.
    fn spans(self, played: &Played) -> (Vec<Option<Span>>, Vec<Option<Span>>) {
        let spans = |values: Vec<Option<Bytes>>| {
            let span = |value: Bytes| Span(value.0 as f32, value.0 as f32);
            values.into_iter().map(|value| value.map(span)).collect()
        };
        (spans(self.values(played, |point| point.allocated)), spans(self.reserved(played)))
    }

    /// Returns the chart column of an operation. Operations are counted from 1.
    fn column(self, operation: usize) -> Option<u16> {
        let before = operation.saturating_sub(1);
        let x = before * self.width / self.operations.max(1);
        u16::try_from(x.min(self.width.checked_sub(1)?)).ok()
    }
}

/// Returns the terminal row for the top of a column that represents `value`.
fn row_of(value: Bytes, top: Bytes, plot: Rect) -> u16 {
    let rows = u128::from(value.0) * u128::from(plot.height);
    let rows = rows.div_ceil(u128::from(top.0.max(1)));
    let rows = u16::try_from(rows).unwrap_or(plot.height);
    plot.bottom() - rows.clamp(1, plot.height)
}

impl Screen for WhatifScreen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let theme = &app.ui.theme;
        let Some(device) = self.device() else {
            return;
        };
        if area.height < 2 || area.width < 10 {
            return;
        }
        let inner = margin(area);
        let line = |y: u16| row(inner, y);
        // In a small area, omit the text around the table, because the table is the most important part.
        let is_small = area.height < 14;
        let about = if is_small { &[][..] } else { &self.about(device)[..] };
        let mut top = area.y;
        for (text, role) in about {
            put_line(buffer, line(top), text, *role, theme);
            top += 1;
        }
        let below = if is_small { Vec::new() } else { self.below(device) };
        let mut bottom = area.bottom();
        for (text, role) in below.iter().rev() {
            bottom -= 1;
            put_line(buffer, line(bottom), text, *role, theme);
        }
        let count = u16::try_from(device.settings.len()).unwrap_or(u16::MAX);
        let room = bottom.saturating_sub(top);
        let has_curves = device.recording.operations > 0;
        // Reserve the minimum height for the chart, then give the table as many rows as it can use.
        let table = (count + 1).min(room.saturating_sub(MIN_CHART + 2).max(room / 2));
        let chart = room.saturating_sub(table + 2);
        if is_small || !has_curves || chart < MIN_CHART || area.width < LABELS + 20 {
            let whole = Rect { y: top, height: room.min(count + 1), ..area };
            self.table(device, whole, buffer, theme);
            return;
        }
        let place = |y: u16, height: u16| Rect { y, height, ..area };
        self.chart(device, place(top + 1, chart), buffer, theme);
        self.table(device, place(top + 2 + chart, table), buffer, theme);
    }

    fn act(&mut self, action: Action, _app: &App, _body: Rect) -> Effect {
        match action {
            Action::Help | Action::Copy | Action::Quit => return Effect::Ignored,
            Action::NextGpu => self.show_device(self.device_index + 1),
            Action::PreviousGpu => self.show_device(self.device_index.saturating_sub(1)),
            action => {
                let count = self.device().map_or(0, |device| device.settings.len());
                self.selected = moved(self.selected, count, count, action).unwrap_or(self.selected);
            }
        }
        Effect::Done
    }

    fn standalone_actions(&self) -> Option<&'static [Action]> {
        Some(&[])
    }

    fn headline(&self) -> Option<String> {
        Some(format!("{}  with other allocator settings", self.document.source))
    }

    fn footer(&self) -> &'static [Action] {
        match self.document.devices.len() {
            0 | 1 => &[Action::Up, Action::Down, Action::Copy],
            _ => &[Action::Up, Action::Down, Action::NextGpu, Action::Copy],
        }
    }

    /// Returns the setting under the cursor as an environment variable.
    fn copied(&self, _app: &App) -> Option<Copied> {
        let conf = &self.played()?.conf;
        let text = format!("PYTORCH_CUDA_ALLOC_CONF={conf}");
        Some(Copied::new("the setting", &text))
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}
