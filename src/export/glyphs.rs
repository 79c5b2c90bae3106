//! The characters with which screens and text outputs draw shapes: those of Unicode, or only those of ASCII.

use std::borrow::Cow;

use crate::dashboard::memory_parts::MemoryPart;
use crate::dashboard::table::Content;

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
    live: "*",
    paused: "=",
    degree: " ",
    descending: "v",
    ascending: "^",
};

/// Number of characters in a full bar of [`Content::Share`].
const SHARE_CELLS: usize = 10;

impl Glyphs {
    /// Returns the character of a part of a GPU's memory.
    pub fn memory_part(&self, part: MemoryPart) -> &'static str {
        match part {
            MemoryPart::Allocated => self.allocated,
            MemoryPart::Idle => self.idle,
            MemoryPart::Other => self.other,
            MemoryPart::Unreadable => self.whole,
            MemoryPart::Processes => self.processes,
            MemoryPart::Unattributed => self.unattributed,
            MemoryPart::Driver => self.driver,
            MemoryPart::Free => self.free,
        }
    }

    /// Returns the column of a chart of one row, for a value between 0 and 1. A measured zero looks different from a
    /// missing value.
    pub fn level(&self, value: f32) -> &'static str {
        let eighths = (value.clamp(0.0, 1.0) * 8.0).round() as usize;
        self.levels[eighths.max(1)]
    }

    /// Returns a table cell as text.
    pub fn cell_text<'c>(&self, content: &'c Content) -> Cow<'c, str> {
        match content {
            Content::Text(text) => text.into(),
            Content::Missing => self.absent.into(),
            Content::Share(share) => {
                let filled = ((share * SHARE_CELLS as f64).round() as usize).min(SHARE_CELLS);
                let bar = self.processes.repeat(filled) + &self.free.repeat(SHARE_CELLS - filled);
                format!("{bar}{:>4.0}%", share * 100.0).into()
            }
        }
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
