//! The signal menu: choose a signal, check the processes, confirm with `y`. Requests identify each process by PID and start
//! time, so that the receiving host can detect a reused PID.

use std::collections::BTreeSet;

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use super::action::Action;
use super::app::App;
use super::overlay::{panel, panel_area, pressed_row};
use super::rows::ProcessRow;
use super::screens::moved;
use super::theme::Role;
use super::widgets::cells::{put_all, put_line};
use super::widgets::scroll::Scroll;
use super::widgets::table::{mark, scrolled};
use crate::model::process::ProcessKey;
use crate::model::reading::{Missing, Reason};
use crate::model::signal::{SIGNALS, Signal, Signalled};
use crate::model::units::{StartTicks, UnixMillis};
use crate::protocol::Request;

/// The menu's state.
#[derive(Debug)]
pub struct SignalMenu {
    targets: Vec<Target>,
    /// Index into [`SIGNALS`].
    cursor: usize,
    /// True once a signal is chosen; then `y` sends it.
    confirming: bool,
    scroll: Scroll,
}

/// A process that would receive the signal, as shown in the confirmation.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    pub key: ProcessKey,
    command: String,
    user: Option<String>,
    started: UnixMillis,
}

/// Returns the process of a row as a signal target.
///
/// # Errors
/// Returns the reason why it cannot receive a signal, without a period.
pub fn target(row: &ProcessRow) -> Result<Target, String> {
    let key = row.id().key;
    if row.ended().is_some() {
        return Err(format!("process {} has exited", key.pid));
    }
    let Some(facts) = row.facts() else {
        return Err(format!(
            "process {} is not visible: it is in another PID namespace, or has just exited",
            key.pid
        ));
    };
    if key.start == StartTicks(0) {
        return Err(format!(
            "cannot identify process {}: its start time is not readable, and its PID may have been reused",
            key.pid
        ));
    }
    Ok(Target {
        key,
        command: row.command().value().cloned().unwrap_or_default(),
        user: facts.user.value().cloned(),
        started: facts.started,
    })
}

/// Returns the tagged processes, or else the one under the cursor.
fn targets(app: &App, under: Option<&ProcessRow>) -> Result<Vec<Target>, String> {
    if app.tags.is_empty() {
        let row = under.ok_or("no process selected or tagged")?;
        return Ok(vec![target(row)?]);
    }
    let mut seen = BTreeSet::new();
    let tagged = app.all_rows.iter().filter(|row| {
        let key = row.id().key;
        app.tags.has(key) && seen.insert(key)
    });
    tagged.map(target).collect()
}

/// Returns the width and height of the menu's box.
fn size() -> (u16, u16) {
    (76, u16::try_from(SIGNALS.len() + 2).unwrap_or(u16::MAX))
}

impl SignalMenu {
    /// Checks whether signals are allowed.
    ///
    /// # Errors
    /// Returns the reason why they are not.
    pub fn is_allowed(app: &App) -> Result<(), String> {
        if app.recording.is_some() {
            return Err("cannot send signals to the processes of a recording".into());
        }
        app.permissions
            .signals
            .map_err(|why| format!("cannot send signals: {why}"))
    }

    /// Opens the menu with this signal selected.
    ///
    /// # Errors
    /// Returns the reason why no signal can be sent.
    pub fn open(signal: Signal, app: &App, under: Option<&ProcessRow>) -> Result<Self, String> {
        Self::is_allowed(app)?;
        let mut menu = Self {
            targets: targets(app, under)?,
            cursor: 0,
            confirming: false,
            scroll: Scroll::default(),
        };
        menu.choose(signal);
        Ok(menu)
    }

    fn choose(&mut self, signal: Signal) {
        let at = SIGNALS.iter().position(|def| def.signal == signal);
        self.cursor = at.unwrap_or(0);
    }

    fn signal(&self) -> Signal {
        SIGNALS[self.cursor.min(SIGNALS.len() - 1)].signal
    }

    /// Handles `y`, the only key that sends, regardless of the keymap. It differs from Enter, so pressing a key twice by
    /// mistake sends nothing.
    pub fn type_key(&self, key: KeyEvent) -> Option<Request> {
        let sends = self.confirming && matches!(key.code, KeyCode::Char('y' | 'Y'));
        sends.then(|| Request::Signal {
            signal: self.signal(),
            processes: self.targets.iter().map(|target| target.key).collect(),
        })
    }

    /// Performs an action. Returns false if the menu closes.
    pub fn act(&mut self, action: Action) -> bool {
        match action {
            Action::QuitNow => return false,
            Action::Back | Action::Quit if self.confirming => self.confirming = false,
            Action::Back | Action::Quit => return false,
            action if self.confirming => {
                self.scroll.act(action);
            }
            Action::Open => self.confirming = true,
            Action::SignalTerm => self.choose(Signal::Term),
            Action::SignalKill => self.choose(Signal::Kill),
            action => {
                if let Some(at) = moved(self.cursor, SIGNALS.len(), 5, action) {
                    self.cursor = at;
                }
            }
        }
        true
    }

