//! The help overlay, generated from the definitions of actions, columns and terms: first a page with this screen's keys
//! and columns, then everything. It is searchable with `/`.

use crossterm::event::KeyEvent;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::action::{ACTIONS, Action, ActionDef, Scope};
use super::app::App;
use super::chrome;
use super::keymap::show_key;
use super::screen::{Effect, STANDALONE_ACTIONS, Screen};
use super::screens::process_table::shows;
use super::text_field::TextField;
use super::theme::Role;
use super::widgets::cells::{put, put_line, put_right, wrap_words};
use super::widgets::panel::{panel, panel_area};
use super::widgets::scroll::Scroll;
use crate::dashboard::filter::{FIELDS, STATES, SYNTAX};
use crate::dashboard::gpu_columns::GPU_COLUMNS;
use crate::dashboard::memory_parts::MemoryPart;
use crate::dashboard::process_columns::PROCESS_COLUMNS;
use crate::dashboard::rows::ProcessRow;
use crate::dashboard::table::Column;
use crate::export::text_width::columns;
use crate::tui::widgets::area::row;

/// Actions listed for every screen, besides those of the playback.
const COMMON: [Action; 8] = [
    Action::Up,
    Action::Down,
    Action::Back,
    Action::Why,
    Action::Incidents,
    Action::Now,
    Action::Help,
    Action::Quit,
];

#[derive(Debug, Default)]
pub struct Help {
    scroll: Scroll,
    /// The search term. An empty term matches everything.
    search: TextField,
    /// False while only the page with the screen's own keys and columns is shown.
    shows_all: bool,
}

impl Help {
    /// Handles a key while the search term is being typed. Returns false if the key was not used.
    pub fn type_key(&mut self, key: KeyEvent) -> bool {
        let is_consumed = self.search.type_key(key);
        if is_consumed {
            self.scroll = Scroll::default();
        }
        is_consumed
    }

    pub fn act(&mut self, action: Action, app: &App, screen: &dyn Screen, area: Rect) -> Effect {
        match action {
            Action::Filter => self.search.start(),
            Action::Back if !self.search.text().is_empty() => self.search.clear(),
            Action::Help if !self.shows_all => {
                *self = Self { shows_all: true, ..Self::default() };
            }
            Action::Help => {}
            Action::Back | Action::Quit => return Effect::Close,
            action => {
                let page = self.page(app, screen, area);
                self.scroll.act(action, page.rows.len(), usize::from(page.inner.height));
            }
        }
        Effect::Done
    }

    pub fn draw(&self, app: &App, screen: &dyn Screen, area: Rect, buffer: &mut Buffer) {
        let theme = &app.ui.theme;
        let Page { height, inner, rows } = self.page(app, screen, area);
        let title = format!("Help: {}", screen.def().title);
        panel(&title, WIDTH, height, area, theme, buffer);
        let first = self.scroll.first(rows.len(), usize::from(inner.height));
        let below = rows.len().saturating_sub(first + usize::from(inner.height));
        for (y, pieces) in (inner.y..inner.bottom()).zip(rows.iter().skip(first)) {
            for (x, text, role) in pieces {
                let (x, width) = (inner.x + x, inner.width.saturating_sub(*x));
                put(buffer, x, y, text, width, theme.style(*role));
            }
        }
        if rows.is_empty() {
            put_line(buffer, inner, "No key or term matches", Role::Warn, theme);
        }
        self.draw_edge(below, inner, app, buffer);
    }

    /// Returns the help rows that match the search term, wrapped to fit an area.
    fn page(&self, app: &App, screen: &dyn Screen, area: Rect) -> Page {
        if !self.shows_all && !self.search.is_open() {
            return own_page(app, screen, area);
        }
        let names: u16 = if area.width >= 60 { 20 } else { 9 };
        let lines = lines(app, screen);
        // Compute the size without the search term, so that the box does not move during typing.
        let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
        let (_, inner) = panel_area(WIDTH, height, area);
        let rows = rows(matching(lines, self.search.text()), names, inner.width);
        Page { height, inner, rows }
    }

