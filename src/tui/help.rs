//! The help overlay: all keys and terms of a screen, generated from their definitions and searchable with `/`.

use crossterm::event::KeyEvent;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::action::{ACTIONS, Action, ActionDef, Scope};
use super::app::App;
use super::columns::PROCESS_COLUMNS;
use super::effect::Effect;
use super::filter::{FIELDS, STATES, SYNTAX};
use super::keymap::show_key;
use super::overlay::{panel, panel_area};
use super::screens::Screen;
use super::screens::gpu_columns::GPU_COLUMNS;
use super::text_field::TextField;
use super::theme::Role;
use super::widgets::cells::{put, put_line, put_right, wrap_words};
use super::widgets::scroll::Scroll;
use crate::tui::widgets::area::row;

/// Actions listed for every screen, besides those of the playback.
const COMMON: [Action; 7] = [
    Action::Up,
    Action::Down,
    Action::Back,
    Action::Why,
    Action::Incidents,
    Action::Help,
    Action::Quit,
];

#[derive(Debug, Default)]
pub struct Help {
    scroll: Scroll,
    /// The search term. An empty term matches everything.
    search: TextField,
    /// False while only the screen's own keys are shown.
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
            Action::Back | Action::Quit | Action::Help => return Effect::Close,
            action => {
                let page = self.page(app, screen, area);
                let shown = usize::from(page.inner.height);
                self.scroll.act(action, page.rows.len(), shown);
            }
        }
        Effect::Done
    }

    pub fn draw(&self, app: &App, screen: &dyn Screen, area: Rect, buffer: &mut Buffer) {
        let theme = &app.theme;
        let Page { names, height, inner, rows } = self.page(app, screen, area);
        let title = format!("Help: {}", screen.def().title);
        panel(&title, WIDTH, height, area, app, buffer);
        let first = self.scroll.first(rows.len(), usize::from(inner.height));
        let below = rows.len().saturating_sub(first + usize::from(inner.height));
        for (y, (name, text)) in (inner.y..inner.bottom()).zip(rows.iter().skip(first)) {
            let (role, width) =
                if text.is_empty() { (Role::Title, inner.width) } else { (Role::Key, names - 1) };
            put(buffer, inner.x, y, name, width, theme.style(role));
            let (x, width) = (inner.x + names, inner.width.saturating_sub(names));
            put(buffer, x, y, text, width, theme.style(Role::Text));
        }
        if rows.is_empty() {
            let text = "No key or term matches";
            put_line(buffer, inner, text, Role::Warn, theme);
        }
        self.draw_edge(below, inner, app, buffer);
    }

    /// Returns the help rows that match the search term, wrapped to fit an area.
    fn page(&self, app: &App, screen: &dyn Screen, area: Rect) -> Page {
        let names: u16 = if area.width >= 60 { 20 } else { 9 };
        let lines = lines(app, screen, self.shows_all || self.search.is_open());
        // Compute the size without the search term, so that the box does not move during typing.
        let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
        let (_, inner) = panel_area(WIDTH, height, area);
        let room = usize::from(inner.width.saturating_sub(names));
        let rows = rows(matching(lines, self.search.text()), room.max(10));
        Page { names, height, inner, rows }
    }

    /// Draws the lower edge of the help box: the search term, or the available keys.
    fn draw_edge(&self, below: usize, inner: Rect, app: &App, buffer: &mut Buffer) {
        let line = row(inner, inner.bottom());
        let key = app.theme.style(Role::Key);
        if self.search.is_typing() {
            self.search.draw(" search: ", line, app, buffer);
            return;
        }
        let label = |action| app.keymap.label(action);
        let mut hint = String::new();
        if below > 0 {
            let (down, page) = (label(Action::Down), label(Action::PageDown));
            hint = format!(" {below} more below: {down} {page} ");
        }
        let search = match self.search.text() {
            "" => format!(" {} search ", label(Action::Filter)),
            words => format!(" {}{words} ", label(Action::Filter)),
        };
        if !self.shows_all && !self.search.is_open() {
            hint += &format!(" {} more ", label(Action::Help));
        }
        let close = format!(" {} close ", label(Action::Back));
        let hint = match usize::from(line.width) >= search.len() + hint.len() + close.len() {
            true => hint + &search + &close,
            false => hint + &close,
        };
        put_right(buffer, line.x, line.right(), line.y, &hint, key);
    }
}

