//! Draws the GPU table, the same way on every screen with a list of GPUs.

use gputop_model::accounting::Accounting;
use gputop_model::history::{GpuMetric, SeriesKey};
use gputop_model::units::Millis;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::dashboard::gpu_columns::{BAR, GPU_COLUMNS, GpuRow, SPARK};
use crate::dashboard::memory_parts::{self, amounts};
use crate::dashboard::pools;
use crate::dashboard::time_axis::TimeAxis;
use crate::tui::app::App;
use crate::tui::marks;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::bar::{self, Part};
use crate::tui::widgets::cells::put_all;
use crate::tui::widgets::table::{View, draw, placed};
use crate::tui::widgets::timeline::sparkline;

/// Returns the parts of a memory bar, in drawing order. `pooled` is true if any bar on the screen shows pools.
pub fn parts(split: &Accounting, pooled: bool, theme: &Theme) -> [Part<'static>; 7] {
    let (parts, amounts) = (memory_parts::parts(pooled), amounts(split));
    std::array::from_fn(|i| Part {
        amount: amounts[i],
        glyph: theme.glyphs.memory_part(parts[i]),
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
    let view = View { cursor, ..View::default() };
    let cell = |column: &_, row: &GpuRow| row.cell(column, &theme.zone);
    draw(&GPU_COLUMNS, rows, cell, &view, area, buffer, theme);
    let splits: Vec<_> = rows.iter().map(GpuRow::split).collect();
    for placed in placed(&GPU_COLUMNS, &view.columns, area) {
        let title = GPU_COLUMNS[placed.column].title;
        if title == BAR {
            let heading = Rect::new(placed.x, area.y, placed.width, 1);
            legend(splits.iter().flatten(), heading, pools::any(&app.host.frame), buffer, theme);
        }
        for (y, (row, split)) in (area.y + 1..area.bottom()).zip(rows.iter().zip(&splits)) {
            let cell = Rect::new(placed.x, y, placed.width, 1);
            match (title, split) {
                (BAR, Some(split)) => draw_bar(row, split, cell, app, buffer),
                (SPARK, _) if !row.is_instance() => draw_spark(row, cell, app, buffer),
                _ => {}
            }
        }
    }
}

fn draw_bar(row: &GpuRow, split: &Accounting, cell: Rect, app: &App, buffer: &mut Buffer) {
    let mut parts = parts(split, pools::any(&app.host.frame), &app.ui.theme);
    if row.is_stale() {
        parts.iter_mut().for_each(|part| part.style = app.ui.theme.style(Role::Dim));
    }
    bar::draw(buffer, cell.x, cell.y, cell.width, &parts);
}

fn draw_spark(row: &GpuRow, cell: Rect, app: &App, buffer: &mut Buffer) {
    let key = SeriesKey::Gpu(row.gpu().uuid.clone(), GpuMetric::Sm);
    sparkline(
        app.host.history.series(&key),
        TimeAxis::until(app.host.frame.mono, Millis(120_000)),
        100.0,
        &marks::of_gpu(app, &row.gpu().uuid),
        cell,
        buffer,
        &app.ui.theme,
    );
}

/// Draws the legend of the memory bars `splits`. `pooled` is true if any bar shows pools.
pub fn legend<'a>(
    splits: impl Iterator<Item = &'a Accounting>,
    area: Rect,
    pooled: bool,
    buffer: &mut Buffer,
    theme: &Theme,
) {
    let (labels, gap) = memory_parts::legend(splits, usize::from(area.width), pooled);
    let dim = theme.style(Role::Dim);
    let pieces = labels.into_iter().flat_map(|(part, label)| {
        [(theme.glyphs.memory_part(part), theme.style(part.into())), (label, dim), (gap, dim)]
    });
    put_all(buffer, area.x, area.y, area.right(), &pieces.collect::<Vec<_>>());
}
