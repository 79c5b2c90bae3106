//! A complete stack, with the program's own frames first.

use gputop_allocator::snapshot::StackId;
use gputop_allocator::snapshot::stacks::Stacks;
use gputop_model::stack::StackFrame;
use gputop_model::units::Bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::tui::action::Action;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::area::{split_left, split_top};
use crate::tui::widgets::cells::put_line;
use crate::tui::widgets::scroll::Scroll;

#[derive(Debug)]
pub struct Frames {
    stack: StackId,
    /// The line below the title, such as the blocks allocated at this stack. May be empty.
    about: String,
    scroll: Scroll,
}

/// Number of block sizes that are listed.
const MAX_SIZES: usize = 5;

/// Lists blocks by size: `live blocks: 3 of 10.00 MiB, 3 of 5.00 MiB`. Returns an empty string if there are none.
pub fn blocks_text(sizes: &[(Bytes, usize)]) -> String {
    let shown = sizes.iter().take(MAX_SIZES);
    let shown: Vec<String> = shown.map(|(size, count)| format!("{count} of {size}")).collect();
    match sizes.len().saturating_sub(MAX_SIZES) {
        _ if shown.is_empty() => String::new(),
        0 => format!("live blocks: {}", shown.join(", ")),
        more => format!("live blocks: {} and {more} other sizes", shown.join(", ")),
    }
}

/// Formats a frame: `/home/ana/train.py:57 step`.
pub fn line(frame: &StackFrame) -> String {
    match frame.line {
        0 => format!("{} {}", frame.file, frame.function),
        line => format!("{}:{line} {}", frame.file, frame.function),
    }
}

impl Frames {
    pub fn new(stack: StackId, about: String) -> Self {
        Self { stack, about, scroll: Scroll::default() }
    }

    /// Returns the areas of the lines above the frames, and of the frames.
    fn areas(&self, area: Rect) -> [Rect; 2] {
        split_top(area, if self.about.is_empty() { 1 } else { 2 })
    }

    pub fn stack(&self) -> StackId {
        self.stack
    }

    pub fn act(&mut self, action: Action, stacks: &Stacks, area: Rect) {
        let count = stacks.users_first(self.stack).len();
        let [_, rows] = self.areas(area);
        self.scroll.act(action, count, usize::from(rows.height));
    }

    pub fn draw(&self, stacks: &Stacks, area: Rect, buffer: &mut Buffer, theme: &Theme) {
        let frames = stacks.users_first(self.stack);
        let own = frames.iter().filter(|frame| frame.is_users()).count();
        let title = match own {
            own if own == 0 || own == frames.len() => {
                format!("STACK  {} frames, innermost first", frames.len())
            }
            _ => format!(
                "STACK  {own} program frames, then {} library frames, innermost first",
                frames.len() - own
            ),
        };
        put_line(buffer, area, &title, Role::Title, theme);
        let [head, rows] = self.areas(area);
        let [_, about] = split_left(split_top(head, 1)[1], 1);
        put_line(buffer, about, &self.about, Role::Text, theme);
        let [_, rows] = split_left(rows, 1);
        let first = self.scroll.first(frames.len(), usize::from(rows.height));
        for (row, (at, frame)) in rows.rows().zip(frames.iter().enumerate().skip(first)) {
            let role = if at < own { Role::Text } else { Role::Dim };
            put_line(buffer, row, &line(frame), role, theme);
        }
    }
}
