//! Draws the accounting: the bar, with the headings in its row, and the lines below it.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::Shown;
use super::accounting::AccountingRow;
use crate::tui::theme::Role;
use crate::tui::widgets::bar::{self, Part};
use crate::tui::widgets::cells::{fit, put, put_right};

impl Shown<'_> {
    /// Draws the bar, with the headings in its row, and the lines below it.
    pub(super) fn table(&self, lines: &[AccountingRow], area: Rect, buffer: &mut Buffer) {
        let theme = self.theme;
        // In a wider table, a name and its figure would be too far apart.
        let area = Rect {
            width: area.width.min(120),
            ..area
        };
        let compare = if self.wide { 26 } else { 20 };
        let right = area.right().saturating_sub(compare + 2);
        let (peak_at, size_at) = (right, right.saturating_sub(8));
        let dim = theme.style(Role::Dim);
        let bar = Rect {
            width: size_at.saturating_sub(area.x + 9),
            ..area
        };
        self.bar(bar, buffer);
        put_right(buffer, area.x, size_at, area.y, "GiB", dim);
        put_right(buffer, area.x, peak_at, area.y, "PEAK", dim);
        put(buffer, right + 2, area.y, "COMPARE WITH", compare, dim);
        for (y, line) in (area.y + 1..area.bottom()).zip(lines) {
            if let Some((glyph, role)) = line.shape {
                put(buffer, area.x, y, glyph, 1, theme.style(role));
            }
            let text = theme.style(Role::Text);
            put(buffer, area.x + 2, y, line.name, 13, text);
            let room = size_at.saturating_sub(area.x + 15 + 8);
            let words = fit(&line.description, usize::from(room), theme.glyphs.ellipsis);
            put(buffer, area.x + 15, y, &words, room, dim);
            put_right(buffer, area.x, size_at, y, &line.size, text);
            put_right(buffer, area.x, peak_at, y, &line.peak, dim);
            put(buffer, right + 2, y, &line.compare, compare, dim);
        }
    }

    pub(super) fn bar(&self, area: Rect, buffer: &mut Buffer) {
        let (figures, glyphs) = (&self.figures, &self.theme.glyphs);
        let card = figures.card.unwrap_or_default();
        let parts = [
            (figures.allocated, glyphs.allocated, Role::Allocated),
            (figures.idle, glyphs.idle, Role::Idle),
            (
                figures.other.unwrap_or_default(),
                glyphs.other,
                Role::OtherVram,
            ),
            (card.elsewhere, glyphs.whole, Role::Processes),
            (card.driver, glyphs.driver, Role::Driver),
            (card.free, glyphs.free, Role::Free),
        ]
        .map(|(size, glyph, role)| Part {
            amount: size.0,
            glyph,
            style: self.theme.style(role),
        });
        bar::draw(buffer, area.x, area.y, area.width, &parts);
    }
}
