//! A screen with one list: the holders of memory, or the tensors of one holder.

use crossterm::event::KeyEvent;
use gputop_model::process::ProcessKey;
use gputop_model::protocol::Request;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use super::list::{ListRow, ListScreen};
use crate::dashboard::rows::ProcessRow;
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::clipboard::Copied;
use crate::tui::screen::{Effect, Hit, Screen, ScreenDef};

/// A list of memory holders or tensors for [`HolderScreen`], with its process, layout and text to copy.
pub(super) trait HolderList: ListRow<Subject: Clone> {
    /// Returns the process whose memory the list shows.
    fn process(subject: &Self::Subject) -> ProcessKey;

    /// Returns the table's area when the screen is drawn into `area`.
    fn table_area(screen: &HolderScreen<Self>, app: &App, area: Rect) -> Rect;

    fn draw(screen: &HolderScreen<Self>, app: &App, area: Rect, buffer: &mut Buffer);

    fn copied(subject: &Self::Subject, app: &App) -> Option<Copied>;
}

/// Screen with a list of memory holders, or of the tensors of one holder.
pub struct HolderScreen<R: ListRow> {
    pub(super) subject: R::Subject,
    pub(super) list: ListScreen<R>,
}

impl<R: ListRow<Subject: Clone>> HolderScreen<R> {
    pub fn new(subject: R::Subject) -> Self {
        Self { list: ListScreen::about(subject.clone()), subject }
    }
}

impl<R: HolderList> Screen for HolderScreen<R> {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        R::draw(self, app, area, buffer);
    }

    fn act(&mut self, action: Action, app: &App, body: Rect) -> Effect {
        match action {
            Action::Holders if app.host.recording.is_some() => Effect::Done,
            Action::Holders => Effect::Request(Request::Holders(self.holders())),
            action => self.list.act(action, app, R::table_area(self, app, body)),
        }
    }

    fn type_key(&mut self, key: KeyEvent) -> bool {
        self.list.type_key(key)
    }

    fn follow(&mut self, app: &App) {
        self.list.follow(app);
    }

    fn holders(&self) -> Option<ProcessKey> {
        Some(R::process(&self.subject))
    }

    fn click(&mut self, app: &App, at: Position, body: Rect) -> Hit {
        let table = R::table_area(self, app, body);
        if table.contains(at) { self.list.click(app, at, table) } else { Hit::Nothing }
    }

    fn process<'a>(&self, app: &'a App) -> Option<&'a ProcessRow> {
        let process = R::process(&self.subject);
        app.host.processes.all_rows.iter().find(|row| row.id().key == process)
    }

    fn copied(&self, app: &App) -> Option<Copied> {
        R::copied(&self.subject, app)
    }

    fn footer(&self) -> &'static [Action] {
        self.list.footer()
    }

    fn has_use_for(&self, action: Action, app: &App) -> bool {
        // A recording lists no single tensors, and cannot take another reading.
        let is_live_only = matches!(action, Action::Open | Action::Holders);
        (!is_live_only || app.host.recording.is_none()) && self.list.has_use_for(action, app)
    }

    fn def(&self) -> &'static ScreenDef {
        R::DEF
    }
}

/// Returns the program's name and PID, such as `train.py 418`.
pub(super) fn program(process: ProcessKey, app: &App) -> String {
    let command = app
        .host
        .processes
        .all_rows
        .iter()
        .find(|row| row.id().key == process)
        .map(ProcessRow::command);
    let command = command.as_ref().and_then(|command| command.value());
    let name = command.and_then(|command| command.split(' ').next());
    format!("{} {}", name.unwrap_or("process"), process.pid)
}
