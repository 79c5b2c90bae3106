//! The screen with enough room. Its parts are drawn from the top; the lowest are omitted first.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::Shown;
use super::accounting::len;
use crate::tui::marks;
use crate::tui::widgets::cells::put_lines;
use crate::tui::widgets::pool_chart::PoolChart;

impl Shown<'_> {
    /// Draws the screen and returns the area of the chart.
    pub(super) fn large(&self, area: Rect, buffer: &mut Buffer) -> Rect {
        let inner = Rect {
            x: area.x + 1,
            width: area.width.saturating_sub(2),
            ..area
        };
        let mut y = area.y;
        let mut next = |height: u16| {
            let row = Rect {
                y,
                height: height.min(area.bottom().saturating_sub(y)),
                ..inner
            };
            y += row.height;
            row
        };
        self.title(next(1), buffer);
        self.headline(next(1), buffer);
        let lines = self.lines();
        self.table(&lines, next(1 + len(&lines)), buffer);
        self.fits_line(next(1), buffer);
        if let Some(note) = self.notes.first().filter(|_| area.height >= 16) {
            self.note(note, next(1), buffer);
        }
        let stack = self.stack_lines(inner.width, if area.height < 32 { 1 } else { 3 });
        // A stack that was not requested does not take the place of the chart.
        let min_height = if self.is_stack_requested() { 16 } else { 26 };
        if area.height >= min_height && !stack.is_empty() {
            let area = next(u16::try_from(stack.len()).unwrap_or(0));
            put_lines(buffer, area, &stack, self.theme);
        }
        let rest = next(u16::MAX);
        let height = match rest.height {
            0..=9 => 0,
            10..=13 => 3,
            14..=20 => 5,
            more => (more / 4).clamp(6, 12),
        };
        let chart = Rect { height, ..rest };
        self.chart(chart, buffer);
        let lower = Rect {
            y: rest.y + height,
            height: rest.height - height,
            ..rest
        };
        self.lower(lower, buffer);
        chart
    }

    fn chart(&self, area: Rect, buffer: &mut Buffer) {
        let top = self
            .gpu
            .and_then(|gpu| gpu.memory.total.get())
            .unwrap_or(self.pool.stats.reserved_peak);
        PoolChart {
            history: &self.app.history,
            process: self.screen.process,
            ordinal: self.pool.ordinal,
            axis: self.app.time_axis(None),
            marks: marks::of_process(self.app, self.screen.process, None),
            top,
        }
        .draw(area, buffer, self.theme);
    }
}