/// Width of the help box in columns.
const WIDTH: u16 = 100;

/// The help text and the box in which it is drawn.
struct Page {
    names: u16,
    height: u16,
    /// Interior of the help box.
    inner: Rect,
    rows: Vec<(String, String)>,
}

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

/// Wraps the help texts instead of truncating them.
fn rows(lines: Vec<HelpLine>, room: usize) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    for line in lines {
        let mut parts = wrap_words(&line.text, room).into_iter();
        rows.push((line.name, parts.next().unwrap_or_default()));
        rows.extend(parts.map(|part| (String::new(), part)));
    }
    rows
}

/// Returns the help lines: the keys of this screen and, with `shows_all`, its terms, all other keys, and the filter
/// syntax. A standalone screen lists only its own keys and terms.
fn lines(app: &App, screen: &dyn Screen, shows_all: bool) -> Vec<HelpLine> {
    let played = app.recording.is_some();
    let alone = screen.standalone_actions();
    let actions = ACTIONS
        .iter()
        .filter(|def| played || def.scope != Scope::Recording)
        .filter(|def| alone.is_none_or(|its| its.contains(&def.action)));
    let is_own = |def: &&ActionDef| {
        alone.is_some()
            || def.scope == Scope::Recording
            || screen.footer().contains(&def.action)
            || COMMON.contains(&def.action)
    };
    let (own, other): (Vec<_>, Vec<_>) = actions.partition(is_own);
    let is_playback = |def: &&ActionDef| played && def.scope == Scope::Recording;
    // On a screen with a memory map, the arrow keys move its cursor.
    let is_playback_key =
        |key: &&String| !(screen.moves_sideways() && matches!(key.as_str(), "left" | "right"));
    let playback = ACTIONS.iter().filter(is_playback).flat_map(|def| app.keymap.keys(def.action));
    let playback: Vec<&String> = playback.filter(is_playback_key).collect();
    let key_line = |def: &ActionDef| {
        // Omit a key during playback if a playback binding takes precedence.
        let is_its = |key: &&String| playback.contains(key) == (def.scope == Scope::Recording);
        let keys = app.keymap.keys(def.action).iter().filter(is_its);
        let keys: Vec<String> = keys.map(|key| show_key(key)).collect();
        HelpLine { alias: def.name, ..line(keys.join(" "), def.help) }
    };
    let has_key = |line: &HelpLine| !line.name.is_empty();
    let keys = |defs: Vec<&'static ActionDef>| {
        let lines = defs.into_iter().map(key_line);
        lines.filter(has_key).collect()
    };
    let words = screen.def().glossary.iter().map(|(word, text)| line(*word, *text));
    let terms_of = format!("TERMS: {}", screen.def().title.to_uppercase());
    let gpu_columns = GPU_COLUMNS.iter().map(|c| line(c.title, c.help));
    let columns = PROCESS_COLUMNS.iter().map(|c| line(c.title, c.help));
    let mut lines = Vec::new();
    let mut part = |heading: &str, list: Vec<HelpLine>| {
        if !lines.is_empty() {
            lines.push(line("", ""));
        }
        lines.push(line(heading, ""));
        lines.extend(list);
    };
    part("KEYS", keys(own));
    if !shows_all {
        return lines;
    }
    part(&terms_of, words.collect());
    if alone.is_none() {
        part("OTHER KEYS", keys(other));
        part("FILTER", filter_lines());
        part("GPU TABLE", gpu_columns.collect());
        part("PROCESS TABLE", columns.collect());
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
