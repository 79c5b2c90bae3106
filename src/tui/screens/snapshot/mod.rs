//! A memory snapshot of PyTorch: what the pool held, its map, the history before it, and which stacks hold what.
//!
//! The file was read before the screen opened; nothing here changes but the cursor. One pane at a time, Tab brings the
//! next. A *moment* is a number of events of the trace, as in [`history`](crate::snapshot::history).

mod frames;
mod holders;
mod map;
mod summary;
mod time;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crossterm::event::{Event as TerminalEvent, KeyCode, KeyEvent};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use tui_input::Input;
use tui_input::backend::crossterm::EventHandler;

use self::frames::Frames;
use self::holders::Holders;
use super::{Screen, ScreenDef, Step, is_small};
use crate::export::snapshot::UNKNOWN;
use crate::snapshot::{Device, Snapshot, StackId, Study};
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::clipboard::Copied;
use crate::tui::keymap::is_enter;
use crate::tui::overlay::draw_typed;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::cells::{put, put_all, put_line};
use crate::tui::widgets::segment_map::{Cursor, SegmentLayout};

pub const DEF: ScreenDef = ScreenDef {
    id: "snapshot",
    title: "Snapshot",
    words: &[
        (
            "tab",
            "Goes to the next part: summary, map, time, stacks, grown.",
        ),
        ("[ ]", "Another device of the snapshot."),
        (
            "time",
            "Every column is as many events of the trace; the last is the moment of the map. Arrows move the cursor, \
             n and N go to where a request failed, { and } show less or more of it.",
        ),
        (
            "mark",
            "In time, space sets a mark under the cursor, twice: grown is then what grew between the two.",
        ),
        (
            "stacks",
            "Which lines of the program hold the memory: at the moment of the map, or, after Enter in time, at the \
             cursor's. / looks for some of them; Enter shows the whole stack, one's own frames first.",
        ),
        (
            "grown",
            "Which lines hold more at the second mark than at the first; without marks, at the end of the trace than at \
             its beginning.",
        ),
        (
            "requested",
            "What was asked for, before the allocator rounds it up: all sizes of stacks and of the trace are that.",
        ),
        (
            "stuck",
            "Free, but in a segment that also holds a live block: only smaller requests can use it.",
        ),
        (
            "returnable",
            "Free in whole segments, which the allocator gives back by itself when it must.",
        ),
    ],
    // There is one only where a file was opened.
    sample: |_| None,
};

/// A snapshot that was read, with all that was computed of it.
#[derive(Debug)]
pub struct Opened {
    /// The file's name, harmless to show.
    pub name: String,
    pub snapshot: Snapshot,
    /// Of each device.
    pub studies: Vec<Study>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pane {
    Summary,
    Map,
    Time,
    Stacks,
    Grown,
}

const PANES: [(Pane, &str); 5] = [
    (Pane::Summary, "summary"),
    (Pane::Map, "map"),
    (Pane::Time, "time"),
    (Pane::Stacks, "stacks"),
    (Pane::Grown, "grown"),
];

pub struct SnapshotScreen {
    opened: Rc<Opened>,
    /// Which of its devices.
    at: usize,
    pane: Pane,
    cursor: Cursor,
    layout: RefCell<Option<Layout>>,
    time: time::Window,
    /// The moment of `stacks`; none is the end.
    moment: Option<usize>,
    stacks: Holders,
    grown: Holders,
    /// The stack that is read whole, over the pane it was opened in.
    frames: Option<Frames>,
    search: Input,
    typing: bool,
    /// The rows of the pane when it was drawn.
    page: Cell<usize>,
}

/// The map's layout for a pane: cells in a row, rows.
type Layout = (usize, usize, Rc<SegmentLayout>);

impl SnapshotScreen {
    pub fn new(opened: Opened) -> Self {
        let mut screen = Self {
            opened: Rc::new(opened),
            at: 0,
            pane: Pane::Summary,
            cursor: Cursor::default(),
            layout: RefCell::default(),
            time: time::Window::default(),
            moment: None,
            stacks: Holders::default(),
            grown: Holders::default(),
            frames: None,
            search: Input::default(),
            typing: false,
            page: Cell::new(0),
        };
        screen.show_device(0);
        screen
    }

    fn device(&self) -> Option<(&Device, &Study)> {
        let device = self.opened.snapshot.devices.get(self.at)?;
        Some((device, self.opened.studies.get(self.at)?))
    }

    fn show_device(&mut self, at: usize) {
        self.at = at.min(self.opened.snapshot.devices.len().saturating_sub(1));
        self.layout = RefCell::default();
        self.cursor = Cursor::default();
        self.moment = None;
        self.time = match self.device() {
            Some((device, study)) => time::Window::of(device, study),
            None => time::Window::default(),
        };
        self.list();
    }

