//! The log of a process since gputop attached to it. The view follows the end of the log, or is paused for reading.
//!
//! On request, the source sends the log text once per frame, escaped and limited to 256 KiB. Moving up pauses the view;
//! moving to the end resumes it, as in `less +F`. Lines with a known error are marked `!`.

use std::sync::Arc;

use gputop_model::log::{LogSource, LogView};
use gputop_model::process::ProcessKey;
use gputop_model::protocol::Request;
use gputop_model::units::Bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::dashboard::rows::{ProcessRow, RowId};
use crate::tui::action::{Action, moved};
use crate::tui::app::App;
use crate::tui::screen::{Effect, Screen, ScreenDef};
use crate::tui::theme::Role;
use crate::tui::widgets::area::{margin, row};
use crate::tui::widgets::cells::{put_glyph, put_line, put_line_right, wrap_words};

pub const DEF: ScreenDef = ScreenDef {
    id: "log",
    title: "Log",
    glossary: &[
        (
            "!",
            "Line with the text of a known error. n and N move to the next and the previous error.",
        ),
        (
            "attached",
            "Time at which the process was first seen on a GPU. Only later output is shown.",
        ),
        ("sampled", "The log grows too fast to be read completely. Only its newest part is read."),
    ],
    sample: |app| {
        let row = app.host.processes.all_rows.first()?;
        Some(Box::new(LogScreen::new(row.id())))
    },
};

/// Number of columns by which the left and right keys scroll the log.
const SCROLL_COLUMNS: usize = 16;

#[derive(Debug)]
pub struct LogScreen {
    id: RowId,
    view: Option<Arc<LogView>>,
    /// First visible log line while paused, or `None` while following the end of the log.
    paused_at: Option<usize>,
    /// Index of the last visited error line while the log view is paused.
    error: Option<usize>,
    /// First visible column of the log.
    first_column: usize,
    /// Sequence number of the frame for which the log was last requested.
    requested_at: Option<u64>,
}

impl LogScreen {
    pub fn new(id: RowId) -> Self {
        Self { id, view: None, paused_at: None, error: None, first_column: 0, requested_at: None }
    }

    fn text(&self) -> &str {
        self.view.as_ref().and_then(|view| view.text.value()).map_or("", String::as_str)
    }

    /// Returns the first visible line of the log's last page.
    fn last_top(&self, page: usize) -> usize {
        self.text().lines().count().saturating_sub(page.max(1))
    }

    fn top(&self, page: usize) -> usize {
        self.paused_at.unwrap_or(usize::MAX).min(self.last_top(page))
    }

    /// Moves to the next or previous error line in the log. The first move forward goes to the first error on or below
    /// the visible page. If there is none, it goes to the last error, as does the first move backward.
    fn go_to_error(&mut self, forward: bool, page: usize) {
        let errors = self.errors();
        let Some(last) = errors.len().checked_sub(1) else {
            return;
        };
        let top = self.top(page);
        let at = match (self.error, forward) {
            (Some(at), true) => (at + 1).min(last),
            (Some(at), false) => at.min(last).saturating_sub(1),
            (None, true) => errors.partition_point(|line| *line < top).min(last),
            (None, false) => last,
        };
        self.paused_at = errors.get(at).copied();
        self.error = Some(at);
    }

    fn errors(&self) -> &[usize] {
        self.view.as_ref().map_or(&[], |view| &view.errors)
    }

    /// Returns the text shown if there is no log.
    fn absence(&self) -> String {
        let Some(view) = &self.view else {
            return "Reading the log".into();
        };
        match &view.missing {
            Some(why) => format!("No log: {why}"),
            None if !view.is_attached => "Looking for the process's log".into(),
            None => "No log found for this process".into(),
        }
    }

    fn headline(&self) -> String {
        let Some(view) = self.view.as_ref().filter(|view| !view.sources.is_empty()) else {
            return self.absence();
        };
        view.sources.iter().map(source_text).collect::<Vec<String>>().join(", ")
    }

    /// Returns the text of the last row, which describes the position in the log.
    fn position(&self, app: &App) -> String {
        let label = |action| app.ui.keymap.label(action);
        let errors = match (self.errors().len(), self.error) {
            (0, _) => String::new(),
            (n, Some(at)) => format!("error {} of {n}  ", at + 1),
            (1, None) => format!("1 error ({})  ", label(Action::NextError)),
            (n, None) => format!(
                "{n} errors ({} {})  ",
                label(Action::NextError),
                label(Action::PreviousError)
            ),
        };
        match self.paused_at {
            None => format!("{errors}following the end"),
            Some(_) => format!("{errors}paused  {} Follow", label(Action::Last)),
        }
    }
}

