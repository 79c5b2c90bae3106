//! The process table, drawn the same way on every screen that lists processes.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use crate::dashboard::groups::TableRow;
use crate::dashboard::process_columns::PROCESS_COLUMNS;
use crate::dashboard::rows::ProcessRow;
use crate::dashboard::table::{self, Cell, Column, Content, Placed};
use crate::export::text_width;
use crate::tui::app::App;
use crate::tui::theme::Role;
use crate::tui::widgets::area::split_left;
use crate::tui::widgets::cells::{put_glyph, put_line};
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
        &view(app, rows),
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
    let view = view(app, &app.host.processes.rows);
    let below = draw(app, &view, &app.host.processes.lines, cell, has_tag, &place, buffer);
    draw_names(app, at, area, buffer);
    below
}

/// Draws the group names in the columns to the left of the first sum.
fn draw_names(app: &App, at: usize, area: Rect, buffer: &mut Buffer) {
    let (_, table) = split(app, area);
    let placed =
        placed(PROCESS_COLUMNS, &app.host.processes.columns(&app.host.processes.rows), table);
    let offset = scrolled(at, app.host.processes.lines.len(), rows_of(area));
    let shown = (area.y + 1..area.bottom()).zip(app.host.processes.lines.iter().skip(offset));
    for (y, group) in shown.filter_map(|(y, line)| Some((y, line.group()?))) {
        let first_sum = placed.iter().find_map(|place| {
            let cell = group.cell(PROCESS_COLUMNS[place.column].title);
            let text = app.ui.theme.glyphs.cell_text(&cell.content);
            let width = u16::try_from(text_width::columns(&text)).ok().filter(|w| *w > 0)?;
            Some((place.x + place.width).saturating_sub(width + 1))
        });
        let x = table.x + 1;
        let width = first_sum.unwrap_or(table.right()).saturating_sub(x);
        put_line(buffer, Rect::new(x, y, width, 1), &group.words(), Role::Title, &app.ui.theme);
    }
}

fn cell_of(column: &Column<ProcessRow>, row: &ProcessRow, app: &App) -> Cell {
    (column.cell)(row, &app.ui.theme.zone).dim_if(row.is_stale())
}

/// Returns the heading or line at a position in a table of `rows` with `lines` lines.
pub fn hit(
    app: &App,
    rows: &[ProcessRow],
    lines: usize,
    at: usize,
    place: Position,
    area: Rect,
) -> Option<Pressed> {
    let (_, table) = split(app, area);
    if place.y == area.y {
        let placed = placed(PROCESS_COLUMNS, &app.host.processes.columns(rows), table);
        let under = |column: &&Placed| (column.x..=column.x + column.width).contains(&place.x);
        return Some(Pressed::Heading(placed.iter().find(under)?.column));
    }
    let line = scrolled(at, lines, rows_of(area)) + usize::from(place.y - area.y - 1);
    (line < lines).then_some(Pressed::Row(line))
}

/// Returns true if the overview's process table shows a column at this width.
pub fn shows(app: &App, title: &str, width: u16) -> bool {
    let (_, table) = split(app, Rect { width, ..Rect::default() });
    let placed =
        placed(PROCESS_COLUMNS, &app.host.processes.columns(&app.host.processes.rows), table);
    placed.iter().any(|place| PROCESS_COLUMNS[place.column].title == title)
}

/// Returns the minimum terminal width at which the overview's process table shows a column.
pub fn min_width(app: &App, column: usize) -> u16 {
    table::min_width(PROCESS_COLUMNS, &app.host.processes.columns(&app.host.processes.rows), column)
        + u16::from(!app.host.processes.tags.is_empty())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressed {
    Heading(usize),
    Row(usize),
}

fn rows_of(area: Rect) -> usize {
    usize::from(area.height.saturating_sub(1))
}

/// Returns the width of the tag column, which is 0 without tags, and the area of the table.
fn split(app: &App, area: Rect) -> (u16, Rect) {
    let tags = u16::from(!app.host.processes.tags.is_empty()).min(area.width);
    let [_, table] = split_left(area, tags);
    (tags, table)
}

/// Returns the options for drawing a table of `rows`, without a cursor.
fn view(app: &App, rows: &[ProcessRow]) -> View {
    View {
        cursor: None,
        offset: 0,
        columns: app.host.processes.columns(rows),
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
    let (tags, table) = split(app, area);
    draw_table(PROCESS_COLUMNS, rows, cell, &view, table, buffer, &app.ui.theme);
    if tags > 0 {
        let shown = (area.y + 1..area.bottom()).zip(rows.iter().skip(offset));
        for (y, _) in shown.filter(|(_, row)| has_tag(row)) {
            let style = app.ui.theme.style(Role::Key);
            put_glyph(buffer, area.x, y, app.ui.theme.glyphs.tag, style);
        }
    }
    rows.len().saturating_sub(offset + height)
}