    /// Computes the lists of stacks anew, after anything that they follow from.
    fn list(&mut self) {
        let Some((device, study)) = self.device() else {
            return;
        };
        let end = device.events.len();
        let (from, to) = self.time.marked().unwrap_or((0, end));
        let held = study.history.live_at(device, self.moment.unwrap_or(end));
        let grown = study.history.growth(device, from, to);
        (self.stacks, self.grown) = (Holders::new(held), Holders::new(grown));
        self.look();
    }

    fn look(&mut self) {
        let wanted = self.search.value().to_lowercase();
        let stacks = &self.opened.snapshot.stacks;
        self.stacks.look_for(&wanted, stacks);
        self.grown.look_for(&wanted, stacks);
    }

    fn open_stack(&mut self, stack: StackId) {
        self.frames = Some(Frames::new(stack));
    }

    /// What Enter does in a pane.
    fn open(&mut self) -> Step {
        let stack = match self.pane {
            Pane::Summary => return Step::Stay,
            Pane::Map => self.stack_on_map(),
            Pane::Time => {
                if self
                    .device()
                    .is_some_and(|(device, _)| !device.events.is_empty())
                {
                    self.moment = Some(self.time.moment());
                    self.pane = Pane::Stacks;
                    self.list();
                }
                return Step::Stay;
            }
            Pane::Stacks => self.stacks.selected(),
            Pane::Grown => self.grown.selected(),
        };
        match stack {
            Some(0) | None => Step::Say(UNKNOWN.into()),
            Some(stack) => {
                self.open_stack(stack);
                Step::Stay
            }
        }
    }

    /// The bright line above every pane: which device, which panes there are.
    fn tabs(&self, area: Rect, buffer: &mut Buffer, theme: &Theme) {
        let count = self.opened.snapshot.devices.len();
        let ordinal = self.device().map_or(0, |(device, _)| device.ordinal);
        let device = match count {
            0 | 1 => format!("device {ordinal}  "),
            _ => format!("device {ordinal} ({} of {count})  ", self.at + 1),
        };
        let (dim, title) = (theme.style(Role::Dim), theme.style(Role::Title));
        let mut pieces = vec![(device.as_str(), theme.style(Role::Text))];
        let is_narrow = area.width < 60;
        for (pane, name) in PANES {
            // Brackets, since a colour may not be seen.
            match pane == self.pane {
                true => pieces.extend([("[", dim), (name, title), ("] ", dim)]),
                false if is_narrow => {}
                false => pieces.extend([(" ", dim), (name, dim), ("  ", dim)]),
            }
        }
        put_all(buffer, area.x + 1, area.y, area.right(), &pieces);
    }