    /// Draws the lower edge of the help box: the search term, or the available keys.
    fn draw_edge(&self, below: usize, inner: Rect, app: &App, buffer: &mut Buffer) {
        let line = row(inner, inner.bottom());
        let key = app.ui.theme.style(Role::Key);
        if self.search.is_typing() {
            self.search.draw(" search: ", line, app, buffer);
            return;
        }
        let label = |action| app.ui.keymap.label(action);
        let mut hint = String::new();
        if below > 0 {
            hint = match line.width {
                ..60 => format!(" {below} more below "),
                _ => {
                    let (down, page) = (label(Action::Down), label(Action::PageDown));
                    format!(" {below} more below: {down} {page} ")
                }
            };
        }
        let search = match self.search.text() {
            "" => format!(" {} search ", label(Action::Filter)),
            words => format!(" {}{words} ", label(Action::Filter)),
        };
        if !self.shows_all && !self.search.is_open() {
            hint += &format!(" {} more ", label(Action::Help));
        }
        let close = format!(" {} close ", label(Action::Back));
        let hint = if usize::from(line.width) >= search.len() + hint.len() + close.len() {
            hint + &search + &close
        } else {
            hint + &close
        };
        put_right(buffer, line.x, line.right(), line.y, &hint, key);
    }
}

/// Width of the help box in columns.
const WIDTH: u16 = 100;

/// The help text and the box in which it is drawn.
struct Page {
    height: u16,
    /// Interior of the help box.
    inner: Rect,
    rows: Vec<Pieces>,
}

/// The texts of a row, each with its column relative to the start of the row.
type Pieces = Vec<(u16, String, Role)>;

/// A line in the help. It is a heading if it has no text, or blank if it has neither name nor text.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HelpLine {
    name: String,
    text: String,
    /// Additional search term that finds this line: the name of an action in the keymap.
    alias: &'static str,
}

fn line(name: impl Into<String>, text: impl Into<String>) -> HelpLine {
    HelpLine { name: name.into(), text: text.into(), alias: "" }
}

impl HelpLine {
    fn contains(&self, term: &str) -> bool {
        let texts = [&*self.name, &*self.text, self.alias];
        texts.iter().any(|text| text.to_lowercase().contains(term))
    }
}

/// Returns the lines that contain the search term, ignoring case, with their headings. An empty term matches all lines.
fn matching(lines: Vec<HelpLine>, term: &str) -> Vec<HelpLine> {
    // Accept the American spelling, because the help texts use the British one.
    let term = term.trim().to_lowercase().replace("color", "colour");
    if term.is_empty() {
        return lines;
    }
    let mut found = Vec::new();
    let mut heading = None;
    for line in lines {
        if line.text.is_empty() {
            heading = Some(line).filter(|heading| !heading.name.is_empty());
        } else if line.contains(&term) {
            found.extend(heading.take());
            found.push(line);
        }
    }
    found
}

/// Arranges help lines in two columns, of which the left one has a width of `names`. Wraps long texts.
fn rows(lines: Vec<HelpLine>, names: u16, width: u16) -> Vec<Pieces> {
    let room = usize::from(width.saturating_sub(names)).max(10);
    let mut rows = Vec::new();
    for line in lines {
        let role = if line.text.is_empty() { Role::Title } else { Role::Key };
        let mut parts = wrap_words(&line.text, room).into_iter();
        let text = parts.next().unwrap_or_default();
        rows.push(vec![(0, line.name, role), (names, text, Role::Text)]);
        rows.extend(parts.map(|part| vec![(names, part, Role::Text)]));
    }
    rows
}

/// Arranges keys and their labels side by side, in as many columns as fit.
fn grid(keys: &[HelpLine], width: u16) -> Vec<Pieces> {
    let widest = |text: fn(&HelpLine) -> &str| keys.iter().map(|key| columns(text(key))).max();
    let names = widest(|key| &key.name).unwrap_or(0) + 1;
    let cell = names + widest(|key| &key.text).unwrap_or(0) + 2;
    let across = (usize::from(width) + 2) / cell;
    let down = keys.len().div_ceil(across.max(1));
    let column_of = |at: usize| u16::try_from(at).unwrap_or(u16::MAX);
    let row = |y| {
        let pieces = keys.iter().skip(y).step_by(down).enumerate().flat_map(|(x, key)| {
            let (name, text) = (column_of(x * cell), column_of(x * cell + names));
            [(name, key.name.clone(), Role::Key), (text, key.text.clone(), Role::Text)]
        });
        pieces.collect()
    };
    (0..down).map(row).collect()
}

