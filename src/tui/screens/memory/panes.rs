//! Layout of the map, the histogram and the metrics.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::analysed_map::AnalysedMap;
use super::metrics::metric_lines;
use super::{Pane, Shown};
use crate::tui::theme::Role;
use crate::tui::widgets::cells::{put, wrap_words};
use crate::tui::widgets::histogram;

impl Shown<'_> {
    /// Draws as many of map, histogram and metrics as there is room for. Tab selects the others.
    pub(super) fn lower(&self, area: Rect, buffer: &mut Buffer) {
        if area.height < 2 {
            return;
        }
        let Some(read) = &self.screen.analysed_map else {
            self.without_map(area, buffer);
            return;
        };
        let mut metrics = metric_lines(self.pool, read, self.theme);
        metrics.extend(self.note_lines());
        let both = area.height >= 20;
        let below = u16::try_from(metrics.len())
            .unwrap_or(u16::MAX)
            .min(area.height / 2);
        let upper = Rect {
            height: area.height - if both { below } else { 0 },
            ..area
        };
        let lower = Rect {
            y: upper.bottom(),
            height: area.height - upper.height,
            ..area
        };
        match self.screen.pane {
            Pane::Metrics if !both => self.metrics(&metrics, area, buffer),
            pane => {
                self.blocks(read, pane, upper, buffer);
                self.metrics(&metrics, lower, buffer);
            }
        }
    }

    fn without_map(&self, area: Rect, buffer: &mut Buffer) {
        let pool = (self.pool.process, self.pool.ordinal);
        let missing = self.app.no_map.as_ref().filter(|(of, _)| *of == pool);
        let text = match missing {
            Some((_, why)) => format!("MAP  {why}"),
            None => "MAP  reading".to_owned(),
        };
        let dim = self.theme.style(Role::Dim);
        let lines = wrap_words(&text, usize::from(area.width));
        for (y, line) in (area.y..area.bottom()).zip(lines) {
            put(buffer, area.x, y, &line, area.width, dim);
        }
    }

    /// Draws map and histogram side by side, or the selected one.
    fn blocks(&self, read: &AnalysedMap, pane: Pane, area: Rect, buffer: &mut Buffer) {
        let line = u16::from(area.height >= 4 && !self.screen.is_embedded);
        let under = Rect {
            y: area.bottom() - line,
            height: line,
            ..area
        };
        let area = Rect {
            height: area.height - line,
            ..area
        };
        if area.width < 76 {
            match pane {
                Pane::Histogram => {
                    self.histogram(read, area, buffer);
                }
                _ => self.map(read, area, under, buffer),
            }
            return;
        }
        let right = (area.width * 2 / 5).clamp(32, 60);
        let left = Rect {
            width: area.width - right - 2,
            ..area
        };
        self.map(read, left, under, buffer);
        let right = Rect {
            x: area.right() - right,
            width: right,
            ..area
        };
        self.histogram(read, right, buffer);
    }

    fn histogram(&self, read: &AnalysedMap, area: Rect, buffer: &mut Buffer) {
        self.remember(Pane::Histogram, area, 0);
        histogram::draw(&read.fragmentation.histogram, area, buffer, self.theme);
    }
}
