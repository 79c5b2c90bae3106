//! Comparison of two memory snapshots: the memory of a device, and the stacks whose memory changed.

use std::rc::Rc;

use crossterm::event::KeyEvent;
use gputop_allocator::snapshot::compare::{ChangeKind, Comparison, StackChange};
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use super::list::{ListRow, ListScreen};
use super::snapshot::frames::{self, Frames};
use crate::dashboard::emphasis::Emphasis;
use crate::dashboard::table::{Cell, Column, First, SortKey};
use crate::export::snapshot::{
    UNKNOWN, comparison_text, figure_lines, total_lines, where_words, with_sign,
};
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::clipboard::Copied;
use crate::tui::screen::{Effect, Hit, Screen, ScreenDef};
use crate::tui::theme::Role;
use crate::tui::widgets::area::{margin, split_top};
use crate::tui::widgets::cells::put_line;

pub const DEF: ScreenDef = ScreenDef {
    id: "snapshot_comparison",
    title: "Two snapshots",
    glossary: &[
        ("A, B", "The first and the second snapshot. Differences are B minus A."),
        (
            "CHANGE",
            "A stack is new or vanished if only one snapshot contains it. Stacks are the same if all of their frames are. \
             If only the line numbers differ, two stacks are matched unless there are several candidates.",
        ),
        (
            "BYTES",
            "Difference in the requested memory held by the stack, before the allocator rounds it up.",
        ),
        ("[ ]", "Show another device of the snapshots."),
    ],
    // Provide no sample screen, because the screen needs two snapshot files.
    sample: |_| None,
};

const COLUMNS: &[Column<StackChange>] = &[
    Column::right(
        "BYTES",
        12,
        0,
        |change: &StackChange, _| Cell::new(with_sign(change.bytes()), emphasis(change)),
        "Difference in requested bytes.",
    )
    .sorted(First::Largest, |change| SortKey::number(Some(change.bytes() as f64))),
    Column::right(
        "BLOCKS",
        8,
        3,
        |change, _| Cell::text(format!("{:+}", change.blocks())),
        "Difference in the number of blocks.",
    ),
    Column::left(
        "CHANGE",
        8,
        2,
        |change: &StackChange, _| Cell::new(change.kind.word(), emphasis(change)),
        "Change in the memory that was allocated with this stack trace.",
    )
    .sorted(First::Smallest, |change| SortKey::Text(change.kind.word().into())),
    Column::rest(
        "WHERE",
        20,
        1,
        |change, _| Cell::text(where_words(change)),
        "Frames of the program, innermost first.",
    ),
];

fn emphasis(change: &StackChange) -> Emphasis {
    match change.kind {
        ChangeKind::New | ChangeKind::Grew => Emphasis::Warn,
        ChangeKind::Shrank | ChangeKind::Vanished => Emphasis::Normal,
    }
}

/// A device in a comparison.
#[derive(Debug, Clone)]
pub struct Subject {
    comparison: Rc<Comparison>,
    device_index: usize,
}

impl ListRow for StackChange {
    type Key = (ChangeKind, u32);
    type Subject = Subject;

    const DEF: &'static ScreenDef = &DEF;
    const COLUMNS: &'static [Column<Self>] = COLUMNS;
    const FOOTER: &'static [Action] =
        &[Action::Down, Action::Open, Action::Filter, Action::Sort, Action::NextGpu, Action::Copy];
    const NOUN: &'static str = "stacks";
    const EMPTY: &'static str = "No stack holds more or less memory";

    fn rows<'a>(_app: &'a App, subject: &'a Subject) -> Vec<(usize, &'a Self)> {
        let device = subject.comparison.devices.get(subject.device_index);
        let changes = device.map(|device| device.changes.as_slice());
        changes.unwrap_or_default().iter().enumerate().collect()
    }

    fn key(&self) -> Self::Key {
        (self.kind, self.stack)
    }

    fn has_key(&self, key: &Self::Key) -> bool {
        (self.kind, self.stack) == *key
    }

    fn act(&self, _index: usize, _action: Action) -> Effect {
        Effect::Ignored
    }
}

pub struct SnapshotComparisonScreen {
    /// File names, escaped for display.
    names: [String; 2],
    subject: Subject,
    list: ListScreen<StackChange>,
    /// The stack shown in full, and the index of the snapshot that contains it.
    frames: Option<(Frames, usize)>,
}

impl SnapshotComparisonScreen {
    pub fn new(names: [String; 2], comparison: Comparison) -> Self {
        let subject = Subject { comparison: Rc::new(comparison), device_index: 0 };
        Self { names, list: ListScreen::about(subject.clone()), subject, frames: None }
    }

