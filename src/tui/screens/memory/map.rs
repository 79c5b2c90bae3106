//! The map pane, with its cursor.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::analysed_map::AnalysedMap;
use super::{Pane, Shown};
use crate::tui::theme::Role;
use crate::tui::widgets::cells::put;
use crate::tui::widgets::segment_map;
use crate::tui::widgets::table::scrolled;

impl Shown<'_> {
    /// Draws the map. `under` is the line for the cell under the cursor; it may be empty.
    pub(super) fn map(&self, read: &AnalysedMap, area: Rect, under: Rect, buffer: &mut Buffer) {
        let theme = self.theme;
        let cells = Rect {
            y: area.y + 1,
            height: area.height - 1,
            ..area
        };
        let layout = read.layout(segment_map::cells_per_row(cells), usize::from(cells.height));
        let cursor = layout.nearest(self.screen.cursor);
        let title = layout.title(read.map.exact, area.width);
        put(
            buffer,
            area.x,
            area.y,
            "MAP",
            area.width,
            theme.style(Role::Title),
        );
        put(
            buffer,
            area.x + 5,
            area.y,
            &title,
            area.width.saturating_sub(5),
            theme.style(Role::Dim),
        );
        let offset = scrolled(cursor.row, layout.rows(), usize::from(cells.height));
        self.remember(Pane::Map, cells, offset);
        let marked = (!self.screen.is_embedded).then_some(cursor);
        layout.draw(&read.map, offset, marked, cells, buffer, theme);
        if under.height > 0 {
            self.under(read, &layout, cursor, under, buffer);
        }
    }
}
