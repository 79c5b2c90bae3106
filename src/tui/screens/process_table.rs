//! The process table, drawn the same way on every screen that lists processes.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use crate::dashboard::groups::TableRow;
use crate::dashboard::process_columns::PROCESS_COLUMNS;
use crate::dashboard::rows::ProcessRow;
use crate::dashboard::table::{self, Cell, Column, Content, Placed};
use crate::tui::app::App;
use crate::tui::theme::Role;
use crate::tui::widgets::cells::put_glyph;
use crate::tui::widgets::table::{View, draw as draw_table, placed, scrolled};

/// Draws `rows`, scrolled to make row `at` visible. Shows the cursor on that row if `marked` is set. Returns the number
/// of rows below the visible ones.
pub fn draw_processes(
    app: &App,
    rows: &[ProcessRow],
    at: usize,
    marked: bool,
    area: Rect,
    buffer: &mut Buffer,
) -> usize {
    let cell = |column: &Column<ProcessRow>, row: &ProcessRow| cell_of(column, row, app);
    let place = RowPosition { at, marked, area };
    draw(
        app,
        &view(app),
        rows,
        cell,
        |row| app.host.processes.tags.has(row.id().key),
        &place,
        buffer,
    )
}

/// Draws the app's process table, which may be grouped. Returns the number of lines below the visible ones.
pub fn draw_lines(app: &App, at: usize, marked: bool, area: Rect, buffer: &mut Buffer) -> usize {
    let cell = |column: &Column<ProcessRow>, line: &TableRow| match line {
        TableRow::Group(group) => group.cell(column.title),
        TableRow::Process { row, depth } => {
            let mut cell = cell_of(column, &app.host.processes.rows[*row], app);
            if column.title == "COMMAND"
                && let Content::Text(text) = &mut cell.content
            {
                text.insert_str(0, &"  ".repeat(*depth));
            }
            cell
        }
    };
    let has_tag = |line: &TableRow| {
        let row = line.row().map(|row| &app.host.processes.rows[row]);
        row.is_some_and(|row| app.host.processes.tags.has(row.id().key))
    };
    let place = RowPosition { at, marked, area };
    let view = view(app);
    draw(app, &view, &app.host.processes.lines, cell, has_tag, &place, buffer)
}

fn cell_of(column: &Column<ProcessRow>, row: &ProcessRow, app: &App) -> Cell {
    (column.cell)(row, &app.ui.theme.zone).dim_if(row.is_stale())
}

/// Returns the heading or line at a position in a table of `lines` lines.
pub fn hit(app: &App, lines: usize, at: usize, place: Position, area: Rect) -> Option<Pressed> {
    if place.y == area.y {
        let placed = placed(PROCESS_COLUMNS, &app.host.processes.columns(), area);
        let under = |column: &&Placed| (column.x..=column.x + column.width).contains(&place.x);
        return Some(Pressed::Heading(placed.iter().find(under)?.column));
    }
    let line = scrolled(at, lines, rows_of(area)) + usize::from(place.y - area.y - 1);
    (line < lines).then_some(Pressed::Row(line))
}

/// Returns true if the process table shows a column at this width.
pub fn shows(app: &App, title: &str, width: u16) -> bool {
    let placed =
        placed(PROCESS_COLUMNS, &app.host.processes.columns(), Rect { width, ..Rect::default() });
    placed.iter().any(|place| PROCESS_COLUMNS[place.column].title == title)
}

/// Returns the minimum terminal width at which the overview's process table shows a column.
pub fn min_width(app: &App, column: usize) -> u16 {
    table::min_width(PROCESS_COLUMNS, &app.host.processes.columns(), column)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressed {
    Heading(usize),
    Row(usize),
}

fn rows_of(area: Rect) -> usize {
    usize::from(area.height.saturating_sub(1))
}

/// Returns the options for drawing the table, without a cursor.
fn view(app: &App) -> View {
    View {
        cursor: None,
        offset: 0,
        columns: app.host.processes.columns(),
        descending: app.host.processes.descends(),
    }
}

struct RowPosition {
    at: usize,
    marked: bool,
    area: Rect,
}

fn draw<R>(
    app: &App,
    view: &View,
    rows: &[R],
    cell: impl Fn(&Column<ProcessRow>, &R) -> Cell,
    has_tag: impl Fn(&R) -> bool,
    place: &RowPosition,
    buffer: &mut Buffer,
) -> usize {
    let area = place.area;
    let height = rows_of(area);
    let offset = scrolled(place.at, rows.len(), height);
    let at = place.at.min(rows.len().saturating_sub(1));
    let view = View { cursor: place.marked.then_some(at), offset, ..*view };
    draw_table(PROCESS_COLUMNS, rows, cell, &view, area, buffer, &app.ui.theme);
    // A tag takes the place of the cursor's mark, whose row also has a background.
    let shown = (area.y + 1..area.bottom()).zip(rows.iter().skip(offset));
    for (y, _) in shown.filter(|(_, row)| has_tag(row)) {
        let style = app.ui.theme.style(Role::Key);
        put_glyph(buffer, area.x, y, app.ui.theme.glyphs.tag, style);
    }
    rows.len().saturating_sub(offset + height)
}