    fn show_device(&mut self, at: usize) {
        let last = self.subject.comparison.devices.len().saturating_sub(1);
        self.subject.device_index = at.min(last);
        self.list = ListScreen::about(self.subject.clone());
    }

    /// Returns the lines above the list: the device, and on larger screens its memory and the totals.
    fn head(&self, area: Rect) -> Vec<String> {
        let devices = &self.subject.comparison.devices;
        let Some(device) = devices.get(self.subject.device_index) else {
            return vec!["Nothing was allocated on any device".into()];
        };
        let title = match devices.len() {
            1 => format!("device {}", device.ordinal),
            count => {
                format!("device {} ({} of {count})", device.ordinal, self.subject.device_index + 1)
            }
        };
        let mut lines = vec![title];
        if area.height >= 20 && area.width >= 64 {
            lines.extend(figure_lines(device));
            lines.extend(total_lines(device));
            lines.push(String::new());
        }
        lines
    }

    /// Returns the areas of the lines above the list, and of the list.
    fn areas(&self, area: Rect) -> [Rect; 2] {
        split_top(area, u16::try_from(self.head(area).len()).unwrap_or(u16::MAX))
    }

    fn open(&mut self, app: &App) -> Effect {
        match self.list.selected(app) {
            Some(change) if !change.words.is_empty() => {
                let side = usize::from(change.kind != ChangeKind::Vanished);
                self.frames = Some((Frames::new(change.stack, String::new()), side));
                Effect::Done
            }
            _ => Effect::Message(UNKNOWN.into()),
        }
    }
}

impl Screen for SnapshotComparisonScreen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        if let Some((frames, side)) = &self.frames {
            frames.draw(&self.subject.comparison.stacks[*side], area, buffer, &app.ui.theme);
            return;
        }
        let [head, list] = self.areas(area);
        for (at, (line, row)) in self.head(area).iter().zip(margin(head).rows()).enumerate() {
            let role = if at == 0 { Role::Title } else { Role::Text };
            put_line(buffer, row, line, role, &app.ui.theme);
        }
        self.list.draw(app, list, buffer);
    }

    fn act(&mut self, action: Action, app: &App, body: Rect) -> Effect {
        if let Some((frames, side)) = &mut self.frames {
            match action {
                Action::Back | Action::Quit | Action::Open => self.frames = None,
                Action::Copy | Action::Help => return Effect::Ignored,
                action => frames.act(action, &self.subject.comparison.stacks[*side], body),
            }
            return Effect::Done;
        }
        match action {
            Action::Open => self.open(app),
            Action::NextGpu => {
                self.show_device(self.subject.device_index + 1);
                Effect::Done
            }
            Action::PreviousGpu => {
                self.show_device(self.subject.device_index.saturating_sub(1));
                Effect::Done
            }
            action => {
                let [_, list] = self.areas(body);
                self.list.act(action, app, list)
            }
        }
    }

    fn type_key(&mut self, key: KeyEvent) -> bool {
        self.list.type_key(key)
    }

    fn follow(&mut self, app: &App) {
        self.list.follow(app);
    }

    fn click(&mut self, app: &App, at: Position, body: Rect) -> Hit {
        let [_, list] = self.areas(body);
        if self.frames.is_none() && list.contains(at) {
            self.list.click(app, at, list)
        } else {
            Hit::Nothing
        }
    }

    fn standalone_actions(&self) -> Option<&'static [Action]> {
        Some(KEYS)
    }

    fn headline(&self) -> Option<String> {
        let [a, b] = &self.names;
        Some(format!("A: {a}  B: {b}"))
    }

    fn footer_label(&self, action: Action) -> Option<&'static str> {
        (action == Action::Quit && self.frames.is_some()).then_some("back")
    }

    fn footer(&self) -> &'static [Action] {
        match self.frames {
            Some(_) => &[Action::Back, Action::Down, Action::PageDown, Action::Copy],
            None => self.list.footer(),
        }
    }

    fn copied(&self, _app: &App) -> Option<Copied> {
        let comparison = &self.subject.comparison;
        Some(match &self.frames {
            Some((shown, side)) => {
                let stack = comparison.stacks[*side].frames(shown.stack());
                let lines: Vec<String> = stack.map(frames::line).collect();
                Copied::new("the stack", &lines.join("\n"))
            }
            None => Copied::new("the comparison", &comparison_text(&self.names, comparison)),
        })
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}

const KEYS: &[Action] = &[
    Action::Open,
    Action::Filter,
    Action::Sort,
    Action::SortNext,
    Action::SortPrevious,
    Action::Invert,
];
