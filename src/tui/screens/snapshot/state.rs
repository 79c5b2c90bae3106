//! The state of the snapshot screen: the snapshot, the pane on top, and the cursor of each pane.

use std::rc::Rc;

use gputop_allocator::snapshot::{Device, DeviceAnalysis};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::frames::{Frames, blocks_text};
use super::stack_list::StackList;
use super::time;
use crate::export::snapshot::{AnalysedSnapshot, UNKNOWN};
use crate::tui::action::Action;
use crate::tui::screen::{Effect, is_small};
use crate::tui::text_field::TextField;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::area::{split_bottom, split_top};
use crate::tui::widgets::cells::put_all;
use crate::tui::widgets::segment_map::MapPane;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Pane {
    #[default]
    Summary,
    Map,
    Time,
    Stacks,
    Growth,
}

pub(super) const PANES: [(Pane, &str); 5] = [
    (Pane::Summary, "summary"),
    (Pane::Map, "map"),
    (Pane::Time, "time"),
    (Pane::Stacks, "stacks"),
    (Pane::Growth, "growth"),
];

#[derive(Default)]
pub struct SnapshotScreen {
    pub(super) opened: Rc<AnalysedSnapshot>,
    /// Index of the displayed device.
    pub(super) device_index: usize,
    pub(super) pane: Pane,
    pub(super) map: MapPane,
    pub(super) time: time::Window,
    /// The position at which `stacks` lists live memory, or `None` for the end of the trace.
    pub(super) stacks_at: Option<usize>,
    pub(super) stacks: StackList,
    pub(super) growth: StackList,
    /// The stack shown in full on top of the pane it was opened from.
    pub(super) frames: Option<Frames>,
    pub(super) search: TextField,
}

impl SnapshotScreen {
    pub fn new(opened: AnalysedSnapshot) -> Self {
        let mut screen = Self { opened: Rc::new(opened), ..Self::default() };
        screen.step_device(0);
        screen
    }

    pub(super) fn device(&self) -> Option<(&Device, &DeviceAnalysis)> {
        let device = self.opened.snapshot.devices.get(self.device_index)?;
        Some((device, self.opened.studies.get(self.device_index)?))
    }

    pub(super) fn devices(&self) -> usize {
        self.opened.snapshot.devices.len()
    }

    /// Switches to the device `by` places further, starting again with the first one after the last one.
    pub(super) fn step_device(&mut self, by: usize) {
        self.device_index = (self.device_index + by) % self.devices().max(1);
        self.map = MapPane::default();
        self.stacks_at = None;
        self.time = match self.device() {
            Some((device, study)) => time::Window::of(device, study),
            None => time::Window::default(),
        };
        self.update_lists();
    }

    /// Recomputes the lists of stacks.
    pub(super) fn update_lists(&mut self) {
        let Some((device, study)) = self.device() else {
            return;
        };
        let end = device.events.len();
        let (from, to) = self.time.marked().unwrap_or((0, end));
        let held = study.history.live_at(device, self.stacks_at.unwrap_or(end));
        let growth = study.history.growth(device, from, to);
        (self.stacks, self.growth) = (StackList::new(held), StackList::new(growth));
        self.apply_search();
    }

    pub(super) fn apply_search(&mut self) {
        let query = self.search.text().to_lowercase();
        let stacks = &self.opened.snapshot.stacks;
        self.stacks.search(&query, stacks);
        self.growth.search(&query, stacks);
    }

    /// Handles Enter in a pane.
    pub(super) fn open(&mut self) -> Effect {
        let stack = match self.pane {
            Pane::Summary => return Effect::Done,
            Pane::Map => self.stack_on_map(),
            Pane::Time => {
                if self.device().is_some_and(|(device, _)| !device.events.is_empty()) {
                    self.stacks_at = Some(self.time.position());
                    self.pane = Pane::Stacks;
                    self.update_lists();
                }
                return Effect::Done;
            }
            Pane::Stacks => self.stacks.selected(),
            Pane::Growth => self.growth.selected(),
        };
        match stack {
            Some(0) | None => Effect::Message(UNKNOWN.into()),
            Some(stack) => {
                let is_now = self.pane != Pane::Growth && self.stacks_at.is_none();
                let device = self.device().filter(|_| is_now);
                let sizes = device.map(|(device, _)| device.live_sizes(stack)).unwrap_or_default();
                self.frames = Some(Frames::new(stack, blocks_text(&sizes)));
                Effect::Done
            }
        }
    }

    /// Draws the line above every pane: the device and the names of the panes.
    pub(super) fn tabs(&self, area: Rect, buffer: &mut Buffer, theme: &Theme) {
        let count = self.opened.snapshot.devices.len();
        let ordinal = self.device().map_or(0, |(device, _)| device.ordinal);
        let device = match count {
            0 | 1 => format!("device {ordinal}  "),
            _ => format!("device {ordinal} ({} of {count})  ", self.device_index + 1),
        };
        let (dim, title) = (theme.style(Role::Dim), theme.style(Role::Title));
        let mut pieces = vec![(device.as_str(), theme.style(Role::Text))];
        let is_narrow = area.width < 60;
        for (pane, name) in PANES {
            // Brackets mark the selected pane for terminals without colour.
            match pane == self.pane {
                true => pieces.extend([("[", dim), (name, title), ("] ", dim)]),
                false if is_narrow => {}
                false => pieces.extend([(" ", dim), (name, dim), ("  ", dim)]),
            }
        }
        put_all(buffer, area.x + 1, area.y, area.right(), &pieces);
    }

    /// Returns the pane area and the search line, which is empty if there is no search term.
    pub(super) fn areas(&self, area: Rect) -> [Rect; 2] {
        let [_, below] = split_top(area, 1 + u16::from(area.height >= 12));
        split_bottom(below, u16::from(self.search.is_open()))
    }

    /// Switches to the pane `by` places further right, starting again on the left after the last one.
    pub(super) fn step_pane(&mut self, by: usize) {
        let at = PANES.iter().position(|(pane, _)| *pane == self.pane).unwrap_or(0);
        self.pane = PANES[(at + by) % PANES.len()].0;
    }

    pub(super) fn move_in(&mut self, action: Action, pane: Rect) -> bool {
        let page = usize::from(pane.height.saturating_sub(2));
        match self.pane {
            Pane::Summary => false,
            Pane::Map => {
                let device = self.opened.snapshot.devices.get(self.device_index);
                device.is_some_and(|device| self.map.act(action, &device.map, page))
            }
            Pane::Time => {
                let Some(device) = self.opened.snapshot.devices.get(self.device_index) else {
                    return false;
                };
                let moved = self.time.act(action, device, pane);
                if moved == time::Moved::Marks {
                    self.update_lists();
                }
                moved != time::Moved::No
            }
            Pane::Stacks => self.stacks.act(action, page),
            Pane::Growth => self.growth.act(action, page),
        }
    }
}

/// Returns true if optional parts do not fit in the pane.
pub(super) fn is_cramped(area: Rect) -> bool {
    is_small(Rect::new(0, 0, area.width, area.height + 4))
}