/// Returns the page with the keys of this screen, followed by its columns or terms.
fn own_page(app: &App, screen: &dyn Screen, area: Rect) -> Page {
    let (own, _) = actions(app, screen);
    let own = own.into_iter().filter(|def| screen.has_use_for(def.action, app));
    let keys = key_lines(own, app, screen, |def| chrome::footer_word(def.action, screen, app), 2);
    let (_, inner) = panel_area(WIDTH, area.height, area);
    let mut rows = vec![heading("KEYS")];
    rows.extend(grid(&keys, inner.width));
    let (title, terms): (_, Vec<_>) = if screen.shows_all_processes() {
        rows.push(Vec::new());
        rows.push(heading("MEMORY BAR"));
        rows.push(memory_bar(app));
        let of_gpus = GPU_COLUMNS.iter().filter(|column| is_unclear(column.title));
        let of_processes = shown_columns(app, area.width);
        ("COLUMNS", of_gpus.map(column_line).chain(of_processes.map(column_line)).collect())
    } else {
        ("TERMS", term_lines(screen))
    };
    let names = terms.iter().map(|term| columns(&term.name)).max().unwrap_or(0) + 1;
    let terms = self::rows(terms, u16::try_from(names).unwrap_or(u16::MAX), inner.width);
    if !terms.is_empty() {
        // One line decides whether the page has to scroll.
        if rows.len() + 1 + terms.len() != usize::from(inner.height) {
            rows.push(Vec::new());
        }
        rows.push(heading(title));
        rows.extend(terms);
    }
    let height = u16::try_from(rows.len() + 2).unwrap_or(u16::MAX);
    let (_, inner) = panel_area(WIDTH, height, area);
    Page { height, inner, rows }
}

fn heading(text: &str) -> Pieces {
    vec![(0, text.to_owned(), Role::Title)]
}

/// Explains the colours and shades of a memory bar.
fn memory_bar(app: &App) -> Pieces {
    const PARTS: [(MemoryPart, &str); 6] = [
        (MemoryPart::Allocated, "allocated (tensors)"),
        (MemoryPart::Cached, "cache"),
        (MemoryPart::Other, "other"),
        (MemoryPart::Unattributed, "unattributed"),
        (MemoryPart::Driver, "driver"),
        (MemoryPart::Free, "free"),
    ];
    let mut pieces = Vec::new();
    let mut x = 0;
    for (part, words) in PARTS {
        let glyph = app.ui.theme.memory_glyph(part);
        pieces.push((x, glyph.to_owned(), part.into()));
        pieces.push((x + 2, words.to_owned(), Role::Text));
        x += u16::try_from(columns(words)).unwrap_or(0) + 4;
    }
    pieces
}

/// Columns whose titles say enough.
const SELF_EXPLANATORY: [&str; 10] =
    ["GPU", "PID", "USER", "VRAM", "COMMAND", "VRAM GiB", "W", "TEMP", "MHZ", "AGE"];

fn is_unclear(title: &str) -> bool {
    !SELF_EXPLANATORY.contains(&title)
}

/// Returns the columns of the process table at this width, except those whose titles say enough.
fn shown_columns(app: &App, width: u16) -> impl Iterator<Item = &'static Column<ProcessRow>> {
    let is_shown = move |column: &&Column<ProcessRow>| shows(app, column.title, width);
    PROCESS_COLUMNS.iter().filter(|column| is_unclear(column.title)).filter(is_shown)
}

fn column_line<T>(column: &Column<T>) -> HelpLine {
    line(column.title, column.help)
}

fn term_lines(screen: &dyn Screen) -> Vec<HelpLine> {
    screen.def().glossary.iter().map(|(word, text)| line(*word, *text)).collect()
}

