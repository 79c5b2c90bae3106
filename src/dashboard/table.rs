//! Tables as data: columns, cells and sort orders, without the screen or text on which they appear. A column defines its
//! title, width, cell and sort key in one value, so that they stay consistent.

use std::cmp::Ordering;

use gputop_model::reading::Reading;
use jiff::tz::TimeZone;

use super::emphasis::Emphasis;

/// A column in a table with rows of type `T`.
pub struct Column<T: ?Sized> {
    /// Title, which is also the name in the sort menu.
    pub title: &'static str,
    /// Width in terminal columns. For a flexible column, the minimum width.
    pub width: u16,
    pub align: Align,
    /// Placement priority. Columns with smaller numbers are placed first while there is room.
    pub priority: u8,
    /// Returns the cell of a row. Times in it are in this time zone.
    pub cell: fn(&T, &TimeZone) -> Cell,
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
        cell: fn(&T, &TimeZone) -> Cell,
        help: &'static str,
    ) -> Self {
        Self { align: Align::Left, ..Self::right(title, width, priority, cell, help) }
    }

    /// Returns a left-aligned column that takes the remaining width.
    pub const fn rest(
        title: &'static str,
        width: u16,
        priority: u8,
        cell: fn(&T, &TimeZone) -> Cell,
        help: &'static str,
    ) -> Self {
        Self { align: Align::Rest, ..Self::right(title, width, priority, cell, help) }
    }

    /// Returns a left-aligned column that truncates long text in the middle.
    pub const fn left_middle(
        title: &'static str,
        width: u16,
        priority: u8,
        cell: fn(&T, &TimeZone) -> Cell,
        help: &'static str,
    ) -> Self {
        Self::left(title, width, priority, cell, help).shortened_in_middle()
    }

    /// Truncates long text in the middle, which suits names that differ only at the end.
    pub const fn shortened_in_middle(self) -> Self {
        let align = match self.align {
            Align::Rest | Align::RestMiddle => Align::RestMiddle,
            Align::Left | Align::Right | Align::LeftMiddle => Align::LeftMiddle,
        };
        Self { align, ..self }
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
        cell: fn(&T, &TimeZone) -> Cell,
        help: &'static str,
    ) -> Self {
        Self { title, width, align: Align::Right, priority, cell, sort: None, help }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    /// Like `Left`, but long text is truncated in the middle.
    LeftMiddle,
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

/// A table cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    pub content: Content,
    pub emphasis: Emphasis,
}

/// Content of a table cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    Text(String),
    /// No value. Shown as a dash; the detail screen shows the reason.
    Missing,
}

impl Cell {
    pub fn new(text: impl Into<String>, emphasis: Emphasis) -> Self {
        Self { content: Content::Text(text.into()), emphasis }
    }

    pub fn text(text: impl Into<String>) -> Self {
        Self::new(text, Emphasis::Normal)
    }

    /// Returns the cell for a missing value.
    pub fn missing() -> Self {
        Self { content: Content::Missing, emphasis: Emphasis::Dim }
    }

    /// Dims plain text if the row is stale or its process has exited.
    pub fn dim_if(mut self, is_dim: bool) -> Self {
        if is_dim && self.emphasis == Emphasis::Normal {
            self.emphasis = Emphasis::Dim;
        }
        self
    }

    /// Returns true if the cell shows no value.
    pub fn is_empty(&self) -> bool {
        self.content == Content::Missing || self.is_text("")
    }

    /// Returns true if the cell shows exactly this text.
    pub fn is_text(&self, text: &str) -> bool {
        matches!(&self.content, Content::Text(own) if own == text)
    }

    /// Returns the text, or a dash.
    pub fn known(text: Option<String>) -> Self {
        text.map_or_else(Self::missing, Self::text)
    }

