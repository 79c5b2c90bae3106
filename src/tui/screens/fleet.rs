//! The host list: one row per watched host. Hosts with incidents or link problems come first.

use std::cell::Cell as Shared;

use crossterm::event::{Event as TerminalEvent, KeyCode, KeyEvent};
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use tui_input::Input;
use tui_input::backend::crossterm::EventHandler;

use super::incident::role;
use super::{Hit, Screen, ScreenDef, Step, moved};
use crate::model::incident::Severity;
use crate::model::link::Link;
use crate::model::units::{Bytes, Millis, UnixMillis};
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::chrome::{self, gpus_words, link_words};
use crate::tui::columns::gib;
use crate::tui::keymap::is_enter;
use crate::tui::overlay::draw_typed;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::cells::put;
use crate::tui::widgets::table::{
    Align, Cell, Column, First, Hidden, Placed, Sort, SortKey, View, draw, placed, scrolled,
};

pub const DEF: ScreenDef = ScreenDef {
    id: "fleet",
    title: "Hosts",
    glossary: &[
        (
            "LINK",
            "Link state, with the time since the last message if the link is silent or lost. The row then shows the \
             last known values.",
        ),
        chrome::REDUCED,
        (
            "NOTE",
            "Newest unread incident of the host, with +N if there are more. Otherwise the reason for a lost link.",
        ),
    ],
    sample: |app| {
        app.fleet.first()?;
        Some(Box::new(FleetScreen::default()))
    },
};

/// A row of the host list.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetRow {
    /// Name from the command line.
    pub name: String,
    link: Option<Link>,
    is_nvidia_smi: bool,
    gpus: String,
    used: Option<Bytes>,
    total: Option<Bytes>,
    /// Mean over its GPUs.
    sm: Option<f64>,
    processes: Option<usize>,
    pub time: UnixMillis,
    pub interval: Millis,
    /// Newest unread incident: its severity, its headline, and the number of unread incidents.
    incident: Option<(Severity, String, usize)>,
}

impl FleetRow {
    pub fn of(app: &App) -> Self {
        let frame = &app.frame;
        let is_known = frame.seq > 0 || !frame.gpus.is_empty();
        // The sum is unknown if one of its parts is.
        let sum = |of: fn(&crate::model::gpu::Gpu) -> Option<Bytes>| {
            let parts = frame.gpus.iter().map(of);
            parts
                .map(|part| Some(part?.0))
                .sum::<Option<u64>>()
                .map(Bytes)
                // Without GPUs the memory is unknown, not 0.
                .filter(|_| !frame.gpus.is_empty())
        };
        let sms: Vec<f64> = frame
            .gpus
            .iter()
            .filter_map(|gpu| Some(gpu.sm.get()?.0))
            .collect();
        let newest = app.incidents.news();
        Self {
            name: app.name.clone().unwrap_or_else(|| app.hello.host.clone()),
            link: app.link.clone(),
            is_nvidia_smi: app.hello.reduced,
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
            incident: newest.map(|newest| {
                (
                    newest.severity,
                    newest.headline.clone(),
                    app.incidents.unread(),
                )
            }),
        }
    }

    /// Returns true if the link is lost.
    pub fn is_lost(&self) -> bool {
        matches!(self.link, Some(Link::Lost { .. }))
    }

    fn share(&self) -> Option<f64> {
        let (used, total) = (self.used?.0, self.total?.0);
        #[allow(clippy::cast_precision_loss)]
        (total > 0).then(|| used as f64 / total as f64)
    }

    /// Returns true if every word occurs in the visible text of the row.
    fn matches(&self, words: &str, theme: &Theme) -> bool {
        let texts = [link(self, theme).text, note(self, theme).text];
        let text = format!("{} {} {}", self.name, self.gpus, texts.join(" ")).to_lowercase();
        words.split_whitespace().all(|word| text.contains(word))
    }

