//! All incidents known to the dashboard, the most severe first, and the newest of equally severe ones. Unread incidents
//! are marked.

use std::cmp::Reverse;
use std::sync::Arc;

use gputop_model::incident::Incident;
use jiff::tz::TimeZone;

use super::list::{ListRow, ListScreen};
use crate::dashboard::emphasis::Emphasis;
use crate::dashboard::incidents::{ListedIncident, incident_time};
use crate::dashboard::table::{Cell, Column, First, Hidden, SortKey};
use crate::dashboard::times::clock_text;
use crate::export::explanation::program;
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::screen::{Effect, ScreenDef};

pub const DEF: ScreenDef = ScreenDef {
    id: "incidents",
    title: "Incidents",
    glossary: &[
        ("new", "You have not read the explanation yet."),
        (
            "SEVERITY",
            "`fatal`: the process exited. `caught`: an allocation failed and the process continued. `note`: \
             information.",
        ),
    ],
    sample: |app| {
        app.host.shown_incidents().next()?;
        Some(Box::new(IncidentList::default()))
    },
};

pub const NO_INCIDENTS: &str =
    "No incidents in this session. To list saved incidents, run `gputop incidents`";

pub type IncidentList = ListScreen<ListedIncident>;

const HOST: &str = "HOST";

const COLUMNS: &[Column<ListedIncident>] = &[
    Column::left("", 3, 0, unread, "Marks unread incidents."),
    Column::left("WHEN", 11, 1, when, "Time of the incident, according to this host's clock."),
    Column::left(HOST, 10, 3, host, "Host of the incident. Shown only if there are several.")
        .sorted(First::Smallest, |listed| SortKey::text(listed.incident.host.as_ref())),
    Column::left("SEVERITY", 8, 6, severity_cell, "Severity of the incident.")
        .sorted(First::Largest, |listed| {
            SortKey::Number(f64::from(listed.incident.severity as u8))
        }),
    Column::left("HEADLINE", 20, 2, headline, "Kind of error.")
        .sorted(First::Smallest, |listed| SortKey::text(Some(&listed.incident.headline))),
    Column::left("PROCESS", 18, 4, process, "Program and its PID.")
        .sorted(First::Smallest, |listed| SortKey::text(program(&listed.incident).as_ref())),
    Column::rest("SUMMARY", 20, 5, title, "What happened, with the measured values."),
];

fn unread(listed: &ListedIncident, _: &TimeZone) -> Cell {
    Cell::new(if listed.is_read { "" } else { "new" }, Emphasis::Mark)
}

fn when(listed: &ListedIncident, zone: &TimeZone) -> Cell {
    let time = incident_time(&listed.incident);
    Cell::known(time.map(|time| clock_text(time, zone, "%m-%d %H:%M")))
}

fn host(listed: &ListedIncident, _: &TimeZone) -> Cell {
    Cell::known(listed.incident.host.clone())
}

fn severity_cell(listed: &ListedIncident, _: &TimeZone) -> Cell {
    let level = listed.incident.severity;
    Cell::new(level.word(), Emphasis::of_severity(level))
}

fn headline(listed: &ListedIncident, _: &TimeZone) -> Cell {
    let incident = &listed.incident;
    Cell::new(incident.headline.clone(), Emphasis::of_severity(incident.severity))
}

fn process(listed: &ListedIncident, _: &TimeZone) -> Cell {
    Cell::known(program(&listed.incident))
}

fn title(listed: &ListedIncident, _: &TimeZone) -> Cell {
    Cell::text(listed.incident.title.clone())
}

impl ListRow for ListedIncident {
    type Key = Arc<Incident>;
    type Subject = ();

    const DEF: &'static ScreenDef = &DEF;
    const COLUMNS: &'static [Column<Self>] = COLUMNS;
    const FOOTER: &'static [Action] = &[
        Action::Open,
        Action::Down,
        Action::PageDown,
        Action::Filter,
        Action::Sort,
        Action::Why,
        Action::Back,
    ];
    const NOUN: &'static str = "incidents";
    const EMPTY: &'static str = NO_INCIDENTS;

    fn rows<'a>(app: &'a App, (): &()) -> Vec<(usize, &'a Self)> {
        let mut rows: Vec<_> = app.host.shown_incidents().enumerate().collect();
        rows.sort_by_key(|(_, known)| Reverse(known.incident.severity));
        rows
    }

    fn key(&self) -> Arc<Incident> {
        Arc::clone(&self.incident)
    }

    fn has_key(&self, key: &Arc<Incident>) -> bool {
        self.is_revision_of(key)
    }

    fn act(&self, _index: usize, action: Action) -> Effect {
        match action {
            Action::Open => Effect::Explain(self.key()),
            _ => Effect::Ignored,
        }
    }

    /// Hides the host column if all incidents are from the same host.
    fn hidden(rows: &[(usize, &Self)]) -> Hidden {
        let mut hidden = Hidden::default();
        let mut hosts = rows.iter().map(|(_, listed)| &listed.incident.host);
        let first = hosts.next();
        if hosts.all(|host| Some(host) == first) {
            let at = COLUMNS.iter().position(|column| column.title == HOST);
            at.into_iter().for_each(|at| hidden.hide(at));
        }
        hidden
    }
}
