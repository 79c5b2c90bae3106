//! All hosts that are watched, a row each: the one that needs a person first by order of what is wrong.

use std::cell::Cell as Shared;

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use super::incident::role;
use super::{Hit, Screen, ScreenDef, Step, moved};
use crate::model::incident::Severity;
use crate::model::link::Link;
use crate::model::units::{Bytes, Millis, UnixMillis};
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::chrome::{gpus_words, link_words};
use crate::tui::columns::gib;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::table::{Align, Cell, Column, Hidden, View, draw, scrolled};

pub const DEF: ScreenDef = ScreenDef {
    id: "fleet",
    title: "Hosts",
    words: &[
        (
            "LINK",
            "Whether the host is heard, or for how long it was not; its row is of that time then.",
        ),
        (
            "NOTE",
            "The newest incident of this host that nobody has read, + and a number where there are more; else why its link is lost.",
        ),
    ],
    sample: |app| {
        app.fleet.first()?;
        Some(Box::new(FleetScreen::default()))
    },
};

/// What the fleet shows of a host.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetRow {
    /// As it was named on the command line.
    pub name: String,
    link: Option<Link>,
    gpus: String,
    used: Option<Bytes>,
    total: Option<Bytes>,
    /// The mean over its GPUs.
    sm: Option<f64>,
    processes: Option<usize>,
    pub time: UnixMillis,
    pub interval: Millis,
    /// Of the newest unread incident: how grave, its headline, and how many there are in all.
    incident: Option<(Severity, String, usize)>,
}

impl FleetRow {
    pub fn of(app: &App) -> Self {
        let frame = &app.frame;
        let is_known = frame.seq > 0 || !frame.gpus.is_empty();
        // A sum with a part missing is none.
        let sum = |of: fn(&crate::model::gpu::Gpu) -> Option<Bytes>| {
            let parts = frame.gpus.iter().map(of);
            parts
                .map(|part| Some(part?.0))
                .sum::<Option<u64>>()
                .map(Bytes)
                .filter(|_| is_known)
        };
        let sms: Vec<f64> = frame
            .gpus
            .iter()
            .filter_map(|gpu| Some(gpu.sm.get()?.0))
            .collect();
        let news = app.incidents.news();
        Self {
            name: app.name.clone().unwrap_or_else(|| app.hello.host.clone()),
            link: app.link.clone(),
            gpus: if is_known {
                gpus_words(frame)
            } else {
                String::new()
            },
            used: sum(|gpu| gpu.memory.taken()),
            total: sum(|gpu| gpu.memory.total.get()),
            sm: (!sms.is_empty()).then(|| sms.iter().sum::<f64>() / sms.len() as f64),
            processes: frame
                .processes
                .as_ref()
                .map(|processes| processes.list.len()),
            time: frame.time,
            interval: frame.interval,
            incident: news
                .map(|news| (news.severity, news.headline.clone(), app.incidents.unread())),
        }
    }

    /// Lower needs a person sooner.
    fn rank(&self) -> (u8, u8) {
        let link = match &self.link {
            Some(Link::Lost { .. }) => 0,
            Some(Link::Silent { .. }) => 1,
            Some(Link::Connecting) => 2,
            _ => 3,
        };
        let incident = match &self.incident {
            Some((Severity::Fatal, ..)) => 0,
            Some((Severity::Caught, ..)) => 1,
            Some(_) => 2,
            None => 3,
        };
        (incident, link)
    }
}

const fn left(
    title: &'static str,
    width: u16,
    priority: u8,
    cell: fn(&FleetRow, &Theme) -> Cell,
    help: &'static str,
) -> Column<FleetRow> {
    Column {
        align: Align::Left,
        ..Column::right(title, width, priority, cell, help)
    }
}

const COLUMNS: &[Column<FleetRow>] = &[
    left(
        "HOST",
        20,
        0,
        |row, _| Cell::new(row.name.clone(), Role::Title),
        "As it was named.",
    ),
    left("LINK", 13, 1, link, "Whether it is heard."),
    left(
        "GPUS",
        10,
        5,
        |row, _| Cell::text(row.gpus.clone()),
        "What it has.",
    ),
    Column::right("VRAM%", 5, 3, vram, "How much of its memory is taken."),
    Column::right(
        "USED",
        7,
        6,
        |row, theme| size(row.used, theme),
        "GiB that are taken on all its GPUs.",
    ),
    Column::right(
        "TOTAL",
        7,
        7,
        |row, theme| size(row.total, theme),
        "GiB that all its GPUs have.",
    ),
    Column::right("SM%", 4, 4, sm, "How busy its GPUs are, in the mean."),
    Column::right("PROCS", 5, 8, processes, "Processes on its GPUs."),
    Column {
        align: Align::Rest,
        ..left(
            "NOTE",
            16,
            2,
            note,
            "The newest incident, or why the link is lost.",
        )
    },
];

