//! Draws the GPU table, the same way on every screen with a list of GPUs.

use gputop_model::accounting::Accounting;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use crate::dashboard::gpu_columns::{BAR, GPU_COLUMNS, GpuRow, NOTE};
use crate::dashboard::memory_parts::{self, MemoryPart, amounts};
use crate::dashboard::pools;
use crate::dashboard::table::ColumnChoice;
use crate::export::text_width::columns;
use crate::tui::app::App;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::bar::{self, Part};
use crate::tui::widgets::cells::put;
use crate::tui::widgets::table::{View, draw, placed};

/// Returns the parts of a memory bar, in drawing order. `pooled` is true if any bar on the screen shows pools.
pub fn parts(split: &Accounting, pooled: bool, theme: &Theme) -> [Part<'static>; 7] {
    let (parts, amounts) = (memory_parts::parts(pooled), amounts(split));
    std::array::from_fn(|i| Part {
        amount: amounts[i],
        glyph: theme.memory_glyph(parts[i]),
        style: theme.style(parts[i].into()),
    })
}

/// Draws the GPU table, where `rows` are the visible rows.
pub fn draw_gpus(
    rows: &[GpuRow],
    cursor: Option<usize>,
    area: Rect,
    app: &App,
    buffer: &mut Buffer,
) {
    let theme = &app.ui.theme;
    // Notes are long on machines with trouble. The column is as wide as there is room, so that its place is always the same.
    let note = GPU_COLUMNS.iter().position(|column| column.title == NOTE);
    let widened =
        note.map(|at| (at, GPU_COLUMNS[at].width + area.width.saturating_sub(80) * 3 / 5));
    let choice = ColumnChoice { widened, ..ColumnChoice::default() };
    let view = View { cursor, columns: choice, ..View::default() };
    let cell = |column: &_, row: &GpuRow| row.cell(column, &theme.zone);
    draw(&GPU_COLUMNS, rows, cell, &view, area, buffer, theme);
    for placed in placed(&GPU_COLUMNS, &view.columns, area) {
        if GPU_COLUMNS[placed.column].title != BAR {
            continue;
        }
        // Last, so that no other word moves when it appears.
        let unattributed =
            rows.iter().filter_map(GpuRow::split).any(|split| split.unattributed.0 > 0);
        let rare = unattributed.then_some((MemoryPart::Unattributed, "unattributed"));
        draw_legend(Rect::new(placed.x, area.y, placed.width, 1), rare, app, buffer);
        for (y, row) in (area.y + 1..area.bottom()).zip(rows) {
            if let Some(split) = row.split() {
                draw_bar(row, &split, Rect::new(placed.x, y, placed.width, 1), app, buffer);
            }
        }
    }
}

/// Parts of a memory bar that its heading names, the most important first.
const POOLS_LEGEND: &[(MemoryPart, &str)] = &[
    (MemoryPart::Allocated, "alloc"),
    (MemoryPart::Cached, "cache"),
    (MemoryPart::Other, "other"),
    (MemoryPart::Driver, "driver"),
];
/// The same without pools.
const LEGEND: &[(MemoryPart, &str)] =
    &[(MemoryPart::Processes, "processes"), (MemoryPart::Driver, "driver")];

/// Names the parts of the bars beside their heading, as far as there is room: in the colours of the parts, or with their
/// glyphs if only shades tell them apart.
fn draw_legend(heading: Rect, rare: Option<(MemoryPart, &str)>, app: &App, buffer: &mut Buffer) {
    let theme = &app.ui.theme;
    let legend = if pools::any(&app.host.frame) { POOLS_LEGEND } else { LEGEND };
    let mut x = heading.x + width(BAR) + 1;
    for (part, word) in legend.iter().copied().chain(rare) {
        let shade = if theme.has_solid_charts() { "" } else { theme.memory_glyph(part) };
        let text = format!("{shade}{word}");
        if x + width(&text) > heading.right() {
            break;
        }
        x += put(buffer, x, heading.y, &text, heading.width, theme.style(part.into())) + 1;
    }
}

fn width(text: &str) -> u16 {
    u16::try_from(columns(text)).unwrap_or(u16::MAX)
}

fn draw_bar(row: &GpuRow, split: &Accounting, cell: Rect, app: &App, buffer: &mut Buffer) {
    let mut parts = parts(split, pools::any(&app.host.frame), &app.ui.theme);
    if row.is_stale() {
        parts.iter_mut().for_each(|part| part.style = app.ui.theme.style(Role::Dim));
    }
    // Reversed under the cursor, used and free memory would change places.
    buffer.set_style(cell, Style::new().remove_modifier(Modifier::REVERSED));
    bar::draw(buffer, cell.x, cell.y, cell.width, &parts);
}
