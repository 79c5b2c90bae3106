//! Charts side by side over the same time window. The last ones are omitted if not all fit.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::plot::plot;
use super::timeline::{Mark, Timeline};
use crate::dashboard::time_axis::TimeAxis;
use crate::tui::theme::Theme;

/// Minimum width of a useful chart.
const MIN_CHART_WIDTH: u16 = 45;
/// Maximum number of charts in a row.
const MAX_CHARTS: u16 = 4;

pub struct Timelines<'a> {
    pub charts: Vec<Timeline<'a>>,
    pub axis: TimeAxis,
    /// Marks drawn on each axis.
    pub marks: Vec<Mark>,
}

impl Timelines<'_> {
    pub fn draw(&self, area: Rect, buffer: &mut Buffer, theme: &Theme) {
        for (chart, place) in self.charts.iter().zip(self.places(area)) {
            chart.draw(self.axis, &self.marks, place, buffer, theme);
        }
    }

    /// Returns the areas of the charts that fit.
    fn places(&self, area: Rect) -> impl Iterator<Item = Rect> {
        let charts = u16::try_from(self.charts.len()).unwrap_or(u16::MAX);
        let across = charts.min((area.width / MIN_CHART_WIDTH).clamp(1, MAX_CHARTS)).max(1);
        let width = area.width / across;
        (0..across).map(move |i| Rect {
            x: area.x + width * i,
            width: width.saturating_sub(1),
            ..area
        })
    }

    /// Returns the areas over the time axes of the charts that fit.
    pub fn plots(&self, area: Rect) -> Vec<Rect> {
        self.places(area).filter_map(plot).collect()
    }
}
