//! A PyTorch memory snapshot: the content of the pool, its map, the preceding history, and the stacks that hold memory.
//!
//! The file was read before the screen opened, so only the cursor changes. The screen shows one pane at a time; Tab
//! selects the next. A *position* is a number of events since the start of the trace; see
//! [`history`](gputop_allocator::snapshot::history).

pub(super) mod frames;
mod map;
mod panes;
mod stack_list;
mod state;
mod summary;
mod time;

use crossterm::event::KeyEvent;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

pub use self::state::SnapshotScreen;
use self::state::{PANES, Pane};
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::clipboard::Copied;
use crate::tui::screen::{Effect, Screen, ScreenDef};
use crate::tui::theme::Role;
use crate::tui::widgets::area::margin;
use crate::tui::widgets::cells::put_line;

pub const DEF: ScreenDef = ScreenDef {
    id: "snapshot",
    title: "Snapshot",
    glossary: &[
        ("tab", "Select the next pane: summary, map, time, stacks, growth."),
        ("[ ]", "Show another device of the snapshot."),
        (
            "time",
            "Chart of the trace. Each column covers the same number of events. The map shows the state at the end of \
             the trace. Arrows move the cursor, n and N go to failed requests, { and } zoom.",
        ),
        (
            "mark",
            "In the time pane, Space marks the event under the cursor. With two marks, the growth pane compares them.",
        ),
        (
            "stacks",
            "Stacks that hold the memory at the end of the trace. To list them for another event, press Enter in the time pane. / \
             searches; Enter shows the complete stack, with the frames of the program first.",
        ),
        (
            "growth",
            "Stacks that hold more memory at the second mark than at the first. Without marks, the pane compares \
             the end of the trace with its start.",
        ),
        (
            "requested",
            "Size before the allocator rounds it up. Stacks and the trace show requested sizes only.",
        ),
        (
            "fragmented",
            "Free memory in segments that also hold a live block. Only smaller requests can use it.",
        ),
        (
            "returnable",
            "Free memory in segments that hold no live block. The allocator releases it to the driver when necessary.",
        ),
    ],
    // Provide no sample screen, because the screen needs a snapshot file.
    sample: |_| None,
};

