//! The line that describes the cell under the cursor.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::Shown;
use super::analysed_map::AnalysedMap;
use crate::tui::theme::Role;
use crate::tui::widgets::cells::put_line;
use crate::tui::widgets::segment_map::{Cursor, SegmentLayout};

impl Shown<'_> {
    /// Draws the contents of the cell under the cursor.
    pub(super) fn under(
        &self,
        read: &AnalysedMap,
        layout: &SegmentLayout,
        cursor: Cursor,
        area: Rect,
        buffer: &mut Buffer,
    ) {
        let Some(under) = layout.under(&read.map, cursor) else {
            return;
        };
        let theme = self.theme;
        let shown = if area.width >= 96 { 8 } else { 4 };
        let text = under.words(shown, theme);
        put_line(buffer, area, &text, Role::Text, theme);
    }
}