    /// Returns the text of the value, or a dash.
    pub fn reading<T>(reading: &Reading<T>, text: impl FnOnce(&T) -> String) -> Self {
        Self::known(reading.value().map(text))
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

/// The columns to show, apart from the width that they need.
#[derive(Debug, Clone, Copy, Default)]
pub struct ColumnChoice {
    /// Sort column, which is shown even if it is hidden or less important.
    pub sorted: Option<usize>,
    pub hidden: Hidden,
    /// A column that may take this width of what the flexible column has beyond its minimum.
    pub widened: Option<(usize, u16)>,
}

/// Position of a column in a table of a certain width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Index into the column slice.
    pub column: usize,
    pub x: u16,
    pub width: u16,
}

/// Columns with at least this priority number are placed only if the flexible column keeps at least 1.5 times its
/// minimum width.
const OPTIONAL_PRIORITY: u8 = 8;

/// Minimum width of the flexible column in an area that is too narrow for its own minimum.
const MIN_FLEXIBLE: u16 = 12;

/// Priority number of the sort column, unless its own is smaller. Rows sorted by a hidden column would look unsorted.
const SORTED_PRIORITY: u8 = 2;

/// Selects columns by priority until one does not fit, keeps their screen order, and gives the remaining width to the
/// flexible column. `x` is the position of the first column.
pub fn place<T: ?Sized>(
    columns: &[Column<T>],
    choice: &ColumnChoice,
    x: u16,
    width: u16,
) -> Vec<Placed> {
    let is_sorted = |i: usize| choice.sorted == Some(i);
    let priority = |i: usize| match columns[i].priority {
        own if is_sorted(i) => own.min(SORTED_PRIORITY),
        own => own,
    };
    let shown = |i: &usize| is_sorted(*i) || !choice.hidden.has(*i);
    let mut order: Vec<usize> = (0..columns.len()).filter(shown).collect();
    order.sort_by_key(|&i| priority(i));
    let flexible = columns.iter().find(|column| column.align == Align::Rest);
    let comfort = flexible.map_or(0, |column| column.width / 2);
    let mut chosen = vec![false; columns.len()];
    let (mut used, mut narrowed) = (0, None);
    for i in order {
        let need = columns[i].width + u16::from(used > 0);
        let reserve = match priority(i) {
            OPTIONAL_PRIORITY.. => comfort,
            _ => 0,
        };
        // A flexible column that is the second by importance is better narrow than missing.
        let left = width.saturating_sub(used + u16::from(used > 0));
        let is_essential = columns[i].align.is_flexible() && priority(i) <= 1;
        if used + need > width && is_essential && left >= MIN_FLEXIBLE {
            (chosen[i], narrowed, used) = (true, Some(left), width);
            break;
        }
        if used + need + reserve > width {
            // Stop here, so that a less important column does not fill the gap.
            break;
        }
        chosen[i] = true;
        used += need;
    }
    let spare = width - used;
    let is_widened = |i: usize| choice.widened.filter(|(column, _)| *column == i && chosen[i]);
    let wider = |i: usize| {
        is_widened(i).map_or(0, |(_, wanted)| wanted.saturating_sub(columns[i].width).min(spare))
    };
    let taken: u16 = (0..columns.len()).map(wider).sum();
    let mut at = x;
    let mut placed = Vec::new();
    for (i, column) in columns.iter().enumerate().filter(|(i, _)| chosen[*i]) {
        let flexible = if column.align.is_flexible() { spare - taken } else { 0 };
        let narrowed = narrowed.filter(|_| column.align.is_flexible());
        let width = narrowed.unwrap_or(column.width + flexible + wider(i));
        placed.push(Placed { column: i, x: at, width });
        at += width + 1;
    }
    placed
}

/// Returns the minimum table width at which a column is shown, unless the user hides it.
pub fn min_width<T: ?Sized>(columns: &[Column<T>], choice: &ColumnChoice, column: usize) -> u16 {
    let mut choice = ColumnChoice { sorted: None, ..*choice };
    choice.hidden.show(column);
    let all: u16 = columns.iter().map(|column| column.width + 1).sum();
    let shows = |width: &u16| {
        let placed = place(columns, &choice, 1, width.saturating_sub(1));
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

#[cfg(test)]
mod tests;
