//! The process table, drawn alike on every screen that lists processes.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::tui::app::App;
use crate::tui::columns::{PROCESS_COLUMNS, late};
use crate::tui::rows::ProcessRow;
use crate::tui::theme::Role;
use crate::tui::widgets::cells::put;
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
    // Tags have a column of their own, at the left, while there are any.
    let tags = u16::from(!app.tags.is_empty()).min(area.width);
    let table = Rect {
        x: area.x + tags,
        width: area.width - tags,
        ..area
    };
    table::draw(
        PROCESS_COLUMNS,
        rows,
        ProcessRow::is_stale,
        &view,
        table,
        buffer,
        &app.theme,
    );
    if tags > 0 {
        let shown = (area.y + 1..area.bottom()).zip(rows.iter().skip(offset));
        for (y, _) in shown.filter(|(_, row)| app.tags.has(row.id().key)) {
            let style = app.theme.style(Role::Key);
            put(buffer, area.x, y, app.theme.glyphs.tag, 1, style);
        }
    }
    rows.len().saturating_sub(offset + height)
}
