//! The screens: what each shows and which actions it takes. A screen borrows the [`App`] to draw and cannot change
//! it; what it wants done it says as a [`Step`].

pub mod fleet;
pub mod gpu;
pub mod gpu_columns;
pub mod incident;
pub mod incidents;
pub mod log;
pub mod memory;
pub mod overview;
pub mod probe;
pub mod process;
pub mod process_table;
pub mod small_overview;
pub mod snapshot;
pub mod unreadable;
pub mod whatif;

use std::sync::Arc;

use crossterm::event::KeyEvent;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use super::action::Action;
use super::app::App;
use super::clipboard::Copied;
use super::groups::Group;
use super::rows::ProcessRow;
use crate::model::incident::Incident;
use crate::model::process::ProcessKey;
use crate::model::units::{GpuUuid, Mono};
use crate::source::Request;

pub trait Screen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer);

    /// What an action does here. Actions that mean the same everywhere never arrive.
    fn act(&mut self, action: Action, app: &App) -> Step;

    /// A key while a line is typed here: true when it was taken. What it cannot take is an action.
    fn type_key(&mut self, _key: KeyEvent) -> bool {
        false
    }

    /// Of a screen that needs no host all actions that it knows; other keys do nothing there.
    fn alone(&self) -> Option<&'static [Action]> {
        None
    }

    /// What it is about, where that is no host: stands in place of the host's headline.
    fn headline(&self) -> Option<String> {
        None
    }

    /// Called when the app has changed: to keep the cursor on what it was on.
    fn follow(&mut self, _app: &App) {}

    /// What the source should be asked now; called after every change.
    fn wants(&mut self, _app: &App) -> Option<Request> {
        None
    }

    /// The actions worth a place in the footer, the most useful first.
    fn footer(&self) -> &'static [Action];

    /// The GPU whose dear figures this screen shows.
    fn focus(&self) -> Option<GpuUuid> {
        None
    }

    /// The pool whose map this screen shows in `body`: its process and the device's number inside it.
    fn map(&self, _app: &App, _body: Rect) -> Option<(ProcessKey, u32)> {
        None
    }

    /// Where its charts over time are drawn, when it is drawn into `body`.
    fn charts(&self, _app: &App, _body: Rect) -> Option<Rect> {
        None
    }

    /// When that which it is about ended, if it did: its charts end there by themselves.
    fn ended(&self, _app: &App) -> Option<Mono> {
        None
    }

    /// A press of the mouse at a place of what was drawn into `body`.
    fn click(&mut self, _app: &App, _at: Position, _body: Rect) -> Hit {
        Hit::Nothing
    }

    /// The process that the cursor is on, or that this screen is about.
    fn process<'a>(&self, _app: &'a App) -> Option<&'a ProcessRow> {
        None
    }

    /// The GPU that the cursor is on, or that this screen is about; a process tells its own.
    fn gpu(&self, _app: &App) -> Option<GpuUuid> {
        self.focus()
    }

    /// The group that the cursor is on.
    fn group<'a>(&self, _app: &'a App) -> Option<&'a Group> {
        None
    }

    /// What is worth pasting elsewhere, beside the process or the group that the cursor is on.
    fn copied(&self, _app: &App) -> Option<Copied> {
        None
    }

    /// The definition this screen was made from: for its title and its words.
    fn def(&self) -> &'static ScreenDef;
}

/// What a screen wants done.
pub enum Step {
    /// It has nothing to do with this action.
    Ignored,
    Stay,
    Open(Box<dyn Screen>),
    /// Fold the group of this title, or unfold it.
    Fold(String),
    /// Show the host of this number.
    Host(usize),
    /// Connect to the host of this number.
    Connect(usize),
    /// Explain it; who asks looks at it.
    Explain(Arc<Incident>),
    /// Send it to the clipboard.
    Copy(Copied),
    /// Tell the user this sentence.
    Say(String),
}

/// What a press of the mouse hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hit {
    Nothing,
    /// Another row: the cursor is on it now.
    Row,
    /// The row that the cursor was on already.
    SameRow,
    /// The heading of a column of the process table.
    Column(usize),
}

/// What is known of a screen without opening it.
pub struct ScreenDef {
    pub id: &'static str,
    pub title: &'static str,
    /// Words on it that are not self-evident, each with a sentence.
    pub words: &'static [(&'static str, &'static str)],
    /// Opens it on the first thing there is, if there is one; every screen can be reached for a test this way.
    pub sample: fn(&App) -> Option<Box<dyn Screen>>,
}

pub const SCREENS: &[&ScreenDef] = &[
    &overview::DEF,
    &gpu::DEF,
    &process::DEF,
    &memory::DEF,
    &log::DEF,
    &unreadable::DEF,
    &incident::DEF,
    &incidents::DEF,
    &fleet::DEF,
    &probe::DEF,
    &snapshot::DEF,
    &whatif::DEF,
];

/// Below this the overview is a strip, and there is no footer.
pub fn is_small(area: Rect) -> bool {
    area.height < 10 || area.width < 60
}

/// A number that moves with the cursor keys inside `0..count`.
pub fn moved(at: usize, count: usize, page: usize, action: Action) -> Option<usize> {
    let last = count.saturating_sub(1);
    Some(match action {
        Action::Up => at.saturating_sub(1),
        Action::Down => (at + 1).min(last),
        Action::PageUp => at.saturating_sub(page.max(1)),
        Action::PageDown => (at + page.max(1)).min(last),
        Action::First => 0,
        Action::Last => last,
        _ => return None,
    })
}
