//! What a thing looks like: colours by role, glyphs by what the terminal can show, clock times by the user's zone.
//!
//! Screens ask for a role, never for a colour. Every role that matters also differs in a letter or shape, so that
//! nothing is lost in 16 colours, without colour, or to a colour-blind eye.

use jiff::tz::TimeZone;
use ratatui::style::{Color, Modifier, Style};

use crate::model::units::UnixMillis;

/// What a piece of the screen means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Text,
    /// Labels, units, rules: there, but not in the way.
    Dim,
    /// A title or a heading.
    Title,
    /// The row under the cursor.
    Cursor,
    /// Keys in the footer.
    Key,
    /// Something a person should look at.
    Warn,
    /// Something a person must look at.
    Bad,
    /// All is well, said explicitly.
    Good,
    /// A permanent notice: this is a recording.
    Banner,
    /// VRAM held by processes.
    Processes,
    /// VRAM that is used by nobody who is listed.
    Unattributed,
    /// VRAM kept by the driver.
    Driver,
    /// VRAM that is free.
    Free,
    /// Memory in live tensors.
    Allocated,
    /// Cached by an allocator, in no tensor.
    Idle,
    /// Freed, but another stream may still use it.
    Active,
    /// What a process holds beside its pools.
    OtherVram,
    /// The line or area of a chart.
    Chart,
    /// Between the minimum and the maximum of a chart's column.
    ChartRange,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Palette {
    Dark,
    Light,
    /// The terminal's own 16 colours, whatever they are.
    Sixteen,
    None,
}

/// The characters that shapes are drawn with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Glyphs {
    pub processes: &'static str,
    pub unattributed: &'static str,
    pub driver: &'static str,
    pub free: &'static str,
    pub allocated: &'static str,
    pub idle: &'static str,
    pub active: &'static str,
    /// What a process holds beside its pools.
    pub other: &'static str,
    /// A process whose pools are not known, in a bar that also shows others'.
    pub whole: &'static str,
    /// Address space without memory behind it.
    pub unmapped: &'static str,
    /// The cache was flushed to make room, in a chart.
    pub retry: &'static str,
    /// A request failed, in a chart.
    pub oom: &'static str,
    /// Stands where a number is missing.
    pub absent: &'static str,
    /// Eighths of a cell, from empty to full.
    pub levels: [&'static str; 9],
    /// The part of a chart column between minimum and maximum.
    pub range: &'static str,
    pub cursor: &'static str,
    /// Stands before a row that was tagged.
    pub tag: &'static str,
    pub ellipsis: &'static str,
    pub rule: &'static str,
    pub live: &'static str,
    pub paused: &'static str,
    pub degree: &'static str,
    /// The way a column orders rows: the largest first, the smallest first.
    pub descending: &'static str,
    pub ascending: &'static str,
}

