//! Menus drawn over the screen: a list to choose from, or a question that only `y` confirms.

use crossterm::event::{KeyCode, KeyEvent};
use gputop_model::process::ProcessKey;
use gputop_model::protocol::Request;
use gputop_model::signal::{SIGNALS, Signal};
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use super::action::{Action, moved};
use super::app::App;
use super::colours::Colours;
use super::palette::PALETTES;
use super::probe_question::ProbeQuestion;
use super::screen::Effect;
use super::screens::process_table::min_width;
use super::signal_targets::{self, Target};
use super::theme::Role;
use super::widgets::cells::{put_line, put_right, wrap_words};
use super::widgets::panel::{panel, panel_area};
use super::widgets::table::{mark, scrolled};
use crate::dashboard::process_columns::PROCESS_COLUMNS;
use crate::export::text_width::columns;

/// A menu with its cursor. For a question, the cursor is the index of the first visible line.
#[derive(Debug)]
pub struct Menu {
    subject: Subject,
    cursor: usize,
    /// The first letters of a column's title, as typed so far.
    typed: String,
}

#[derive(Debug)]
enum Subject {
    /// Selects the sort order of the process table. Row 0 is the default order.
    Sort,
    /// Selects the columns of the process table.
    Columns,
    /// Selects the theme, with a preview of the theme under the cursor. Contains the previous colours, which are
    /// restored if no theme is chosen.
    Theme(Colours),
    /// Selects a signal for these target processes.
    Signal(Vec<Target>),
    /// Asks for confirmation of a signal. The confirmation key is not Enter, so that an accidental double press sends
    /// nothing.
    SendSignal(Signal, Vec<Target>),
    Probe(ProbeQuestion),
    /// Asks whether to ask NCCL about the job of this process.
    Ras(ProcessKey),
}

/// A menu row: pieces of text with their roles.
type Row = Vec<(String, Role)>;

/// Column that identifies a row and therefore cannot be hidden.
const ALWAYS_SHOWN: &str = "PID";

const RAS_QUESTION: &[&str] = &[
    "Connects to NCCL in a process of the job on this host, twice within 5 s. NCCL asks all processes of the job, on all hosts, which wakes a thread in each. Ranks that do not answer delay the result by up to 20 s.",
    "NCCL counts the collectives that each rank has launched. A difference is shown only if no count of the communicator moves meanwhile.",
];

/// Width of menus with descriptions, and of the menu of columns, in terminal columns.
const WIDTH: u16 = 76;
const COLUMNS_WIDTH: u16 = 110;

/// Returns the available sort orders: the default order, then the sortable columns.
pub fn sort_orders() -> Vec<Option<usize>> {
    let sortable = PROCESS_COLUMNS.iter().enumerate().filter(|(_, column)| column.sort.is_some());
    std::iter::once(None).chain(sortable.map(|(at, _)| Some(at))).collect()
}

pub fn sort_title(order: Option<usize>) -> &'static str {
    order.map_or("GPU, then VRAM", |column| PROCESS_COLUMNS[column].title)
}

/// Sorts the process table. Returns a message: `sorted by VRAM, descending`.
pub fn sort_by(app: &mut App, order: Option<usize>, inverted: bool) -> String {
    app.host.processes.set_sort(order, inverted);
    let sort = order.and_then(|column| PROCESS_COLUMNS[column].sort.as_ref());
    let direction = match sort.map(|sort| sort.first.descends(inverted)) {
        Some(true) => ", descending",
        Some(false) => ", ascending",
        None => "",
    };
    format!("sorted by {}{direction}", sort_title(order))
}

/// Returns the indices of the columns that can be hidden.
fn hideable() -> Vec<usize> {
    let columns = PROCESS_COLUMNS.iter().enumerate();
    columns.filter(|(_, column)| column.title != ALWAYS_SHOWN).map(|(at, _)| at).collect()
}

impl Menu {
    fn open(subject: Subject, cursor: Option<usize>) -> Self {
        Self { subject, cursor: cursor.unwrap_or(0), typed: String::new() }
    }

    pub fn sort(app: &App) -> Self {
        let current = sort_orders().iter().position(|order| *order == app.host.processes.sort);
        Self::open(Subject::Sort, current)
    }

