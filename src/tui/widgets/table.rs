//! Draws a table.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::cells::{put, put_glyph};
use crate::dashboard::table::{Align, Cell, Column, ColumnChoice, Placed, place};
use crate::export::text_width::{columns, fit, fit_middle};
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::area::row;

/// Returns the columns of a table drawn into `area`. The first terminal column is reserved for the cursor.
pub fn placed<T: ?Sized>(columns: &[Column<T>], choice: &ColumnChoice, area: Rect) -> Vec<Placed> {
    place(columns, choice, area.x + 1, area.width.saturating_sub(1))
}

/// Display state of a table.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Row with the cursor, if this table has the cursor.
    pub cursor: Option<usize>,
    /// First visible row.
    pub offset: usize,
    pub columns: ColumnChoice,
    /// Sort direction, shown as an arrow beside the title of the sort column.
    pub descending: bool,
}

/// Returns the first row to draw so that the cursor is visible.
pub fn scrolled(cursor: usize, rows: usize, height: usize) -> usize {
    (cursor + 1).saturating_sub(height).min(rows.saturating_sub(height))
}

/// Draws the heading and the rows. `cell` returns the cell for a row and a column.
pub fn draw<T, R>(
    columns: &[Column<T>],
    rows: &[R],
    cell: impl Fn(&Column<T>, &R) -> Cell,
    view: &View,
    area: Rect,
    buffer: &mut Buffer,
    theme: &Theme,
) {
    if area.height == 0 || area.width < 2 {
        return;
    }
    let placed = placed(columns, &view.columns, area);
    heading(columns, &placed, view, area.y, buffer, theme);
    let visible = rows.iter().enumerate().skip(view.offset).take(usize::from(area.height) - 1);
    for (y, (i, row)) in (area.y + 1..).zip(visible) {
        for place in &placed {
            let column = &columns[place.column];
            let cell = cell(column, row);
            let role = cell.emphasis.into();
            let text = theme.glyphs.cell_text(&cell.content);
            draw_cell(&text, column.align, *place, y, theme.style(role), buffer, theme);
        }
        if view.cursor == Some(i) {
            mark(area, y, buffer, theme);
        }
    }
}

/// Marks the row under the cursor with a glyph in addition to its background.
pub fn mark(area: Rect, y: u16, buffer: &mut Buffer, theme: &Theme) {
    put_glyph(buffer, area.x, y, theme.glyphs.cursor, theme.style(Role::Key));
    buffer.set_style(row(area, y).intersection(buffer.area), theme.style(Role::Cursor));
}

fn heading<T: ?Sized>(
    columns: &[Column<T>],
    placed: &[Placed],
    view: &View,
    y: u16,
    buffer: &mut Buffer,
    theme: &Theme,
) {
    for place in placed {
        let column = &columns[place.column];
        let sorted = view.columns.sorted == Some(place.column);
        let role = if sorted { Role::Title } else { Role::Dim };
        draw_cell(column.title, column.align, *place, y, theme.style(role), buffer, theme);
        if sorted {
            arrow(column.title, column.align, *place, view, y, buffer, theme);
        }
    }
}

/// Draws the sort arrow beside the title, on the side opposite to its alignment. If the title fills its column, the
/// arrow is drawn in the gap between two columns.
fn arrow(
    title: &str,
    align: Align,
    place: Placed,
    view: &View,
    y: u16,
    buffer: &mut Buffer,
    theme: &Theme,
) {
    let glyph = if view.descending { theme.glyphs.descending } else { theme.glyphs.ascending };
    let title = u16::try_from(columns(title)).unwrap_or(u16::MAX).min(place.width);
    let x = match align {
        Align::Right => (place.x + place.width - title).saturating_sub(1),
        _ => place.x + title,
    };
    put_glyph(buffer, x, y, glyph, theme.style(Role::Title));
}

fn draw_cell(
    text: &str,
    align: Align,
    place: Placed,
    y: u16,
    style: Style,
    buffer: &mut Buffer,
    theme: &Theme,
) {
    let room = usize::from(place.width);
    let text = match align {
        Align::LeftMiddle | Align::RestMiddle => fit_middle(text, room, theme.glyphs.ellipsis),
        _ => fit(text, room, theme.glyphs.ellipsis),
    };
    let width = u16::try_from(columns(&text)).unwrap_or(place.width);
    let x = match align {
        Align::Right => place.x + place.width.saturating_sub(width),
        _ => place.x,
    };
    put(buffer, x, y, &text, place.width, style);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::table::First;
    use crate::tui::theme::Palette;

    const fn column(title: &'static str, width: u16, align: Align) -> Column<()> {
        let cell = |(): &(), _: &_| Cell::text("");
        Column { title, width, align, priority: 0, cell, sort: None, help: "" }
    }

    #[test]
    fn shows_the_sort_direction_beside_the_title() {
        let columns = [
            column("A", 3, Align::Right),
            column("FULL", 4, Align::Right),
            column("C", 4, Align::Rest),
        ];
        let heading = |sorted, first: First, inverted, ascii| {
            let theme = Theme::new(Palette::None, ascii, jiff::tz::TimeZone::UTC);
            let area = Rect::new(0, 0, 14, 1);
            let mut buffer = Buffer::empty(area);
            let columns_shown = ColumnChoice { sorted, ..ColumnChoice::default() };
            let view = View {
                columns: columns_shown,
                descending: first.descends(inverted),
                ..View::default()
            };
            draw(&columns, &[], |_, (): &()| Cell::text(""), &view, area, &mut buffer, &theme);
            (0..14).map(|x| buffer[(x, 0)].symbol()).collect::<String>()
        };
        assert_eq!(heading(None, First::Largest, false, true), "   A FULL C   ");
        let largest = |column, inverted| heading(Some(column), First::Largest, inverted, true);
        assert_eq!(largest(0, false), "  vA FULL C   ");
        assert_eq!(largest(1, false), "   AvFULL C   ");
        assert_eq!(largest(2, true), "   A FULL C^  ");
        let smallest = |inverted| heading(Some(2), First::Smallest, inverted, false);
        assert_eq!(smallest(false), "   A FULL C▲  ");
        assert_eq!(smallest(true), "   A FULL C▼  ");
    }

    #[test]
    fn keeps_the_cursor_visible() {
        assert_eq!(scrolled(0, 100, 10), 0);
        assert_eq!(scrolled(15, 100, 10), 6);
        assert_eq!(scrolled(99, 100, 10), 90);
        assert_eq!(scrolled(3, 5, 10), 0);
    }
}
