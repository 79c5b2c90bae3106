//! The signal menu: which signal, then to whom, then `y`. What it sends names each process with its start time, so
//! that the far side can see whether it is still the one that was read here.

use std::collections::BTreeSet;

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use super::action::Action;
use super::app::App;
use super::overlay::{panel, panel_place, pressed_row};
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
use crate::source::Request;

#[derive(Debug)]
pub struct SignalMenu {
    targets: Vec<Target>,
    /// Index into [`SIGNALS`].
    cursor: usize,
    /// The signal was chosen; `y` sends it.
    confirming: bool,
    scroll: Scroll,
}

/// Who a signal would go to, as a person is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    pub key: ProcessKey,
    command: String,
    user: Option<String>,
    started: UnixMillis,
}

/// What a row names, or why nothing may be sent there.
///
/// # Errors
/// A sentence without a period.
pub fn target(row: &ProcessRow) -> Result<Target, String> {
    let key = row.id().key;
    if row.ended().is_some() {
        return Err(format!("{} has ended", key.pid));
    }
    let Some(facts) = row.facts() else {
        return Err(format!(
            "{} is not visible here: another PID namespace, or just ended",
            key.pid
        ));
    };
    if key.start == StartTicks(0) {
        return Err(format!(
            "{} cannot be read: nothing tells it from another one with its PID",
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

/// The tagged processes, else the one under the cursor.
fn targets(app: &App, under: Option<&ProcessRow>) -> Result<Vec<Target>, String> {
    if app.tags.is_empty() {
        let row = under.ok_or("the cursor is on no process, and none is tagged")?;
        return Ok(vec![target(row)?]);
    }
    let mut seen = BTreeSet::new();
    let tagged = app.all_rows.iter().filter(|row| {
        let key = row.id().key;
        app.tags.has(key) && seen.insert(key)
    });
    tagged.map(target).collect()
}

/// Columns and rows of the box with the signals.
fn size() -> (u16, u16) {
    (76, u16::try_from(SIGNALS.len() + 2).unwrap_or(u16::MAX))
}

impl SignalMenu {
    /// # Errors
    /// With why no signal can be sent from here at all.
    pub fn is_allowed(app: &App) -> Result<(), String> {
        if app.recording.is_some() {
            return Err("this is a recording: its processes do not run here".into());
        }
        app.leave
            .signals
            .map_err(|why| format!("no signals: {why}"))
    }

    /// # Errors
    /// With why no signal can be sent.
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

    /// The one key that sends, whatever the keymap says: a letter that no habit presses twice.
    pub fn type_key(&self, key: KeyEvent) -> Option<Request> {
        let sends = self.confirming && matches!(key.code, KeyCode::Char('y' | 'Y'));
        sends.then(|| Request::Signal {
            signal: self.signal(),
            processes: self.targets.iter().map(|target| target.key).collect(),
        })
    }

    /// False when the menu is to be closed.
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

    /// A press on a signal chooses it. It never sends: that is what the letter is for.
    pub fn click(&mut self, place: Position, area: Rect) -> Option<Action> {
        if self.confirming {
            return None;
        }
        let (width, height) = size();
        let (_, inner) = panel_place(width, height, area);
        self.cursor = pressed_row(place, inner, self.cursor, SIGNALS.len())?;
        Some(Action::Open)
    }

    pub fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        if self.confirming {
            self.draw_question(app, area, buffer);
        } else {
            self.draw_signals(app, area, buffer);
        }
    }

    /// `418 train.py`, `3 processes`
    fn whom(&self) -> String {
        match self.targets.as_slice() {
            [one] => format!("{} {}", one.key.pid, one.command),
            all => format!("{} processes", all.len()),
        }
    }

    fn draw_signals(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let theme = &app.theme;
        let title = format!("Signal to {}", self.whom());
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
        let title = format!("Send {} to {}?", self.signal().name(), self.whom());
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
            (" sends it  ", theme.style(Role::Text)),
            (back.as_str(), theme.style(Role::Text)),
        ];
        put_all(buffer, hint.x + 1, hint.y, hint.right(), &pieces);
    }
}

/// Heading, list and the line of keys; in little room the keys stay.
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

/// What became of a signal, in one line: `TERM delivered to 418 train.py`.
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
        Reason::Gone => "not sent, gone",
        _ => "not sent",
    }
}