/// Returns the actions of this screen, and all others that also work here. A standalone screen has only its own ones.
fn actions(app: &App, screen: &dyn Screen) -> (Vec<&'static ActionDef>, Vec<&'static ActionDef>) {
    let alone = screen.standalone_actions();
    let actions = ACTIONS
        .iter()
        .filter(|def| app.host.recording.is_some() || def.scope != Scope::Recording)
        .filter(|def| {
            let has = |list: &[Action]| list.contains(&def.action);
            alone.is_none_or(|own| has(own) || has(STANDALONE_ACTIONS))
        });
    actions.partition(|def| {
        alone.is_some()
            || def.scope == Scope::Recording
            || screen.footer().contains(&def.action)
            || COMMON.contains(&def.action)
    })
}

/// Returns at most `count` keys of each action with its text. Omits actions without a key.
fn key_lines(
    defs: impl IntoIterator<Item = &'static ActionDef>,
    app: &App,
    screen: &dyn Screen,
    text: impl Fn(&ActionDef) -> &'static str,
    count: usize,
) -> Vec<HelpLine> {
    let played = app.host.recording.is_some();
    let is_playback = |def: &&ActionDef| played && def.scope == Scope::Recording;
    // On a screen with a memory map, the arrow keys move its cursor.
    let is_playback_key =
        |key: &&String| !(screen.moves_sideways() && matches!(key.as_str(), "left" | "right"));
    let playback =
        ACTIONS.iter().filter(is_playback).flat_map(|def| app.ui.keymap.keys(def.action));
    let playback: Vec<&String> = playback.filter(is_playback_key).collect();
    let key_line = |def: &ActionDef| {
        // Omit a key during playback if a playback binding takes precedence.
        let is_its = |key: &&String| playback.contains(key) == (def.scope == Scope::Recording);
        let keys: Vec<&String> = app.ui.keymap.keys(def.action).iter().filter(is_its).collect();
        let keys: Vec<String> = match def.action {
            Action::CopyFix if keys.len() > count => vec![app.ui.keymap.label(def.action)],
            _ => keys.into_iter().take(count).map(|key| show_key(key)).collect(),
        };
        HelpLine { alias: def.name, ..line(keys.join(" "), text(def)) }
    };
    defs.into_iter().map(key_line).filter(|line| !line.name.is_empty()).collect()
}

/// Returns all help lines: the keys of this screen, its terms, all other keys, the filter syntax, and the columns. A
/// standalone screen lists only its own keys and terms.
fn lines(app: &App, screen: &dyn Screen) -> Vec<HelpLine> {
    let (own, other) = actions(app, screen);
    let keys = |defs| key_lines(defs, app, screen, |def| def.help, usize::MAX);
    let terms_of = format!("TERMS: {}", screen.def().title.to_uppercase());
    let mut lines = Vec::new();
    let mut part = |heading: &str, list: Vec<HelpLine>| {
        if !lines.is_empty() {
            lines.push(line("", ""));
        }
        lines.push(line(heading, ""));
        lines.extend(list);
    };
    part("KEYS", keys(own));
    part(&terms_of, term_lines(screen));
    if screen.standalone_actions().is_none() {
        part("OTHER KEYS", keys(other));
        part("FILTER", filter_lines());
        part("GPU TABLE", GPU_COLUMNS.iter().map(column_line).collect());
        part("PROCESS TABLE", PROCESS_COLUMNS.iter().map(column_line).collect());
    }
    lines
}

fn filter_lines() -> Vec<HelpLine> {
    let syntax = SYNTAX.iter().map(|(typed, text)| line(*typed, *text));
    let fields = FIELDS.iter().map(|field| line(field.example, field.help));
    let states = STATES.iter().map(|def| line(format!("state:{}", def.name), def.help));
    syntax.chain(fields).chain(states).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_results_keep_their_headings() {
        let sort = HelpLine { alias: "sort", ..line("s", "Order the rows") };
        let lines = vec![
            line("KEYS", ""),
            sort.clone(),
            line("q", "Quit"),
            line("", ""),
            line("TERMS", ""),
            line("VRAM", "Device memory"),
            line("SM%", "sorted by share"),
        ];
        let expected =
            vec![line("KEYS", ""), sort, line("TERMS", ""), line("SM%", "sorted by share")];
        assert_eq!(matching(lines.clone(), " sORT "), expected);
        assert_eq!(matching(lines.clone(), "vram").len(), 2);
        assert_eq!(matching(lines.clone(), "terms"), vec![]);
        assert_eq!(matching(lines.clone(), " "), lines);
    }
}
