//! The screen in a pane too small for its parts: the bar and a few lines.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::Shown;
use super::figures::STEP;
use super::stack::stack_lines;
use crate::model::units::Bytes;
use crate::tui::theme::Role;
use crate::tui::widgets::cells::{put_lines, wrap_words};

impl Shown<'_> {
    pub(super) fn small(&self, area: Rect, buffer: &mut Buffer) {
        let mut lines = self.small_lines(area.width);
        let top = Rect { height: 1, ..area };
        self.title(top, buffer);
        if area.height > 1 {
            let row = Rect {
                y: area.y + 1,
                ..top
            };
            self.bar(row, buffer);
        }
        let below = area.height.saturating_sub(2);
        lines.truncate(usize::from(below));
        let text = Rect {
            y: area.y + 2,
            height: below,
            ..area
        };
        put_lines(buffer, text, &lines, self.theme);
        let used = u16::try_from(lines.len()).unwrap_or(below);
        if below > used + 2 {
            let rest = Rect {
                y: text.y + used,
                height: below - used,
                ..area
            };
            self.lower(rest, buffer);
        }
    }

    fn small_lines(&self, width: u16) -> Vec<(String, Role)> {
        let figures = &self.figures;
        let tenths = |size: Bytes| format!("{:.1}", size.as_gib());
        let size = |size: Option<Bytes>| size.map_or(self.theme.glyphs.absent.into(), tenths);
        // Rounded down, because a promised size must fit.
        let step = STEP * 10;
        let fits = figures.fits.largest().map(|f| Bytes(f.0 / step * step));
        let mut lines = vec![
            (
                format!(
                    "alloc {} idle {} stuck {} FITS {}",
                    tenths(figures.allocated),
                    tenths(figures.idle),
                    size(figures.idle_parts.map(|p| p.stuck)),
                    size(fits)
                ),
                Role::Text,
            ),
            (self.counters(), self.counters_role()),
        ];
        lines.extend(
            self.notes
                .iter()
                .map(|note| (note.text.clone(), Role::Warn)),
        );
        lines.extend(stack_lines(self.app, self.screen.process, width, 1));
        let headline = figures.headline();
        lines.extend(
            wrap_words(&headline, usize::from(width.max(10)))
                .into_iter()
                .map(|line| (line, Role::Dim)),
        );
        lines
    }
}
