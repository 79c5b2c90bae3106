//! A screen with one table. Cursor, clicks, paging, sorting and filter work the same in every list; a list defines only
//! its rows, its columns and the screen opened from a row.

use crossterm::event::KeyEvent;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Position, Rect};

use crate::dashboard::table::{Column, ColumnChoice, Hidden};
use crate::tui::action::{Action, moved};
use crate::tui::app::App;
use crate::tui::screen::{Effect, Hit, Screen, ScreenDef};
use crate::tui::text_field::TextField;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::cells::{put_line, put_lines, wrap_words};
use crate::tui::widgets::table::{View, draw, placed, scrolled};

/// Row type of a list screen.
pub trait ListRow: Sized + 'static {
    /// Key that identifies a row, so that the cursor stays on the row when the row moves.
    type Key;
    /// Subject of the list, such as the process whose holders are listed, or `()` for a list without a subject.
    type Subject;

    const DEF: &'static ScreenDef;
    const COLUMNS: &'static [Column<Self>];
    /// Footer actions, most useful first.
    const FOOTER: &'static [Action];
    /// Plural noun for the rows, such as `hosts`.
    const NOUN: &'static str;
    /// Text shown if the list is empty.
    const EMPTY: &'static str;

    /// Returns the rows in their default order, each with its index for [`Self::act`].
    fn rows<'a>(app: &'a App, subject: &'a Self::Subject) -> Vec<(usize, &'a Self)>;

    fn key(&self) -> Self::Key;

    fn has_key(&self, key: &Self::Key) -> bool;

    /// Performs an action on the row under the cursor. Every list handles at least [`Action::Open`].
    fn act(&self, index: usize, action: Action) -> Effect;

    /// Returns true if the row's values are outdated.
    fn is_stale(&self) -> bool {
        false
    }

    /// Returns the columns that are redundant for these rows.
    fn hidden(_rows: &[(usize, &Self)]) -> Hidden {
        Hidden::default()
    }
}

pub struct ListScreen<R: ListRow> {
    subject: R::Subject,
    /// Key of the row under the cursor, or `None` for the first row.
    selected: Option<R::Key>,
    /// Index of the list's sort column, or `None` for the default order.
    sort: Option<usize>,
    inverted: bool,
    /// Filter text. Only rows that contain all of its words are shown.
    filter: TextField,
}

impl<R: ListRow<Subject: Default>> Default for ListScreen<R> {
    fn default() -> Self {
        Self::about(R::Subject::default())
    }
}

impl<R: ListRow> ListScreen<R> {
    pub fn about(subject: R::Subject) -> Self {
        Self { subject, selected: None, sort: None, inverted: false, filter: TextField::default() }
    }

    /// Moves the cursor to the row with this key. `None` is the first row.
    pub fn with_cursor(self, selected: Option<R::Key>) -> Self {
        Self { selected, ..self }
    }

    pub fn selected<'a>(&'a self, app: &'a App) -> Option<&'a R> {
        let rows = self.rows(app);
        rows.get(self.cursor(&rows)).map(|(_, row)| *row)
    }

    /// Returns the filtered and sorted rows. Rows that compare equal keep their default order.
    fn rows<'a>(&'a self, app: &'a App) -> Vec<(usize, &'a R)> {
        let words = self.filter.text().to_lowercase();
        let mut rows = R::rows(app, &self.subject);
        if !words.is_empty() {
            rows.retain(|(_, row)| matches(*row, &words, &app.ui.theme));
        }
        if let Some(sort) = self.sort.and_then(|at| R::COLUMNS[at].sort.as_ref()) {
            rows.sort_by(|(_, a), (_, b)| {
                (sort.key)(a).compare(&(sort.key)(b), sort.first, self.inverted)
            });
        }
        rows
    }

    fn cursor(&self, rows: &[(usize, &R)]) -> usize {
        let key = self.selected.as_ref();
        key.and_then(|key| rows.iter().position(|(_, row)| row.has_key(key))).unwrap_or(0)
    }

    fn view(&self, rows: &[(usize, &R)], table: Rect) -> View {
        let cursor = self.cursor(rows);
        let sort = self.sort.and_then(|at| R::COLUMNS[at].sort.as_ref());
        View {
            cursor: Some(cursor),
            offset: scrolled(cursor, rows.len(), page(table)),
            columns: ColumnChoice {
                sorted: self.sort,
                hidden: R::hidden(rows),
                ..ColumnChoice::default()
            },
            descending: sort.is_some_and(|sort| sort.first.descends(self.inverted)),
        }
    }

    /// Splits the area into the table and the filter line, which is empty without a filter.
    fn areas(&self, area: Rect) -> [Rect; 2] {
        let line = u16::from(self.filter.is_open() && area.height >= 3);
        Layout::vertical([Constraint::Fill(1), Constraint::Length(line)]).areas(area)
    }

    /// Sorts by the next or previous sortable column, or by the default order after the last column.
    fn cycle(&mut self, is_next: bool) {
        let sortable = |at: &usize| R::COLUMNS[*at].sort.is_some();
        let count = R::COLUMNS.len();
        self.sort = match (self.sort, is_next) {
            (None, true) => (0..count).find(sortable),
            (None, false) => (0..count).rfind(sortable),
            (Some(at), true) => (at + 1..count).find(sortable),
            (Some(at), false) => (0..at).rfind(sortable),
        };
        self.inverted = false;
    }

    /// Sorts by the clicked column heading, or reverses the order if that column is already the sort column.
    fn sort_by_heading(&mut self, x: u16, view: &View, table: Rect) {
        let placed = placed(R::COLUMNS, &view.columns, table);
        let under = placed.iter().find(|place| (place.x..place.x + place.width).contains(&x));
        let column = under.map(|place| place.column);
        match column.filter(|at| R::COLUMNS[*at].sort.is_some()) {
            None => {}
            column if column == self.sort => self.inverted = !self.inverted,
            column => (self.sort, self.inverted) = (column, false),
        }
    }

    fn draw_filter(&self, shown: usize, app: &App, line: Rect, buffer: &mut Buffer) {
        if self.filter.is_typing() {
            self.filter.draw(" filter: ", line, app, buffer);
            return;
        }
        let (all, noun, text) = (R::rows(app, &self.subject).len(), R::NOUN, self.filter.text());
        let words = format!(" {shown} of {all} {noun} match \"{text}\"");
        put_line(buffer, line, &words, Role::Dim, &app.ui.theme);
    }
}

