//! The appearance of the screens: colours for roles, glyphs supported by the terminal, and times in the user's time
//! zone.
//!
//! Screens use roles instead of colours. Important roles also differ in a letter or shape, so that they remain
//! distinguishable with 16 colours, without colours and for colour-blind users.

use gputop_model::units::UnixMillis;
use jiff::tz::TimeZone;
use ratatui::style::{Color, Style};
use ratatui::symbols::border;

use super::colours::Colours;
pub use super::palette::Palette;
pub use super::role::Role;
use crate::dashboard::memory_parts::MemoryPart;
use crate::dashboard::times::clock_text;
use crate::export::glyphs::{ASCII, Glyphs, UNICODE};

const ASCII_BORDER: border::Set<'_> = border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
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
        clock_text(time, &self.zone, format)
    }

    /// Returns the lines and corners of a frame.
    pub fn border(&self) -> border::Set<'static> {
        if self.glyphs == ASCII { ASCII_BORDER } else { border::PLAIN }
    }

    pub fn style(&self, role: Role) -> Style {
        self.colours.style(role)
    }

    /// Returns the glyph for a part of a GPU's memory in a bar. All parts have the same height. If colours distinguish them,
    /// a gap separates the bars of neighbouring rows; otherwise, the parts differ in shade.
    pub fn memory_glyph(&self, part: MemoryPart) -> &'static str {
        match part {
            MemoryPart::Free => self.glyphs.free,
            _ if self.has_solid_charts() => self.glyphs.levels[7],
            part => self.glyphs.memory_part(part),
        }
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
