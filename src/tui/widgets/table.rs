//! A table. Each column defines its title, width, cell and sort key in one value, so that they stay consistent.

use std::cmp::Ordering;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::cells::{columns, fit, fit_middle, put, put_glyph};
use crate::model::reading::Reading;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::area::row;

/// A column in a table with rows of type `T`.
pub struct Column<T: ?Sized> {
    /// Title, which is also the name in the sort menu.
    pub title: &'static str,
    /// Width in terminal columns. For a flexible column, the minimum width.
    pub width: u16,
    pub align: Align,
    /// Placement priority. Columns with smaller numbers are placed first while there is room.
    pub priority: u8,
    pub cell: fn(&T, &Theme) -> Cell,
    pub sort: Option<Sort<T>>,
    /// Description of the column for the help screen, a full sentence.
    pub help: &'static str,
}

impl<T> Column<T> {
    /// Returns a left-aligned column that cannot be sorted.
    pub const fn left(
        title: &'static str,
        width: u16,
        priority: u8,
        cell: fn(&T, &Theme) -> Cell,
        help: &'static str,
    ) -> Self {
        Self { align: Align::Left, ..Self::right(title, width, priority, cell, help) }
    }

    /// Returns a left-aligned column that takes the remaining width.
    pub const fn rest(
        title: &'static str,
        width: u16,
        priority: u8,
        cell: fn(&T, &Theme) -> Cell,
        help: &'static str,
    ) -> Self {
        Self { align: Align::Rest, ..Self::right(title, width, priority, cell, help) }
    }

    /// Truncates long text in the middle, which suits names that differ only at the end.
    pub const fn shortened_in_middle(self) -> Self {
        Self { align: Align::RestMiddle, ..self }
    }

    /// Makes the column sortable.
    pub const fn sorted(self, first: First, key: fn(&T) -> SortKey) -> Self {
        Self { sort: Some(Sort { first, key }), ..self }
    }

    /// Returns a right-aligned column that cannot be sorted.
    pub const fn right(
        title: &'static str,
        width: u16,
        priority: u8,
        cell: fn(&T, &Theme) -> Cell,
        help: &'static str,
    ) -> Self {
        Self { title, width, align: Align::Right, priority, cell, sort: None, help }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
    /// Left-aligned, and takes the remaining width.
    Rest,
    /// Like `Rest`, but long text is truncated in the middle.
    RestMiddle,
}

impl Align {
    /// Returns true if the column takes the remaining width.
    fn is_flexible(self) -> bool {
        matches!(self, Self::Rest | Self::RestMiddle)
    }
}

/// Text and colour role of a table cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    pub text: String,
    pub role: Role,
}

impl Cell {
    pub fn new(text: impl Into<String>, role: Role) -> Self {
        Self { text: text.into(), role }
    }

    pub fn text(text: impl Into<String>) -> Self {
        Self::new(text, Role::Text)
    }

    /// Dims plain text if the row is stale or its process has exited.
    pub fn dim_if(mut self, is_dim: bool) -> Self {
        if is_dim && self.role == Role::Text {
            self.role = Role::Dim;
        }
        self
    }

    /// Returns a dash for a missing value. The detail screen shows the reason.
    pub fn absent(theme: &Theme) -> Self {
        Self::new(theme.glyphs.absent, Role::Dim)
    }

    /// Returns true if the cell shows no value.
    pub fn is_absent(&self, theme: &Theme) -> bool {
        self.text.is_empty() || self.text == theme.glyphs.absent
    }

    /// Returns the text, or a dash.
    pub fn known(text: Option<String>, theme: &Theme) -> Self {
        text.map_or_else(|| Self::absent(theme), Self::text)
    }

    /// Returns the text of the value, or a dash.
    pub fn reading<T>(
        reading: &Reading<T>,
        theme: &Theme,
        text: impl FnOnce(&T) -> String,
    ) -> Self {
        Self::known(reading.value().map(text), theme)
    }
}

/// Sort order of a column.
pub struct Sort<T: ?Sized> {
    pub first: First,
    pub key: fn(&T) -> SortKey,
}

/// Direction of a sort order: which values are shown first unless the order is inverted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    Largest,
    Smallest,
}

impl First {
    /// Returns true if values decrease from top to bottom.
    pub fn descends(self, inverted: bool) -> bool {
        (self == Self::Largest) != inverted
    }
}

/// Sort key of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum SortKey {
    Number(f64),
    Text(String),
    Missing,
}

impl SortKey {
    pub fn number(value: Option<f64>) -> Self {
        value.map_or(Self::Missing, Self::Number)
    }

    pub fn whole(value: Option<u64>) -> Self {
        Self::number(value.map(|v| v as f64))
    }

    pub fn text(value: Option<&String>) -> Self {
        value.map_or(Self::Missing, |text| Self::Text(text.to_lowercase()))
    }

    /// Compares two keys. Missing values come last in both directions.
    pub fn compare(&self, other: &Self, first: First, inverted: bool) -> Ordering {
        let order = match (self, other) {
            (Self::Missing, Self::Missing) => return Ordering::Equal,
            (Self::Missing, _) => return Ordering::Greater,
            (_, Self::Missing) => return Ordering::Less,
            (Self::Number(a), Self::Number(b)) => a.total_cmp(b),
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (Self::Number(_), Self::Text(_)) => Ordering::Less,
            (Self::Text(_), Self::Number(_)) => Ordering::Greater,
        };
        if first.descends(inverted) { order.reverse() } else { order }
    }
}

/// Position of a column in a table of a certain width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Index into the column slice.
    pub column: usize,
    pub x: u16,
    pub width: u16,
}