pub const UNICODE: Glyphs = Glyphs {
    processes: "█",
    unattributed: "▒",
    driver: "▚",
    free: "·",
    allocated: "█",
    idle: "▄",
    active: "▞",
    other: "▓",
    whole: "▌",
    unmapped: "·",
    retry: "^",
    oom: "x",
    absent: "–",
    levels: [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
    range: "░",
    cursor: "▸",
    tag: "◆",
    ellipsis: "…",
    rule: "─",
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
    absent: "-",
    levels: [" ", ".", ".", ":", ":", "|", "|", "#", "#"],
    range: ":",
    cursor: ">",
    tag: "+",
    ellipsis: "~",
    rule: "-",
    live: "*",
    paused: "=",
    degree: " ",
    descending: "v",
    ascending: "^",
};

#[derive(Debug, Clone, PartialEq)]
pub struct Theme {
    pub palette: Palette,
    pub glyphs: Glyphs,
    pub zone: TimeZone,
}

impl Theme {
    pub fn new(palette: Palette, ascii: bool, zone: TimeZone) -> Self {
        Self {
            palette,
            glyphs: if ascii { ASCII } else { UNICODE },
            zone,
        }
    }

    /// A moment in the user's zone, by a `strftime` format.
    pub fn clock(&self, time: UnixMillis, format: &str) -> String {
        jiff::Timestamp::from_millisecond(time.0)
            .map(|t| t.to_zoned(self.zone.clone()).strftime(format).to_string())
            .unwrap_or_default()
    }

    pub fn style(&self, role: Role) -> Style {
        match self.palette {
            Palette::Dark => dark(role),
            Palette::Light => light(role),
            Palette::Sixteen => sixteen(role),
            Palette::None => plain(role),
        }
    }
}

fn fg(red: u8, green: u8, blue: u8) -> Style {
    Style::new().fg(Color::Rgb(red, green, blue))
}

/// For a dark background. Hues differ in lightness too; no pair relies on red against green.
fn dark(role: Role) -> Style {
    match role {
        Role::Text => Style::new(),
        Role::Dim => fg(0x8a, 0x8f, 0x98),
        Role::Title => fg(0xe8, 0xea, 0xed).add_modifier(Modifier::BOLD),
        Role::Cursor => Style::new()
            .bg(Color::Rgb(0x2d, 0x3b, 0x4f))
            .add_modifier(Modifier::BOLD),
        Role::Key => fg(0x8a, 0xb4, 0xf8).add_modifier(Modifier::BOLD),
        Role::Warn => fg(0xff, 0xc1, 0x4d),
        Role::Bad => fg(0xff, 0x6b, 0x5e).add_modifier(Modifier::BOLD),
        Role::Good | Role::Chart => fg(0x5f, 0xd3, 0xbc),
        Role::Banner => Style::new()
            .fg(Color::Rgb(0x10, 0x10, 0x10))
            .bg(Color::Rgb(0xff, 0xc1, 0x4d))
            .add_modifier(Modifier::BOLD),
        Role::Processes => fg(0x6f, 0xb1, 0xff),
        Role::Unattributed => fg(0xff, 0xa0, 0x57),
        Role::Driver => fg(0xb0, 0x8a, 0xd8),
        Role::Free => fg(0x6b, 0x70, 0x78),
        Role::ChartRange => fg(0x3d, 0x85, 0x78),
        Role::Allocated => fg(0x6f, 0xb1, 0xff),
        Role::Idle => fg(0xf2, 0xdf, 0x8a),
        Role::Active => fg(0x2f, 0x98, 0x8a),
        Role::OtherVram => fg(0x8a, 0x62, 0x48),
    }
}

fn light(role: Role) -> Style {
    match role {
        Role::Text => Style::new(),
        Role::Dim => fg(0x5f, 0x66, 0x70),
        Role::Title => fg(0x11, 0x18, 0x27).add_modifier(Modifier::BOLD),
        Role::Cursor => Style::new()
            .bg(Color::Rgb(0xd3, 0xe3, 0xfd))
            .add_modifier(Modifier::BOLD),
        Role::Key => fg(0x0b, 0x57, 0xd0).add_modifier(Modifier::BOLD),
        Role::Warn => fg(0x8a, 0x54, 0x00),
        Role::Bad => fg(0xb3, 0x1b, 0x12).add_modifier(Modifier::BOLD),
        Role::Good | Role::Chart => fg(0x00, 0x6b, 0x5a),
        Role::Banner => Style::new()
            .fg(Color::Rgb(0xff, 0xff, 0xff))
            .bg(Color::Rgb(0x8a, 0x54, 0x00))
            .add_modifier(Modifier::BOLD),
        Role::Processes => fg(0x0b, 0x57, 0xd0),
        Role::Unattributed => fg(0xa8, 0x45, 0x00),
        Role::Driver => fg(0x6a, 0x35, 0x9c),
        Role::Free => fg(0x80, 0x86, 0x8f),
        Role::ChartRange => fg(0x57, 0xa3, 0x96),
        Role::Allocated => fg(0x0b, 0x57, 0xd0),
        Role::Idle => fg(0xb8, 0x8a, 0x00),
        Role::Active => fg(0x00, 0x86, 0x7b),
        Role::OtherVram => fg(0x5c, 0x2a, 0x10),
    }
}

fn sixteen(role: Role) -> Style {
    match role {
        Role::Text | Role::OtherVram => Style::new(),
        Role::Dim | Role::Free => Style::new().fg(Color::DarkGray),
        Role::Title => Style::new().add_modifier(Modifier::BOLD),
        Role::Cursor => Style::new().add_modifier(Modifier::REVERSED),
        Role::Key | Role::Processes | Role::Allocated => {
            Style::new().fg(Color::Blue).add_modifier(Modifier::BOLD)
        }
        Role::Warn => Style::new().fg(Color::Yellow),
        Role::Bad => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
        Role::Good | Role::Chart => Style::new().fg(Color::Cyan),
        Role::Banner => Style::new().fg(Color::Black).bg(Color::Yellow),
        Role::Unattributed | Role::Active => Style::new().fg(Color::Yellow),
        Role::Idle => Style::new().fg(Color::Cyan),
        Role::Driver => Style::new().fg(Color::Magenta),
        Role::ChartRange => Style::new().fg(Color::DarkGray),
    }
}

fn plain(role: Role) -> Style {
    match role {
        Role::Title | Role::Key | Role::Warn => Style::new().add_modifier(Modifier::BOLD),
        Role::Bad | Role::Cursor | Role::Banner => Style::new().add_modifier(Modifier::REVERSED),
        _ => Style::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: [Role; 4] = [Role::Allocated, Role::Idle, Role::Active, Role::OtherVram];

    /// CIE lightness of a colour, 0 to 100: what is left of it for an eye that sees no hues.
    fn lightness(style: Style) -> f64 {
        let Some(Color::Rgb(red, green, blue)) = style.fg else {
            panic!("no colour");
        };
        let linear = |part: u8| {
            let part = f64::from(part) / 255.0;
            if part <= 0.04045 {
                part / 12.92
            } else {
                ((part + 0.055) / 1.055).powf(2.4)
            }
        };
        let y = 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
        116.0 * y.cbrt() - 16.0
    }

    #[test]
    fn the_parts_of_memory_differ_in_lightness_and_in_shape() {
        for colours in [dark, light] {
            for (i, a) in MEMORY.iter().enumerate() {
                for b in &MEMORY[i + 1..] {
                    let apart = lightness(colours(*a)) - lightness(colours(*b));
                    assert!(apart.abs() >= 6.0, "{a:?} and {b:?}: {apart:.1}");
                }
            }
        }
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
