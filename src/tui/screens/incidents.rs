//! All incidents known to the dashboard, newest first. Unread ones are marked.

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
    glossary: &[
        ("*", "Unread."),
        (
            "SEVERITY",
            "`fatal`: the process exited. `caught`: an allocation failed and the process continued. `note`: \
             information.",
        ),
    ],
    sample: |app| {
        app.incidents.newest()?;
        Some(Box::new(IncidentList::default()))
    },
};

/// Shown if there are no incidents.
pub const NO_INCIDENTS: &str = "No incidents here. To list saved incidents, run `gputop incidents`";

#[derive(Debug, Default)]
pub struct IncidentList {
    /// The incident under the cursor. Initially the newest.
    selected: Option<Arc<Incident>>,
    /// Number of rows when last drawn.
    page: Shared<usize>,
}

impl IncidentList {
    fn cursor(&self, rows: &[&ListedIncident]) -> usize {
        let is_selected = |listed: &&ListedIncident| {
            let selected = self.selected.as_ref();
            selected.is_some_and(|selected| Arc::ptr_eq(selected, &listed.incident))
        };
        rows.iter().position(is_selected).unwrap_or(0)
    }
}

fn rows(app: &App) -> Vec<&ListedIncident> {
    app.incidents.newest_first().collect()
}

const HOST: &str = "HOST";

const COLUMNS: &[Column<ListedIncident>] = &[
    Column::left("", 1, 0, unread, "Marks unread incidents."),
    Column::left(
        "WHEN",
        11,
        1,
        when,
        "Time of the incident, by the clock of this host.",
    ),
    Column::left(
        HOST,
        10,
        3,
        host,
        "Host of the incident. Shown only if there are several.",
    ),
    Column::left("SEVERITY", 8, 4, severity_cell, "Severity of the incident."),
    Column::left("HEADLINE", 20, 2, headline, "Kind of error."),
    Column::left("PROCESS", 14, 5, process, "Program and its PID."),
    Column {
        align: Align::Rest,
        ..Column::left("SUMMARY", 13, 6, title, "What happened, with figures.")
    },
];

fn unread(listed: &ListedIncident, _: &Theme) -> Cell {
    Cell::new(if listed.is_read { "" } else { "*" }, Role::Key)
}

fn when(listed: &ListedIncident, theme: &Theme) -> Cell {
    match incident_time(&listed.incident) {
        Some(time) => Cell::text(theme.clock(time, "%m-%d %H:%M")),
        None => Cell::absent(theme),
    }
}

fn host(listed: &ListedIncident, theme: &Theme) -> Cell {
    let host = listed.incident.host.clone();
    host.map_or_else(|| Cell::absent(theme), Cell::text)
}

/// Hides the host column if all incidents are of the same host.
fn hidden(rows: &[&ListedIncident]) -> Hidden {
    let mut hidden = Hidden::default();
    let mut hosts = rows.iter().map(|listed| &listed.incident.host);
    let first = hosts.next();
    if hosts.all(|host| Some(host) == first) {
        let is_host = |column: &Column<ListedIncident>| column.title == HOST;
        let at = COLUMNS.iter().position(is_host);
        at.into_iter().for_each(|at| hidden.hide(at));
    }
    hidden
}

fn severity_cell(listed: &ListedIncident, _: &Theme) -> Cell {
    let level = listed.incident.severity;
    Cell::new(severity(level), role(level))
}

fn headline(listed: &ListedIncident, _: &Theme) -> Cell {
    let incident = &listed.incident;
    Cell::new(incident.headline.clone(), role(incident.severity))
}

fn process(listed: &ListedIncident, theme: &Theme) -> Cell {
    program(&listed.incident).map_or_else(|| Cell::absent(theme), Cell::text)
}

fn title(listed: &ListedIncident, _: &Theme) -> Cell {
    Cell::text(listed.incident.title.clone())
}

impl Screen for IncidentList {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let rows = rows(app);
        if rows.is_empty() {
            let lines = wrap_words(NO_INCIDENTS, usize::from(area.width.max(1)));
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
            low_priority: &[],
            hidden: hidden(&rows),
        };
        let cell = |column: &Column<ListedIncident>, listed: &&ListedIncident| {
            (column.cell)(listed, &app.theme)
        };
        draw(COLUMNS, &rows, cell, &view, area, buffer, &app.theme);
    }

    fn act(&mut self, action: Action, app: &App) -> Step {
        let rows = rows(app);
        let cursor = self.cursor(&rows);
        if action == Action::Open {
            let listed = rows.get(cursor);
            return listed.map_or(Step::Stay, |listed| {
                Step::Explain(Arc::clone(&listed.incident))
            });
        }
        let Some(to) = moved(cursor, rows.len(), self.page.get(), action) else {
            return Step::Ignored;
        };
        self.selected = rows.get(to).map(|listed| Arc::clone(&listed.incident));
        Step::Stay
    }

    fn follow(&mut self, app: &App) {
        let mut all = app.incidents.newest_first();
        let Some(at) = &self.selected else {
            // Newer incidents are inserted above, so the cursor stays on its incident.
            self.selected = all.next().map(|listed| Arc::clone(&listed.incident));
            return;
        };
        if all.all(|listed| !Arc::ptr_eq(at, &listed.incident)) {
            let again = app.incidents.again(at);
            self.selected = again.map(|listed| Arc::clone(&listed.incident));
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
            Some(listed) if body.contains(at) => {
                self.selected = Some(Arc::clone(&listed.incident));
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
