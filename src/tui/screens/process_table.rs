//! The process table, drawn the same way on every screen that lists processes.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use crate::dashboard::table::{self, Cell, Column, ColumnChoice, Content, Hidden, Placed};
use crate::export::text_width;
use crate::tui::app::App;
use crate::dashboard::process_columns::{self, GROWTH, PROCESS_COLUMNS};
use crate::dashboard::groups::{Grouping, TableRow};
use crate::dashboard::rows::ProcessRow;
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
    draw(app, &view(app, rows), rows, cell, |row| app.tags.has(row.id().key), &place, buffer)
}

/// Draws the app's process table, which may be grouped. Returns the number of lines below the visible ones.
pub fn draw_lines(app: &App, at: usize, marked: bool, area: Rect, buffer: &mut Buffer) -> usize {
    let cell = |column: &Column<ProcessRow>, line: &TableRow| match line {
        TableRow::Group(group) => group.cell(column.title),
        TableRow::Process { row, depth } => {
            let mut cell = cell_of(column, &app.rows[*row], app);
            if column.title == "COMMAND"
                && let Content::Text(text) = &mut cell.content
            {
                text.insert_str(0, &"  ".repeat(*depth));
            }
            cell
        }
    };
    let has_tag = |line: &TableRow| {
        let row = line.row().map(|row| &app.rows[row]);
        row.is_some_and(|row| app.tags.has(row.id().key))
    };
    let place = RowPosition { at, marked, area };
    let view = view(app, &app.rows);
    let below = draw(app, &view, &app.lines, cell, has_tag, &place, buffer);
    draw_names(app, at, area, buffer);
    below
}

/// Draws the group names in the columns to the left of the first sum.
fn draw_names(app: &App, at: usize, area: Rect, buffer: &mut Buffer) {
    let (_, table) = split(app, area);
    let placed = placed(PROCESS_COLUMNS, &choice(app, &app.rows), table);
    let offset = scrolled(at, app.lines.len(), rows_of(area));
    let shown = (area.y + 1..area.bottom()).zip(app.lines.iter().skip(offset));
    for (y, group) in shown.filter_map(|(y, line)| Some((y, line.group()?))) {
        let first_sum = placed.iter().find_map(|place| {
            let cell = group.cell(PROCESS_COLUMNS[place.column].title);
            let text = app.theme.glyphs.cell_text(&cell.content);
            let width = u16::try_from(text_width::columns(&text)).ok().filter(|w| *w > 0)?;
            Some((place.x + place.width).saturating_sub(width + 1))
        });
        let x = table.x + 1;
        let width = first_sum.unwrap_or(table.right()).saturating_sub(x);
        let name = Rect::new(x, y, width, 1);
        put_line(buffer, name, &group.words(), Role::Title, &app.theme);
    }
}

fn cell_of(column: &Column<ProcessRow>, row: &ProcessRow, app: &App) -> Cell {
    (column.cell)(row, &app.theme.zone).dim_if(row.is_stale())
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
        let placed = placed(PROCESS_COLUMNS, &choice(app, rows), table);
        let under = |column: &&Placed| (column.x..=column.x + column.width).contains(&place.x);
        return Some(Pressed::Heading(placed.iter().find(under)?.column));
    }
    let line = scrolled(at, lines, rows_of(area)) + usize::from(place.y - area.y - 1);
    (line < lines).then_some(Pressed::Row(line))
}

/// Returns true if the overview's process table shows a column at this width.
pub fn shows(app: &App, title: &str, width: u16) -> bool {
    let (_, table) = split(app, Rect { width, ..Rect::default() });
    let placed = placed(PROCESS_COLUMNS, &choice(app, &app.rows), table);
    placed.iter().any(|place| PROCESS_COLUMNS[place.column].title == title)
}

/// Returns the minimum terminal width at which the overview's process table shows a column.
pub fn min_width(app: &App, column: usize) -> u16 {
    table::min_width(PROCESS_COLUMNS, &choice(app, &app.rows), column)
        + u16::from(!app.tags.is_empty())
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
    let tags = u16::from(!app.tags.is_empty()).min(area.width);
    let [_, table] = split_left(area, tags);
    (tags, table)
}

/// Returns the options for drawing a table of `rows`, without a cursor.
fn view(app: &App, rows: &[ProcessRow]) -> View {
    let sort = app.sort.and_then(|column| PROCESS_COLUMNS.get(column)?.sort.as_ref());
    View {
        cursor: None,
        offset: 0,
        columns: choice(app, rows),
        descending: sort.is_some_and(|sort| sort.first.descends(app.inverted)),
    }
}

/// Returns the columns to show in a table of `rows`.
fn choice(app: &App, rows: &[ProcessRow]) -> ColumnChoice {
    ColumnChoice {
        sorted: app.sort,
        hidden: app.hidden_columns.or(empty_columns(app, rows)),
        promoted: [
            has_several_users(app).then(|| column_at("USER")).flatten(),
            app.all_rows.iter().any(ProcessRow::is_growing).then(|| column_at(GROWTH)).flatten(),
        ],
    }
}

/// Returns the columns without a value in `rows`, or in all processes if the filter hides every row.
pub fn empty_columns(app: &App, rows: &[ProcessRow]) -> Hidden {
    let rows = if rows.is_empty() { &app.all_rows } else { rows };
    process_columns::empty(rows, app.grouping != Grouping::Flat, &app.theme.zone)
}

/// Returns true if the processes belong to different users, who need to know whose process uses a GPU.
fn has_several_users(app: &App) -> bool {
    let mut users = app.all_rows.iter().filter_map(|row| row.facts()?.user.value());
    let first = users.next();
    users.any(|user| Some(user) != first)
}

fn column_at(title: &str) -> Option<usize> {
    PROCESS_COLUMNS.iter().position(|column| column.title == title)
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
    draw_table(PROCESS_COLUMNS, rows, cell, &view, table, buffer, &app.theme);
    if tags > 0 {
        let shown = (area.y + 1..area.bottom()).zip(rows.iter().skip(offset));
        for (y, _) in shown.filter(|(_, row)| has_tag(row)) {
            let style = app.theme.style(Role::Key);
            put_glyph(buffer, area.x, y, app.theme.glyphs.tag, style);
        }
    }
    rows.len().saturating_sub(offset + height)
}