    fn move_in(&mut self, action: Action) -> bool {
        let page = self.page.get();
        match self.pane {
            Pane::Summary => false,
            Pane::Map => self.move_on_map(action),
            Pane::Time => {
                let Some(device) = self.opened.snapshot.devices.get(self.at) else {
                    return false;
                };
                let moved = self.time.act(action, device);
                if moved == time::Moved::Marks {
                    self.list();
                }
                moved != time::Moved::No
            }
            Pane::Stacks => self.stacks.act(action, page),
            Pane::Grown => self.grown.act(action, page),
        }
    }
}

impl Screen for SnapshotScreen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let theme = &app.theme;
        if area.height < 2 || area.width < 10 {
            return;
        }
        self.tabs(area, buffer, theme);
        let gap = u16::from(area.height >= 12);
        let mut body = Rect {
            y: area.y + 1 + gap,
            height: area.height - 1 - gap,
            ..area
        };
        if self.typing || !self.search.value().is_empty() {
            body.height -= 1;
            let line = Rect {
                y: body.bottom(),
                height: 1,
                ..area
            };
            if self.typing {
                draw_typed(" look for: ", &self.search, line, app, buffer);
            } else {
                let words = format!(" only with \"{}\"", self.search.value());
                put_line(buffer, line, &words, Role::Warn, theme);
            }
        }
        let Some((device, study)) = self.device() else {
            let text = "the snapshot is empty: nothing was allocated on any device";
            put(
                buffer,
                body.x + 1,
                body.y,
                text,
                body.width,
                theme.style(Role::Dim),
            );
            return;
        };
        self.page.set(usize::from(body.height.saturating_sub(2)));
        if let Some(frames) = &self.frames {
            frames.draw(&self.opened.snapshot.stacks, body, buffer, theme);
            return;
        }
        match self.pane {
            Pane::Summary => self.summary(device, study, body, buffer, theme),
            Pane::Map => self.map(device, study, body, buffer, theme),
            Pane::Time => self.draw_time(device, study, body, buffer, theme),
            Pane::Stacks => self.draw_stacks(device, body, buffer, theme),
            Pane::Grown => self.draw_grown(device, body, buffer, theme),
        }
    }

    fn act(&mut self, action: Action, _app: &App) -> Step {
        if let Some(frames) = &mut self.frames {
            match action {
                Action::Back | Action::Quit | Action::Open => self.frames = None,
                Action::Copy | Action::Help => return Step::Ignored,
                action => drop(frames.act(action)),
            }
            return Step::Stay;
        }
        match action {
            Action::Help | Action::Copy | Action::Quit => return Step::Ignored,
            Action::NextPane => {
                let at = PANES.iter().position(|(pane, _)| *pane == self.pane);
                self.pane = PANES[(at.unwrap_or(0) + 1) % PANES.len()].0;
            }
            Action::NextGpu => self.show_device(self.at + 1),
            Action::PreviousGpu => self.show_device(self.at.saturating_sub(1)),
            Action::Filter => {
                if !matches!(self.pane, Pane::Stacks | Pane::Grown) {
                    self.pane = Pane::Stacks;
                }
                self.typing = true;
            }
            Action::Back if !self.search.value().is_empty() => {
                self.search = Input::default();
                self.look();
            }
            // To the end again, from the moment that was looked at.
            Action::Back | Action::Now if self.moment.is_some() => {
                self.moment = None;
                self.list();
            }
            Action::Open => return self.open(),
            // Keys that are about hosts and processes do nothing here.
            action => drop(self.move_in(action)),
        }
        Step::Stay
    }

    fn type_key(&mut self, key: KeyEvent) -> bool {
        if !self.typing {
            return false;
        }
        match key.code {
            _ if is_enter(key) => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.search = Input::default();
            }
            KeyCode::Up | KeyCode::Down | KeyCode::PageUp | KeyCode::PageDown => {
                self.typing = false;
                return false;
            }
            KeyCode::Char(_) if self.search.value().chars().count() >= MAX_TYPED => {}
            _ => drop(self.search.handle_event(&TerminalEvent::Key(key))),
        }
        self.look();
        true
    }

    fn alone(&self) -> Option<&'static [Action]> {
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
            Pane::Map => &[
                Action::NextPane,
                Action::Right,
                Action::Open,
                Action::NextGpu,
            ],
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
            Pane::Stacks | Pane::Grown => &[
                Action::NextPane,
                Action::Open,
                Action::Filter,
                Action::Down,
                Action::Copy,
            ],
        }
    }

    fn copied(&self, _app: &App) -> Option<Copied> {
        let stacks = &self.opened.snapshot.stacks;
        let selected = match (&self.frames, self.pane) {
            (Some(frames), _) => Some(frames.stack()),
            (None, Pane::Map) => self.stack_on_map(),
            (None, Pane::Stacks) => self.stacks.selected(),
            (None, Pane::Grown) => self.grown.selected(),
            (None, _) => None,
        };
        if let Some(stack) = selected.filter(|&stack| stack > 0) {
            let lines: Vec<String> = stacks.frames(stack).map(frames::line).collect();
            return Some(Copied::new("the stack", &lines.join("\n")));
        }
        let (device, study) = self.device()?;
        let lines = summary::figures(device, study);
        let lines: Vec<String> = lines
            .iter()
            .map(|(name, value)| format!("{name:<24}{value}"))
            .collect();
        Some(Copied::new("the figures", &lines.join("\n")))
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}

/// All that mean something here.
const KEYS: &[Action] = &[
    Action::Up,
    Action::Down,
    Action::Left,
    Action::Right,
    Action::PageUp,
    Action::PageDown,
    Action::First,
    Action::Last,
    Action::Open,
    Action::Back,
    Action::NextPane,
    Action::NextGpu,
    Action::PreviousGpu,
    Action::NextError,
    Action::PreviousError,
    Action::Filter,
    Action::Tag,
    Action::Untag,
    Action::ZoomIn,
    Action::ZoomOut,
    Action::Copy,
    Action::Now,
    Action::Help,
    Action::Redraw,
    Action::Suspend,
    Action::Quit,
    Action::QuitNow,
];

/// Nobody looks for more.
const MAX_TYPED: usize = 60;

/// Small panes have no room for what is nice to have.
fn is_cramped(area: Rect) -> bool {
    is_small(Rect {
        height: area.height + 4,
        ..area
    })
}
