//! The process table, drawn alike on every screen that lists processes.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::tui::app::App;
use crate::tui::columns::{PROCESS_COLUMNS, late};
use crate::tui::rows::ProcessRow;
use crate::tui::widgets::table::{self, View, scrolled};

/// Draws `rows` so that the row `at` is in sight, and the cursor on it where it is `marked`; returns how many rows
/// are out of sight below.
pub fn draw_processes(
    app: &App,
    rows: &[ProcessRow],
    at: usize,
    marked: bool,
    area: Rect,
    buffer: &mut Buffer,
) -> usize {
    let height = usize::from(area.height.saturating_sub(1));
    let offset = scrolled(at, rows.len(), height);
    let order = app
        .sort
        .and_then(|column| PROCESS_COLUMNS.get(column)?.sort.as_ref());
    let view = View {
        cursor: marked.then_some(at.min(rows.len().saturating_sub(1))),
        offset,
        sorted: app.sort,
        descending: order.is_some_and(|order| order.first.descends(app.inverted)),
        late: late(&app.frame),
    };
    table::draw(
        PROCESS_COLUMNS,
        rows,
        ProcessRow::is_stale,
        &view,
        area,
        buffer,
        &app.theme,
    );
    rows.len().saturating_sub(offset + height)
}
