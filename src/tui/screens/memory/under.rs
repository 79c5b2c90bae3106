//! What the cell under the cursor holds, in a line.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::Shown;
use super::read::Read;
use crate::model::units::Bytes;
use crate::tui::theme::Role;
use crate::tui::widgets::cells::put_line;
use crate::tui::widgets::segment_map::{Cursor, Fill, SegmentLayout, pool_words, stream_words};

impl Shown<'_> {
    /// What the cell under the cursor holds.
    pub(super) fn under(
        &self,
        read: &Read,
        layout: &SegmentLayout,
        cursor: Cursor,
        area: Rect,
        buffer: &mut Buffer,
    ) {
        let Some(under) = layout.under(&read.map, cursor) else {
            return;
        };
        let theme = self.theme;
        let segment = under.segment;
        let kind = if segment.expandable {
            " expandable"
        } else {
            ""
        };
        let mut text = format!(
            "{:x} {}{kind} {} stream {} +{}:",
            segment.address,
            segment.size.short(),
            pool_words(segment.pool),
            stream_words(segment.stream),
            Bytes(under.from).short()
        );
        let shown = if area.width >= 96 { 8 } else { 4 };
        for block in under.blocks.iter().take(shown) {
            let fill = Fill::of(block.state);
            text.push_str(&format!(" {} {}", fill.glyph(theme), block.size.short()));
        }
        if under.blocks.len() > shown {
            text.push_str(&format!(" and {} more", under.blocks.len() - shown));
        }
        put_line(buffer, area, &text, Role::Text, theme);
    }
}
