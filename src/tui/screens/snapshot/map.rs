//! The map of the segments, with the histogram of free blocks beside it.

use std::rc::Rc;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::{SnapshotScreen, is_cramped};
use crate::model::pool::BlockState;
use crate::snapshot::{Device, StackId, Study};
use crate::tui::action::Action;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::area::row;
use crate::tui::widgets::cells::{put, put_line};
use crate::tui::widgets::histogram;
use crate::tui::widgets::segment_map::{self, SegmentLayout};
use crate::tui::widgets::table::scrolled;

impl SnapshotScreen {
    pub(super) fn map(
        &self,
        device: &Device,
        study: &Study,
        area: Rect,
        buffer: &mut Buffer,
        theme: &Theme,
    ) {
        if area.height < 4 {
            return;
        }
        let beside = !is_cramped(area) && area.width >= 76;
        let right = match beside {
            true => (area.width * 2 / 5).clamp(32, 60),
            false => 0,
        };
        let left = Rect {
            width: area.width - right - u16::from(beside) * 2,
            height: area.height - 2,
            ..area
        };
        let cells = Rect {
            y: left.y + 1,
            height: left.height - 1,
            ..left
        };
        let layout = self.layout(device, cells);
        let cursor = layout.nearest(self.cursor);
        put_line(buffer, left, "MAP", Role::Title, theme);
        let title = layout.title(true, left.width);
        let room = left.width.saturating_sub(5);
        put(
            buffer,
            left.x + 5,
            left.y,
            &title,
            room,
            theme.style(Role::Dim),
        );
        let offset = scrolled(cursor.row, layout.rows(), usize::from(cells.height));
        layout.draw(&device.map, offset, Some(cursor), cells, buffer, theme);
        if beside {
            let right = Rect {
                x: area.right() - right,
                width: right,
                height: left.height,
                ..area
            };
            histogram::draw(&study.fragmentation.histogram, right, buffer, theme);
        }
        let line = |y| row(area, y);
        if let Some(under) = layout.under(&device.map, cursor) {
            let max_blocks = if area.width >= 96 { 8 } else { 4 };
            let words = under.words(max_blocks, theme);
            put_line(buffer, line(area.bottom() - 2), &words, Role::Text, theme);
        }
        let stack = self.stack_on_map().unwrap_or(0);
        if stack > 0 {
            let words = self.opened.snapshot.stacks.words(stack);
            put_line(buffer, line(area.bottom() - 1), &words, Role::Text, theme);
        }
    }

    fn layout(&self, device: &Device, cells: Rect) -> Rc<SegmentLayout> {
        let (across, down) = (segment_map::cells_per_row(cells), usize::from(cells.height));
        let mut cached = self.layout.borrow_mut();
        if let Some((a, d, layout)) = &*cached
            && (*a, *d) == (across, down)
        {
            return Rc::clone(layout);
        }
        let layout = Rc::new(SegmentLayout::fitting(&device.map, across, down));
        *cached = Some((across, down, Rc::clone(&layout)));
        layout
    }

    pub(super) fn move_on_map(&mut self, action: Action) -> bool {
        let layout = self
            .layout
            .borrow()
            .as_ref()
            .map(|cached| Rc::clone(&cached.2));
        let Some(layout) = layout else { return false };
        let page = self.page.get();
        self.cursor = match action {
            Action::Left => layout.left(self.cursor),
            Action::Right => layout.right(self.cursor),
            action => {
                let row = layout.nearest(self.cursor).row;
                let Some(row) = super::super::moved(row, layout.rows(), page, action) else {
                    return false;
                };
                layout.nearest(segment_map::Cursor { row, ..self.cursor })
            }
        };
        true
    }

    /// Returns the stack that requested the largest live block of the cell under the cursor.
    pub(super) fn stack_on_map(&self) -> Option<StackId> {
        let (device, _) = self.device()?;
        let layout = self
            .layout
            .borrow()
            .as_ref()
            .map(|cached| Rc::clone(&cached.2))?;
        let under = layout.under(&device.map, self.cursor)?;
        let live = under.blocks.iter().filter(|b| b.state != BlockState::Free);
        let largest = live.max_by_key(|block| block.size)?;
        device.held_at(largest.address).map(|held| held.stack)
    }
}