/// Returns true if every word occurs in at least one of the row's cells.
fn matches<R: ListRow>(row: &R, words: &str, theme: &Theme) -> bool {
    let cells = R::COLUMNS.iter().map(|column| {
        let cell = (column.cell)(row, &theme.zone);
        theme.glyphs.cell_text(&cell.content).into_owned()
    });
    let text = cells.collect::<Vec<_>>().join(" ").to_lowercase();
    words.split_whitespace().all(|word| text.contains(word))
}

/// Returns the number of table rows below the heading.
fn page(table: Rect) -> usize {
    usize::from(table.height.saturating_sub(1))
}

impl<R: ListRow> Screen for ListScreen<R> {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let rows = self.rows(app);
        let [table, line] = self.areas(area);
        if rows.is_empty() && !self.filter.is_open() {
            let lines = wrap_words(R::EMPTY, usize::from(area.width.max(1)));
            let lines: Vec<_> = lines.into_iter().map(|line| (line, Role::Dim)).collect();
            put_lines(buffer, area, &lines, &app.ui.theme);
            return;
        }
        let cell = |column: &Column<R>, (_, row): &(usize, &R)| {
            (column.cell)(row, &app.ui.theme.zone).dim_if(row.is_stale())
        };
        let view = self.view(&rows, table);
        draw(R::COLUMNS, &rows, cell, &view, table, buffer, &app.ui.theme);
        if line.height > 0 {
            self.draw_filter(rows.len(), app, line, buffer);
        }
    }

    fn act(&mut self, action: Action, app: &App, body: Rect) -> Effect {
        match action {
            Action::Sort | Action::SortNext => self.cycle(true),
            Action::SortPrevious => self.cycle(false),
            Action::Invert => self.inverted = self.sort.is_some() && !self.inverted,
            Action::Filter => self.filter.start(),
            Action::Back if !self.filter.text().is_empty() => self.filter.clear(),
            action => {
                let rows = self.rows(app);
                let cursor = self.cursor(&rows);
                let [table, _] = self.areas(body);
                if let Some(to) = moved(cursor, rows.len(), page(table), action) {
                    self.selected = rows.get(to).map(|(_, row)| row.key());
                    return Effect::Done;
                }
                return match rows.get(cursor) {
                    Some((index, row)) => row.act(*index, action),
                    None => Effect::Ignored,
                };
            }
        }
        Effect::Done
    }

    fn type_key(&mut self, key: KeyEvent) -> bool {
        self.filter.type_key(key)
    }

    fn follow(&mut self, app: &App) {
        // The cursor stays on a row hidden by the filter.
        let key = self.selected.as_ref();
        let all = R::rows(app, &self.subject);
        let same = key.and_then(|key| all.iter().find(|(_, row)| row.has_key(key)));
        let row = same.copied().or_else(|| self.rows(app).first().copied());
        self.selected = row.map(|(_, row)| row.key());
    }

    fn click(&mut self, app: &App, at: Position, body: Rect) -> Hit {
        let rows = self.rows(app);
        let [table, _] = self.areas(body);
        let view = self.view(&rows, table);
        if at.y == table.y {
            self.sort_by_heading(at.x, &view, table);
            return Hit::Nothing;
        }
        let below = usize::from(at.y.saturating_sub(table.y + 1));
        match rows.get(view.offset + below) {
            Some(_) if !table.contains(at) => Hit::Nothing,
            Some(_) if Some(view.offset + below) == view.cursor => Hit::SameRow,
            Some((_, row)) => {
                self.selected = Some(row.key());
                Hit::Row
            }
            None => Hit::Nothing,
        }
    }

    fn footer(&self) -> &'static [Action] {
        R::FOOTER
    }

    fn has_use_for(&self, action: Action, app: &App) -> bool {
        let needs_rows =
            matches!(action, Action::Open | Action::Filter | Action::Sort | Action::Copy);
        !needs_rows || !R::rows(app, &self.subject).is_empty()
    }

    fn def(&self) -> &'static ScreenDef {
        R::DEF
    }
}
