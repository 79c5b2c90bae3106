//! Stacks by what they hold, or hold more: a list with a cursor.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::SnapshotScreen;
use crate::export::snapshot::{BEFORE, NO_TRACE, UNKNOWN, seconds, signed};
use crate::snapshot::history::ByStack;
use crate::snapshot::stacks::Stacks;
use crate::snapshot::{Device, StackId};
use crate::tui::action::Action;
use crate::tui::screens::moved;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::cells::{put, put_line, put_right};
use crate::tui::widgets::table::{mark, scrolled};

#[derive(Debug, Default)]
pub struct Holders {
    all: Vec<ByStack>,
    /// Those that are looked for.
    list: Vec<ByStack>,
    cursor: usize,
}

/// Columns of the bytes and of the blocks.
const SIZE: u16 = 12;
const COUNT: u16 = 9;

impl Holders {
    pub fn new(all: Vec<ByStack>) -> Self {
        Self {
            list: all.clone(),
            all,
            cursor: 0,
        }
    }

    /// Shows those of which some frame has the wanted words, in lower case.
    pub fn look_for(&mut self, wanted: &str, stacks: &Stacks) {
        let has = |text: &str| text.to_lowercase().contains(wanted);
        let is_it = |by: &&ByStack| {
            let mut frames = stacks.frames(by.stack);
            wanted.is_empty() || frames.any(|frame| has(&frame.file) || has(&frame.function))
        };
        self.list = self.all.iter().filter(is_it).copied().collect();
        self.cursor = 0;
    }

    pub fn selected(&self) -> Option<StackId> {
        self.list.get(self.cursor).map(|by| by.stack)
    }

    pub fn act(&mut self, action: Action, page: usize) -> bool {
        let to = moved(self.cursor, self.list.len(), page, action);
        self.cursor = to.unwrap_or(self.cursor);
        to.is_some()
    }

    fn total(&self) -> i64 {
        let bytes = self.list.iter().map(|by| by.amount.bytes);
        bytes.fold(0, i64::saturating_add)
    }

    fn draw(&self, list: &ListContext<'_>, area: Rect, buffer: &mut Buffer, theme: &Theme) {
        let hidden = match self.all.len() - self.list.len() {
            0 => String::new(),
            hidden => format!(", {hidden} hidden"),
        };
        let title = format!(
            "{}: {} in {} stacks{hidden}",
            list.title,
            signed(self.total()),
            self.list.len()
        );
        put_line(buffer, area, &title, Role::Title, theme);
        if self.list.is_empty() {
            let line = Rect {
                y: area.y + 1,
                height: area.height.saturating_sub(1),
                ..area
            };
            if line.height > 0 {
                put_line(buffer, line, list.empty, Role::Dim, theme);
            }
            return;
        }
        let dim = theme.style(Role::Dim);
        let (bytes, blocks) = (area.x + SIZE, area.x + SIZE + COUNT);
        let heading = area.y + 1;
        put_right(buffer, area.x, bytes, heading, "BYTES", dim);
        put_right(buffer, bytes, blocks, heading, "BLOCKS", dim);
        put(buffer, blocks + 2, heading, "WHERE", area.width, dim);
        let rows = (area.y + 2).min(area.bottom())..area.bottom();
        let first = scrolled(self.cursor, self.list.len(), rows.len());
        for (y, (at, by)) in rows.zip(self.list.iter().enumerate().skip(first)) {
            let row = Rect {
                y,
                height: 1,
                ..area
            };
            let role = if by.amount.bytes < 0 {
                Role::Dim
            } else {
                Role::Text
            };
            let style = theme.style(role);
            let (size, count) = (signed(by.amount.bytes), by.amount.blocks.to_string());
            put_right(buffer, area.x, bytes, y, &size, style);
            put_right(buffer, bytes, blocks, y, &count, style);
            let words = match by.stack {
                0 => list.unknown.to_owned(),
                stack => list.stacks.words(stack),
            };
            let place = Rect {
                x: blocks + 2,
                width: area.right().saturating_sub(blocks + 2),
                ..row
            };
            put_line(buffer, place, &words, role, theme);
            if at == self.cursor {
                mark(row, y, buffer, theme);
            }
        }
    }
}

/// What is said around a list.
struct ListContext<'d> {
    title: String,
    stacks: &'d Stacks,
    empty: &'d str,
    /// In place of the stack where there is none.
    unknown: &'d str,
}

impl SnapshotScreen {
    pub(super) fn draw_stacks(
        &self,
        device: &Device,
        area: Rect,
        buffer: &mut Buffer,
        theme: &Theme,
    ) {
        let title = match self.moment {
            None => "REQUESTED at the snapshot".to_owned(),
            Some(moment) => format!("REQUESTED after {}", when(device, moment)),
        };
        let list = ListContext {
            title,
            stacks: &self.opened.snapshot.stacks,
            empty: "nothing was allocated",
            unknown: UNKNOWN,
        };
        self.stacks.draw(&list, area, buffer, theme);
    }

    pub(super) fn draw_grown(
        &self,
        device: &Device,
        area: Rect,
        buffer: &mut Buffer,
        theme: &Theme,
    ) {
        let title = match self.time.marked() {
            None => "GREW over the whole trace".to_owned(),
            Some((from, to)) => format!("GREW from {} to {}", when(device, from), when(device, to)),
        };
        let empty = match device.events.is_empty() {
            true => NO_TRACE,
            false => "nothing grew",
        };
        let list = ListContext {
            title,
            stacks: &self.opened.snapshot.stacks,
            empty,
            unknown: BEFORE,
        };
        self.grown.draw(&list, area, buffer, theme);
    }
}

/// `event 1204 (+1.234 s)`
pub fn when(device: &Device, moment: usize) -> String {
    let last = moment.checked_sub(1).and_then(|at| device.events.get(at));
    let time = last.and_then(|event| device.since_first(event));
    match time {
        Some(us) => format!("event {moment} (+{})", seconds(us)),
        None => format!("event {moment}"),
    }
}
