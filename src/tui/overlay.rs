//! Overlays: the help, menus, input lines, and copied text.

use crossterm::event::{Event as TerminalEvent, KeyCode, KeyEvent};
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::widgets::{Clear, Widget};
use tui_input::Input;
use tui_input::backend::crossterm::EventHandler;

use super::action::Action;
use super::app::App;
use super::clipboard::Copied;
use super::column_menu::ColumnMenu;
use super::columns::PROCESS_COLUMNS;
use super::filter::{Filter, FilterError};
use super::help::Help;
use super::keymap::is_enter;
use super::probe_menu::ProbeMenu;
use super::screens::{Screen, moved};
use super::signal_menu::SignalMenu;
use super::theme::Role;
use super::widgets::cells::{columns, put, put_all, put_right, wrap_anywhere};
use super::widgets::table::{mark, scrolled};
use crate::model::process::ProcessKey;
use crate::protocol::Request;

/// Maximum length of a filter, in characters. The rest of a longer paste is dropped.
const MAX_FILTER_CHARS: usize = 200;

/// An overlay on top of a screen.
#[derive(Debug)]
pub enum Overlay {
    Help(Help),
    /// The sort menu. Row 0 is the default order.
    Sort {
        cursor: usize,
    },
    Signal(SignalMenu),
    Columns(ColumnMenu),
    Probe(ProbeMenu),
    /// A copied text, shown so that it can be selected by hand if the clipboard did not accept it.
    Sent(Copied),
    Filter {
        input: Input,
        previous: Filter,
        /// An error in the typed text. Meanwhile the last valid filter stays active.
        error: Option<FilterError>,
    },
    /// Prompts for the path of a log of this process.
    Watch {
        process: ProcessKey,
        input: Input,
    },
}

/// The result of a key press on an overlay.
#[derive(Debug, PartialEq)]
pub enum OverlayResult {
    Open,
    Closed,
    /// Closed with a request for the source.
    Request(Request),
}

/// Returns the available sort orders: the default order, then the sortable columns.
pub fn sort_orders() -> Vec<Option<usize>> {
    let sortable = PROCESS_COLUMNS
        .iter()
        .enumerate()
        .filter(|(_, c)| c.sort.is_some())
        .map(|(i, _)| Some(i));
    std::iter::once(None).chain(sortable).collect()
}

impl Overlay {
    pub fn filter(app: &App) -> Self {
        Self::Filter {
            input: Input::from(app.filter.to_string()),
            previous: app.filter.clone(),
            error: None,
        }
    }

    pub fn watch(process: ProcessKey) -> Self {
        Self::Watch {
            process,
            input: Input::default(),
        }
    }

    pub fn sort(app: &App) -> Self {
        Self::Sort {
            cursor: sort_orders()
                .iter()
                .position(|order| *order == app.sort)
                .unwrap_or(0),
        }
    }

    /// Handles a key while a line of text is typed. Returns `None` if the key is an action instead.
    pub fn type_key(&mut self, key: KeyEvent, app: &mut App) -> Option<OverlayResult> {
        if let Self::Signal(menu) = self {
            return menu.type_key(key).map(OverlayResult::Request);
        }
        if let Self::Probe(menu) = self {
            return menu.type_key(key).map(OverlayResult::Request);
        }
        if let Self::Help(help) = self {
            return help.type_key(key).then_some(OverlayResult::Open);
        }
        if let Self::Watch { process, input } = self {
            return Some(type_path(key, *process, input));
        }
        let Self::Filter {
            input,
            previous,
            error,
        } = self
        else {
            return None;
        };
        match key.code {
            // An invalid filter stays open until it is corrected or cancelled.
            _ if is_enter(key) && error.is_some() => return Some(OverlayResult::Open),
            _ if is_enter(key) => return Some(OverlayResult::Closed),
            KeyCode::Esc => {
                app.use_filter(previous.clone());
                return Some(OverlayResult::Closed);
            }
            KeyCode::Char(_) if input.value().chars().count() >= MAX_FILTER_CHARS => {
                return Some(OverlayResult::Open);
            }
            _ => {
                input.handle_event(&TerminalEvent::Key(key));
            }
        }
        let text: String = input.value().chars().filter(|c| !c.is_control()).collect();
        *error = app.set_filter(&text).err();
        Some(OverlayResult::Open)
    }

    pub fn act(&mut self, action: Action, app: &mut App) -> OverlayResult {
        match (&mut *self, action) {
            (Self::Signal(menu), action) => {
                return if menu.act(action) {
                    OverlayResult::Open
                } else {
                    OverlayResult::Closed
                };
            }
            (Self::Columns(menu), action) => {
                return if menu.act(action, app) {
                    OverlayResult::Open
                } else {
                    OverlayResult::Closed
                };
            }
            (Self::Help(help), action) => {
                return if help.act(action) {
                    OverlayResult::Open
                } else {
                    OverlayResult::Closed
                };
            }
            (_, Action::Back | Action::Quit | Action::QuitNow) => return OverlayResult::Closed,
            (Self::Sort { cursor }, Action::Open | Action::Sort) => {
                let order = sort_orders().get(*cursor).copied().flatten();
                app.set_sort(order, false);
                return OverlayResult::Closed;
            }
            (Self::Sort { cursor }, action) => {
                if let Some(at) = moved(*cursor, sort_orders().len(), 10, action) {
                    *cursor = at;
                }
            }
            (Self::Filter { .. } | Self::Watch { .. } | Self::Sent(_) | Self::Probe(_), _) => {}
        }
        OverlayResult::Open
    }