    pub fn columns() -> Self {
        Self::open(Subject::Columns, None)
    }

    pub fn theme(app: &App) -> Self {
        let colours = app.ui.theme.colours.clone();
        let is_current = |palette| Colours::built_in(palette) == colours;
        let current = PALETTES.iter().position(|def| is_current(def.palette));
        Self::open(Subject::Theme(colours), current)
    }

    pub fn signal(signal: Signal, targets: Vec<Target>) -> Self {
        let at = SIGNALS.iter().position(|def| def.signal == signal);
        Self::open(Subject::Signal(targets), at)
    }

    /// Asks whether to send a signal.
    pub fn send_signal(signal: Signal, targets: Vec<Target>) -> Self {
        Self::open(Subject::SendSignal(signal, targets), None)
    }

    pub fn probe(question: ProbeQuestion) -> Self {
        Self::open(Subject::Probe(question), None)
    }

    pub fn ras(process: ProcessKey) -> Self {
        Self::open(Subject::Ras(process), None)
    }

    fn is_question(&self) -> bool {
        matches!(self.subject, Subject::SendSignal(..) | Subject::Probe(_) | Subject::Ras(_))
    }

    /// Handles two kinds of keys: `y` and `n`, which answer a question regardless of the keymap, and the first letter of a
    /// column to sort by. Returns `None` if the key is an action.
    pub fn type_key(&mut self, key: KeyEvent) -> Option<Effect> {
        let KeyCode::Char(letter) = key.code else {
            return None;
        };
        let is_yes = matches!(letter, 'y' | 'Y');
        if self.is_question() && matches!(letter, 'n' | 'N') {
            return Some(Effect::Close);
        }
        match &self.subject {
            Subject::SendSignal(signal, targets) if is_yes => {
                Some(Effect::Request(Request::Signal {
                    signal: *signal,
                    processes: targets.iter().map(|target| target.key).collect(),
                }))
            }
            Subject::Probe(question) if is_yes => Some(Effect::Request(question.request())),
            Subject::Ras(process) if is_yes => Some(Effect::Request(Request::Ras(*process))),
            Subject::Sort if key.modifiers.is_empty() || letter.is_uppercase() => {
                self.select_by_letter(letter)
            }
            _ => None,
        }
    }

    /// Moves the cursor to the first column whose title starts with all letters typed, or else to the next one that starts
    /// with this letter. `j` and `k` move the cursor, too, and `q` closes the menu. Any other letter without a column does
    /// nothing.
    fn select_by_letter(&mut self, letter: char) -> Option<Effect> {
        let orders = sort_orders();
        let starting = |start: &str| -> Vec<usize> {
            let begins = |title: &str| {
                title.get(..start.len()).is_some_and(|title| title.eq_ignore_ascii_case(start))
            };
            (0..orders.len()).filter(|at| begins(sort_title(orders[*at]))).collect()
        };
        self.typed.push(letter);
        let mut found = starting(&self.typed);
        if self.typed.len() == 1 || found.is_empty() {
            self.typed = letter.to_string();
            found = starting(&self.typed);
            found.sort_by_key(|at| *at <= self.cursor);
        }
        match found.first() {
            Some(at) => self.cursor = *at,
            None => return (!matches!(letter, 'j' | 'k' | 'q')).then_some(Effect::Done),
        }
        Some(Effect::Done)
    }

    pub fn act(&mut self, action: Action, app: &mut App) -> Effect {
        self.typed.clear();
        match action {
            Action::Back | Action::Quit => return self.back(app),
            Action::Columns => return Effect::Close,
            Action::Theme => return self.act(Action::Down, app),
            Action::Open | Action::Tag | Action::Sort => return self.choose(app),
            Action::Write => return self.save(),
            Action::SignalTerm => self.move_to(Signal::Term),
            Action::SignalKill => self.move_to(Signal::Kill),
            action => {
                // Count the lines as wrapped in a narrow box, so that the cursor can reach every line of a question.
                let count = self.contents(app, 40).1.len();
                self.cursor = moved(self.cursor, count, 10, action).unwrap_or(self.cursor);
                if let (Subject::Theme(_), Some(def)) = (&self.subject, PALETTES.get(self.cursor)) {
                    app.ui.theme.colours = Colours::built_in(def.palette);
                }
            }
        }
        Effect::Done
    }

