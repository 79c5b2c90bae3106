//! The interface of a screen, which draws the [`App`] and turns actions into [`Effect`]s. A screen borrows the app and
//! therefore cannot change it.

use std::sync::Arc;

use crossterm::event::KeyEvent;
use gputop_model::document::Document;
use gputop_model::incident::Incident;
use gputop_model::process::ProcessKey;
use gputop_model::protocol::Request;
use gputop_model::units::{GpuUuid, Mono};
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use super::action::Action;
use super::app::App;
use super::clipboard::Copied;
use crate::dashboard::groups::Group;
use crate::dashboard::rows::ProcessRow;

pub trait Screen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer);

    /// Handles an action on a screen drawn into `body`. Actions that work the same on every screen can be left to the
    /// caller by returning [`Effect::Ignored`].
    fn act(&mut self, action: Action, app: &App, body: Rect) -> Effect;

    /// Handles a key while a text field is being edited. Returns false if the key should be treated as an action.
    fn type_key(&mut self, _key: KeyEvent) -> bool {
        false
    }

    /// Returns true if the screen shows the table of all processes, with its filter, grouping and sort order.
    fn shows_all_processes(&self) -> bool {
        false
    }

    /// Returns the actions available on a screen that does not show a host, besides [`STANDALONE_ACTIONS`]. All other
    /// actions have no effect there.
    fn standalone_actions(&self) -> Option<&'static [Action]> {
        None
    }

    /// Returns the headline text for a screen that does not show a host. It replaces the host's name.
    fn headline(&self) -> Option<String> {
        None
    }

    /// Called after the app has changed, for example to keep the cursor on the same item.
    fn follow(&mut self, _app: &App) {}

    /// Returns the next request for the source. Called after every change.
    fn next_request(&mut self, _app: &App) -> Option<Request> {
        None
    }

    /// Returns the actions for the footer, most useful first.
    fn footer(&self) -> &'static [Action];

    /// Returns the footer label of an action whose effect on this screen differs from its usual one.
    fn footer_label(&self, _action: Action) -> Option<&'static str> {
        None
    }

    /// Returns true if the footer action has an effect on the current content of the screen.
    fn has_use_for(&self, _action: Action, _app: &App) -> bool {
        true
    }

    /// Returns true if the arrow keys move a cursor sideways. In a recording, they otherwise move the playback.
    fn moves_sideways(&self) -> bool {
        false
    }

    /// Returns the GPU for which this screen shows values that are expensive to read.
    fn focus(&self) -> Option<GpuUuid> {
        None
    }

    /// Returns the pool whose map this screen shows in `body`: its process, and the device index as seen by that
    /// process.
    fn map(&self, _app: &App, _body: Rect) -> Option<(ProcessKey, u32)> {
        None
    }

    /// Returns the process whose memory holders are shown on this screen.
    fn holders(&self) -> Option<ProcessKey> {
        None
    }

    /// Returns the process that is sampled for this screen.
    fn sampled(&self) -> Option<ProcessKey> {
        None
    }

    /// Returns true if arrivals of ranks at collectives are counted for this screen.
    fn counts_arrivals(&self) -> bool {
        false
    }

    /// Returns the areas over the time axes of all charts when the screen is drawn into `body`, without titles and labels.
    fn plots(&self, _app: &App, _body: Rect) -> Vec<Rect> {
        Vec::new()
    }

    /// Returns the exit time of the process shown on this screen, which is where its charts end.
    fn exited_at(&self, _app: &App) -> Option<Mono> {
        None
    }

    /// Handles a mouse press at a position in `body`.
    fn click(&mut self, _app: &App, _at: Position, _body: Rect) -> Hit {
        Hit::Nothing
    }

    /// Returns the process under the cursor, or the process shown on this screen.
    fn process<'a>(&self, _app: &'a App) -> Option<&'a ProcessRow> {
        None
    }

    /// Returns the GPU under the cursor, or the GPU shown on this screen. The GPU of a selected process takes
    /// precedence.
    fn gpu(&self, _app: &App) -> Option<GpuUuid> {
        self.focus()
    }

    /// Returns the group under the cursor.
    fn group<'a>(&self, _app: &'a App) -> Option<&'a Group> {
        None
    }

    /// Returns the text to copy. If there is none, the caller copies the process or group under the cursor.
    fn copied(&self, _app: &App) -> Option<Copied> {
        None
    }

    /// Returns the incident that this screen explains.
    fn incident(&self) -> Option<&Arc<Incident>> {
        None
    }

    /// Returns the fix with this number, starting at 1, or the number of fixes if there is no such fix. Returns
    /// `Err(None)` if the screen shows no incident.
    fn fix(&self, _number: usize) -> Result<Copied, Option<usize>> {
        Err(None)
    }

    /// Returns this screen's definition, which includes its title and glossary.
    fn def(&self) -> &'static ScreenDef;
}