/// Returns the title of the log, such as `train.log (tee, shared by 8 processes, sampled: grows too fast)`.
fn source_text(source: &LogSource) -> String {
    let mut remarks = Vec::new();
    if let Some(words) = source.origin.words() {
        remarks.push(words.to_owned());
    }
    if source.writers > 1 {
        remarks.push(format!("shared by {} processes", source.writers));
    }
    if source.is_sampled {
        remarks.push(match source.skipped {
            Bytes(0) => "sampled: grows too fast".into(),
            skipped => format!("sampled: grows too fast, {skipped} skipped"),
        });
    }
    if remarks.is_empty() {
        return source.name.clone();
    }
    format!("{} ({})", source.name, remarks.join(", "))
}

impl Screen for LogScreen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let theme = &app.ui.theme;
        let line = |y| margin(row(area, y));
        if area.height < 3 || area.width < 8 {
            return;
        }
        put_line(buffer, line(area.y), &self.headline(), Role::Title, theme);
        let rows = area.y + 1..area.bottom() - 1;
        if self.text().is_empty() {
            let hint = match &self.view {
                None => String::new(),
                Some(view) if !view.sources.is_empty() => {
                    "No output since gputop attached to the process".to_owned()
                }
                Some(_) => format!("{} Name a log to watch", app.ui.keymap.label(Action::Watch)),
            };
            let words = wrap_words(&hint, usize::from(line(0).width));
            for (y, text) in rows.zip(&words) {
                put_line(buffer, line(y), text, Role::Dim, theme);
            }
            return;
        }
        let top = self.top(rows.len());
        let errors = self.errors();
        let current = self.error.and_then(|at| errors.get(at));
        for (y, (number, text)) in rows.zip(self.text().lines().enumerate().skip(top)) {
            let is_error = errors.binary_search(&number).is_ok();
            let (mark, role) = match is_error {
                true if current == Some(&number) => (">", Role::Bad),
                true => ("!", Role::Bad),
                false => (" ", Role::Text),
            };
            put_glyph(buffer, area.x, y, mark, theme.style(role));
            let text: String = text.chars().skip(self.first_column).collect();
            put_line(buffer, line(y), &text, role, theme);
        }
        let position = format!(" {} ", self.position(app));
        put_line_right(buffer, row(area, area.bottom() - 1), &position, Role::Dim, theme);
    }

    fn act(&mut self, action: Action, _app: &App, body: Rect) -> Effect {
        let page = usize::from(body.height.saturating_sub(2));
        match action {
            Action::Log => {}
            Action::NextError => self.go_to_error(true, page),
            Action::PreviousError => self.go_to_error(false, page),
            Action::Last => (self.paused_at, self.error) = (None, None),
            Action::Left => self.first_column = self.first_column.saturating_sub(SCROLL_COLUMNS),
            Action::Right => self.first_column = (self.first_column + SCROLL_COLUMNS).min(4_096),
            action => {
                let last = self.last_top(page);
                let Some(to) = moved(self.top(page), last + 1, page, action) else {
                    return Effect::Ignored;
                };
                // Resume following when moving down reaches the end of the log.
                let is_end = to == last && matches!(action, Action::Down | Action::PageDown);
                self.paused_at = (!is_end).then_some(to);
                self.error = self.error.filter(|_| !is_end);
            }
        }
        Effect::Done
    }

    fn follow(&mut self, app: &App) {
        let newest = app.host.log.as_ref().filter(|log| log.process == self.id.key);
        if self.paused_at.is_none() || self.view.is_none() {
            self.view = newest.cloned().or(self.view.take());
        }
    }

    fn next_request(&mut self, app: &App) -> Option<Request> {
        let frame = Some(app.host.frame.seq);
        let is_new = self.requested_at != frame;
        self.requested_at = frame;
        is_new.then_some(Request::Log(self.id.key))
    }

    fn process<'a>(&self, app: &'a App) -> Option<&'a ProcessRow> {
        app.host.processes.all_rows.iter().find(|row| row.id().key == self.id.key)
    }

    fn has_use_for(&self, action: Action, app: &App) -> bool {
        match action {
            Action::Watch => app.host.permissions.watches.is_ok(),
            Action::NextError | Action::PreviousError => !self.errors().is_empty(),
            Action::Last | Action::PageUp => !self.text().is_empty(),
            _ => true,
        }
    }

    fn footer(&self) -> &'static [Action] {
        &[
            Action::Back,
            Action::NextError,
            Action::PreviousError,
            Action::Last,
            Action::Watch,
            Action::PageUp,
        ]
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}

/// Returns the key of a row's process, or a message if the process has exited. The user can specify a log only for a
/// running process.
pub fn key_of(row: &ProcessRow) -> Result<ProcessKey, String> {
    match row.ended() {
        Some(_) => Err(format!("Process {} has exited", row.id().key.pid)),
        None => Ok(row.id().key),
    }
}
