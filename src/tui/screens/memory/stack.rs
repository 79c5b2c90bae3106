//! The newest Python stack of the process, in a few lines.

use super::Shown;
use crate::model::process::ProcessKey;
use crate::model::stack::StackWhy;
use crate::tui::app::App;
use crate::tui::stacks;
use crate::tui::theme::Role;
use crate::tui::widgets::cells::{fit, wrap_words};

pub(super) fn stack_lines(
    app: &App,
    process: ProcessKey,
    width: u16,
    max_lines: usize,
) -> Vec<(String, Role)> {
    let Some(stack) = app.stacks(process).next() else {
        return Vec::new();
    };
    let stack = match stack {
        Ok(stack) => stack,
        Err(why) => return vec![(format!("Python stack  {why}"), Role::Dim)],
    };
    let why = stacks::why_words(stack, app.frame.mono);
    let mut lines = vec![(format!("Python stack  {why}"), Role::Dim)];
    let mut frames = wrap_words(&stacks::frames_words(stack), usize::from(width.max(10)));
    if frames.len() > max_lines {
        let rest = frames.split_off(max_lines - 1).join(" ");
        frames.push(fit(&rest, usize::from(width), app.theme.glyphs.ellipsis).into_owned());
    }
    lines.extend(frames.into_iter().map(|line| (line, Role::Text)));
    lines
}

impl Shown<'_> {
    /// Returns the newest Python stack: why it was read, and at most `max_lines` lines of its frames.
    pub(super) fn stack_lines(&self, width: u16, max_lines: usize) -> Vec<(String, Role)> {
        stack_lines(self.app, self.screen.process, width, max_lines)
    }

    pub(super) fn is_stack_requested(&self) -> bool {
        let newest = self.app.stacks(self.screen.process).next();
        newest.is_some_and(|stack| {
            stack
                .as_ref()
                .map_or(true, |stack| stack.why == StackWhy::Request)
        })
    }
}
