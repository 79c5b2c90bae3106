//! The frame around a chart: a title or legend above the columns, labels to their left, and an axis below.

use ratatui::buffer::Buffer;
use ratatui::layout::{Margin, Rect};

use super::area::split_left;
use super::cells::put_right;
use crate::tui::theme::{Role, Theme};

/// Width of the y-axis labels.
pub const LABELS: u16 = 6;

/// Returns the area for the columns, or `None` if there is no room for a chart.
pub fn plot(area: Rect) -> Option<Rect> {
    let [_, plot] = split_left(area, LABELS);
    (area.height >= 3 && plot.width >= 10).then(|| plot.inner(Margin::new(0, 1)))
}

/// Draws the labels of the upper and the lower edge.
pub fn edge_labels(plot: Rect, top: &str, buffer: &mut Buffer, theme: &Theme) {
    let (left, style) = (plot.x - LABELS, theme.style(Role::Dim));
    put_right(buffer, left, plot.x - 1, plot.y, top, style);
    if plot.height > 1 {
        put_right(buffer, left, plot.x - 1, plot.bottom() - 1, "0", style);
    }
}
