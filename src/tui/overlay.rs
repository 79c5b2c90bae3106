//! What lies over a screen: the help, the sort menu, the lines that are typed into.

use crossterm::event::{Event as TerminalEvent, KeyCode, KeyEvent};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::widgets::{Clear, Widget};
use tui_input::Input;
use tui_input::backend::crossterm::EventHandler;

use super::action::{ACTIONS, Action, Scope};
use super::app::App;
use super::column_menu::ColumnMenu;
use super::columns::PROCESS_COLUMNS;
use super::filter::{FIELDS, Filter, FilterError, STATES, SYNTAX};
use super::keymap::{is_enter, show_key};
use super::screens::gpu_columns::GPU_COLUMNS;
use super::screens::{Screen, moved};
use super::signal_menu::SignalMenu;
use super::theme::Role;
use super::widgets::cells::{columns, put, put_all, put_right, wrap_words};
use super::widgets::scroll::Scroll;
use super::widgets::table::{mark, scrolled};
use crate::model::process::ProcessKey;
use crate::source::Request;

#[derive(Debug)]
pub enum Overlay {
    Help {
        scroll: Scroll,
    },
    /// The cursor over the columns that can order rows; row 0 is the natural order.
    Sort {
        cursor: usize,
    },
    Signal(SignalMenu),
    Columns(ColumnMenu),
    Filter {
        input: Input,
        before: Filter,
        /// What is wrong with what is typed; the last filter that was understood stays in force.
        wrong: Option<FilterError>,
    },
    /// The path of a log for this process.
    Watch {
        process: ProcessKey,
        input: Input,
    },
}

/// What a key did to an overlay.
#[derive(Debug, PartialEq)]
pub enum After {
    Open,
    Closed,
    /// It is closed, and this is to be asked of the source.
    Asks(Request),
}

/// Columns that can order rows: the natural order first.
pub fn orders() -> Vec<Option<usize>> {
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
            before: app.filter.clone(),
            wrong: None,
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
            cursor: orders()
                .iter()
                .position(|order| *order == app.sort)
                .unwrap_or(0),
        }
    }

    /// A key while a line of text is being typed; other overlays get actions.
    pub fn type_key(&mut self, key: KeyEvent, app: &mut App) -> Option<After> {
        if let Self::Signal(menu) = self {
            return menu.type_key(key).map(After::Asks);
        }
        if let Self::Watch { process, input } = self {
            return Some(type_path(key, *process, input));
        }
        let Self::Filter {
            input,
            before,
            wrong,
        } = self
        else {
            return None;
        };
        match key.code {
            // What is wrong stays in sight until it is put right or given up.
            _ if is_enter(key) && wrong.is_some() => return Some(After::Open),
            _ if is_enter(key) => return Some(After::Closed),
            KeyCode::Esc => {
                app.use_filter(before.clone());
                return Some(After::Closed);
            }
            _ => {
                input.handle_event(&TerminalEvent::Key(key));
            }
        }
        let text: String = input
            .value()
            .chars()
            .filter(|c| !c.is_control())
            .take(200)
            .collect();
        *wrong = app.set_filter(&text).err();
        Some(After::Open)
    }

    pub fn act(&mut self, action: Action, app: &mut App) -> After {
        match (&mut *self, action) {
            (Self::Signal(menu), action) => {
                return if menu.act(action) {
                    After::Open
                } else {
                    After::Closed
                };
            }
            (Self::Columns(menu), action) => {
                return if menu.act(action, app) {
                    After::Open
                } else {
                    After::Closed
                };
            }
            (_, Action::Back | Action::Quit | Action::QuitNow) => return After::Closed,
            (Self::Help { .. }, Action::Help) => return After::Closed,
            (Self::Help { scroll }, action) => {
                scroll.act(action);
            }
            (Self::Sort { cursor }, Action::Open | Action::Sort) => {
                let order = orders().get(*cursor).copied().flatten();
                app.set_sort(order, false);
                return After::Closed;
            }
            (Self::Sort { cursor }, action) => {
                if let Some(at) = moved(*cursor, orders().len(), 10, action) {
                    *cursor = at;
                }
            }
            (Self::Filter { .. } | Self::Watch { .. }, _) => {}
        }
        After::Open
    }

    pub fn draw(&self, app: &App, screen: &dyn Screen, area: Rect, buffer: &mut Buffer) {
        match self {
            Self::Help { scroll } => draw_help(app, screen, scroll, area, buffer),
            Self::Signal(menu) => menu.draw(app, area, buffer),
            Self::Columns(menu) => menu.draw(app, area, buffer),
            Self::Sort { cursor } => draw_sort(app, *cursor, area, buffer),
            Self::Filter { input, wrong, .. } => {
                draw_filter(app, input, wrong.as_ref(), area, buffer);
            }
            Self::Watch { process, input } => {
                let label = format!(" log of {}: ", process.pid);
                let beside = (" a path ".to_owned(), Role::Dim);
                draw_input(app, &label, input, beside, area, buffer);
            }
        }
    }
}