fn link(row: &FleetRow, _: &Theme) -> Cell {
    match row.link.as_ref().and_then(link_words) {
        Some((words, role)) => Cell::new(words.trim(), role),
        None => Cell::new("live", Role::Good),
    }
}

fn vram(row: &FleetRow, theme: &Theme) -> Cell {
    match (row.used, row.total) {
        (Some(used), Some(total)) if total.0 > 0 => {
            Cell::text((u128::from(used.0) * 100 / u128::from(total.0)).to_string())
        }
        _ => Cell::absent(theme),
    }
}

fn size(bytes: Option<Bytes>, theme: &Theme) -> Cell {
    bytes.map_or_else(|| Cell::absent(theme), |bytes| Cell::text(gib(bytes)))
}

fn sm(row: &FleetRow, theme: &Theme) -> Cell {
    row.sm
        .map_or_else(|| Cell::absent(theme), |sm| Cell::text(format!("{sm:.0}")))
}

fn processes(row: &FleetRow, theme: &Theme) -> Cell {
    row.processes.map_or_else(
        || Cell::absent(theme),
        |count| Cell::text(count.to_string()),
    )
}

fn note(row: &FleetRow, _: &Theme) -> Cell {
    match (&row.incident, &row.link) {
        (Some((severity, headline, 1)), _) => Cell::new(headline.clone(), role(*severity)),
        (Some((severity, headline, count)), _) => {
            Cell::new(format!("{headline} +{}", count - 1), role(*severity))
        }
        (None, Some(Link::Lost { why, .. })) => Cell::new(why.clone(), Role::Bad),
        (None, _) => Cell::text(""),
    }
}

#[derive(Debug, Default)]
pub struct FleetScreen {
    /// The host under the cursor; at first the first.
    at: Option<String>,
    page: Shared<usize>,
}

impl FleetScreen {
    fn cursor(&self, rows: &[(usize, &FleetRow)]) -> usize {
        let is_it = |(_, row): &(usize, &FleetRow)| Some(&row.name) == self.at.as_ref();
        rows.iter().position(is_it).unwrap_or(0)
    }
}

/// Each with its number; what needs a person first, else as they were named.
fn rows(app: &App) -> Vec<(usize, &FleetRow)> {
    let mut rows: Vec<_> = app.fleet.iter().enumerate().collect();
    rows.sort_by_key(|(at, row)| (row.rank(), *at));
    rows
}

impl Screen for FleetScreen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let rows = rows(app);
        let page = usize::from(area.height.saturating_sub(1));
        self.page.set(page);
        let cursor = self.cursor(&rows);
        let view = View {
            cursor: Some(cursor),
            offset: scrolled(cursor, rows.len(), page),
            sorted: None,
            descending: false,
            late: &[],
            hidden: Hidden::default(),
        };
        let cell = |column: &Column<FleetRow>, (_, row): &(usize, &FleetRow)| {
            let is_old = matches!(row.link, Some(Link::Lost { .. }));
            (column.cell)(row, &app.theme).quiet(is_old)
        };
        draw(COLUMNS, &rows, cell, &view, area, buffer, &app.theme);
    }

    fn act(&mut self, action: Action, app: &App) -> Step {
        let rows = rows(app);
        let cursor = self.cursor(&rows);
        if action == Action::Open {
            return rows
                .get(cursor)
                .map_or(Step::Stay, |(host, _)| Step::Host(*host));
        }
        let Some(to) = moved(cursor, rows.len(), self.page.get(), action) else {
            return Step::Ignored;
        };
        self.at = rows.get(to).map(|(_, row)| row.name.clone());
        Step::Stay
    }

    fn follow(&mut self, app: &App) {
        // The cursor stays on a host that moves up or down.
        if self.at.is_none() {
            self.at = rows(app).first().map(|(_, row)| row.name.clone());
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
            Some((_, host)) if body.contains(at) => {
                self.at = Some(host.name.clone());
                Hit::Row
            }
            _ => Hit::Nothing,
        }
    }

    fn footer(&self) -> &'static [Action] {
        &[
            Action::Open,
            Action::Down,
            Action::Why,
            Action::Incidents,
            Action::Help,
        ]
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}
