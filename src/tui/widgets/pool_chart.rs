//! A pool's memory over time: live tensors, the cache above them, and marks for cache flushes and failed requests.

use gputop_model::history::{History, PoolMetric, SeriesKey, Span};
use gputop_model::process::ProcessKey;
use gputop_model::units::Bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::cells::put_glyph;
use super::plot::{edge_labels, plot};
use super::time_axis::AxisMark;
use super::timeline::{Mark, legend};
use crate::dashboard::time_axis::TimeAxis;
use crate::dashboard::times::span_text;
use crate::tui::theme::{Role, Theme};

pub struct PoolChart<'a> {
    pub history: &'a History,
    pub process: ProcessKey,
    pub ordinal: u32,
    pub axis: TimeAxis,
    /// Events of the process, in addition to those derived from its counters.
    pub marks: Vec<Mark>,
    /// Value at the top edge: the GPU's total memory.
    pub top: Bytes,
}

/// Edges of one column in eighths of a cell: minimum and maximum allocated memory, and reserved memory.
struct Edges {
    low: u32,
    high: u32,
    reserved: u32,
}

impl PoolChart<'_> {
    /// Draws the chart, which needs three rows: the legend, at least one row of columns, and the axis.
    pub fn draw(&self, area: Rect, buffer: &mut Buffer, theme: &Theme) {
        let Some(plot) = plot(area) else { return };
        self.legend(plot, area, buffer, theme);
        edge_labels(plot, &self.top.short(), buffer, theme);
        self.axis.draw(&self.marks(plot, theme), plot, buffer, theme);
        self.columns(plot, buffer, theme);
    }

    fn marks(&self, plot: Rect, theme: &Theme) -> Vec<AxisMark> {
        let mut marks = Vec::new();
        for (metric, glyph, role) in [
            (PoolMetric::Retries, theme.glyphs.retry, Role::Warn),
            (PoolMetric::Ooms, theme.glyphs.oom, Role::Bad),
        ] {
            let columns = increases(&self.window(metric, plot.width));
            marks.extend(columns.into_iter().map(|column| AxisMark {
                column: u16::try_from(column).unwrap_or(0),
                glyph,
                role,
            }));
        }
        marks.extend(self.marks.iter().filter_map(|mark| mark.on(self.axis, plot)));
        marks
    }

    fn legend(&self, plot: Rect, area: Rect, buffer: &mut Buffer, theme: &Theme) {
        let glyphs = &theme.glyphs;
        let length = span_text(self.axis.length);
        let length = match self.axis.past {
            Some(_) => format!("{length} to {}  ", self.axis.end_text(theme)),
            None => format!("last {length}  "),
        };
        let [allocated, peaks, cached] = shapes(theme);
        let shapes = [
            (allocated, " allocated  "),
            (peaks, " peaks  "),
            (cached, " cached  "),
            ((glyphs.retry, theme.style(Role::Warn)), " retry  "),
            ((glyphs.oom, theme.style(Role::Bad)), " OOM"),
        ];
        // Failed requests are in the list above.
        let others = self.marks.iter().filter(|mark| mark.glyph != glyphs.oom);
        let others: Vec<_> = others.filter_map(|mark| mark.on(self.axis, plot)).collect();
        let others = legend(&others, usize::MAX, theme);
        let others = if others.is_empty() { others } else { format!("  {others}") };
        let dim = theme.style(Role::Dim);
        let role = self.axis.past.map_or(Role::Dim, |_| Role::Warn);
        let mut pieces = vec![(length.as_str(), theme.style(role))];
        for (shape, word) in shapes {
            pieces.extend([shape, (word, dim)]);
        }
        pieces.push((&others, dim));
        super::cells::put_all(buffer, area.x, area.y, area.right(), &pieces);
    }

    fn window(&self, metric: PoolMetric, columns: u16) -> Vec<Option<Span>> {
        let key = SeriesKey::Pool(self.process, self.ordinal, metric);
        self.history
            .series(&key)
            .map(|series| series.window(self.axis.end, self.axis.length, usize::from(columns)))
            .unwrap_or_default()
    }

    fn columns(&self, plot: Rect, buffer: &mut Buffer, theme: &Theme) {
        let allocated = self.window(PoolMetric::Allocated, plot.width);
        let reserved = self.window(PoolMetric::Reserved, plot.width);
        columns(&allocated, &reserved, self.top, plot, buffer, theme);
    }
}

/// Draws allocated memory, with the cache above it, into `plot`. `top` is the value at the top edge.
pub fn columns(
    allocated: &[Option<Span>],
    reserved: &[Option<Span>],
    top: Bytes,
    plot: Rect,
    buffer: &mut Buffer,
    theme: &Theme,
) {
    let full = f32::from(plot.height) * 8.0;
    let top = (top.0 as f32).max(1.0);
    let eighths = |value: f32| ((value / top).clamp(0.0, 1.0) * full).round() as u32;
    for ((x, allocated), reserved) in (plot.left()..plot.right()).zip(allocated).zip(reserved) {
        let (Some(Span(low, high)), Some(Span(_, reserved))) = (allocated, reserved) else {
            continue;
        };
        let edges =
            Edges { low: eighths(*low), high: eighths(*high), reserved: eighths(*reserved) };
        for row in 0..plot.height {
            let (glyph, style) = edges.cell(u32::from(row) * 8, theme);
            put_glyph(buffer, x, plot.bottom() - 1 - row, glyph, style);
        }
    }
}

/// Returns the glyphs and styles of allocated memory, its peaks, and the cache above it.
pub fn shapes(theme: &Theme) -> [(&'static str, Style); 3] {
    let glyphs = &theme.glyphs;
    [
        (glyphs.levels[8], theme.style(Role::Allocated)),
        (theme.chart_glyph(glyphs.range), theme.peak_style(Role::Allocated)),
        (theme.chart_glyph(glyphs.cached), theme.style(Role::Cached)),
    ]
}

impl Edges {
    /// Returns the glyph and style of the cell that begins at `base`. If two values share a cell, the lower one is drawn
    /// if it fills at least half of the cell.
    fn cell(&self, base: u32, theme: &Theme) -> (&'static str, Style) {
        let half = base + 4;
        let [allocated, peaks, cached] = shapes(theme);
        if self.low >= half {
            allocated
        } else if self.high >= half {
            peaks
        } else if self.reserved >= half {
            cached
        } else if self.high > base {
            let eighths = usize::try_from(self.high - base).unwrap_or(0).min(8);
            (theme.glyphs.levels[eighths], allocated.1)
        } else {
            (" ", theme.style(Role::Free))
        }
    }
}

/// Returns the columns in which a counter increased. A counter that decreased was reset.
fn increases(window: &[Option<Span>]) -> Vec<usize> {
    let mut before: Option<f32> = None;
    let mut columns = Vec::new();
    for (column, span) in window.iter().enumerate() {
        let Some(Span(low, high)) = *span else {
            continue;
        };
        if high > before.unwrap_or(low) {
            columns.push(column);
        }
        before = Some(if before.is_some_and(|b| low < b) { low } else { high });
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_increases_but_not_resets_of_a_counter() {
        let window = [
            None,
            Some(Span(5.0, 5.0)),
            Some(Span(5.0, 7.0)),
            Some(Span(0.0, 7.0)),
            Some(Span(0.0, 0.0)),
            None,
            Some(Span(1.0, 1.0)),
        ];
        assert_eq!(increases(&window), [2, 6]);
        assert_eq!(increases(&[]), [0_usize; 0]);
    }
}
