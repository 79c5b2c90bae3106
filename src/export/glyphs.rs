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

        /// The parts of a bar have different shades, so that they are distinct without colour.
        pub const UNICODE: Glyphs = Glyphs { $($name: $unicode,)* };

        pub const ASCII: Glyphs = Glyphs { $($name: $ascii,)* };
    };
}

glyphs! {
    unattributed: &'static str = "░", "?";
    driver: &'static str = "▁", "%";
    free: &'static str = "·", ".";
    allocated: &'static str = "█", "#";
    cached: &'static str = "▓", "=";
    active: &'static str = "▞", "a";
    /// Memory that is neither in tensors nor cached for them.
    other: &'static str = "▒", "+";
    /// Memory of other processes, beside the parts of one process.
    whole: &'static str = "▌", "@";
    /// Address space that is not backed by memory.
    unmapped: &'static str = "·", ".";
    /// Mark for a cache flush in a chart.
    retry: &'static str = "^", "'";
    /// Chart mark for a failed allocation.
    oom: &'static str = "■", "*";
    /// Chart mark for any other incident.
    incident: &'static str = "▲", "^";
    /// Mark for a process exit in a chart.
    ended: &'static str = "□", "|";
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

impl Glyphs {
    /// Returns the shade of a part of a GPU's memory. What is neither in tensors nor cached has one shade.
    pub fn memory_part(&self, part: MemoryPart) -> &'static str {
        match part {
            MemoryPart::Allocated | MemoryPart::Processes => self.allocated,
            MemoryPart::Cached => self.cached,
            MemoryPart::Free => self.free,
            MemoryPart::Other
            | MemoryPart::Unreadable
            | MemoryPart::Unattributed
            | MemoryPart::Driver => self.other,
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
                glyphs.cached,
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