    /// Handles a click: selects the row of a menu, or closes an overlay without input. Returns the action to perform.
    pub fn click(&mut self, position: Position, area: Rect) -> Option<Action> {
        match self {
            Self::Signal(menu) => menu.click(position, area),
            Self::Columns(menu) => menu.click(position, area),
            Self::Sort { cursor } => {
                let (width, height) = sort_size();
                let (_, inner) = panel_area(width, height, area);
                *cursor = pressed_row(position, inner, *cursor, sort_orders().len())?;
                Some(Action::Open)
            }
            Self::Sent(_) => Some(Action::Back),
            Self::Help(_) | Self::Filter { .. } | Self::Watch { .. } | Self::Probe(_) => None,
        }
    }

    pub fn draw(&self, app: &App, screen: &dyn Screen, area: Rect, buffer: &mut Buffer) {
        match self {
            Self::Help(help) => help.draw(app, screen, area, buffer),
            Self::Signal(menu) => menu.draw(app, area, buffer),
            Self::Columns(menu) => menu.draw(app, area, buffer),
            Self::Probe(menu) => menu.draw(app, area, buffer),
            Self::Sent(copied) => draw_sent(app, copied, area, buffer),
            Self::Sort { cursor } => draw_sort(app, *cursor, area, buffer),
            Self::Filter { input, error, .. } => {
                draw_filter(app, input, error.as_ref(), area, buffer);
            }
            Self::Watch { process, input } => {
                let label = format!(" log of {}: ", process.pid);
                let note = (" enter a path ".to_owned(), Role::Dim);
                draw_input(app, &label, input, note, area, buffer);
            }
        }
    }
}

/// Returns a centred box of at most the available size, and its interior.
pub fn panel_area(width: u16, height: u16, area: Rect) -> (Rect, Rect) {
    let (width, height) = (width.min(area.width), height.min(area.height));
    let rect = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    if width < 4 || height < 3 {
        return (rect, rect);
    }
    let inner = Rect {
        x: rect.x + 1,
        y: rect.y + 1,
        width: width - 2,
        height: height - 2,
    };
    (rect, inner)
}

/// Returns the list row at a mouse position inside a box.
pub fn pressed_row(position: Position, inner: Rect, cursor: usize, rows: usize) -> Option<usize> {
    let offset = scrolled(cursor, rows, usize::from(inner.height));
    let row = offset + usize::from(position.y.checked_sub(inner.y)?);
    (inner.contains(position) && row < rows).then_some(row)
}

/// Clears a centred box and draws its border. Returns its interior.
pub fn panel(
    title: &str,
    width: u16,
    height: u16,
    area: Rect,
    app: &App,
    buffer: &mut Buffer,
) -> Rect {
    let (rect, inner) = panel_area(width, height, area);
    let width = rect.width;
    Clear.render(rect, buffer);
    if inner == rect {
        return rect;
    }
    let border = app.theme.style(Role::Dim);
    let rule = app.theme.glyphs.rule.repeat(usize::from(width));
    put(buffer, rect.x, rect.y, &rule, width, border);
    put(buffer, rect.x, rect.bottom() - 1, &rule, width, border);
    // The border separates the box from the screen content beside it. A full-width box has none.
    if width < area.width {
        for y in inner.y..inner.bottom() {
            for x in [rect.x, rect.right() - 1] {
                put(buffer, x, y, app.theme.glyphs.edge, 1, border);
            }
        }
    }
    put(
        buffer,
        rect.x + 2,
        rect.y,
        &format!(" {title} "),
        width - 2,
        app.theme.style(Role::Title),
    );
    inner
}

