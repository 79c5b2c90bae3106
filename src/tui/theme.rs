//! The appearance of the screens: colours for roles, glyphs supported by the terminal, and times in the user's time
//! zone.
//!
//! Screens use roles instead of colours. Important roles also differ in a letter or shape, so that they remain
//! distinguishable with 16 colours, without colours and for colour-blind users.

use jiff::tz::TimeZone;
use ratatui::style::{Color, Style};
use ratatui::symbols::border;

use super::colours::Colours;
pub use super::palette::Palette;
pub use super::role::Role;
use crate::model::units::UnixMillis;

/// The characters used to draw shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Glyphs {
    pub processes: &'static str,
    pub unattributed: &'static str,
    pub driver: &'static str,
    pub free: &'static str,
    pub allocated: &'static str,
    pub idle: &'static str,
    pub active: &'static str,
    /// VRAM of a process outside its pools.
    pub other: &'static str,
    /// A process without known pools, in a bar that also shows processes with pools.
    pub whole: &'static str,
    /// Address space that is not backed by memory.
    pub unmapped: &'static str,
    /// Mark for a cache flush in a chart.
    pub retry: &'static str,
    /// Chart mark for a failed allocation.
    pub oom: &'static str,
    /// Chart mark for any other incident.
    pub incident: &'static str,
    /// Mark for a process exit in a chart.
    pub ended: &'static str,
    /// Placeholder for a missing number.
    pub absent: &'static str,
    /// Eighths of a cell, from empty to full.
    pub levels: [&'static str; 9],
    /// Fill for the minimum-to-maximum range of a chart column.
    pub range: &'static str,
    pub cursor: &'static str,
    /// Mark for a tagged row.
    pub tag: &'static str,
    pub ellipsis: &'static str,
    pub rule: &'static str,
    pub border: border::Set<'static>,
    pub live: &'static str,
    pub paused: &'static str,
    pub degree: &'static str,
    /// Arrow for a column sorted with the largest value first.
    pub descending: &'static str,
    /// Arrow for a column sorted with the smallest value first.
    pub ascending: &'static str,
}

/// The parts of a bar have different heights, and a gap above, so that they are distinct without colour and the bars of
/// neighbouring rows do not touch.
pub const UNICODE: Glyphs = Glyphs {
    processes: "▇",
    unattributed: "▒",
    driver: "▁",
    free: "·",
    allocated: "▇",
    idle: "▅",
    active: "▞",
    other: "▃",
    whole: "▌",
    unmapped: "·",
    retry: "^",
    oom: "x",
    incident: "!",
    ended: "e",
    absent: "–",
    levels: [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
    range: "░",
    cursor: "▸",
    tag: "◆",
    ellipsis: "…",
    rule: "─",
    border: border::PLAIN,
    live: "●",
    paused: "‖",
    degree: "°",
    descending: "▼",
    ascending: "▲",
};

pub const ASCII: Glyphs = Glyphs {
    processes: "#",
    unattributed: "?",
    driver: "%",
    free: ".",
    allocated: "#",
    idle: "=",
    active: "a",
    other: "+",
    whole: "@",
    unmapped: ".",
    retry: "^",
    oom: "x",
    incident: "!",
    ended: "e",
    absent: "-",
    levels: [" ", ".", ".", ":", ":", "|", "|", "#", "#"],
    range: ":",
    cursor: ">",
    tag: "+",
    ellipsis: "~",
    rule: "-",
    border: border::Set {
        top_left: "+",
        top_right: "+",
        bottom_left: "+",
        bottom_right: "+",
        vertical_left: "|",
        vertical_right: "|",
        horizontal_top: "-",
        horizontal_bottom: "-",
    },
    live: "*",
    paused: "=",
    degree: " ",
    descending: "v",
    ascending: "^",
};

/// The user's chosen appearance.
#[derive(Debug, Clone, PartialEq)]
pub struct Theme {
    pub colours: Colours,
    pub glyphs: Glyphs,
    pub zone: TimeZone,
}

impl Theme {
    /// Returns a built-in theme.
    pub fn new(palette: Palette, ascii: bool, zone: TimeZone) -> Self {
        Self::with(Colours::built_in(palette), ascii, zone)
    }

    pub fn with(colours: Colours, ascii: bool, zone: TimeZone) -> Self {
        Self { colours, glyphs: if ascii { ASCII } else { UNICODE }, zone }
    }

    /// Formats a time in the user's time zone with a `strftime` format.
    pub fn clock(&self, time: UnixMillis, format: &str) -> String {
        jiff::Timestamp::from_millisecond(time.0)
            .map(|t| t.to_zoned(self.zone.clone()).strftime(format).to_string())
            .unwrap_or_default()
    }

    pub fn style(&self, role: Role) -> Style {
        self.colours.style(role)
    }

    /// Returns the glyph for a part of a chart: a solid block if colours distinguish the parts, or `shape` if they do
    /// not.
    pub fn chart_glyph(&self, shape: &'static str) -> &'static str {
        if self.has_solid_charts() { self.glyphs.levels[8] } else { shape }
    }

    /// Returns the style of the part of a chart between its means and its peaks: the chart's own colour, as much lighter
    /// or darker as [`Role::ChartRange`] is compared with [`Role::Chart`].
    pub fn peak_style(&self, role: Role) -> Style {
        let range = self.style(Role::ChartRange);
        let colours = [role, Role::Chart, Role::ChartRange].map(|role| self.style(role).fg);
        let [Some(own), Some(from), Some(to)] = colours.map(|colour| colour.and_then(rgb)) else {
            return range;
        };
        let brightness = |colour: [f32; 3]| colour.iter().sum::<f32>().max(1.0);
        let factor = brightness(to) / brightness(from);
        let [r, g, b] = own.map(|part| if factor <= 1.0 { part * factor } else { 255.0 - (255.0 - part) / factor } as u8);
        range.fg(Color::Rgb(r, g, b))
    }

    /// Returns true if the parts of a chart are solid blocks distinguished by colour.
    pub fn has_solid_charts(&self) -> bool {
        self.glyphs == UNICODE && self.style(Role::ChartRange).fg.is_some()
    }
}

fn rgb(colour: Color) -> Option<[f32; 3]> {
    match colour {
        Color::Rgb(r, g, b) => Some([r, g, b].map(f32::from)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_memory_differ_in_shape() {
        for glyphs in [UNICODE, ASCII] {
            let mut shapes = vec![
                glyphs.allocated,
                glyphs.idle,
                glyphs.active,
                glyphs.other,
                glyphs.whole,
                glyphs.driver,
                glyphs.free,
                glyphs.unattributed,
            ];
            shapes.sort_unstable();
            shapes.dedup();
            assert_eq!(shapes.len(), 8);
        }
    }
}