/// Actions of every screen that does not show a host.
pub const STANDALONE_ACTIONS: &[Action] = &[
    Action::Up,
    Action::Down,
    Action::PageUp,
    Action::PageDown,
    Action::First,
    Action::Last,
    Action::Back,
    Action::NextGpu,
    Action::PreviousGpu,
    Action::Copy,
    Action::Help,
    Action::Redraw,
    Action::Suspend,
    Action::Quit,
    Action::QuitNow,
];

/// The result of a mouse press.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hit {
    Nothing,
    /// A row that did not have the cursor. The cursor was moved there.
    Row,
    /// The row that already had the cursor.
    SameRow,
    /// A column heading of the process table.
    Column(usize),
}

/// Definition of a screen, available without opening it.
pub struct ScreenDef {
    pub id: &'static str,
    pub title: &'static str,
    /// Terms that need an explanation of one or two sentences.
    pub glossary: &'static [(&'static str, &'static str)],
    /// Opens the screen for the first suitable item, if any. Tests use this to open every screen.
    pub sample: fn(&App) -> Option<Box<dyn Screen>>,
}

/// Result of an action: its effect outside the screen or menu that handles it. [`View`](super::view::View) handles
/// effects on its screens and passes the others on to the event loop.
pub enum Effect {
    /// The action was handled; the screen is redrawn.
    Done,
    /// The action was not handled. The view performs its default.
    Ignored,
    Open(Box<dyn Screen>),
    /// Closes the overlay, or the screen if there is no overlay.
    Close,
    /// Shows an incident and marks it as read.
    Explain(Arc<Incident>),
    /// Closes the incidents, and goes to this time in the recording or the charts.
    GoTo(Mono),
    /// Folds or unfolds the group with this title.
    Fold(String),
    Message(String),
    Request(Request),
    /// Sends text to the clipboard.
    Copy(Copied),
    Write(Box<Document>),
    /// Saves the theme with this name in the configuration file.
    SaveTheme(&'static str),
    Host(usize),
    Hosts,
    /// Reconnects to the host with this index, or to the host on the screen if `None`.
    Connect(Option<usize>),
    /// Leaves the first screen of a host.
    Leave,
    Quit,
    Suspend,
    Redraw,
}

impl From<Result<Self, String>> for Effect {
    /// Converts an error into a message that explains why the action is not possible.
    fn from(result: Result<Self, String>) -> Self {
        result.unwrap_or_else(Self::Message)
    }
}

/// Returns true if the area is too small for tables and a footer. The overview then shows a few lines.
pub fn is_small(area: Rect) -> bool {
    area.height < 10 || area.width < 60
}

/// Returns the message shown if there is no GPU in the direction of a step.
pub fn no_more_gpus(count: usize, step: isize) -> String {
    let which = match (count, step) {
        (..=1, _) => "only",
        (_, ..=0) => "first",
        _ => "last",
    };
    format!("This is the {which} GPU")
}