    /// Handles a click, which chooses a signal but never sends it.
    pub fn click(&mut self, position: Position, area: Rect) -> Option<Action> {
        if self.confirming {
            return None;
        }
        let (width, height) = size();
        let (_, inner) = panel_area(width, height, area);
        self.cursor = pressed_row(position, inner, self.cursor, SIGNALS.len())?;
        Some(Action::Open)
    }

    pub fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        if self.confirming {
            self.draw_question(app, area, buffer);
        } else {
            self.draw_signals(app, area, buffer);
        }
    }

    /// Describes the targets: `418 train.py`, `3 processes`.
    fn target_words(&self) -> String {
        match self.targets.as_slice() {
            [one] => format!("{} {}", one.key.pid, one.command),
            all => format!("{} processes", all.len()),
        }
    }

    fn draw_signals(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let theme = &app.theme;
        let title = format!("Signal to {}", self.target_words());
        let (width, height) = size();
        let inner = panel(&title, width, height, area, app, buffer);
        let offset = scrolled(self.cursor, SIGNALS.len(), usize::from(inner.height));
        let shown = SIGNALS.iter().enumerate().skip(offset);
        for (y, (i, def)) in (inner.y..inner.bottom()).zip(shown) {
            let name = format!("{:>2} {:<5} ", def.number, def.name);
            let pieces = [
                (name.as_str(), theme.style(Role::Key)),
                (def.help, theme.style(Role::Text)),
            ];
            put_all(buffer, inner.x + 2, y, inner.right(), &pieces);
            if i == self.cursor {
                mark(inner, y, buffer, theme);
            }
        }
    }

    fn draw_question(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let theme = &app.theme;
        let title = format!("Send {} to {}?", self.signal().name(), self.target_words());
        let height = u16::try_from(self.targets.len() + 5).unwrap_or(u16::MAX);
        let inner = panel(&title, 76, height.min(20), area, app, buffer);
        let [heading, list, hint] = parts(inner);
        let words = "    PID  USER      STARTED         COMMAND";
        put_line(buffer, heading, words, Role::Dim, theme);
        let first = self
            .scroll
            .first(self.targets.len(), usize::from(list.height));
        let shown = self.targets.iter().skip(first);
        for (y, target) in (list.y..list.bottom()).zip(shown) {
            let user = target.user.as_deref().unwrap_or(theme.glyphs.absent);
            let started = theme.clock(target.started, "%m-%d %H:%M:%S");
            let pid = target.key.pid.0;
            let line = format!("{pid:>7}  {user:<8}  {started:<14}  {}", target.command);
            put_line(
                buffer,
                Rect {
                    y,
                    height: 1,
                    ..list
                },
                &line,
                Role::Text,
                theme,
            );
        }
        let below = self
            .targets
            .len()
            .saturating_sub(first + usize::from(list.height));
        let more = match below {
            0 => String::new(),
            n => format!("{n} more below  "),
        };
        let back = format!(" {} back", app.keymap.label(Action::Back));
        let pieces = [
            (more.as_str(), theme.style(Role::Warn)),
            ("y", theme.style(Role::Key)),
            (" send  ", theme.style(Role::Text)),
            (back.as_str(), theme.style(Role::Text)),
        ];
        put_all(buffer, hint.x + 1, hint.y, hint.right(), &pieces);
    }
}

/// Splits the box into heading, list and key line. The key line takes precedence in a small box.
fn parts(inner: Rect) -> [Rect; 3] {
    let heading = u16::from(inner.height > 2);
    let row = |y: u16, height: u16| Rect { y, height, ..inner };
    let list = inner.height.saturating_sub(heading + 1);
    [
        row(inner.y, heading),
        row(inner.y + heading, list),
        row(inner.bottom().saturating_sub(1), 1),
    ]
}

/// Describes the result of a signal in one line: `TERM delivered to 418 train.py`.
pub fn outcome_words(signalled: &Signalled, rows: &[ProcessRow]) -> String {
    let signal = signalled.signal.name();
    let name = |key: ProcessKey| {
        let row = rows.iter().find(|row| row.id().key == key);
        let command = row.and_then(|row| row.command().value().cloned());
        match command {
            Some(command) => format!("{} {command}", key.pid),
            None => key.pid.to_string(),
        }
    };
    match signalled.outcomes.as_slice() {
        [(key, Ok(()))] => format!("{signal} delivered to {}", name(*key)),
        [(key, Err(why))] => format!("{signal} to {} {}: {why}", key.pid, verdict(why)),
        outcomes => {
            let delivered = outcomes.iter().filter(|(_, outcome)| outcome.is_ok());
            let mut words = format!("{signal}: {} delivered", delivered.count());
            for (key, outcome) in outcomes {
                if let Err(why) = outcome {
                    words += &format!(", {} {}: {why}", key.pid, verdict(why));
                }
            }
            words
        }
    }
}

fn verdict(why: &Missing) -> &'static str {
    match why.reason {
        Reason::Denied => "denied",
        Reason::Gone => "not sent, process exited",
        _ => "not sent",
    }
}
