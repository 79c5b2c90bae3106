//! The segment map, with the histogram of free blocks beside it.

use gputop_allocator::snapshot::{Device, DeviceAnalysis, StackId};
use gputop_model::pool::BlockState;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};

use super::state::{SnapshotScreen, is_cramped};
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::area::{row, split_bottom, split_top};
use crate::tui::widgets::cells::put_line;
use crate::tui::widgets::histogram;

impl SnapshotScreen {
    pub(super) fn draw_map(
        &self,
        device: &Device,
        study: &DeviceAnalysis,
        area: Rect,
        buffer: &mut Buffer,
        theme: &Theme,
    ) {
        if area.height < 4 {
            return;
        }
        let beside = !is_cramped(area) && area.width >= 76;
        let right = if beside { (area.width * 2 / 5).clamp(32, 60) } else { 0 };
        let [panes, below] = split_bottom(area, 2);
        let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(right)])
            .spacing(u16::from(beside) * 2)
            .areas(panes);
        let [_, cells] = split_top(left, 1);
        self.map.draw(&device.map, true, cells, buffer, theme);
        if beside {
            histogram::draw(&study.fragmentation.histogram, right, buffer, theme);
        }
        if let Some(under) = self.map.under(&device.map) {
            let max_blocks = if area.width >= 96 { 8 } else { 4 };
            put_line(buffer, below, &under.words(max_blocks, theme), Role::Text, theme);
        }
        let stack = self.stack_on_map().unwrap_or(0);
        if stack > 0 {
            let words = self.opened.snapshot.stacks.words(stack);
            put_line(buffer, row(area, area.bottom() - 1), &words, Role::Text, theme);
        }
    }

    /// Returns the stack that requested the largest live block in the cell under the cursor.
    pub(super) fn stack_on_map(&self) -> Option<StackId> {
        let (device, _) = self.device()?;
        let under = self.map.under(&device.map)?;
        let live = under.blocks.iter().filter(|b| b.state != BlockState::Free);
        let largest = live.max_by_key(|block| block.size)?;
        device.held_at(largest.address).map(|held| held.stack)
    }
}
