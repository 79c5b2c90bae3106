//! All incidents that the dashboard knows, the newest first; those that nobody has read are marked.

use std::cell::Cell as Shared;
use std::sync::Arc;

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use super::incident::role;
use super::{Hit, Screen, ScreenDef, Step, moved};
use crate::export::explanation::{program, severity};
use crate::model::incident::Incident;
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::incidents::{ListedIncident, incident_time};
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::cells::{put_lines, wrap_words};
use crate::tui::widgets::table::{Align, Cell, Column, Hidden, View, draw, scrolled};

pub const DEF: ScreenDef = ScreenDef {
    id: "incidents",
    title: "Incidents",
    words: &[
        ("*", "Nobody has read it yet."),
        (
            "SEVERITY",
            "`fatal` ended a process, `caught` failed and was survived, `note` is worth knowing.",
        ),
    ],
    sample: |app| {
        app.incidents.newest()?;
        Some(Box::new(IncidentList::default()))
    },
};

/// What is said where there is none.
pub const NONE: &str = "no incident is known; `gputop incidents` lists what the store has";

#[derive(Debug, Default)]
pub struct IncidentList {
    /// The one under the cursor; at first the newest.
    at: Option<Arc<Incident>>,
    /// The rows there were when it was drawn.
    page: Shared<usize>,
}

impl IncidentList {
    fn cursor(&self, rows: &[&ListedIncident]) -> usize {
        let is_it = |known: &&ListedIncident| {
            let at = self.at.as_ref();
            at.is_some_and(|at| Arc::ptr_eq(at, &known.incident))
        };
        rows.iter().position(is_it).unwrap_or(0)
    }
}

fn rows(app: &App) -> Vec<&ListedIncident> {
    app.incidents.newest_first().collect()
}

const HOST: &str = "HOST";

const COLUMNS: &[Column<ListedIncident>] = &[
    Column::left("", 1, 0, unread, "Whether nobody has read it."),
    Column::left("WHEN", 11, 1, when, "By this machine's clock."),
    Column::left(
        HOST,
        10,
        3,
        host,
        "Where it happened; shown where there are several.",
    ),
    Column::left("SEVERITY", 8, 4, severity_cell, "How grave it was."),
    Column::left("HEADLINE", 20, 2, headline, "What happened."),
    Column::left("PROCESS", 14, 5, process, "The program and its PID."),
    Column {
        align: Align::Rest,
        ..Column::left(
            "IN A SENTENCE",
            13,
            6,
            title,
            "What happened, with its figures.",
        )
    },
];

fn unread(known: &ListedIncident, _: &Theme) -> Cell {
    Cell::new(if known.is_read { "" } else { "*" }, Role::Key)
}

fn when(known: &ListedIncident, theme: &Theme) -> Cell {
    match incident_time(&known.incident) {
        Some(time) => Cell::text(theme.clock(time, "%m-%d %H:%M")),
        None => Cell::absent(theme),
    }
}

fn host(known: &ListedIncident, theme: &Theme) -> Cell {
    let host = known.incident.host.clone();
    host.map_or_else(|| Cell::absent(theme), Cell::text)
}

/// The host's name says nothing where all are of the same.
fn hidden(rows: &[&ListedIncident]) -> Hidden {
    let mut hidden = Hidden::default();
    let mut hosts = rows.iter().map(|known| &known.incident.host);
    let first = hosts.next();
    if hosts.all(|host| Some(host) == first) {
        let is_host = |column: &Column<ListedIncident>| column.title == HOST;
        let at = COLUMNS.iter().position(is_host);
        at.into_iter().for_each(|at| hidden.hide(at));
    }
    hidden
}

fn severity_cell(known: &ListedIncident, _: &Theme) -> Cell {
    let how = known.incident.severity;
    Cell::new(severity(how), role(how))
}

fn headline(known: &ListedIncident, _: &Theme) -> Cell {
    let incident = &known.incident;
    Cell::new(incident.headline.clone(), role(incident.severity))
}

fn process(known: &ListedIncident, theme: &Theme) -> Cell {
    program(&known.incident).map_or_else(|| Cell::absent(theme), Cell::text)
}

fn title(known: &ListedIncident, _: &Theme) -> Cell {
    Cell::text(known.incident.title.clone())
}

impl Screen for IncidentList {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let rows = rows(app);
        if rows.is_empty() {
            let lines = wrap_words(NONE, usize::from(area.width.max(1)));
            let lines: Vec<_> = lines.into_iter().map(|line| (line, Role::Dim)).collect();
            put_lines(buffer, area, &lines, &app.theme);
            return;
        }
        let page = usize::from(area.height.saturating_sub(1));
        self.page.set(page);
        let cursor = self.cursor(&rows);
        let view = View {
            cursor: Some(cursor),
            offset: scrolled(cursor, rows.len(), page),
            sorted: None,
            descending: false,
            late: &[],
            hidden: hidden(&rows),
        };
        let cell = |column: &Column<ListedIncident>, known: &&ListedIncident| {
            (column.cell)(known, &app.theme)
        };
        draw(COLUMNS, &rows, cell, &view, area, buffer, &app.theme);
    }

    fn act(&mut self, action: Action, app: &App) -> Step {
        let rows = rows(app);
        let cursor = self.cursor(&rows);
        if action == Action::Open {
            let known = rows.get(cursor);
            return known.map_or(Step::Stay, |known| {
                Step::Explain(Arc::clone(&known.incident))
            });
        }
        let Some(to) = moved(cursor, rows.len(), self.page.get(), action) else {
            return Step::Ignored;
        };
        self.at = rows.get(to).map(|known| Arc::clone(&known.incident));
        Step::Stay
    }

    fn follow(&mut self, app: &App) {
        let mut all = app.incidents.newest_first();
        let Some(at) = &self.at else {
            // What comes later comes above it: the cursor stays on what it was on.
            self.at = all.next().map(|known| Arc::clone(&known.incident));
            return;
        };
        if all.all(|known| !Arc::ptr_eq(at, &known.incident)) {
            let again = app.incidents.again(at);
            self.at = again.map(|known| Arc::clone(&known.incident));
        }
    }

    fn click(&mut self, app: &App, at: Position, body: Rect) -> Hit {
        let rows = rows(app);
        let cursor = self.cursor(&rows);
        let page = usize::from(body.height.saturating_sub(1));
        let Some(below) = at.y.checked_sub(body.y + 1) else {
            return Hit::Nothing;
        };
        let row = scrolled(cursor, rows.len(), page) + usize::from(below);
        match rows.get(row) {
            Some(_) if row == cursor => Hit::SameRow,
            Some(known) if body.contains(at) => {
                self.at = Some(Arc::clone(&known.incident));
                Hit::Row
            }
            _ => Hit::Nothing,
        }
    }

    fn footer(&self) -> &'static [Action] {
        &[
            Action::Open,
            Action::Down,
            Action::PageDown,
            Action::Why,
            Action::Back,
        ]
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}