    fn move_to(&mut self, signal: Signal) {
        if let Subject::Signal(_) = self.subject {
            self.cursor = SIGNALS.iter().position(|def| def.signal == signal).unwrap_or(0);
        }
    }

    fn choose(&mut self, app: &mut App) -> Effect {
        match &mut self.subject {
            Subject::Sort => {
                let order = sort_orders().get(self.cursor).copied().flatten();
                app.ui.message = Some(sort_by(app, order, false));
                return Effect::Close;
            }
            Subject::Theme(_) => {
                app.ui.message =
                    PALETTES.get(self.cursor).map(|def| format!("theme: {}", def.name));
                return Effect::Close;
            }
            Subject::Columns => {
                if let Some(column) = hideable().get(self.cursor) {
                    app.host.processes.hidden_columns.toggle(*column);
                }
            }
            Subject::Signal(targets) => {
                if let Some(def) = SIGNALS.get(self.cursor) {
                    self.subject = Subject::SendSignal(def.signal, std::mem::take(targets));
                    self.cursor = 0;
                }
            }
            Subject::SendSignal(..) | Subject::Probe(_) | Subject::Ras(_) => {}
        }
        Effect::Done
    }

    /// Saves the theme under the cursor.
    fn save(&self) -> Effect {
        match (&self.subject, PALETTES.get(self.cursor)) {
            (Subject::Theme(_), Some(def)) => Effect::SaveTheme(def.name),
            _ => Effect::Done,
        }
    }

    fn back(&mut self, app: &mut App) -> Effect {
        if let Subject::Theme(colours) = &mut self.subject {
            app.ui.theme.colours = std::mem::take(colours);
        }
        Effect::Close
    }

    /// Handles a click, which moves the cursor to the row and chooses it. A click never confirms a question.
    pub fn click(&mut self, position: Position, area: Rect, app: &App) -> Option<Action> {
        let (_, rows, _) = self.contents(app, area.width);
        let (_, inner) = panel_area(self.width(), height(&rows), area);
        let below = usize::from(position.y.checked_sub(inner.y)?);
        let row = scrolled(self.cursor, rows.len(), usize::from(inner.height)) + below;
        if self.is_question() || !inner.contains(position) || row >= rows.len() {
            return None;
        }
        self.cursor = row;
        Some(Action::Open)
    }

    fn width(&self) -> u16 {
        match self.subject {
            Subject::Sort => 40,
            Subject::Columns => COLUMNS_WIDTH,
            _ => WIDTH,
        }
    }

    /// Returns the menu's title, its rows, and the label of the main key.
    fn contents(&self, app: &App, width: u16) -> (String, Vec<Row>, &'static str) {
        match &self.subject {
            Subject::Sort => {
                let rows = sort_orders().into_iter().map(|order| {
                    let title = (sort_title(order).to_owned(), Role::Text);
                    let current = (order == app.host.processes.sort).then(current);
                    std::iter::once(title).chain(current).collect()
                });
                ("Sort by".into(), rows.collect(), "sort")
            }
            Subject::Columns => {
                let rows = hideable().into_iter().map(|at| column_row(at, app, width));
                ("Process columns".into(), rows.collect(), "toggle")
            }
            Subject::Theme(before) => {
                let rows = PALETTES.iter().map(|def| {
                    let mut row = named(format!("{:<13} ", def.name), def.help);
                    if Colours::built_in(def.palette) == *before {
                        row.push(current());
                    }
                    row
                });
                ("Theme".into(), rows.collect(), "select")
            }
            Subject::Signal(targets) => {
                let rows = SIGNALS
                    .iter()
                    .map(|def| named(format!("{:>2} {:<5} ", def.number, def.name), def.help));
                let title = format!("Signal to {}", signal_targets::words(targets));
                (title, rows.collect(), "choose")
            }
            Subject::SendSignal(signal, targets) => {
                let words = signal_targets::words(targets);
                let rows = signal_targets::lines(targets, app);
                (format!("Send {} to {words}?", signal.name()), rows, "send")
            }
            Subject::Probe(question) => {
                (question.title.clone(), question.lines(app, width.min(WIDTH)), "probe")
            }
            Subject::Ras(_) => {
                let room = usize::from(width.min(WIDTH).saturating_sub(4)).max(1);
                let lines = RAS_QUESTION.iter().flat_map(|sentence| wrap_words(sentence, room));
                let rows = lines.map(|line| vec![(line, Role::Text)]);
                ("Ask NCCL about the ranks on all hosts?".into(), rows.collect(), "ask")
            }
        }
    }

