//! A complete stack, with the program's own frames first.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::model::stack::StackFrame;
use crate::snapshot::StackId;
use crate::snapshot::stacks::Stacks;
use crate::tui::action::Action;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::area::{split_left, split_top};
use crate::tui::widgets::cells::put_line;
use crate::tui::widgets::scroll::Scroll;

#[derive(Debug)]
pub struct Frames {
    stack: StackId,
    scroll: Scroll,
}

/// Formats a frame: `/home/ana/train.py:57 step`.
pub fn line(frame: &StackFrame) -> String {
    match frame.line {
        0 => format!("{} {}", frame.file, frame.function),
        line => format!("{}:{line} {}", frame.file, frame.function),
    }
}

impl Frames {
    pub fn new(stack: StackId) -> Self {
        Self { stack, scroll: Scroll::default() }
    }

    pub fn stack(&self) -> StackId {
        self.stack
    }

    pub fn act(&mut self, action: Action, stacks: &Stacks, area: Rect) {
        let count = stacks.users_first(self.stack).len();
        let [_, rows] = split_top(area, 1);
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
        let [_, rows] = split_top(area, 1);
        let [_, rows] = split_left(rows, 1);
        let first = self.scroll.first(frames.len(), usize::from(rows.height));
        for (row, (at, frame)) in rows.rows().zip(frames.iter().enumerate().skip(first)) {
            let role = if at < own { Role::Text } else { Role::Dim };
            put_line(buffer, row, &line(frame), role, theme);
        }
    }
}
