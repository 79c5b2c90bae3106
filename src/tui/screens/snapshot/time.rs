//! Allocated and reserved memory over the events of the trace, with a cursor, marks, and the event under the cursor.

use gputop_allocator::snapshot::history::EventSpan;
use gputop_allocator::snapshot::{Device, DeviceAnalysis};
use gputop_model::history::Span as Values;
use gputop_model::units::Bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::tui::action::Action;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::area::split_right;
use crate::tui::widgets::cells::{put, put_all, put_glyph, put_right};
use crate::tui::widgets::plot::{LABELS, edge_labels, plot};
use crate::tui::widgets::pool_chart;

/// Minimum number of events shown in a chart.
const MIN_EVENTS: usize = 32;

/// The visible part of the trace, expressed as positions.
#[derive(Debug, Clone, Default)]
pub struct Window {
    from: usize,
    to: usize,
    cursor: usize,
    /// At most two marks, in the order in which they were set.
    marks: Vec<usize>,
}

/// Result of a key press.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    No,
    Cursor,
    Marks,
}

impl Window {
    /// Creates a view of the whole trace, with the cursor at the peak of allocated memory.
    pub fn of(device: &Device, study: &DeviceAnalysis) -> Self {
        Self { from: 0, to: device.events.len(), cursor: study.peak, marks: Vec::new() }
    }

    /// Returns a view of the whole trace with the same cursor and marks.
    pub fn whole(&self, device: &Device) -> Self {
        Self { from: 0, to: device.events.len(), ..self.clone() }
    }

    pub fn position(&self) -> usize {
        self.cursor
    }

    /// Returns the two marks in ascending order.
    pub fn marked(&self) -> Option<(usize, usize)> {
        match self.marks[..] {
            [a, b] => Some((a.min(b), a.max(b))),
            _ => None,
        }
    }

    fn length(&self) -> usize {
        self.to - self.from
    }

    /// Returns a column's start position and the position past its end.
    pub(super) fn column(&self, x: usize, width: usize) -> (usize, usize) {
        let at = |x: usize| {
            let part = self.length() as u128 * x as u128 / width.max(1) as u128;
            self.from + usize::try_from(part).unwrap_or(0)
        };
        (at(x), at(x + 1))
    }

    /// Returns the column of a position.
    fn x_of(&self, position: usize, width: usize) -> Option<usize> {
        let part = position.checked_sub(self.from)?;
        if position > self.to || self.length() == 0 {
            return None;
        }
        let x = part as u128 * width as u128 / self.length() as u128;
        usize::try_from(x).ok().map(|x| x.min(width.saturating_sub(1)))
    }

    /// Moves the cursor in a chart drawn into `area`.
    pub fn act(&mut self, action: Action, device: &Device, area: Rect) -> Moved {
        let end = device.events.len();
        let width = columns(area).map_or(1, |plot| usize::from(plot.width));
        let step = (self.length() / width.max(1)).max(1);
        let ooms = || device.ooms().map(|(at, _)| at + 1);
        match action {
            Action::Left => self.cursor = self.cursor.saturating_sub(step),
            Action::Right => self.cursor = (self.cursor + step).min(end),
            Action::Up => self.cursor = self.cursor.saturating_sub(1),
            Action::Down => self.cursor = (self.cursor + 1).min(end),
            Action::PageUp => self.cursor = self.cursor.saturating_sub(step * 10),
            Action::PageDown => self.cursor = (self.cursor + step * 10).min(end),
            Action::First => self.cursor = 0,
            Action::Last => self.cursor = end,
            Action::NextError => {
                self.cursor = ooms().find(|at| *at > self.cursor).unwrap_or(self.cursor);
            }
            Action::PreviousError => {
                let before = ooms().take_while(|at| *at < self.cursor).last();
                self.cursor = before.unwrap_or(self.cursor);
            }
            Action::ZoomIn => self.zoom(self.length() / 4, end),
            Action::ZoomOut => self.zoom(self.length().saturating_mul(4), end),
            Action::Tag => {
                match self.marks.iter().position(|mark| *mark == self.cursor) {
                    Some(at) => drop(self.marks.remove(at)),
                    None => self.marks.push(self.cursor),
                }
                if self.marks.len() > 2 {
                    self.marks.remove(0);
                }
                return Moved::Marks;
            }
            Action::Untag => {
                self.marks.clear();
                return Moved::Marks;
            }
            _ => return Moved::No,
        }
        if !(self.from..=self.to).contains(&self.cursor) {
            self.zoom(self.length(), end);
        }
        Moved::Cursor
    }