impl Screen for SnapshotScreen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let theme = &app.ui.theme;
        if area.height < 2 || area.width < 10 {
            return;
        }
        self.tabs(area, buffer, theme);
        let [body, line] = self.areas(area);
        if self.search.is_typing() {
            self.search.draw(" search: ", line, app, buffer);
        } else if self.search.is_open() {
            let words = format!(" search: {}", self.search.text());
            put_line(buffer, line, &words, Role::Warn, theme);
        }
        let Some((device, study)) = self.device() else {
            let text = "The snapshot is empty: nothing was allocated on any device";
            put_line(buffer, margin(body), text, Role::Dim, theme);
            return;
        };
        if let Some(frames) = &self.frames {
            frames.draw(&self.opened.snapshot.stacks, body, buffer, theme);
            return;
        }
        match self.pane {
            Pane::Summary => self.summary(device, study, body, buffer, theme),
            Pane::Map => self.draw_map(device, study, body, buffer, theme),
            Pane::Time => self.draw_time(device, study, body, buffer, theme),
            Pane::Stacks => self.draw_stacks(device, body, buffer, theme),
            Pane::Growth => self.draw_growth(device, body, buffer, theme),
        }
    }

    fn act(&mut self, action: Action, _app: &App, body: Rect) -> Effect {
        let [pane, _] = self.areas(body);
        if let Some(frames) = &mut self.frames {
            match action {
                Action::Back | Action::Quit | Action::Open => self.frames = None,
                Action::Copy | Action::Help => return Effect::Ignored,
                action => frames.act(action, &self.opened.snapshot.stacks, pane),
            }
            return Effect::Done;
        }
        match action {
            Action::Help | Action::Copy | Action::Quit => return Effect::Ignored,
            Action::NextPane => self.step_pane(1),
            Action::PreviousPane => self.step_pane(PANES.len() - 1),
            Action::NextGpu => self.step_device(1),
            Action::PreviousGpu => self.step_device(self.devices().saturating_sub(1)),
            Action::Filter => {
                if !matches!(self.pane, Pane::Stacks | Pane::Growth) {
                    self.pane = Pane::Stacks;
                }
                self.search.start();
            }
            Action::Back if !self.search.text().is_empty() => {
                self.search.clear();
                self.apply_search();
            }
            // Go back to the stacks at the end of the trace.
            Action::Back | Action::Now if self.stacks_at.is_some() => {
                self.stacks_at = None;
                self.update_lists();
            }
            Action::Open => return self.open(),
            // Keys for hosts and processes have no effect here.
            action => drop(self.move_in(action, pane)),
        }
        Effect::Done
    }

    fn type_key(&mut self, key: KeyEvent) -> bool {
        let is_consumed = self.search.type_key(key);
        if is_consumed {
            self.apply_search();
        }
        is_consumed
    }

    fn standalone_actions(&self) -> Option<&'static [Action]> {
        Some(KEYS)
    }

    fn headline(&self) -> Option<String> {
        let conf = self.opened.snapshot.conf();
        let conf = conf.map_or_else(String::new, |conf| format!("  {conf}"));
        Some(format!("{}{conf}", self.opened.name))
    }

    fn footer(&self) -> &'static [Action] {
        if self.frames.is_some() {
            return &[Action::Back, Action::Down, Action::PageDown, Action::Copy];
        }
        match self.pane {
            Pane::Summary => &[Action::NextPane, Action::NextGpu, Action::Copy],
            Pane::Map => &[Action::NextPane, Action::Right, Action::Open, Action::NextGpu],
            Pane::Time => &[
                Action::NextPane,
                Action::Left,
                Action::Right,
                Action::Tag,
                Action::Open,
                Action::ZoomIn,
                Action::ZoomOut,
                Action::NextError,
            ],
            Pane::Stacks | Pane::Growth => {
                &[Action::NextPane, Action::Open, Action::Filter, Action::Down, Action::Copy]
            }
        }
    }

    fn footer_label(&self, action: Action) -> Option<&'static str> {
        (action == Action::Quit && self.frames.is_some()).then_some("back")
    }

    fn has_use_for(&self, action: Action, _app: &App) -> bool {
        action != Action::NextGpu || self.opened.snapshot.devices.len() > 1
    }

    fn copied(&self, _app: &App) -> Option<Copied> {
        let stacks = &self.opened.snapshot.stacks;
        let selected = match (&self.frames, self.pane) {
            (Some(frames), _) => Some(frames.stack()),
            (None, Pane::Map) => self.stack_on_map(),
            (None, Pane::Stacks) => self.stacks.selected(),
            (None, Pane::Growth) => self.growth.selected(),
            (None, _) => None,
        };
        if let Some(stack) = selected.filter(|&stack| stack > 0) {
            let lines: Vec<String> = stacks.frames(stack).map(frames::line).collect();
            return Some(Copied::new("the stack", &lines.join("\n")));
        }
        let (device, study) = self.device()?;
        let lines = summary::figures(device, study, &self.opened.snapshot.stacks);
        let lines: Vec<String> =
            lines.iter().map(|(name, value)| format!("{name:<24}{value}")).collect();
        Some(Copied::new("the figures", &lines.join("\n")))
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}

const KEYS: &[Action] = &[
    Action::Left,
    Action::Right,
    Action::Open,
    Action::NextPane,
    Action::PreviousPane,
    Action::NextError,
    Action::PreviousError,
    Action::Filter,
    Action::Tag,
    Action::Untag,
    Action::ZoomIn,
    Action::ZoomOut,
    Action::Now,
];