/// Clears a box in the middle and draws its edge; returns its inside.
pub fn panel(
    title: &str,
    width: u16,
    height: u16,
    area: Rect,
    app: &App,
    buffer: &mut Buffer,
) -> Rect {
    let (width, height) = (width.min(area.width), height.min(area.height));
    let rect = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    Clear.render(rect, buffer);
    if rect.width < 4 || rect.height < 3 {
        return rect;
    }
    let border = app.theme.style(Role::Dim);
    let rule = app.theme.glyphs.rule.repeat(usize::from(width));
    put(buffer, rect.x, rect.y, &rule, width, border);
    put(buffer, rect.x, rect.bottom() - 1, &rule, width, border);
    put(
        buffer,
        rect.x + 2,
        rect.y,
        &format!(" {title} "),
        width - 2,
        app.theme.style(Role::Title),
    );
    Rect {
        x: rect.x + 1,
        y: rect.y + 1,
        width: width - 2,
        height: height - 2,
    }
}

/// The lines of the help: keys from ACTIONS, words from the screen and its tables.
fn help_lines(app: &App, screen: &dyn Screen) -> Vec<(String, String)> {
    let mut lines = vec![("KEYS".to_owned(), String::new())];
    for def in ACTIONS {
        if def.scope == Scope::Recording && app.recording.is_none() {
            continue;
        }
        let keys: Vec<String> = app
            .keymap
            .keys(def.action)
            .iter()
            .map(|name| show_key(name))
            .collect();
        lines.push((keys.join(" "), def.help.to_owned()));
    }
    lines.push((String::new(), String::new()));
    lines.push((
        format!("WORDS: {}", screen.def().title.to_uppercase()),
        String::new(),
    ));
    lines.extend(
        screen
            .def()
            .words
            .iter()
            .map(|(word, text)| ((*word).to_owned(), (*text).to_owned())),
    );
    lines.push((String::new(), String::new()));
    lines.extend(filter_lines());
    lines.push((String::new(), String::new()));
    lines.push(("GPU TABLE".to_owned(), String::new()));
    lines.extend(
        GPU_COLUMNS
            .iter()
            .map(|c| (c.title.to_owned(), c.help.to_owned())),
    );
    lines.push((String::new(), String::new()));
    lines.push(("PROCESS TABLE".to_owned(), String::new()));
    lines.extend(
        PROCESS_COLUMNS
            .iter()
            .map(|c| (c.title.to_owned(), c.help.to_owned())),
    );
    lines
}

/// What can be typed behind `/`.
fn filter_lines() -> Vec<(String, String)> {
    let line = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let mut lines = vec![line("FILTER", "")];
    lines.extend(SYNTAX.iter().map(|(typed, text)| line(typed, text)));
    lines.extend(FIELDS.iter().map(|field| line(field.example, field.help)));
    let state = |name| format!("state:{name}");
    lines.extend(STATES.iter().map(|def| line(&state(def.name), def.help)));
    lines
}

