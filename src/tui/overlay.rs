//! Overlays drawn over a screen: the help, menus and input lines.

use std::collections::BTreeSet;

use crossterm::event::{KeyCode, KeyEvent};
use gputop_model::process::ProcessKey;
use gputop_model::protocol::Request;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use super::action::Action;
use super::app::App;
use super::help::Help;
use super::keymap::is_enter;
use super::menu::Menu;
use super::screen::{Effect, Screen};
use super::text_field::TextField;
use super::theme::Role;
use super::widgets::cells::put_right;
use crate::dashboard::filter::{Filter, FilterError};
use crate::export::text_width::columns;
use crate::tui::widgets::area::row;

/// Maximum length of a filter, in characters. Excess text is dropped.
const MAX_FILTER_CHARS: usize = 200;
/// Maximum length of a path, equal to the kernel's limit (`PATH_MAX`).
const MAX_PATH_CHARS: usize = 4_096;

#[derive(Debug)]
pub enum Overlay {
    Help(Help),
    Menu(Menu),
    Filter {
        field: TextField,
        previous: Filter,
        /// Error in the typed filter. While it is set, the last valid filter stays active.
        error: Option<FilterError>,
    },
    /// Prompts for the path of a log for a process.
    Watch {
        process: ProcessKey,
        field: TextField,
    },
}

impl Overlay {
    pub fn filter(app: &App) -> Self {
        Self::typing_filter(app.host.processes.filter.to_string(), app)
    }

    /// Prompts for a filter that already contains the term for a user, to be completed.
    pub fn user_filter(app: &App) -> Self {
        Self::typing_filter(
            format!("{} {USER_TERM}", app.host.processes.filter).trim_start().to_owned(),
            app,
        )
    }

    fn typing_filter(text: String, app: &App) -> Self {
        Self::Filter {
            field: TextField::typing(text),
            previous: app.host.processes.filter.clone(),
            error: None,
        }
    }

    pub fn watch(process: ProcessKey) -> Self {
        Self::Watch { process, field: TextField::typing(String::new()) }
    }

    /// Handles a key while text is being typed. Returns `None` if the key is an action.
    pub fn type_key(&mut self, key: KeyEvent, app: &mut App) -> Option<Effect> {
        match self {
            Self::Help(help) => help.type_key(key).then_some(Effect::Done),
            Self::Menu(menu) => menu.type_key(key),
            Self::Filter { field, previous, error } => {
                match key.code {
                    // Keep the input open while the filter is invalid.
                    _ if is_enter(key) && error.is_some() => return Some(Effect::Done),
                    _ if is_enter(key) => return Some(Effect::Close),
                    KeyCode::Esc => {
                        app.host.processes.use_filter(std::mem::take(previous));
                        return Some(Effect::Close);
                    }
                    _ => field.edit(key, MAX_FILTER_CHARS),
                }
                let text: String = field.text().chars().filter(|c| !c.is_control()).collect();
                *error = app.host.processes.set_filter(&text).err();
                Some(Effect::Done)
            }
            Self::Watch { process, field } => {
                let (process, path) = (*process, field.text().trim().to_owned());
                match key.code {
                    KeyCode::Esc => return Some(Effect::Close),
                    _ if is_enter(key) && path.is_empty() => return Some(Effect::Close),
                    _ if is_enter(key) => {
                        return Some(Effect::Request(Request::Watch { process, path }));
                    }
                    _ => field.edit(key, MAX_PATH_CHARS),
                }
                Some(Effect::Done)
            }
        }
    }

    /// Performs an action for an overlay drawn over `screen` in `area`.
    pub fn act(
        &mut self,
        action: Action,
        app: &mut App,
        screen: &dyn Screen,
        area: Rect,
    ) -> Effect {
        match self {
            Self::Help(help) => help.act(action, app, screen, area),
            Self::Menu(menu) => menu.act(action, app),
            // Input lines support only actions that close them. Other actions have no effect.
            Self::Filter { .. } | Self::Watch { .. } => match action {
                Action::Back | Action::Quit => Effect::Close,
                _ => Effect::Done,
            },
        }
    }

    /// Handles a click, which selects a menu row. Returns the action to perform, if any.
    pub fn click(&mut self, position: Position, area: Rect, app: &App) -> Option<Action> {
        match self {
            Self::Menu(menu) => menu.click(position, area, app),
            Self::Help(_) | Self::Filter { .. } | Self::Watch { .. } => None,
        }
    }

    pub fn draw(&self, app: &App, screen: &dyn Screen, area: Rect, buffer: &mut Buffer) {
        match self {
            Self::Help(help) => help.draw(app, screen, area, buffer),
            Self::Menu(menu) => menu.draw(app, area, buffer),
            Self::Filter { field, error, .. } => {
                draw_filter(app, field, error.as_ref(), area, buffer);
            }
            Self::Watch { process, field } => {
                let label = format!(" log of {}: ", process.pid);
                let note = (" enter a path ".to_owned(), Role::Dim);
                draw_input(app, &label, field, note, area, buffer);
            }
        }
    }
}

/// Example terms shown while the filter is empty. The help lists all terms.
const FILTER_EXAMPLES: &str = " train  user:me  gpu:0  vram>10g  -state:dead ";

/// Filter term for the processes of a user, without the name.
const USER_TERM: &str = "user:";

/// Lists the users that can be typed: ` ana  ben  me `.
fn users_text(app: &App) -> String {
    let users = app.host.processes.all_rows.iter().filter_map(|row| row.facts()?.user.value());
    let users: BTreeSet<&str> = users.map(String::as_str).chain(["me"]).collect();
    format!(" {} ", Vec::from_iter(users).join("  "))
}

fn draw_filter(
    app: &App,
    field: &TextField,
    error: Option<&FilterError>,
    area: Rect,
    buffer: &mut Buffer,
) {
    let note = match error {
        Some(error) => (format!(" {error} "), Role::Bad),
        None => {
            let shows = format!(
                " {} of {} ",
                app.host.processes.rows.len(),
                app.host.processes.all_rows.len()
            );
            let hint = match field.text() {
                "" => FILTER_EXAMPLES.to_owned(),
                text if text.ends_with(USER_TERM) => users_text(app),
                _ => String::new(),
            };
            let needed = field.text().len() + hint.len() + shows.len() + 20;
            let has_room = usize::from(area.width) >= needed;
            (if has_room { hint + &shows } else { shows }, Role::Dim)
        }
    };
    draw_input(app, " filter: ", field, note, area, buffer);
}

/// Draws an input line at the bottom of the area, with a note on the right.
fn draw_input(
    app: &App,
    label: &str,
    field: &TextField,
    (note, role): (String, Role),
    area: Rect,
    buffer: &mut Buffer,
) {
    let y = area.bottom().saturating_sub(1);
    let line = row(area, y);
    let theme = &app.ui.theme;
    let caret = field.draw(label, line, app, buffer);
    // Show an error above the input line if it does not fit beside the input.
    let fits = usize::from(area.right().saturating_sub(caret + 1)) >= columns(&note);
    let y = if fits || role == Role::Dim { y } else { y.saturating_sub(1) };
    let from = if fits { caret + 1 } else { area.x };
    put_right(buffer, from, area.right(), y, &note, theme.style(role));
}
