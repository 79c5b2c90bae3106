//! Helpers that split an area into parts.

use ratatui::layout::{Constraint, Layout, Margin, Rect};

/// Returns the row of an area at `y`.
pub fn row(area: Rect, y: u16) -> Rect {
    Rect::new(area.x, y, area.width, 1)
}

/// Returns the area without its leftmost and rightmost columns.
pub fn margin(area: Rect) -> Rect {
    match area.width {
        0 | 1 => Rect { width: 0, ..area },
        _ => area.inner(Margin::new(1, 0)),
    }
}

/// Splits an area after its first `height` rows. If the area is shorter, the second part is empty.
pub fn split_top(area: Rect, height: u16) -> [Rect; 2] {
    Layout::vertical([Constraint::Length(height), Constraint::Fill(1)]).areas(area)
}

/// Splits an area before its last `height` rows. If the area has fewer rows, the first part is empty.
pub fn split_bottom(area: Rect, height: u16) -> [Rect; 2] {
    split_top(area, area.height.saturating_sub(height))
}

/// Splits an area after its first `width` columns. If the area is narrower, the second part is empty.
pub fn split_left(area: Rect, width: u16) -> [Rect; 2] {
    Layout::horizontal([Constraint::Length(width), Constraint::Fill(1)]).areas(area)
}

/// Splits an area before its last `width` columns. If the area has fewer columns, the first part is empty.
pub fn split_right(area: Rect, width: u16) -> [Rect; 2] {
    split_left(area, area.width.saturating_sub(width))
}
