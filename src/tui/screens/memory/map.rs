//! The pane of the map, with its cursor.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::read::Read;
use super::{Pane, Shown};
use crate::tui::theme::Role;
use crate::tui::widgets::cells::put;
use crate::tui::widgets::segment_map::{self, SegmentLayout};
use crate::tui::widgets::table::scrolled;

impl Shown<'_> {
    /// `under` is the line for what the cursor is on, if there is one.
    pub(super) fn map(&self, read: &Read, area: Rect, under: Rect, buffer: &mut Buffer) {
        let theme = self.theme;
        let cells = Rect {
            y: area.y + 1,
            height: area.height - 1,
            ..area
        };
        let layout = read.layout(segment_map::cells_per_row(cells), usize::from(cells.height));
        let cursor = layout.nearest(self.screen.cursor);
        let title = map_title(&layout, read, area.width);
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
        let marked = (!self.screen.lies_below).then_some(cursor);
        layout.draw(&read.map, offset, marked, cells, buffer, theme);
        if under.height > 0 {
            self.under(read, &layout, cursor, under, buffer);
        }
    }
}

fn map_title(layout: &SegmentLayout, read: &Read, width: u16) -> String {
    let cell = layout.cell.to_string();
    let cell = cell
        .strip_suffix(".00 MiB")
        .map_or_else(|| layout.cell.short(), |whole| format!("{whole} MiB"));
    let wide = if width >= 60 {
        ", rows = segments, large first"
    } else if width >= 40 {
        ", rows = segments"
    } else {
        ""
    };
    let exact = if read.map.exact {
        ""
    } else {
        "; approximate: it changed while read"
    };
    format!("cell {cell}{wide}{exact}")
}
