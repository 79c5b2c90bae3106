//! Draws the time axis under a chart.

use gputop_model::units::{Millis, UnixMillis};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::cells::{put, put_glyph, put_right};
use crate::dashboard::time_axis::TimeAxis;
use crate::dashboard::times::span_text;
use crate::export::text_width::columns;
use crate::tui::theme::{Role, Theme};

/// An event in a column, drawn as a letter on the axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AxisMark {
    pub column: u16,
    pub glyph: &'static str,
    pub role: Role,
}

/// Width of the label `now`.
const NOW_WIDTH: u16 = 3;

impl TimeAxis {
    /// Draws the axis line under `plot`, with its marks and times. The times are ages, or clock times if the window
    /// does not end now. A time that would hide a mark is moved or omitted, except `now`: marks move to its left.
    pub fn draw(&self, marks: &[AxisMark], plot: Rect, buffer: &mut Buffer, theme: &Theme) {
        let y = plot.bottom();
        for x in plot.left()..plot.right() {
            put_glyph(buffer, x, y, theme.glyphs.rule, theme.style(Role::Dim));
        }
        let last_column = match self.past {
            Some(_) => plot.width,
            None => plot.width.saturating_sub(NOW_WIDTH + 2),
        };
        let in_plot = marks.iter().filter(|mark| mark.column < plot.width);
        let marks: Vec<AxisMark> = in_plot
            .map(|mark| AxisMark { column: mark.column.min(last_column), ..*mark })
            .collect();
        for mark in &marks {
            let (x, style) = (plot.x + mark.column, theme.style(mark.role));
            put_glyph(buffer, x, y, mark.glyph, style);
        }
        let style = theme.style(match self.past {
            Some(_) => Role::Warn,
            None => Role::Dim,
        });
        let is_free =
            |from: u16, to: u16| !marks.iter().any(|mark| (from..to).contains(&mark.column));
        // Near the end of a past window, a clock time moves beside a mark.
        let nearest = match self.past {
            Some(_) => plot.width.saturating_sub(4),
            None => plot.width,
        };
        let place = |words: String| {
            let is_free = |end: &u16| is_free(end.saturating_sub(width_of(&words)), end + 1);
            let end = (nearest..=plot.width).rev().find(is_free)?;
            Some((words, end))
        };
        let words = [self.end_text(theme), self.short_words(theme)];
        let (words, end) = words.into_iter().find_map(place).unwrap_or((String::new(), plot.width));
        let end_at = put_right(buffer, plot.x, plot.x + end, y, &words, style);
        let ticks: u64 = if plot.width >= 60 { 4 } else { 2 };
        for tick in 0..ticks {
            let back = Millis(self.length.0 * (ticks - tick) / ticks);
            let at = u16::try_from(u64::from(plot.width) * tick / ticks).unwrap_or(0);
            let words = self.tick_text(back, theme);
            let width = width_of(&words);
            if plot.x + at + width < end_at && is_free(at, at + width + 1) {
                put(buffer, plot.x + at, y, &words, width, style);
            }
        }
    }

    fn tick_text(&self, back: Millis, theme: &Theme) -> String {
        match self.past {
            Some(past) => self.clock(UnixMillis(past.time.0 - signed(back)), theme),
            None => format!("-{}", span_text(back)),
        }
    }

    /// Formats the end of the window: `now` or `12:04, 1h02 ago`.
    pub fn end_text(&self, theme: &Theme) -> String {
        match self.past {
            None => "now".into(),
            Some(past) if past.ago == Millis(0) => self.clock(past.time, theme),
            Some(past) => format!("{}, {} ago", self.clock(past.time, theme), span_text(past.ago)),
        }
    }

    /// Formats the end of the window briefly: `now` or `12:04`.
    fn short_words(&self, theme: &Theme) -> String {
        self.past.map_or_else(|| "now".into(), |past| self.clock(past.time, theme))
    }

    /// Formats the window for narrow charts: `10m to 12:04`.
    pub fn clock_text(&self, theme: &Theme) -> String {
        let length = span_text(self.length);
        self.past
            .map_or(length.clone(), |past| format!("{length} to {}", self.clock(past.time, theme)))
    }

    /// Formats a clock time, including seconds in short windows.
    fn clock(&self, time: UnixMillis, theme: &Theme) -> String {
        let is_short = self.length < Millis(1_800_000);
        theme.clock(time, if is_short { "%H:%M:%S" } else { "%H:%M" })
    }
}

fn width_of(words: &str) -> u16 {
    u16::try_from(columns(words)).unwrap_or(u16::MAX)
}

fn signed(millis: Millis) -> i64 {
    i64::try_from(millis.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::time_axis::AxisEnd;
    use crate::tui::theme::Palette;
    use gputop_model::units::Mono;

    fn drawn(axis: TimeAxis, width: u16) -> String {
        marked(axis, width, &[])
    }

    fn marked(axis: TimeAxis, width: u16, columns: &[u16]) -> String {
        let mark = |column: &u16| AxisMark { column: *column, glyph: "x", role: Role::Bad };
        let marks: Vec<_> = columns.iter().map(mark).collect();
        let theme = Theme::new(Palette::None, true, jiff::tz::TimeZone::UTC);
        let area = Rect::new(0, 0, width, 1);
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, 2));
        axis.draw(&marks, area, &mut buffer, &theme);
        (0..width).map(|x| buffer[(x, 1)].symbol().to_owned()).collect()
    }

    #[test]
    fn labels_show_ages_or_clock_times() {
        let mut axis = TimeAxis { end: Mono(9_000_000), length: Millis(3_600_000), past: None };
        assert_eq!(drawn(axis, 32), "-1h--------------30m---------now");
        axis.past = Some(AxisEnd { time: UnixMillis(43_440_000), ago: Millis(3_720_000) });
        assert_eq!(drawn(axis, 32), "11:04------------12:04, 1h02 ago");
        let wide = drawn(axis, 80);
        for words in ["11:04-", "11:19-", "11:34-", "-12:04, 1h02 ago"] {
            assert!(wide.contains(words), "{wide}");
        }
        axis.length = Millis(60_000);
        assert!(drawn(axis, 80).starts_with("12:03:00-"));
    }

    #[test]
    fn labels_do_not_hide_marks_and_marks_do_not_hide_now() {
        let axis = TimeAxis { end: Mono(9_000_000), length: Millis(3_600_000), past: None };
        for (marks, text) in [
            (&[31][..], "-1h--------------30m-------x-now"),
            (&[18, 27], "-1h---------------x--------x-now"),
            (&[18, 29], "-1h---------------x--------x-now"),
            (&[2], "--x--------------30m---------now"),
        ] {
            assert_eq!(marked(axis, 32, marks), text, "{marks:?}");
        }
        let all: Vec<u16> = (0..32).collect();
        assert_eq!(marked(axis, 32, &all), "x".repeat(28) + "-now");
        let past = TimeAxis {
            past: Some(AxisEnd { time: UnixMillis(43_440_000), ago: Millis(3_720_000) }),
            ..axis
        };
        assert_eq!(marked(past, 32, &[20]), "11:04---------------x------12:04");
    }
}