    /// Returns the rank in the default order. Hosts with lower ranks come first.
    fn rank(&self) -> (u8, u8) {
        let link = match &self.link {
            Some(Link::Lost { .. }) => 0,
            Some(Link::Silent { .. }) => 1,
            Some(Link::Connecting | Link::Later { .. }) => 2,
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

const fn sorted(
    first: First,
    key: fn(&FleetRow) -> SortKey,
    column: Column<FleetRow>,
) -> Column<FleetRow> {
    Column {
        sort: Some(Sort { first, key }),
        ..column
    }
}

const COLUMNS: &[Column<FleetRow>] = &[
    sorted(
        First::Smallest,
        |row| SortKey::text(Some(&row.name)),
        Column::left(
            "HOST",
            20,
            0,
            |row, _| Cell::new(row.name.clone(), Role::Title),
            "Name from the command line.",
        ),
    ),
    sorted(
        First::Smallest,
        |row| SortKey::whole(Some(row.rank().1.into())),
        Column::left("LINK", 13, 1, link, "Link state."),
    ),
    Column::left(
        "GPUS",
        10,
        5,
        |row, _| Cell::text(row.gpus.clone()),
        "Number and model of its GPUs.",
    ),
    sorted(
        First::Largest,
        |row| SortKey::number(row.share()),
        Column::right("VRAM%", 5, 3, vram, "Share of its GPU memory in use."),
    ),
    sorted(
        First::Largest,
        |row| SortKey::whole(row.used.map(|bytes| bytes.0)),
        Column::right(
            "USED GiB",
            8,
            6,
            |row, theme| size(row.used, theme),
            "Memory in use on all its GPUs, in GiB.",
        ),
    ),
    sorted(
        First::Largest,
        |row| SortKey::whole(row.total.map(|bytes| bytes.0)),
        Column::right(
            "TOTAL GiB",
            9,
            7,
            |row, theme| size(row.total, theme),
            "Memory of all its GPUs, in GiB.",
        ),
    ),
    sorted(
        First::Largest,
        |row| SortKey::number(row.sm),
        Column::right("SM%", 4, 4, sm, "SM utilisation, mean over its GPUs."),
    ),
    sorted(
        First::Largest,
        |row| SortKey::whole(row.processes.map(|count| count as u64)),
        Column::right("PROCS", 5, 8, processes, "Processes on its GPUs."),
    ),
    Column {
        align: Align::Rest,
        ..Column::left(
            "NOTE",
            16,
            2,
            note,
            "Newest unread incident, or the reason for a lost link.",
        )
    },
];

fn link(row: &FleetRow, _: &Theme) -> Cell {
    match row.link.as_ref().and_then(link_words) {
        Some((words, role)) => Cell::new(words.trim(), role),
        None if row.is_nvidia_smi => Cell::new("nvidia-smi", Role::Warn),
        None => Cell::new("live", Role::Good),
    }
}

fn vram(row: &FleetRow, theme: &Theme) -> Cell {
    row.share().map_or_else(
        || Cell::absent(theme),
        |share| Cell::text(format!("{:.0}", (share * 100.0).floor())),
    )
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
        (None, Some(Link::Lost { why, asks, .. })) => {
            let asks = if *asks { "login needed: " } else { "" };
            Cell::new(format!("{asks}{why}"), Role::Bad)
        }
        (None, _) => Cell::text(""),
    }
}

/// Maximum length of the filter in characters.
const MAX_FILTER_CHARS: usize = 100;

#[derive(Debug, Default)]
pub struct FleetScreen {
    /// Name of the host under the cursor. Initially the first host.
    selected: Option<String>,
    page: Shared<usize>,
    /// Index of the sort column. Without one, hosts that need attention come first.
    sort: Option<usize>,
    inverted: bool,
    /// Words that every shown host must contain.
    filter: Input,
    typing: bool,
}

impl FleetScreen {
    fn cursor(&self, rows: &[(usize, &FleetRow)]) -> usize {
        let is_selected = |(_, row): &(usize, &FleetRow)| Some(&row.name) == self.selected.as_ref();
        rows.iter().position(is_selected).unwrap_or(0)
    }

    /// Returns the hosts with their index, filtered and sorted. Hosts of the same rank keep the order of the command
    /// line.
    fn rows<'a>(&self, app: &'a App) -> Vec<(usize, &'a FleetRow)> {
        let words = self.filter.value().to_lowercase();
        let all = app.fleet.iter().enumerate();
        let mut rows: Vec<_> = all
            .filter(|(_, row)| row.matches(&words, &app.theme))
            .collect();
        rows.sort_by_key(|(at, row)| (row.rank(), *at));
        if let Some(sort) = self.sort.and_then(|at| COLUMNS[at].sort.as_ref()) {
            rows.sort_by(|(_, a), (_, b)| {
                (sort.key)(a).compare(&(sort.key)(b), sort.first, self.inverted)
            });
        }
        rows
    }

    fn view(&self, rows: &[(usize, &FleetRow)], page: usize) -> View {
        let cursor = self.cursor(rows);
        let first = self.sort.and_then(|at| COLUMNS[at].sort.as_ref());
        View {
            cursor: Some(cursor),
            offset: scrolled(cursor, rows.len(), page),
            sorted: self.sort,
            descending: first.is_some_and(|sort| sort.first.descends(self.inverted)),
            low_priority: &[],
            hidden: Hidden::default(),
        }
    }

    /// Splits the area into the table and, if there is a filter, the line below it.
    fn areas(&self, area: Rect) -> (Rect, Option<Rect>) {
        if (!self.typing && self.filter.value().is_empty()) || area.height < 3 {
            return (area, None);
        }
        let height = area.height - 1;
        let y = area.y + height;
        (
            Rect { height, ..area },
            Some(Rect {
                y,
                height: 1,
                ..area
            }),
        )
    }

    /// Selects the next or the previous sortable column. Past the last one, the default order returns.
    fn cycle(&mut self, is_next: bool) {
        let sortable = |at: &usize| COLUMNS[*at].sort.is_some();
        self.sort = match (self.sort, is_next) {
            (None, true) => (0..COLUMNS.len()).find(sortable),
            (None, false) => (0..COLUMNS.len()).rfind(sortable),
            (Some(at), true) => (at + 1..COLUMNS.len()).find(sortable),
            (Some(at), false) => (0..at).rfind(sortable),
        };
        self.inverted = false;
    }

    fn draw_filter(&self, shown: usize, app: &App, line: Rect, buffer: &mut Buffer) {
        if self.typing {
            draw_typed(" filter: ", &self.filter, line, app, buffer);
            return;
        }
        let words = format!(
            " {shown} of {} hosts match \"{}\"",
            app.fleet.len(),
            self.filter.value()
        );
        let style = app.theme.style(Role::Dim);
        put(buffer, line.x, line.y, &words, line.width, style);
    }
}

impl Screen for FleetScreen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let rows = self.rows(app);
        let (table, line) = self.areas(area);
        let page = usize::from(table.height.saturating_sub(1));
        self.page.set(page);
        let cell = |column: &Column<FleetRow>, (_, row): &(usize, &FleetRow)| {
            let is_lost = row.is_lost();
            (column.cell)(row, &app.theme).dim_if(is_lost)
        };
        let view = self.view(&rows, page);
        draw(COLUMNS, &rows, cell, &view, table, buffer, &app.theme);
        if let Some(line) = line {
            self.draw_filter(rows.len(), app, line, buffer);
        }
    }

    fn act(&mut self, action: Action, app: &App) -> Step {
        match action {
            Action::Sort | Action::SortNext => self.cycle(true),
            Action::SortPrevious => self.cycle(false),
            Action::Invert => self.inverted = self.sort.is_some() && !self.inverted,
            Action::Filter => self.typing = true,
            Action::Back if !self.filter.value().is_empty() => self.filter = Input::default(),
            _ => return self.go(action, app),
        }
        Step::Stay
    }

    fn type_key(&mut self, key: KeyEvent) -> bool {
        if !self.typing {
            return false;
        }
        match key.code {
            _ if is_enter(key) => self.typing = false,
            KeyCode::Esc => (self.typing, self.filter) = (false, Input::default()),
            KeyCode::Up | KeyCode::Down | KeyCode::PageUp | KeyCode::PageDown => {
                self.typing = false;
                return false;
            }
            KeyCode::Char(_) if self.filter.value().chars().count() >= MAX_FILTER_CHARS => {}
            _ => drop(self.filter.handle_event(&TerminalEvent::Key(key))),
        }
        true
    }

    fn follow(&mut self, app: &App) {
        // Remembers the host by name, so that the cursor follows it when its row moves.
        if self.selected.is_none() {
            self.selected = self.rows(app).first().map(|(_, row)| row.name.clone());
        }
    }

    fn click(&mut self, app: &App, at: Position, body: Rect) -> Hit {
        let rows = self.rows(app);
        let (table, _) = self.areas(body);
        let page = usize::from(table.height.saturating_sub(1));
        let view = self.view(&rows, page);
        if at.y == table.y {
            let on = |place: &Placed| (place.x..place.x + place.width).contains(&at.x);
            let placed = placed(COLUMNS, &view, table);
            let column = placed
                .iter()
                .find(|place| on(place))
                .map(|place| place.column);
            match column.filter(|column| COLUMNS[*column].sort.is_some()) {
                column @ Some(_) if column == self.sort => self.inverted = !self.inverted,
                column @ Some(_) => (self.sort, self.inverted) = (column, false),
                None => {}
            }
            return Hit::Nothing;
        }
        let Some(below) = at.y.checked_sub(table.y + 1) else {
            return Hit::Nothing;
        };
        let row = view.offset + usize::from(below);
        match rows.get(row) {
            Some(_) if Some(row) == view.cursor => Hit::SameRow,
            Some((_, host)) if table.contains(at) => {
                self.selected = Some(host.name.clone());
                Hit::Row
            }
            _ => Hit::Nothing,
        }
    }

    fn footer(&self) -> &'static [Action] {
        &[
            Action::Open,
            Action::Connect,
            Action::Why,
            Action::Filter,
            Action::Sort,
            Action::Incidents,
        ]
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}

impl FleetScreen {
    fn go(&mut self, action: Action, app: &App) -> Step {
        let rows = self.rows(app);
        let cursor = self.cursor(&rows);
        let step: Option<fn(usize) -> Step> = match action {
            Action::Open => Some(Step::Host),
            Action::Connect => Some(Step::Connect),
            _ => None,
        };
        if let Some(step) = step {
            let host = rows.get(cursor);
            return host.map_or(Step::Stay, |(host, _)| step(*host));
        }
        let Some(to) = moved(cursor, rows.len(), self.page.get(), action) else {
            return Step::Ignored;
        };
        self.selected = rows.get(to).map(|(_, row)| row.name.clone());
        Step::Stay
    }
}
