//! A value over time as columns: solid up to the column's mean, lighter up to its maximum, and blank where nothing was
//! measured. A short spike is visible even if each column covers a minute.

use gputop_model::history::{Level, Series};
use gputop_model::units::{Bytes, Mono};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::cells::{put_all, put_glyph, put_line, put_line_right};
use super::plot::{edge_labels, plot};
use super::time_axis::AxisMark;
use crate::dashboard::time_axis::TimeAxis;
use crate::export::text_width::columns as columns_of;
use crate::tui::theme::{Role, Theme};

/// A chart with its labels.
pub struct Timeline<'a> {
    pub title: String,
    pub series: Option<&'a Series>,
    /// Value at the top edge.
    pub top: f32,
    /// Label of the top edge: `140G`, `100%`.
    pub top_label: String,
    pub role: Role,
}

/// An event, drawn as a letter on the axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mark {
    pub at: Mono,
    pub glyph: &'static str,
    pub role: Role,
}

impl Mark {
    /// Returns the event's mark on the axis under `plot`, if it is in the time window.
    pub fn on(&self, axis: TimeAxis, plot: Rect) -> Option<AxisMark> {
        Some(AxisMark {
            column: axis.column(self.at, plot.width)?,
            glyph: self.glyph,
            role: self.role,
        })
    }
}

/// Explains the marks that can be seen on an axis: `■ OOM  ▲ incident  □ exit`. Empty if there are none. Omits the last
/// entries if they do not fit into `width` columns.
pub fn legend(marks: &[AxisMark], width: usize, theme: &Theme) -> String {
    // A mark is drawn over the earlier ones of its column.
    let is_drawn_over = |at: usize, column: u16| marks[at + 1..].iter().any(|m| m.column == column);
    let visible = marks.iter().enumerate().filter(|(at, mark)| !is_drawn_over(*at, mark.column));
    let visible: Vec<&str> = visible.map(|(_, mark)| mark.glyph).collect();
    let glyphs = &theme.glyphs;
    let words = [(glyphs.oom, "OOM"), (glyphs.incident, "incident"), (glyphs.ended, "exit")];
    let mut legend = String::new();
    for (glyph, word) in words.iter().filter(|(glyph, _)| visible.contains(glyph)) {
        let gap = if legend.is_empty() { "" } else { "  " };
        let entry = format!("{gap}{glyph} {word}");
        if columns_of(&legend) + columns_of(&entry) > width {
            break;
        }
        legend.push_str(&entry);
    }
    legend
}

impl<'a> Timeline<'a> {
    /// Returns a memory chart with a range up to `top`, or up to a GiB without a label if that is unknown.
    pub fn bytes(title: impl Into<String>, series: Option<&'a Series>, top: Option<Bytes>) -> Self {
        Self {
            title: title.into(),
            series,
            top: top.unwrap_or(Bytes::gib(1)).0 as f32,
            top_label: top.map(|top| top.short()).unwrap_or_default(),
            role: Role::Processes,
        }
    }

    pub fn percent(title: impl Into<String>, series: Option<&'a Series>) -> Self {
        Self {
            title: title.into(),
            series,
            top: 100.0,
            top_label: "100%".into(),
            role: Role::Chart,
        }
    }

    /// Draws the chart, which needs three rows: a title, at least one row of columns, and the time axis.
    pub fn draw(
        &self,
        axis: TimeAxis,
        marks: &[Mark],
        area: Rect,
        buffer: &mut Buffer,
        theme: &Theme,
    ) {
        let Some(plot) = plot(area) else { return };
        put_line(buffer, area, &self.title, Role::Dim, theme);
        let marks: Vec<_> = marks.iter().filter_map(|mark| mark.on(axis, plot)).collect();
        // Apart from the title of the chart beside this one.
        let heading = Rect { width: area.width.saturating_sub(2), ..area };
        let room = usize::from(heading.width).saturating_sub(columns_of(&self.title) + 2);
        let legend = legend(&marks, room, theme);
        let end = put_line_right(buffer, heading, &legend, Role::Dim, theme);
        edge_labels(plot, &self.top_label, buffer, theme);
        axis.draw(&marks, plot, buffer, theme);
        let Some(series) = self.series else { return };
        let levels = series.levels(axis.end, axis.length, usize::from(plot.width));
        columns(&levels, self.top, self.role, plot, buffer, theme);
        // Less than half a row of the lighter tone is hardly seen, and needs no explanation.
        let visible = self.top / (2.0 * f32::from(plot.height));
        let has_peaks = levels.iter().flatten().any(|level| level.peak - level.mean >= visible);
        let peaks = (theme.chart_glyph(theme.glyphs.range), theme.peak_style(self.role));
        let words = [peaks, (" peaks  ", theme.style(Role::Dim))];
        let width = words.iter().map(|(text, _)| columns_of(text)).sum::<usize>();
        if has_peaks && columns_of(&legend) + width <= room {
            let x = end - u16::try_from(width).unwrap_or(0);
            put_all(buffer, x, area.y, end, &words);
        }
    }
}

