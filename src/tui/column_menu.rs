//! The menu that chooses the columns of the process table.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use super::action::Action;
use super::app::App;
use super::columns::PROCESS_COLUMNS;
use super::overlay::{panel, panel_area, pressed_row};
use super::screens::moved;
use super::theme::Role;
use super::widgets::cells::{fit, put_all, put_right};
use super::widgets::table::{mark, scrolled};

/// The menu's state.
#[derive(Debug, Default)]
pub struct ColumnMenu {
    cursor: usize,
}

/// This column identifies a row, so it cannot be hidden.
const ALWAYS_SHOWN: &str = "PID";

/// Returns the indices of the columns that can be hidden.
fn choices() -> Vec<usize> {
    let columns = PROCESS_COLUMNS.iter().enumerate();
    let others = columns.filter(|(_, column)| column.title != ALWAYS_SHOWN);
    others.map(|(i, _)| i).collect()
}

/// Returns the width and height of the menu's box.
fn size() -> (u16, u16) {
    (76, u16::try_from(choices().len() + 2).unwrap_or(u16::MAX))
}

impl ColumnMenu {
    /// Performs an action. Returns false if the menu closes.
    pub fn act(&mut self, action: Action, app: &mut App) -> bool {
        let choices = choices();
        match action {
            Action::Back | Action::Quit | Action::QuitNow | Action::Columns => return false,
            Action::Open | Action::Tag => {
                if let Some(column) = choices.get(self.cursor) {
                    app.hidden_columns.toggle(*column);
                }
            }
            action => {
                if let Some(at) = moved(self.cursor, choices.len(), 10, action) {
                    self.cursor = at;
                }
            }
        }
        true
    }

    /// Handles a click: a row toggles its column.
    pub fn click(&mut self, position: Position, area: Rect) -> Option<Action> {
        let (width, height) = size();
        let (_, inner) = panel_area(width, height, area);
        self.cursor = pressed_row(position, inner, self.cursor, choices().len())?;
        Some(Action::Open)
    }

    pub fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let theme = &app.theme;
        let choices = choices();
        let (width, height) = size();
        let inner = panel("Process columns", width, height, area, app, buffer);
        let offset = scrolled(self.cursor, choices.len(), usize::from(inner.height));
        let shown = choices.iter().enumerate().skip(offset);
        for (y, (i, column)) in (inner.y..inner.bottom()).zip(shown) {
            let shown = if app.hidden_columns.has(*column) {
                "[ ]"
            } else {
                "[x]"
            };
            let column = &PROCESS_COLUMNS[*column];
            let name = format!("{shown} {:<8} ", column.title);
            let room = usize::from(inner.width).saturating_sub(name.len() + 3);
            let pieces = [
                (name.as_str(), theme.style(Role::Key)),
                (
                    &*fit(column.help, room, theme.glyphs.ellipsis),
                    theme.style(Role::Text),
                ),
            ];
            put_all(buffer, inner.x + 2, y, inner.right(), &pieces);
            if i == self.cursor {
                mark(inner, y, buffer, theme);
            }
        }
        let hint = format!(
            " {} toggle  {} close ",
            app.keymap.label(Action::Open),
            app.keymap.label(Action::Back)
        );
        let style = theme.style(Role::Key);
        put_right(buffer, inner.x, inner.right(), inner.bottom(), &hint, style);
    }
}