fn draw_help(app: &App, screen: &dyn Screen, scroll: &Scroll, area: Rect, buffer: &mut Buffer) {
    let lines = help_lines(app, screen);
    let theme = &app.theme;
    let names: u16 = if area.width >= 60 { 18 } else { 9 };
    let title = format!("Help: {}", screen.def().title);
    let inner = panel(
        &title,
        100,
        u16::try_from(lines.len() + 2).unwrap_or(u16::MAX),
        area,
        app,
        buffer,
    );
    let room = usize::from(inner.width.saturating_sub(names));
    // A sentence that does not fit goes on below, so nothing is cut off.
    let mut rows: Vec<(String, String)> = Vec::new();
    for (name, text) in lines {
        let mut parts = wrap_words(&text, room.max(10)).into_iter();
        rows.push((name, parts.next().unwrap_or_default()));
        rows.extend(parts.map(|part| (String::new(), part)));
    }
    let last = rows.len().saturating_sub(usize::from(inner.height));
    let first = scroll.first(rows.len(), usize::from(inner.height));
    let close = format!(" {} closes ", app.keymap.label(Action::Back));
    let hint = match last - first {
        0 => close,
        more => format!(
            " {more} more lines: {} {} {close}",
            app.keymap.label(Action::Down),
            app.keymap.label(Action::PageDown)
        ),
    };
    put_right(
        buffer,
        inner.x,
        inner.right(),
        inner.bottom(),
        &hint,
        theme.style(Role::Key),
    );
    for (y, (name, text)) in (inner.y..inner.bottom()).zip(rows.iter().skip(first)) {
        let role = if text.is_empty() {
            Role::Title
        } else {
            Role::Key
        };
        put(
            buffer,
            inner.x,
            y,
            name,
            if text.is_empty() {
                inner.width
            } else {
                names - 1
            },
            theme.style(role),
        );
        put(
            buffer,
            inner.x + names,
            y,
            text,
            inner.width.saturating_sub(names),
            theme.style(Role::Text),
        );
    }
}

fn draw_sort(app: &App, cursor: usize, area: Rect, buffer: &mut Buffer) {
    let orders = orders();
    let inner = panel(
        "Order by",
        40,
        u16::try_from(orders.len() + 2).unwrap_or(u16::MAX),
        area,
        app,
        buffer,
    );
    let offset = scrolled(cursor, orders.len(), usize::from(inner.height));
    for (y, (i, order)) in (inner.y..inner.bottom()).zip(orders.iter().enumerate().skip(offset)) {
        let title = order.map_or("GPU, then VRAM", |column| PROCESS_COLUMNS[column].title);
        let chosen = if *order == app.sort { " (now)" } else { "" };
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

/// Longer than any path that the kernel takes.
const MOST_PATH: usize = 4_096;

fn type_path(key: KeyEvent, process: ProcessKey, input: &mut Input) -> After {
    let path: String = input.value().trim().into();
    match key.code {
        KeyCode::Esc => return After::Closed,
        _ if is_enter(key) && path.is_empty() => return After::Closed,
        _ if is_enter(key) => return After::Asks(Request::Watch { process, path }),
        KeyCode::Char(c) if c.is_control() || input.value().len() >= MOST_PATH => {}
        _ => {
            input.handle_event(&TerminalEvent::Key(key));
        }
    }
    After::Open
}

fn draw_filter(
    app: &App,
    input: &Input,
    wrong: Option<&FilterError>,
    area: Rect,
    buffer: &mut Buffer,
) {
    let beside = match wrong {
        Some(wrong) => (format!(" {wrong} "), Role::Bad),
        None => {
            let shows = format!(" {} of {} ", app.rows.len(), app.all_rows.len());
            (shows, Role::Dim)
        }
    };
    draw_input(app, " filter: ", input, beside, area, buffer);
}

/// The line at the bottom that is typed into, with a caret drawn as a reversed cell, and a remark beside it.
fn draw_input(
    app: &App,
    label: &str,
    input: &Input,
    (beside, role): (String, Role),
    area: Rect,
    buffer: &mut Buffer,
) {
    let y = area.bottom().saturating_sub(1);
    let line = Rect {
        y,
        height: 1,
        ..area
    };
    Clear.render(line, buffer);
    let theme = &app.theme;
    let left = put(buffer, area.x, y, label, area.width, theme.style(Role::Key));
    let room = usize::from(area.width.saturating_sub(left + 1));
    let skip = input.visual_scroll(room);
    let shown: String = input.value().chars().skip(skip).collect();
    put(
        buffer,
        area.x + left,
        y,
        &shown,
        area.width.saturating_sub(left),
        theme.style(Role::Text),
    );
    let caret =
        area.x + left + u16::try_from(input.visual_cursor().saturating_sub(skip)).unwrap_or(0);
    if caret < area.right() {
        buffer.set_style(
            Rect {
                x: caret,
                y,
                width: 1,
                height: 1,
            },
            theme.style(Role::Banner),
        );
    }
    // Where there is no room beside what is typed, what is wrong with it stands above.
    let fits = usize::from(area.right().saturating_sub(caret + 1)) >= columns(&beside);
    let y = if fits || role == Role::Dim {
        y
    } else {
        y.saturating_sub(1)
    };
    let from = if fits { caret + 1 } else { area.x };
    put_right(buffer, from, area.right(), y, &beside, theme.style(role));
}