/// Draws the columns of `levels` into `plot`. `top` is the value at the top edge.
pub fn columns(
    levels: &[Option<Level>],
    top: f32,
    role: Role,
    plot: Rect,
    buffer: &mut Buffer,
    theme: &Theme,
) {
    let full = f32::from(plot.height) * 8.0;
    let eighths =
        |value: f32| ((value / top.max(f32::MIN_POSITIVE)).clamp(0.0, 1.0) * full).round() as u16;
    let (solid, lighter) = (theme.style(role), theme.peak_style(role));
    let eighth_glyphs = theme.glyphs.levels;
    for (x, level) in (plot.left()..plot.right()).zip(levels) {
        let Some(Level { mean, peak }) = level else {
            continue;
        };
        let (low, high) = (eighths(*mean), eighths(*peak));
        for row in 0..plot.height {
            let y = plot.bottom() - 1 - row;
            let (base, ceiling) = (row * 8, row * 8 + 8);
            let (glyph, style) = if low >= ceiling {
                (eighth_glyphs[8], solid)
            } else if high >= ceiling && low > base && theme.has_solid_charts() {
                // Draw both tones in one cell: one in the foreground, the other in the background.
                let upper = lighter.fg.unwrap_or_default();
                (eighth_glyphs[usize::from(low - base)], solid.bg(upper))
            } else if high >= ceiling {
                (theme.chart_glyph(theme.glyphs.range), lighter)
            } else if high > base && low <= base && theme.has_solid_charts() {
                (eighth_glyphs[usize::from(high - base)], lighter)
            } else if high > base {
                (eighth_glyphs[usize::from(high - base)], solid)
            } else if row == 0 {
                // Draw a measured zero, so that it looks different from a missing value.
                (eighth_glyphs[1], theme.style(Role::Free))
            } else {
                break;
            };
            put_glyph(buffer, x, y, glyph, style);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tui::theme::Palette;

    #[test]
    fn draws_spikes_above_the_mean_and_gaps_as_blanks() {
        let theme = Theme::new(Palette::None, true, jiff::tz::TimeZone::UTC);
        let area = Rect::new(0, 0, 4, 2);
        let mut buffer = Buffer::empty(area);
        let level = |mean, peak| Some(Level { mean, peak });
        let levels = [level(50.0, 50.0), None, level(50.0, 100.0), level(0.0, 0.0)];
        columns(&levels, 100.0, Role::Chart, area, &mut buffer, &theme);
        let rows: Vec<String> =
            (0..2).map(|y| (0..4).map(|x| buffer[(x, y)].symbol().to_owned()).collect()).collect();
        assert_eq!(rows, ["  : ", "# #."]);
    }

    #[test]
    fn the_legend_explains_the_marks_that_can_be_seen() {
        let theme = Theme::new(Palette::None, true, jiff::tz::TimeZone::UTC);
        let mark = |column, glyph| AxisMark { column, glyph, role: Role::Bad };
        let glyphs = &theme.glyphs;
        let mut marks = vec![mark(3, glyphs.ended), mark(4, glyphs.ended), mark(4, glyphs.oom)];
        assert_eq!(legend(&marks, 13, &theme), "* OOM  | exit");
        assert_eq!(legend(&marks, 12, &theme), "* OOM");
        marks.remove(0);
        assert_eq!(legend(&marks, 13, &theme), "* OOM");
        assert_eq!(legend(&[], 13, &theme), "");
    }
}
