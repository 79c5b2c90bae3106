//! The help: every key and every word of a screen, from the lists that they are defined in; `/` looks for some of them.

use crossterm::event::{Event as TerminalEvent, KeyCode, KeyEvent};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use tui_input::Input;
use tui_input::backend::crossterm::EventHandler;

use super::action::{ACTIONS, Action, ActionDef, Scope};
use super::app::App;
use super::columns::PROCESS_COLUMNS;
use super::filter::{FIELDS, STATES, SYNTAX};
use super::keymap::{is_enter, show_key};
use super::overlay::{draw_typed, panel};
use super::screens::Screen;
use super::screens::gpu_columns::GPU_COLUMNS;
use super::theme::Role;
use super::widgets::cells::{put, put_right, wrap_words};
use super::widgets::scroll::Scroll;

/// Nobody looks for more.
const MAX_TYPED: usize = 60;

#[derive(Debug, Default)]
pub struct Help {
    scroll: Scroll,
    /// What is looked for; empty shows everything.
    search: Input,
    /// Keys go into the line.
    typing: bool,
}

impl Help {
    /// True when the key was typed.
    pub fn type_key(&mut self, key: KeyEvent) -> bool {
        if !self.typing {
            return false;
        }
        match key.code {
            _ if is_enter(key) => self.typing = false,
            KeyCode::Esc => self.clear(),
            // Movement keys look at what was found.
            KeyCode::Up | KeyCode::Down | KeyCode::PageUp | KeyCode::PageDown => {
                self.typing = false;
                return false;
            }
            KeyCode::Char(_) if self.search.value().chars().count() >= MAX_TYPED => {}
            _ => {
                self.search.handle_event(&TerminalEvent::Key(key));
                self.scroll = Scroll::default();
            }
        }
        true
    }

    /// False when the help is to be closed.
    pub fn act(&mut self, action: Action) -> bool {
        match action {
            Action::Filter => self.typing = true,
            Action::Back if !self.search.value().is_empty() => self.clear(),
            Action::Back | Action::Quit | Action::QuitNow | Action::Help => return false,
            action => {
                self.scroll.act(action);
            }
        }
        true
    }

    fn clear(&mut self) {
        *self = Self::default();
    }

    pub fn draw(&self, app: &App, screen: &dyn Screen, area: Rect, buffer: &mut Buffer) {
        let theme = &app.theme;
        let names: u16 = if area.width >= 60 { 20 } else { 9 };
        let lines = lines(app, screen);
        // As large as for everything, so that it stands still while a word is typed.
        let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
        let title = format!("Help: {}", screen.def().title);
        let inner = panel(&title, 100, height, area, app, buffer);
        let room = usize::from(inner.width.saturating_sub(names));
        let rows = rows(found(lines, self.search.value()), room.max(10));
        let first = self.scroll.first(rows.len(), usize::from(inner.height));
        let below = rows.len().saturating_sub(first + usize::from(inner.height));
        for (y, (name, text)) in (inner.y..inner.bottom()).zip(rows.iter().skip(first)) {
            let (role, width) = if text.is_empty() {
                (Role::Title, inner.width)
            } else {
                (Role::Key, names - 1)
            };
            put(buffer, inner.x, y, name, width, theme.style(role));
            let (x, width) = (inner.x + names, inner.width.saturating_sub(names));
            put(buffer, x, y, text, width, theme.style(Role::Text));
        }
        if rows.is_empty() {
            let text = "no key and no word here has that";
            put(
                buffer,
                inner.x,
                inner.y,
                text,
                inner.width,
                theme.style(Role::Warn),
            );
        }
        self.draw_edge(below, inner, app, buffer);
    }

    /// Into the lower edge: what is typed, or the keys that work here.
    fn draw_edge(&self, below: usize, inner: Rect, app: &App, buffer: &mut Buffer) {
        let line = Rect {
            y: inner.bottom(),
            height: 1,
            ..inner
        };
        let key = app.theme.style(Role::Key);
        if self.typing {
            draw_typed(" look for: ", &self.search, line, app, buffer);
            return;
        }
        let label = |action| app.keymap.label(action);
        let mut hint = String::new();
        if below > 0 {
            let (down, page) = (label(Action::Down), label(Action::PageDown));
            hint = format!(" {below} more lines: {down} {page} ");
        }
        let search = match self.search.value() {
            "" => format!(" {} looks for a word ", label(Action::Filter)),
            words => format!(" {}{words} ", label(Action::Filter)),
        };
        let close = format!(" {} closes ", label(Action::Back));
        let hint = match usize::from(line.width) >= search.len() + hint.len() + close.len() {
            true => hint + &search + &close,
            false => hint + &close,
        };
        put_right(buffer, line.x, line.right(), line.y, &hint, key);
    }
}

