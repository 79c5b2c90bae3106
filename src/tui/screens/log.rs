//! What a process has written since it was attached to: followed at its end, or held still while one reads.
//!
//! The text comes from the source on request, once a frame, harmless and bounded (256 KiB). Moving up holds what is
//! shown; the end follows again, as `less +F` does. Lines that hold an error's words carry a `!`.

use std::cell::Cell;
use std::sync::Arc;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::{Screen, ScreenDef, Step, moved};
use crate::model::log::{LogSource, LogView};
use crate::model::process::ProcessKey;
use crate::model::units::Bytes;
use crate::source::Request;
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::rows::{ProcessRow, RowId};
use crate::tui::theme::Role;
use crate::tui::widgets::cells::{put, put_line, put_right, wrap_words};

pub const DEF: ScreenDef = ScreenDef {
    id: "log",
    title: "Log",
    words: &[
        (
            "!",
            "A line with words of an error that gputop knows; n and N go from one to the next.",
        ),
        (
            "attached",
            "The moment at which the process was first seen on a GPU: only what it wrote later is shown.",
        ),
        (
            "sampled",
            "The log grows faster than it is worth reading: only its newest part is looked at.",
        ),
    ],
    sample: |app| {
        let row = app.all_rows.first()?;
        Some(Box::new(LogScreen::new(row.id())))
    },
};

/// Columns that one key to the side moves.
const SIDE: usize = 16;

#[derive(Debug)]
pub struct LogScreen {
    id: RowId,
    view: Option<Arc<LogView>>,
    /// The first line shown while it is held; none while it follows the end.
    held: Option<usize>,
    /// Which of the lines with an error one went to last, while it is held.
    error: Option<usize>,
    side: usize,
    /// The frame with which it was asked for last.
    asked: Option<u64>,
    /// The rows there were when it was drawn.
    page: Cell<usize>,
}

impl LogScreen {
    pub fn new(id: RowId) -> Self {
        Self {
            id,
            view: None,
            held: None,
            error: None,
            side: 0,
            asked: None,
            page: Cell::new(0),
        }
    }

    fn text(&self) -> &str {
        let text = self.view.as_ref().and_then(|view| view.text.value());
        text.map_or("", String::as_str)
    }

    fn last_top(&self) -> usize {
        let page = self.page.get().max(1);
        self.text().lines().count().saturating_sub(page)
    }

    fn top(&self) -> usize {
        self.held.unwrap_or(usize::MAX).min(self.last_top())
    }

    /// To the next line with an error, or the one before: at first that below the top of the page, or the last.
    fn go_to_error(&mut self, forward: bool) {
        let errors = self.errors();
        let Some(last) = errors.len().checked_sub(1) else {
            return;
        };
        let top = self.top();
        let at = match (self.error, forward) {
            (Some(at), true) => (at + 1).min(last),
            (Some(at), false) => at.min(last).saturating_sub(1),
            (None, true) => errors.partition_point(|line| *line < top).min(last),
            (None, false) => last,
        };
        self.held = errors.get(at).copied();
        self.error = Some(at);
    }

    fn errors(&self) -> &[usize] {
        self.view.as_ref().map_or(&[], |view| &view.errors)
    }

    /// What is there instead of a log.
    fn absence(&self) -> String {
        let Some(view) = &self.view else {
            return "being read".into();
        };
        match &view.missing {
            Some(why) => format!("no log: {why}"),
            None if !view.is_attached => "it is being looked where the process writes".into(),
            None => "no log of this process was found".into(),
        }
    }

    fn headline(&self) -> String {
        let Some(view) = self.view.as_ref().filter(|view| !view.sources.is_empty()) else {
            return self.absence();
        };
        let sources: Vec<String> = view.sources.iter().map(source_words).collect();
        sources.join(", ")
    }

    /// Where one is, for the last row.
    fn place(&self, app: &App) -> String {
        let label = |action| app.keymap.label(action);
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
        match self.held {
            None => format!("{errors}follows the end"),
            Some(_) => format!("{errors}held, {} follows", label(Action::Last)),
        }
    }
}

