//! Data of the time, stack and growth panes.

use gputop_allocator::snapshot::{Device, DeviceAnalysis, TraceAction as Happened, TraceEvent};
use gputop_model::units::Bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::stack_list::{ListContext, when};
use super::state::{SnapshotScreen, is_cramped};
use crate::export::snapshot::{BEFORE, NO_TRACE, UNKNOWN, oom_words};
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::area::{margin, split_bottom};
use crate::tui::widgets::cells::{put_line, put_lines};

impl SnapshotScreen {
    pub(super) fn draw_stacks(
        &self,
        device: &Device,
        area: Rect,
        buffer: &mut Buffer,
        theme: &Theme,
    ) {
        let title = match self.stacks_at {
            None => "REQUESTED at snapshot time".to_owned(),
            Some(position) => format!("REQUESTED after {}", when(device, position)),
        };
        let list = ListContext {
            title,
            stacks: &self.opened.snapshot.stacks,
            empty: "Nothing was allocated",
            unknown: UNKNOWN,
        };
        self.stacks.draw(&list, area, buffer, theme);
    }

    pub(super) fn draw_growth(
        &self,
        device: &Device,
        area: Rect,
        buffer: &mut Buffer,
        theme: &Theme,
    ) {
        let title = match self.time.marked() {
            None => "GROWTH over the whole trace".to_owned(),
            Some((from, to)) => {
                format!("GROWTH from {} to {}", when(device, from), when(device, to))
            }
        };
        let empty = if device.events.is_empty() { NO_TRACE } else { "Nothing grew" };
        let list =
            ListContext { title, stacks: &self.opened.snapshot.stacks, empty, unknown: BEFORE };
        self.growth.draw(&list, area, buffer, theme);
    }

    pub(super) fn draw_time(
        &self,
        device: &Device,
        study: &DeviceAnalysis,
        area: Rect,
        buffer: &mut Buffer,
        theme: &Theme,
    ) {
        if device.events.is_empty() {
            put_line(buffer, area, NO_TRACE, Role::Dim, theme);
            return;
        }
        let mut below = self.under(device, study);
        let max_lines = if is_cramped(area) { 1 } else { below.len() };
        below.truncate(max_lines.min(usize::from(area.height.saturating_sub(3))));
        let [chart, lines] = split_bottom(area, u16::try_from(below.len()).unwrap_or(0));
        self.time.chart(device, study, Some(self.time.position()), chart, buffer, theme);
        put_lines(buffer, margin(lines), &below, theme);
    }

    /// Describes the memory values after the event under the cursor, and the event with its stack.
    fn under(&self, device: &Device, study: &DeviceAnalysis) -> Vec<(String, Role)> {
        let position = self.time.position();
        let span = study.history.span(device, position, position);
        let (from, to) = self.time.column(0, 1);
        let shown = if to - from == device.events.len() {
            String::new()
        } else {
            format!("  (shown: {} of {} events)", to - from, device.events.len())
        };
        let mut lines = vec![(
            format!(
                "after {}: requested {}, reserved {}{shown}",
                when(device, position),
                span.allocated.1,
                span.reserved
            ),
            Role::Text,
        )];
        let last = position.checked_sub(1).and_then(|at| device.events.get(at));
        if let Some(event) = last {
            lines.push(event_text(event));
            let words = self.opened.snapshot.stacks.words(event.stack);
            if !words.is_empty() {
                lines.push((words, Role::Dim));
            }
        }
        if let Some((from, to)) = self.time.marked() {
            let words = format!("marks: {} and {}", when(device, from), when(device, to));
            lines.push((words, Role::Key));
        }
        lines
    }
}

fn event_text(event: &TraceEvent) -> (String, Role) {
    let name = event.action.name();
    match event.action {
        Happened::Oom => (format!("OUT OF MEMORY: {}", oom_words(event)), Role::Bad),
        Happened::Snapshot | Happened::UserDefined | Happened::Unknown => {
            (name.to_owned(), Role::Text)
        }
        _ => (format!("{name} {} at {:x}", Bytes(event.size), event.addr), Role::Text),
    }
}
