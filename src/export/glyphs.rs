//! The characters with which screens and text outputs draw shapes: those of Unicode, or only those of ASCII.

use std::borrow::Cow;

use crate::dashboard::memory_parts::MemoryPart;
use crate::dashboard::table::Content;

/// Defines [`Glyphs`] and both sets of them. A row holds the glyph in Unicode and the one in ASCII.
macro_rules! glyphs {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $unicode:expr, $ascii:expr;)*) => {
        /// The characters used to draw shapes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Glyphs {
            $($(#[$doc])* pub $name: $type,)*
        }

        /// The parts of a bar have different heights, and a gap above, so that they are distinct without colour and the
        /// bars of neighbouring rows do not touch.
        pub const UNICODE: Glyphs = Glyphs { $($name: $unicode,)* };

        pub const ASCII: Glyphs = Glyphs { $($name: $ascii,)* };
    };
}

glyphs! {
    processes: &'static str = "▇", "#";
    unattributed: &'static str = "▒", "?";
    driver: &'static str = "▁", "%";
    free: &'static str = "·", ".";
    allocated: &'static str = "▇", "#";
    idle: &'static str = "▅", "=";
    active: &'static str = "▞", "a";
    /// VRAM of a process outside its pools.
    other: &'static str = "▃", "+";
    /// A process without known pools, in a bar that also shows processes with pools.
    whole: &'static str = "▌", "@";
    /// Address space that is not backed by memory.
    unmapped: &'static str = "·", ".";
    /// Mark for a cache flush in a chart.
    retry: &'static str = "^", "^";
    /// Chart mark for a failed allocation.
    oom: &'static str = "x", "x";
    /// Chart mark for any other incident.
    incident: &'static str = "!", "!";
    /// Mark for a process exit in a chart.
    ended: &'static str = "e", "e";
    /// Placeholder for a missing number.
    absent: &'static str = "–", "-";
    /// Eighths of a cell, from empty to full.
    levels: [&'static str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"], [" ", ".", ".", ":", ":", "|", "|", "#", "#"];
    /// Fill for the minimum-to-maximum range of a chart column.
    range: &'static str = "░", ":";
    cursor: &'static str = "▸", ">";
    /// Mark for a tagged row.
    tag: &'static str = "◆", "+";
    ellipsis: &'static str = "…", "~";
    rule: &'static str = "─", "-";
    live: &'static str = "●", "*";
    paused: &'static str = "‖", "=";
    degree: &'static str = "°", " ";
    /// Arrow for a column sorted with the largest value first.
    descending: &'static str = "▼", "v";
    /// Arrow for a column sorted with the smallest value first.
    ascending: &'static str = "▲", "^";
}

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
