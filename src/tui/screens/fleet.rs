//! The host list: one row per monitored host. Hosts with incidents or connection problems come first.

use gputop_model::link::Link;
use jiff::tz::TimeZone;

use super::list::{ListRow, ListScreen};
use crate::dashboard::emphasis::Emphasis;
use crate::dashboard::fleet::FleetRow;
use crate::dashboard::sizes::gib;
use crate::dashboard::table::{Cell, Column, First, SortKey};
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::chrome::{self, link_text};
use crate::tui::screen::{Effect, ScreenDef};

pub const DEF: ScreenDef = ScreenDef {
    id: "fleet",
    title: "Hosts",
    glossary: &[
        (
            "LINK",
            "Link state, with the time since the last message if the link is silent or lost. The row then shows the \
             last known values.",
        ),
        chrome::NVIDIA_SMI_HELP,
        (
            "NOTE",
            "Newest unread incident of the host, with +N if there are more, or the reason for a lost link.",
        ),
    ],
    sample: |app| {
        app.host.fleet.first()?;
        Some(Box::new(FleetScreen::default()))
    },
};

const COLUMNS: &[Column<FleetRow>] = &[
    Column::left("HOST", 20, 0, host, "Name from the command line.")
        .sorted(First::Smallest, |row| SortKey::text(Some(&row.name))),
    Column::left("LINK", 13, 1, link, "Link state.")
        .sorted(First::Smallest, |row| SortKey::whole(Some(row.rank().1.into()))),
    Column::left("GPUS", 10, 5, gpus, "Number and model of its GPUs."),
    Column::right("VRAM%", 5, 3, vram, "Share of its GPU memory in use.")
        .sorted(First::Largest, |row| SortKey::number(row.share())),
    Column::right("USED GiB", 8, 6, used, "Memory in use on all its GPUs, in GiB.")
        .sorted(First::Largest, |row| SortKey::whole(row.used.map(|bytes| bytes.0))),
    Column::right("TOTAL GiB", 9, 7, total, "Memory of all its GPUs, in GiB.")
        .sorted(First::Largest, |row| SortKey::whole(row.total.map(|bytes| bytes.0))),
    Column::right("SM%", 4, 4, sm, "Mean SM utilization of its GPUs.")
        .sorted(First::Largest, |row| SortKey::number(row.sm)),
    Column::right("PROCS", 5, 8, processes, "Processes on its GPUs.")
        .sorted(First::Largest, |row| SortKey::whole(row.processes.map(|count| count as u64))),
    Column::rest("NOTE", 16, 2, note, "Newest unread incident, or the reason for a lost link."),
];

fn host(row: &FleetRow, _: &TimeZone) -> Cell {
    Cell::new(row.name.clone(), Emphasis::Title)
}

fn link(row: &FleetRow, _: &TimeZone) -> Cell {
    match row.link.as_ref().and_then(link_text) {
        Some((words, emphasis)) => Cell::new(words.trim(), emphasis),
        None if row.is_nvidia_smi => Cell::new("nvidia-smi", Emphasis::Warn),
        None => Cell::new("live", Emphasis::Good),
    }
}

fn gpus(row: &FleetRow, _: &TimeZone) -> Cell {
    Cell::text(row.gpus.clone())
}

fn vram(row: &FleetRow, _: &TimeZone) -> Cell {
    Cell::known(row.share().map(|share| format!("{:.0}", (share * 100.0).floor())))
}

fn used(row: &FleetRow, _: &TimeZone) -> Cell {
    Cell::known(row.used.map(gib))
}

fn total(row: &FleetRow, _: &TimeZone) -> Cell {
    Cell::known(row.total.map(gib))
}

fn sm(row: &FleetRow, _: &TimeZone) -> Cell {
    Cell::known(row.sm.map(|sm| format!("{sm:.0}")))
}

fn processes(row: &FleetRow, _: &TimeZone) -> Cell {
    Cell::known(row.processes.map(|count| count.to_string()))
}

fn note(row: &FleetRow, _: &TimeZone) -> Cell {
    match (&row.incident, &row.link) {
        (Some((severity, headline, 1)), _) => {
            Cell::new(headline.clone(), Emphasis::of_severity(*severity))
        }
        (Some((severity, headline, count)), _) => {
            Cell::new(format!("{headline} +{}", count - 1), Emphasis::of_severity(*severity))
        }
        (None, Some(Link::Lost { why, asks, .. })) => {
            let asks = if *asks { "login needed: " } else { "" };
            Cell::new(format!("{asks}{why}"), Emphasis::Bad)
        }
        (None, _) => Cell::text(""),
    }
}

pub type FleetScreen = ListScreen<FleetRow>;

impl ListRow for FleetRow {
    type Key = String;
    type Subject = ();

    const DEF: &'static ScreenDef = &DEF;
    const COLUMNS: &'static [Column<Self>] = COLUMNS;
    const FOOTER: &'static [Action] = &[
        Action::Open,
        Action::Connect,
        Action::Why,
        Action::Filter,
        Action::Sort,
        Action::Incidents,
    ];
    const NOUN: &'static str = "hosts";
    const EMPTY: &'static str = "No hosts";

    /// Returns the host rows, with the hosts that need attention first. Hosts of equal rank keep their command-line
    /// order.
    fn rows<'a>(app: &'a App, (): &()) -> Vec<(usize, &'a Self)> {
        let mut rows: Vec<_> = app.host.fleet.iter().enumerate().collect();
        rows.sort_unstable_by_key(|(at, row)| (row.rank(), *at));
        rows
    }

    fn key(&self) -> String {
        self.name.clone()
    }

    fn has_key(&self, key: &String) -> bool {
        self.name == *key
    }

    fn act(&self, index: usize, action: Action) -> Effect {
        match action {
            Action::Open => Effect::Host(index),
            Action::Connect => Effect::Connect(Some(index)),
            _ => Effect::Ignored,
        }
    }

    fn is_stale(&self) -> bool {
        self.is_lost()
    }
}
