//! The ranks of the distributed jobs on a host: who waits for whom, and where each is in its program.

use crossterm::event::KeyEvent;
use gputop_model::process::ProcessKey;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Position, Rect};

use super::list::{ListRow, ListScreen};
use super::process::ProcessScreen;
use crate::dashboard::rank_columns::{RANK_COLUMNS, RankLine, useless_columns};
use crate::dashboard::rows::ProcessRow;
use crate::dashboard::table::{Column, Hidden};
use crate::export::ranks::{groups_text, notes, ras_lines, slow_lines, text};
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::clipboard::Copied;
use crate::tui::screen::{Effect, Hit, Screen, ScreenDef};
use crate::tui::theme::Role;
use crate::tui::widgets::area::margin;
use crate::tui::widgets::cells::{put_lines, wrap_words};

pub const DEF: ScreenDef = ScreenDef {
    id: "ranks",
    title: "Ranks",
    glossary: &[
        (
            "waits for",
            "The rank has called a collective that another rank has not called yet. It is named after 10 s, or after ten times the usual interval \
             between collectives.",
        ),
        (
            "comes last",
            "The rank calls most collectives after the others, which wait for it each time. At least 100 collectives and 80 % of them are needed. \
             Only ranks on this host are compared.",
        ),
        (
            "NCCL counts",
            "NCCL itself counts the collectives that each rank has launched, on all hosts. A launched collective may not have completed.",
        ),
        ("holds up", "Other ranks wait for this rank, which waits for no other."),
        (
            "called, enqueued, completed",
            "Collectives that the program has called, that NCCL has accepted, and that the watchdog has seen completed.",
        ),
    ],
    sample: |app| {
        app.host.jobs.lines.first()?;
        Some(Box::new(RanksScreen::default()))
    },
};

/// Height below which a pane shows the table only.
const MIN_TABLE: u16 = 8;

impl ListRow for RankLine {
    type Key = ProcessKey;
    type Subject = ();

    const DEF: &'static ScreenDef = &DEF;
    const COLUMNS: &'static [Column<Self>] = RANK_COLUMNS;
    const FOOTER: &'static [Action] = &[
        Action::Open,
        Action::SlowRank,
        Action::Ras,
        Action::Slow,
        Action::Stack,
        Action::Log,
        Action::Filter,
        Action::Sort,
        Action::Copy,
    ];
    const NOUN: &'static str = "ranks";
    const EMPTY: &'static str = "No process on this host has NCCL process groups";

    fn rows<'a>(app: &'a App, (): &()) -> Vec<(usize, &'a Self)> {
        app.host.jobs.lines.iter().enumerate().collect()
    }

    fn key(&self) -> ProcessKey {
        self.rank.process
    }

    fn has_key(&self, key: &ProcessKey) -> bool {
        self.rank.process == *key
    }

    /// A rank opens from [`RanksScreen`], which knows its process.
    fn act(&self, _: usize, _: Action) -> Effect {
        Effect::Ignored
    }

    fn hidden(rows: &[(usize, &Self)]) -> Hidden {
        useless_columns(rows.iter().map(|(_, line)| *line))
    }
}

#[derive(Default)]
pub struct RanksScreen {
    list: ListScreen<RankLine>,
    /// True while arrivals at collectives are counted, to find a slow rank.
    counts_arrivals: bool,
}

impl RanksScreen {
    /// Returns the screen with the cursor on the rank of this process, if it is one.
    pub fn at(process: Option<ProcessKey>) -> Self {
        Self { list: ListScreen::default().with_cursor(process), counts_arrivals: false }
    }

    /// Returns the areas of the table, and of the text below it.
    fn areas(&self, app: &App, area: Rect) -> [Rect; 2] {
        let rows = u16::try_from(app.host.jobs.lines.len() + 2).unwrap_or(u16::MAX);
        // A long table leaves a third of the height to the text below it.
        let table = rows.min((area.height * 2 / 3).max(MIN_TABLE));
        // The answer that the user asked for is visible at any height.
        let answers = self.answers(app, margin(area).width).len();
        let answers = u16::try_from(answers).unwrap_or(u16::MAX).min(area.height / 2);
        let table = table.min(area.height - answers);
        Layout::vertical([Constraint::Max(table), Constraint::Fill(1)]).areas(area)
    }