/// `train.log (tee, of 8 processes, sampled)`
fn source_words(source: &LogSource) -> String {
    let mut remarks = Vec::new();
    if let Some(words) = source.origin.words() {
        remarks.push(words.to_owned());
    }
    if source.writers > 1 {
        remarks.push(format!("shared by {} processes", source.writers));
    }
    if source.is_sampled {
        remarks.push(match source.skipped {
            Bytes(0) => "sampled: it grows too fast".into(),
            skipped => format!("sampled: it grows too fast, skipped {skipped}"),
        });
    }
    if remarks.is_empty() {
        return source.name.clone();
    }
    format!("{} ({})", source.name, remarks.join(", "))
}

impl Screen for LogScreen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let theme = &app.theme;
        let line = |y| Rect {
            y,
            height: 1,
            x: area.x + 1,
            width: area.width.saturating_sub(2),
        };
        if area.height < 3 || area.width < 8 {
            return;
        }
        put_line(buffer, line(area.y), &self.headline(), Role::Title, theme);
        let rows = area.y + 1..area.bottom() - 1;
        self.page.set(rows.len());
        if self.text().is_empty() {
            let hint = match &self.view {
                None => String::new(),
                Some(view) if !view.sources.is_empty() => {
                    "nothing was written since it was attached to".to_owned()
                }
                Some(_) => format!("{} names a file to follow", app.keymap.label(Action::Watch)),
            };
            let words = wrap_words(&hint, usize::from(line(0).width));
            for (y, text) in rows.zip(&words) {
                put_line(buffer, line(y), text, Role::Dim, theme);
            }
            return;
        }
        let top = self.top();
        let errors = self.errors();
        let here = self.error.and_then(|at| errors.get(at));
        for (y, (number, text)) in rows.zip(self.text().lines().enumerate().skip(top)) {
            let is_error = errors.binary_search(&number).is_ok();
            let (mark, role) = match is_error {
                true if here == Some(&number) => (">", Role::Bad),
                true => ("!", Role::Bad),
                false => (" ", Role::Text),
            };
            put(buffer, area.x, y, mark, 1, theme.style(role));
            let text: String = text.chars().skip(self.side).collect();
            put_line(buffer, line(y), &text, role, theme);
        }
        let place = format!(" {} ", self.place(app));
        let bottom = area.bottom() - 1;
        put_right(
            buffer,
            area.x,
            area.right(),
            bottom,
            &place,
            theme.style(Role::Dim),
        );
    }

    fn act(&mut self, action: Action, _app: &App) -> Step {
        match action {
            Action::Log => {}
            Action::NextError => self.go_to_error(true),
            Action::PreviousError => self.go_to_error(false),
            Action::Last => (self.held, self.error) = (None, None),
            Action::Left => self.side = self.side.saturating_sub(SIDE),
            Action::Right => self.side = (self.side + SIDE).min(4_096),
            action => {
                let last = self.last_top();
                let Some(to) = moved(self.top(), last + 1, self.page.get(), action) else {
                    return Step::Ignored;
                };
                // Going down to the end follows it again.
                let is_end = to == last && matches!(action, Action::Down | Action::PageDown);
                self.held = (!is_end).then_some(to);
                self.error = self.error.filter(|_| !is_end);
            }
        }
        Step::Stay
    }

    fn follow(&mut self, app: &App) {
        let newest = app.log.as_ref().filter(|log| log.process == self.id.key);
        if self.held.is_none() || self.view.is_none() {
            self.view = newest.cloned().or(self.view.take());
        }
    }

    fn wants(&mut self, app: &App) -> Option<Request> {
        let frame = Some(app.frame.seq);
        let ask = self.asked != frame;
        self.asked = frame;
        ask.then_some(Request::Log(self.id.key))
    }

    fn process<'a>(&self, app: &'a App) -> Option<&'a ProcessRow> {
        let is_it = |row: &&ProcessRow| row.id().key == self.id.key;
        app.all_rows.iter().find(is_it)
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

/// The process of a row, for which a log can be named while it lives.
///
/// # Errors
/// With that it has ended.
pub fn key_of(row: &ProcessRow) -> Result<ProcessKey, String> {
    match row.ended() {
        Some(_) => Err(format!("process {} has ended", row.id().key.pid)),
        None => Ok(row.id().key),
    }
}
