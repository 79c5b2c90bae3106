//! Shows a device's memory values, the allocator settings, and a chart of the whole trace.

use gputop_allocator::snapshot::stacks::Stacks;
use gputop_allocator::snapshot::{Device, DeviceAnalysis};
use gputop_model::units::Bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};

use super::state::SnapshotScreen;
use crate::export::snapshot::{NO_TRACE, seconds, settings};
use crate::export::text_width::{columns, fit};
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::area::{margin, row, split_left, split_right, split_top};
use crate::tui::widgets::cells::{put, put_line, put_right};

/// Width of the value column.
const FIGURES: u16 = 42;

/// Returns the name and value of each entry. An indented entry is a part of the nearest entry above it with less
/// indentation.
pub fn figures(
    device: &Device,
    study: &DeviceAnalysis,
    stacks: &Stacks,
) -> Vec<(&'static str, String)> {
    let found = &study.fragmentation;
    let size = |bytes: Bytes| bytes.to_string();
    let largest = device.map.largest_allocated();
    let stack = largest.and_then(|block| device.held_at(block.address)).map(|held| held.stack);
    let frame = stack.and_then(|stack| stacks.place(stack)).map(ToString::to_string);
    let mut figures = vec![
        ("allocated", size(found.allocated)),
        ("  requested", size(device.requested())),
        ("cached", size(found.free)),
        ("  fragmented", size(found.fragmented)),
        ("  returnable", size(found.returnable)),
    ];
    if found.kept > Bytes(0) {
        figures.push(("  private pools", size(found.kept)));
    }
    if found.active > Bytes(0) {
        figures.push(("waiting for a stream", size(found.active)));
    }
    figures.extend([
        ("reserved", size(device.reserved())),
        ("largest free block", size(found.largest)),
        ("largest live block", size(largest.map_or(Bytes(0), |block| block.size))),
        ("  allocated at", frame.unwrap_or_else(|| "unknown".into())),
        ("segments", device.map.segments.len().to_string()),
    ]);
    if !device.events.is_empty() {
        let span = study.span(device);
        let length = study.length(device).map(seconds);
        figures.extend([
            ("events", device.events.len().to_string()),
            ("  time span", length.unwrap_or_else(|| "no timestamps".into())),
            ("  peak requested", size(span.allocated.1)),
            ("  peak reserved", size(span.reserved)),
            ("  OOM", span.ooms.to_string()),
        ]);
    }
    figures
}

impl SnapshotScreen {
    pub(super) fn summary(
        &self,
        device: &Device,
        study: &DeviceAnalysis,
        area: Rect,
        buffer: &mut Buffer,
        theme: &Theme,
    ) {
        let figures = figures(device, study, &self.opened.snapshot.stacks);
        let settings = settings(&self.opened.snapshot);
        let beside = area.width >= 80;
        let rows = figures.len().max(if beside { settings.len() } else { 0 });
        let rows = u16::try_from(rows).unwrap_or(u16::MAX).min(area.height);
        for (y, (name, value)) in (area.y..area.bottom()).zip(&figures) {
            let is_bad = *name == "  OOM" && value != "0";
            let role = if is_bad { Role::Bad } else { Role::Text };
            put(buffer, area.x + 1, y, name, FIGURES, theme.style(Role::Dim));
            let right = area.x + FIGURES.min(area.width) - 2;
            put_right(buffer, area.x + 1, right, y, value, theme.style(role));
        }
        if beside {
            let [_, right] = split_left(area, FIGURES + 2);
            let [right, _] = split_right(right, 1);
            let widest = settings.iter().map(|(name, _)| columns(name)).max();
            let widest = u16::try_from(widest.unwrap_or(0) + 2).unwrap_or(u16::MAX);
            // Truncate long names first, because values matter more than names.
            let names = widest.min(right.width.saturating_sub(9));
            let split = [Constraint::Length(names), Constraint::Fill(1)];
            for (line, (name, value)) in right.rows().zip(&settings) {
                let [name_at, value_at] = Layout::horizontal(split).areas(line);
                let name = fit(name, usize::from(names - 1), theme.glyphs.ellipsis);
                put_line(buffer, name_at, &name, Role::Dim, theme);
                put_line(buffer, value_at, value, Role::Text, theme);
            }
        }
        let [_, below] = split_top(area, rows);
        if device.events.is_empty() {
            if below.height > 1 {
                let line = margin(row(below, below.y + 1));
                let long = columns(NO_TRACE) > usize::from(line.width);
                let text = if long { "no history was recorded" } else { NO_TRACE };
                put_line(buffer, line, text, Role::Dim, theme);
            }
        } else if below.height >= 6 {
            let [_, chart] = split_top(below, 1);
            self.time.whole(device).chart(device, study, None, chart, buffer, theme);
        }
    }
}