    /// Returns what NCCL answered, and which rank is slow while arrivals are counted.
    fn answers(&self, app: &App, width: u16) -> Vec<(String, Role)> {
        let mut lines = ras_lines(&app.host.jobs);
        if self.counts_arrivals {
            let slow = slow_lines(&app.host.jobs);
            match slow.is_empty() {
                true => lines.push(("counting collectives".to_owned(), false)),
                false => lines.extend(slow),
            }
        }
        let wrapped = lines.into_iter().flat_map(|(line, is_difference)| {
            let role = if is_difference { Role::Warn } else { Role::Text };
            wrap_words(&line, usize::from(width.max(20))).into_iter().map(move |line| (line, role))
        });
        wrapped.collect()
    }

    /// Returns what else is known: the answers, equal stacks, warnings, and the groups of the rank under the cursor.
    fn lines(&self, app: &App, width: u16) -> Vec<(String, Role)> {
        let mut lines = self.answers(app, width);
        if !lines.is_empty() {
            lines.push((String::new(), Role::Text));
        }
        for note in notes(&app.host.jobs) {
            let wrapped = wrap_words(&note, usize::from(width.max(20)));
            lines.extend(wrapped.into_iter().map(|line| (line, Role::Text)));
        }
        let selected = self.list.selected(app);
        let reading = selected.and_then(|line| {
            let process = line.rank.process;
            app.host.frame.ranks.iter().find(|reading| reading.process == process)
        });
        if let (Some(line), Some(reading)) = (selected, reading) {
            if lines.last().is_some_and(|(line, _)| !line.is_empty()) {
                lines.push((String::new(), Role::Text));
            }
            lines.push((format!("Groups of rank {}", line.rank.rank), Role::Title));
            let groups = groups_text(reading, width, &app.ui.theme.glyphs);
            lines.extend(groups.lines().map(|line| (line.to_owned(), Role::Text)));
        }
        lines
    }
}

impl Screen for RanksScreen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let [table, below] = self.areas(app, area);
        self.list.draw(app, table, buffer);
        let inner = margin(below);
        put_lines(buffer, inner, self.lines(app, inner.width).iter(), &app.ui.theme);
    }

    fn act(&mut self, action: Action, app: &App, body: Rect) -> Effect {
        match action {
            Action::Ranks => Effect::Done,
            Action::SlowRank if app.host.recording.is_some() => {
                Effect::Message("A recording does not contain which rank comes last".into())
            }
            Action::SlowRank => {
                self.counts_arrivals = !self.counts_arrivals;
                Effect::Done
            }
            Action::Open => match self.process(app) {
                Some(row) => Effect::Open(Box::new(ProcessScreen::new(row.id()))),
                None => Effect::Message("This rank has no process on this host".into()),
            },
            action => self.list.act(action, app, self.areas(app, body)[0]),
        }
    }

    fn type_key(&mut self, key: KeyEvent) -> bool {
        self.list.type_key(key)
    }

    fn follow(&mut self, app: &App) {
        self.list.follow(app);
    }

    fn click(&mut self, app: &App, at: Position, body: Rect) -> Hit {
        let [table, _] = self.areas(app, body);
        if table.contains(at) { self.list.click(app, at, table) } else { Hit::Nothing }
    }

    fn process<'a>(&self, app: &'a App) -> Option<&'a ProcessRow> {
        let process = self.list.selected(app)?.rank.process;
        app.host.processes.all_rows.iter().find(|row| row.id().key == process)
    }

    fn copied(&self, app: &App) -> Option<Copied> {
        let theme = &app.ui.theme;
        Some(Copied::new("the table of ranks", &text(&app.host, 160, &theme.glyphs, &theme.zone)))
    }

    fn footer(&self) -> &'static [Action] {
        self.list.footer()
    }

    fn counts_arrivals(&self) -> bool {
        self.counts_arrivals
    }

    fn footer_label(&self, action: Action) -> Option<&'static str> {
        (self.counts_arrivals && action == Action::SlowRank).then_some("stop counting")
    }

    fn has_use_for(&self, action: Action, app: &App) -> bool {
        if [Action::SlowRank, Action::Ras].contains(&action) {
            return app.host.recording.is_none() && !app.host.jobs.lines.is_empty();
        }
        self.list.has_use_for(action, app)
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}