    pub fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let theme = &app.ui.theme;
        let (title, rows, verb) = self.contents(app, area.width);
        let inner = panel(&title, self.width(), height(&rows), area, theme, buffer);
        let visible = usize::from(inner.height);
        let offset = if self.is_question() {
            self.cursor.min(rows.len().saturating_sub(visible))
        } else {
            scrolled(self.cursor, rows.len(), visible)
        };
        let shown = rows.iter().enumerate().skip(offset);
        for (y, (at, row)) in (inner.y..inner.bottom()).zip(shown) {
            let mut x = inner.x + 2;
            for (text, role) in row {
                let rest = Rect::new(x, y, inner.right().saturating_sub(x), 1);
                put_line(buffer, rest, text, *role, theme);
                x = x.saturating_add(u16::try_from(columns(text)).unwrap_or(u16::MAX));
            }
            if at == self.cursor && !self.is_question() {
                mark(inner, y, buffer, theme);
            }
        }
        let below = match rows.len().saturating_sub(offset + visible) {
            0 => String::new(),
            below => format!(" {below} more below "),
        };
        let key =
            if self.is_question() { "y".to_owned() } else { app.ui.keymap.label(Action::Open) };
        let other = match self.subject {
            Subject::Sort => "  a-z select".to_owned(),
            Subject::Theme(_) => {
                format!("  {} save as default", app.ui.keymap.label(Action::Write))
            }
            _ => String::new(),
        };
        let leave = if self.is_question() {
            "n cancel".to_owned()
        } else {
            format!("{} back", app.ui.keymap.label(Action::Back))
        };
        let hint = |other: &str| format!("{below} {key} {verb}{other}  {leave} ");
        let hint = Some(hint(&other))
            .filter(|hint| columns(hint) <= usize::from(inner.width))
            .unwrap_or_else(|| hint(""));
        let style = theme.style(Role::Key);
        put_right(buffer, inner.x, inner.right(), inner.bottom(), &hint, style);
    }
}

/// Returns the menu row of a process column. If the table does not show the column, the row is dimmed and states the
/// reason.
fn column_row(at: usize, app: &App, width: u16) -> Row {
    let column = &PROCESS_COLUMNS[at];
    let is_hidden = app.host.processes.hidden_columns.has(at);
    let needed = min_width(app, at);
    let why_not = match is_hidden || app.host.processes.sort == Some(at) {
        true => None,
        false if app.host.processes.empty_columns().has(at) => Some("no values; ".to_owned()),
        false => (needed > width).then(|| format!("needs {needed} columns; ")),
    };
    // A chosen column without room or values is neither shown nor hidden by the user.
    let mark = match (is_hidden, &why_not) {
        (true, _) => "[ ]",
        (false, Some(_)) => "[-]",
        (false, None) => "[x]",
    };
    let name = format!("{mark} {:<9} ", column.title);
    match why_not {
        Some(why) => vec![(name, Role::Dim), (why, Role::Warn), (column.help.into(), Role::Dim)],
        None => named(name, column.help),
    }
}

/// Returns the mark after the entry that is in effect.
fn current() -> (String, Role) {
    (" (current)".to_owned(), Role::Dim)
}

/// Returns a menu row with a name and its description.
fn named(name: String, help: &str) -> Row {
    vec![(name, Role::Key), (help.to_owned(), Role::Text)]
}

fn height(rows: &[Row]) -> u16 {
    u16::try_from(rows.len() + 2).unwrap_or(u16::MAX)
}