/// Draws the text over the full width, so that selecting it includes nothing else, above the footer.
fn draw_sent(app: &App, copied: &Copied, area: Rect, buffer: &mut Buffer) {
    let width = usize::from(area.width.max(1));
    let rows: Vec<String> = copied
        .text
        .split('\n')
        .flat_map(|line| wrap_anywhere(line, width))
        .collect();
    let height = u16::try_from(rows.len() + 2)
        .unwrap_or(u16::MAX)
        .min(area.height.saturating_sub(1));
    let panel = Rect {
        y: area.bottom().saturating_sub(height + 1),
        height,
        ..area
    };
    Clear.render(panel, buffer);
    let (theme, end) = (&app.theme, panel.bottom());
    let rule = theme.glyphs.rule.repeat(width);
    for y in [panel.y, end.saturating_sub(1)] {
        put(buffer, area.x, y, &rule, area.width, theme.style(Role::Dim));
    }
    let title = format!(" {} ", copied.what);
    put(
        buffer,
        area.x + 2,
        panel.y,
        &title,
        area.width,
        theme.style(Role::Title),
    );
    let more = rows
        .len()
        .saturating_sub(usize::from(height.saturating_sub(2)));
    let close = match more {
        0 => " press any key to close ".into(),
        more => format!(" {more} more lines copied  press any key to close "),
    };
    put_right(
        buffer,
        area.x,
        area.right(),
        end.saturating_sub(1),
        &close,
        theme.style(Role::Key),
    );
    for (y, row) in (panel.y + 1..end.saturating_sub(1)).zip(&rows) {
        put(buffer, area.x, y, row, area.width, theme.style(Role::Text));
    }
}

/// Returns the width and height of the sort menu's box.
fn sort_size() -> (u16, u16) {
    (
        40,
        u16::try_from(sort_orders().len() + 2).unwrap_or(u16::MAX),
    )
}

fn draw_sort(app: &App, cursor: usize, area: Rect, buffer: &mut Buffer) {
    let orders = sort_orders();
    let (width, height) = sort_size();
    let inner = panel("Sort by", width, height, area, app, buffer);
    let offset = scrolled(cursor, orders.len(), usize::from(inner.height));
    for (y, (i, order)) in (inner.y..inner.bottom()).zip(orders.iter().enumerate().skip(offset)) {
        let title = order.map_or("GPU, then VRAM", |column| PROCESS_COLUMNS[column].title);
        let chosen = if *order == app.sort { " (current)" } else { "" };
        let style = app.theme.style(Role::Text);
        put_all(
            buffer,
            inner.x + 2,
            y,
            inner.right(),
            &[(title, style), (chosen, app.theme.style(Role::Dim))],
        );
        if i == cursor {
            mark(inner, y, buffer, &app.theme);
        }
    }
}

/// Draws an input line. The caret is a reversed cell; returns its column.
pub fn draw_typed(label: &str, input: &Input, line: Rect, app: &App, buffer: &mut Buffer) -> u16 {
    Clear.render(line, buffer);
    let (theme, y) = (&app.theme, line.y);
    let left = put(buffer, line.x, y, label, line.width, theme.style(Role::Key));
    let room = usize::from(line.width.saturating_sub(left + 1));
    let skip = input.visual_scroll(room);
    let shown: String = input.value().chars().skip(skip).collect();
    let width = line.width.saturating_sub(left);
    put(
        buffer,
        line.x + left,
        y,
        &shown,
        width,
        theme.style(Role::Text),
    );
    let caret =
        line.x + left + u16::try_from(input.visual_cursor().saturating_sub(skip)).unwrap_or(0);
    if caret < line.right() {
        let cell = Rect {
            x: caret,
            width: 1,
            ..line
        };
        buffer.set_style(cell, theme.style(Role::Banner));
    }
    caret
}

/// The kernel's limit for paths (`PATH_MAX`).
const MAX_PATH_BYTES: usize = 4_096;

fn type_path(key: KeyEvent, process: ProcessKey, input: &mut Input) -> OverlayResult {
    let path: String = input.value().trim().into();
    match key.code {
        KeyCode::Esc => return OverlayResult::Closed,
        _ if is_enter(key) && path.is_empty() => return OverlayResult::Closed,
        _ if is_enter(key) => return OverlayResult::Request(Request::Watch { process, path }),
        KeyCode::Char(c) if c.is_control() || input.value().len() >= MAX_PATH_BYTES => {}
        _ => {
            input.handle_event(&TerminalEvent::Key(key));
        }
    }
    OverlayResult::Open
}

fn draw_filter(
    app: &App,
    input: &Input,
    error: Option<&FilterError>,
    area: Rect,
    buffer: &mut Buffer,
) {
    let note = match error {
        Some(error) => (format!(" {error} "), Role::Bad),
        None => {
            let shows = format!(" {} of {} ", app.rows.len(), app.all_rows.len());
            (shows, Role::Dim)
        }
    };
    draw_input(app, " filter: ", input, note, area, buffer);
}

/// Draws the input line at the bottom, with a note on its right.
fn draw_input(
    app: &App,
    label: &str,
    input: &Input,
    (note, role): (String, Role),
    area: Rect,
    buffer: &mut Buffer,
) {
    let y = area.bottom().saturating_sub(1);
    let line = Rect {
        y,
        height: 1,
        ..area
    };
    let theme = &app.theme;
    let caret = draw_typed(label, input, line, app, buffer);
    // An error that does not fit on the line is shown above it.
    let fits = usize::from(area.right().saturating_sub(caret + 1)) >= columns(&note);
    let y = if fits || role == Role::Dim {
        y
    } else {
        y.saturating_sub(1)
    };
    let from = if fits { caret + 1 } else { area.x };
    put_right(buffer, from, area.right(), y, &note, theme.style(role));
}
