//! Charts side by side over the same time: as many as there is room for, the first ones first.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::time_axis::TimeAxis;
use super::timeline::{Mark, Timeline};
use crate::tui::theme::Theme;

/// In fewer columns a chart says too little.
const MIN_COLUMNS: u16 = 45;
/// Of more than these one looks at none.
const MAX_GPUS: u16 = 4;

pub struct Timelines<'a> {
    pub charts: Vec<Timeline<'a>>,
    pub axis: TimeAxis,
    /// Moments to be seen on each axis.
    pub marks: Vec<Mark>,
}

impl Timelines<'_> {
    pub fn draw(&self, area: Rect, buffer: &mut Buffer, theme: &Theme) {
        let charts = u16::try_from(self.charts.len()).unwrap_or(u16::MAX);
        let across = charts
            .min((area.width / MIN_COLUMNS).clamp(1, MAX_GPUS))
            .max(1);
        let width = area.width / across;
        for (i, chart) in (0..across).zip(&self.charts) {
            let place = Rect {
                x: area.x + width * i,
                width: width.saturating_sub(1),
                ..area
            };
            chart.draw(self.axis, &self.marks, place, buffer, theme);
        }
    }
}