/// Selects columns by priority until one does not fit, keeps their screen order, and gives the remaining width to the
/// flexible column.
pub fn place<T: ?Sized>(columns: &[Column<T>], x: u16, width: u16) -> Vec<Placed> {
    place_visible(columns, &View::default(), x, width)
}

/// Columns with at least this priority number are placed only if the flexible column keeps at least 1.5 times its
/// minimum width.
const OPTIONAL_PRIORITY: u8 = 8;

/// Maximum part of the width of hidden columns that the flexible column gets.
const MAX_FREED_WIDTH: u16 = 12;

/// Priority number of the sort column, unless its own is smaller. Rows sorted by a hidden column would look unsorted.
const SORTED_PRIORITY: u8 = 2;

/// Priority number of a promoted column, unless its own is smaller.
const PROMOTED_PRIORITY: u8 = 4;

fn place_visible<T: ?Sized>(columns: &[Column<T>], view: &View, x: u16, width: u16) -> Vec<Placed> {
    let is_sorted = |i: usize| view.sorted == Some(i);
    let priority = |i: usize| match columns[i].priority {
        own if is_sorted(i) => own.min(SORTED_PRIORITY),
        own if view.promoted.contains(&Some(i)) => own.min(PROMOTED_PRIORITY),
        own => own,
    };
    let shown = |i: &usize| is_sorted(*i) || !view.hidden.has(*i);
    let mut order: Vec<usize> = (0..columns.len()).filter(shown).collect();
    order.sort_by_key(|&i| priority(i));
    let flexible = columns.iter().find(|column| column.align == Align::Rest);
    // The flexible column gets the width of hidden columns that are otherwise on every terminal. The width of others,
    // such as counters that are 0, goes to optional columns.
    let is_hidden = |i: &usize| !shown(i) && columns[*i].priority <= PROMOTED_PRIORITY;
    let freed = (0..columns.len()).filter(is_hidden).map(|i| columns[i].width + 1).sum::<u16>();
    let comfort = flexible.map_or(0, |column| column.width / 2 + freed.min(MAX_FREED_WIDTH));
    let mut chosen = vec![false; columns.len()];
    let mut used = 0;
    for i in order {
        let need = columns[i].width + u16::from(used > 0);
        let reserve = match priority(i) {
            OPTIONAL_PRIORITY.. => comfort,
            _ => 0,
        };
        if used + need + reserve > width {
            // Stop here, so that a less important column does not fill the gap.
            break;
        }
        chosen[i] = true;
        used += need;
    }
    let spare = width - used;
    let mut at = x;
    let mut placed = Vec::new();
    for (i, column) in columns.iter().enumerate().filter(|(i, _)| chosen[*i]) {
        let width = column.width + if column.align.is_flexible() { spare } else { 0 };
        placed.push(Placed { column: i, x: at, width });
        at += width + 1;
    }
    placed
}

/// Returns the columns of a table drawn into `area`. The first terminal column is reserved for the cursor.
pub fn placed<T: ?Sized>(columns: &[Column<T>], view: &View, area: Rect) -> Vec<Placed> {
    place_visible(columns, view, area.x + 1, area.width.saturating_sub(1))
}

/// Returns the minimum table width at which a column is shown, unless the user hides it.
pub fn min_width<T: ?Sized>(columns: &[Column<T>], view: &View, column: usize) -> u16 {
    let mut view = View { sorted: None, ..*view };
    view.hidden.show(column);
    let all: u16 = columns.iter().map(|column| column.width + 1).sum();
    let shows = |width: &u16| {
        let placed = place_visible(columns, &view, 1, width.saturating_sub(1));
        placed.iter().any(|place| place.column == column)
    };
    (1..).find(|width| shows(width) || *width > 2 * all).unwrap_or(all)
}

/// Hidden columns, by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hidden(u64);

impl Hidden {
    pub fn has(self, column: usize) -> bool {
        self.0 >> column & 1 == 1
    }

    pub fn hide(&mut self, column: usize) {
        self.0 |= 1 << column;
    }

    fn show(&mut self, column: usize) {
        self.0 &= !(1 << column);
    }

    pub fn toggle(&mut self, column: usize) {
        self.0 ^= 1 << column;
    }

    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Display state of a table.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Row with the cursor, if this table has the cursor.
    pub cursor: Option<usize>,
    /// First visible row.
    pub offset: usize,
    /// Sort column, marked in the heading.
    pub sorted: Option<usize>,
    /// Sort direction, shown as an arrow.
    pub descending: bool,
    pub hidden: Hidden,
    /// Columns that are more useful than usual for these rows.
    pub promoted: [Option<usize>; 2],
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
    let placed = placed(columns, view, area);
    heading(columns, &placed, view, area.y, buffer, theme);
    let visible = rows.iter().enumerate().skip(view.offset).take(usize::from(area.height) - 1);
    for (y, (i, row)) in (area.y + 1..).zip(visible) {
        for place in &placed {
            let column = &columns[place.column];
            let cell = cell(column, row);
            draw_cell(&cell.text, column.align, *place, y, theme.style(cell.role), buffer, theme);
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
        let sorted = view.sorted == Some(place.column);
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
        Align::Left | Align::Rest | Align::RestMiddle => place.x + title,
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
        Align::RestMiddle => fit_middle(text, room, theme.glyphs.ellipsis),
        _ => fit(text, room, theme.glyphs.ellipsis),
    };
    let width = u16::try_from(columns(&text)).unwrap_or(place.width);
    let x = match align {
        Align::Right => place.x + place.width.saturating_sub(width),
        Align::Left | Align::Rest | Align::RestMiddle => place.x,
    };
    put(buffer, x, y, &text, place.width, style);
}

#[cfg(test)]
mod tests;
