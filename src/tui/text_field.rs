//! A line of user-typed text, such as a filter or a search term.

use crossterm::event::{Event, KeyCode, KeyEvent};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::widgets::{Clear, Widget};
use tui_input::Input;
use tui_input::backend::crossterm::EventHandler;

use super::app::App;
use super::keymap::is_enter;
use super::theme::Role;
use super::widgets::cells::put;

/// Maximum length of a filter or a search term in characters. Text beyond it is dropped.
const MAX_CHARS: usize = 200;

#[derive(Debug, Default)]
pub struct TextField {
    input: Input,
    is_typing: bool,
}

impl TextField {
    /// Returns a field with this text, in editing mode.
    pub fn typing(text: String) -> Self {
        Self { input: Input::from(text), is_typing: true }
    }

    pub fn text(&self) -> &str {
        self.input.value()
    }

    pub fn is_typing(&self) -> bool {
        self.is_typing
    }

    /// Returns true if the field must be shown, because it is being edited or is not empty.
    pub fn is_open(&self) -> bool {
        self.is_typing || !self.text().is_empty()
    }

    pub fn start(&mut self) {
        self.is_typing = true;
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Handles a key while a search term is being typed: Enter accepts the term, Esc clears it. Returns false if the
    /// key must be handled as an action instead. Movement keys also end the input.
    pub fn type_key(&mut self, key: KeyEvent) -> bool {
        if !self.is_typing {
            return false;
        }
        match key.code {
            _ if is_enter(key) => self.is_typing = false,
            KeyCode::Esc => self.clear(),
            KeyCode::Up | KeyCode::Down | KeyCode::PageUp | KeyCode::PageDown => {
                self.is_typing = false;
                return false;
            }
            _ => self.edit(key, MAX_CHARS),
        }
        true
    }

    /// Handles an editing key. Ignores new characters once the text has `max_chars` characters.
    pub fn edit(&mut self, key: KeyEvent, max_chars: usize) {
        let is_full = self.text().chars().count() >= max_chars;
        match key.code {
            KeyCode::Char(c) if is_full || c.is_control() => {}
            _ => drop(self.input.handle_event(&Event::Key(key))),
        }
    }

    /// Draws the label and the text, with the caret as a cell in reverse video. Returns the caret's column.
    pub fn draw(&self, label: &str, line: Rect, app: &App, buffer: &mut Buffer) -> u16 {
        Clear.render(line, buffer);
        let (theme, y) = (&app.ui.theme, line.y);
        let left = put(buffer, line.x, y, label, line.width, theme.style(Role::Key));
        let width = line.width.saturating_sub(left);
        let skip = self.input.visual_scroll(usize::from(width.saturating_sub(1)));
        let shown: String = self.text().chars().skip(skip).collect();
        put(buffer, line.x + left, y, &shown, width, theme.style(Role::Text));
        let at = self.input.visual_cursor().saturating_sub(skip);
        let caret = line.x + left + u16::try_from(at).unwrap_or(0);
        if caret < line.right() {
            let cell = Rect::new(caret, y, 1, 1).intersection(buffer.area);
            buffer.set_style(cell, theme.style(Role::Banner));
        }
        caret
    }
}