/// A line of the help; without a text it is a heading, without anything a blank.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HelpLine {
    name: String,
    text: String,
    /// What it is found by as well: an action by its name in the keymap.
    also: &'static str,
}

fn line(name: impl Into<String>, text: impl Into<String>) -> HelpLine {
    HelpLine {
        name: name.into(),
        text: text.into(),
        also: "",
    }
}

impl HelpLine {
    fn has(&self, wanted: &str) -> bool {
        let texts = [&*self.name, &*self.text, self.also];
        texts
            .iter()
            .any(|text| text.to_lowercase().contains(wanted))
    }
}

/// Lines that hold the text, whatever its case, under their headings; all of them where it is empty.
fn found(lines: Vec<HelpLine>, text: &str) -> Vec<HelpLine> {
    let wanted = text.trim().to_lowercase();
    if wanted.is_empty() {
        return lines;
    }
    let mut found = Vec::new();
    let mut heading = None;
    for line in lines {
        if line.text.is_empty() {
            heading = Some(line).filter(|heading| !heading.name.is_empty());
        } else if line.has(&wanted) {
            found.extend(heading.take());
            found.push(line);
        }
    }
    found
}

/// A sentence that does not fit goes on below, so nothing is cut off.
fn rows(lines: Vec<HelpLine>, room: usize) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    for line in lines {
        let mut parts = wrap_words(&line.text, room).into_iter();
        rows.push((line.name, parts.next().unwrap_or_default()));
        rows.extend(parts.map(|part| (String::new(), part)));
    }
    rows
}

/// Everything: keys from ACTIONS, words from the screen and its tables; first those of this screen. Of a screen that stands
/// alone what it has.
fn lines(app: &App, screen: &dyn Screen) -> Vec<HelpLine> {
    let played = app.recording.is_some();
    let alone = screen.standalone_actions();
    let actions = ACTIONS
        .iter()
        .filter(|def| played || def.scope != Scope::Recording)
        .filter(|def| alone.is_none_or(|its| its.contains(&def.action)));
    let (own, other): (Vec<_>, Vec<_>) =
        actions.partition(|def| alone.is_some() || screen.footer().contains(&def.action));
    let key_line = |def: &ActionDef| {
        let keys: Vec<String> = app
            .keymap
            .keys(def.action)
            .iter()
            .map(|key| show_key(key))
            .collect();
        HelpLine {
            also: def.name,
            ..line(keys.join(" "), def.help)
        }
    };
    let keys = |defs: Vec<&'static ActionDef>| defs.into_iter().map(key_line).collect();
    let words = screen
        .def()
        .glossary
        .iter()
        .map(|(word, text)| line(*word, *text));
    let words_of = format!("WORDS: {}", screen.def().title.to_uppercase());
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
    part(&words_of, words.collect());
    if alone.is_none() {
        part("OTHER KEYS", keys(other));
        part("FILTER", filter_lines());
        part("GPU TABLE", gpu_columns.collect());
        part("PROCESS TABLE", columns.collect());
    }
    lines
}

/// What can be typed behind `/` on a screen.
fn filter_lines() -> Vec<HelpLine> {
    let syntax = SYNTAX.iter().map(|(typed, text)| line(*typed, *text));
    let fields = FIELDS.iter().map(|field| line(field.example, field.help));
    let states = STATES
        .iter()
        .map(|def| line(format!("state:{}", def.name), def.help));
    syntax.chain(fields).chain(states).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_stands_under_its_heading() {
        let sort = HelpLine {
            also: "sort",
            ..line("s", "Order the rows")
        };
        let lines = vec![
            line("KEYS", ""),
            sort.clone(),
            line("q", "Leave"),
            line("", ""),
            line("WORDS", ""),
            line("VRAM", "Device memory"),
            line("SM%", "sorted by share"),
        ];
        let expected = vec![
            line("KEYS", ""),
            sort,
            line("WORDS", ""),
            line("SM%", "sorted by share"),
        ];
        assert_eq!(found(lines.clone(), " sORT "), expected);
        assert_eq!(found(lines.clone(), "vram").len(), 2);
        assert_eq!(found(lines.clone(), "words"), vec![]);
        assert_eq!(found(lines.clone(), " "), lines);
    }
}