    /// Zooms to show this many events around the cursor.
    fn zoom(&mut self, length: usize, end: usize) {
        let length = length.clamp(MIN_EVENTS.min(end), end);
        self.from = self.cursor.saturating_sub(length / 2).min(end - length);
        self.to = self.from + length;
    }

    /// Draws the chart, which needs one row for the legend, several for the columns and one for the axis.
    pub fn chart(
        &self,
        device: &Device,
        study: &DeviceAnalysis,
        cursor: Option<usize>,
        area: Rect,
        buffer: &mut Buffer,
        theme: &Theme,
    ) {
        let Some(plot) = columns(area) else { return };
        let width = usize::from(plot.width);
        let spans: Vec<EventSpan> = (0..width)
            .map(|x| {
                let (from, to) = self.column(x, width);
                study.history.span(device, from, to)
            })
            .collect();
        let peaks = spans.iter().map(|span| span.reserved.max(span.allocated.1));
        let top = peaks.max().unwrap_or_default();
        let allocated: Vec<_> = spans
            .iter()
            .map(|span| Some(Values(float(span.allocated.0), float(span.allocated.1))))
            .collect();
        let reserved: Vec<_> = spans
            .iter()
            .map(|span| Some(Values(float(span.reserved), float(span.reserved))))
            .collect();
        legend(area, buffer, theme);
        edge_labels(plot, &top.short(), buffer, theme);
        pool_chart::columns(&allocated, &reserved, top, plot, buffer, theme);
        self.axis(device, &spans, cursor, plot, buffer, theme);
    }

    fn axis(
        &self,
        device: &Device,
        spans: &[EventSpan],
        cursor: Option<usize>,
        plot: Rect,
        buffer: &mut Buffer,
        theme: &Theme,
    ) {
        let (y, dim) = (plot.bottom(), theme.style(Role::Dim));
        for x in plot.left()..plot.right() {
            put_glyph(buffer, x, y, theme.glyphs.rule, dim);
        }
        let begin = format!("event {}", self.from);
        put(buffer, plot.x, y, &begin, plot.width, dim);
        let end = if self.to == device.events.len() {
            "snapshot".to_owned()
        } else {
            self.to.to_string()
        };
        // Snapshots are often taken after a failure, so leave room for the failure mark beside the label.
        put_right(buffer, plot.x, plot.right().saturating_sub(2).max(plot.x), y, &end, dim);
        for (x, span) in (plot.left()..plot.right()).zip(spans) {
            if span.ooms > 0 {
                put_glyph(buffer, x, y, theme.glyphs.oom, theme.style(Role::Bad));
            }
        }
        let width = usize::from(plot.width);
        let at = |position: usize| {
            let x = u16::try_from(self.x_of(position, width)?).ok()?;
            Some(plot.x + x)
        };
        for x in self.marks.iter().filter_map(|&mark| at(mark)) {
            put_glyph(buffer, x, y, theme.glyphs.tag, theme.style(Role::Key));
        }
        if let Some(x) = cursor.and_then(at) {
            // Draw the mark in the column and on the axis, because either may be hard to see.
            put_glyph(buffer, x, y, "^", theme.style(Role::Key));
            let column = Rect::new(x, plot.y, 1, plot.height);
            buffer.set_style(column.intersection(buffer.area), theme.style(Role::Banner));
        }
    }
}

/// Returns the area of a chart's columns. The last terminal column stays free for a failure mark at the end.
fn columns(area: Rect) -> Option<Rect> {
    let [plot, _] = split_right(plot(area)?, 1);
    Some(plot)
}

fn float(bytes: Bytes) -> f32 {
    bytes.0 as f32
}

fn legend(area: Rect, buffer: &mut Buffer, theme: &Theme) {
    let dim = theme.style(Role::Dim);
    let [requested, peaks, reserved] = pool_chart::shapes(theme);
    let oom = (theme.glyphs.oom, theme.style(Role::Bad));
    let pieces = [
        requested,
        (" requested  ", dim),
        peaks,
        (" peaks  ", dim),
        reserved,
        (" reserved  ", dim),
        oom,
        (" OOM", dim),
    ];
    put_all(buffer, area.x + LABELS, area.y, area.right(), &pieces);
}
