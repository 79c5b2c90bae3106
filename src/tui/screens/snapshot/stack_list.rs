//! A list of stacks, sorted by the memory they hold or by the growth of that memory.

use gputop_allocator::snapshot::history::ByStack;
use gputop_allocator::snapshot::stacks::Stacks;
use gputop_allocator::snapshot::{Device, StackId};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::export::snapshot::{seconds, signed};
use crate::tui::action::{Action, moved};
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::area::{row, split_left, split_top};
use crate::tui::widgets::cells::{put, put_line, put_right};
use crate::tui::widgets::table::{mark, scrolled};

#[derive(Debug, Default)]
pub struct StackList {
    all: Vec<ByStack>,
    /// The stacks that match the search.
    matching: Vec<ByStack>,
    cursor: usize,
}

/// Widths of the BYTES and BLOCKS columns.
const SIZE: u16 = 12;
const COUNT: u16 = 9;

impl StackList {
    pub fn new(all: Vec<ByStack>) -> Self {
        Self { matching: all.clone(), all, cursor: 0 }
    }

    /// Filters the list to stacks with a frame that contains `query`, which must be lowercase.
    pub fn search(&mut self, query: &str, stacks: &Stacks) {
        let has = |text: &str| text.to_lowercase().contains(query);
        let is_match = |by: &&ByStack| {
            let mut frames = stacks.frames(by.stack);
            query.is_empty() || frames.any(|frame| has(&frame.file) || has(&frame.function))
        };
        self.matching = self.all.iter().filter(is_match).copied().collect();
        self.cursor = 0;
    }

    pub fn selected(&self) -> Option<StackId> {
        self.matching.get(self.cursor).map(|by| by.stack)
    }

    pub fn act(&mut self, action: Action, page: usize) -> bool {
        let to = moved(self.cursor, self.matching.len(), page, action);
        self.cursor = to.unwrap_or(self.cursor);
        to.is_some()
    }

    fn total(&self) -> i64 {
        self.matching.iter().map(|by| by.amount.bytes).fold(0, i64::saturating_add)
    }

    pub(super) fn draw(
        &self,
        list: &ListContext<'_>,
        area: Rect,
        buffer: &mut Buffer,
        theme: &Theme,
    ) {
        let hidden = match self.all.len() - self.matching.len() {
            0 => String::new(),
            hidden => format!(", {hidden} hidden"),
        };
        let count = match self.matching.len() {
            1 => "1 stack".to_owned(),
            count => format!("{count} stacks"),
        };
        let title = format!("{}: {} in {count}{hidden}", list.title, signed(self.total()));
        put_line(buffer, area, &title, Role::Title, theme);
        if self.matching.is_empty() {
            let [_, line] = split_top(area, 1);
            put_line(buffer, line, list.empty, Role::Dim, theme);
            return;
        }
        let dim = theme.style(Role::Dim);
        let (bytes, blocks) = (area.x + SIZE, area.x + SIZE + COUNT);
        let heading = area.y + 1;
        put_right(buffer, area.x, bytes, heading, "BYTES", dim);
        put_right(buffer, bytes, blocks, heading, "BLOCKS", dim);
        put(buffer, blocks + 2, heading, "WHERE", area.width, dim);
        let rows = (area.y + 2).min(area.bottom())..area.bottom();
        let first = scrolled(self.cursor, self.matching.len(), rows.len());
        for (y, (at, by)) in rows.zip(self.matching.iter().enumerate().skip(first)) {
            let row = row(area, y);
            let role = if by.amount.bytes < 0 { Role::Dim } else { Role::Text };
            let style = theme.style(role);
            let (size, count) = (signed(by.amount.bytes), by.amount.blocks.to_string());
            put_right(buffer, area.x, bytes, y, &size, style);
            put_right(buffer, bytes, blocks, y, &count, style);
            let words = match by.stack {
                0 => list.unknown.to_owned(),
                stack => list.stacks.words(stack),
            };
            let [_, stack] = split_left(row, SIZE + COUNT + 2);
            put_line(buffer, stack, &words, role, theme);
            if at == self.cursor {
                mark(row, y, buffer, theme);
            }
        }
    }
}

/// Text shown around a list of stacks.
pub(super) struct ListContext<'d> {
    pub(super) title: String,
    pub(super) stacks: &'d Stacks,
    pub(super) empty: &'d str,
    /// Text shown in place of an unknown stack.
    pub(super) unknown: &'d str,
}

/// Formats an event position: `event 1204 (+1.234 s)`.
pub fn when(device: &Device, position: usize) -> String {
    let last = position.checked_sub(1).and_then(|at| device.events.get(at));
    match last.and_then(|event| device.since_first(event)) {
        Some(us) => format!("event {position} (+{})", seconds(us)),
        None => format!("event {position}"),
    }
}
