//! Maps keys to actions, based on the action table and the user's key bindings.

use std::collections::HashMap;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use gputop_model::nearest_name::nearest;
use gputop_model::text::quoted;
use thiserror::Error;

use super::action::{ACTIONS, Action, Scope};

#[derive(Debug, Error, PartialEq, Eq)]
pub enum KeymapError {
    #[error("unknown action `{name}`; {instead}")]
    Action { name: String, instead: String },
    #[error(
        "`{key}`, bound to action `{action}`, is not a valid key; use a character, or a name such as enter, pgup, f5, ctrl-x"
    )]
    Key { key: String, action: String },
    #[error(
        "key `{key}` is bound to both `{first}` and `{second}`; bind one of them to another key, or to none: `{second} = []`"
    )]
    Conflict { key: String, first: &'static str, second: &'static str },
    #[error("no key quits gputop; bind one to `quit` or `quit_now`")]
    NoQuitKey,
}

impl KeymapError {
    /// Returns the names of the actions involved in the error.
    pub fn actions(&self) -> Vec<&str> {
        match self {
            Self::Action { name, .. } => vec![name],
            Self::Key { action, .. } => vec![action],
            Self::Conflict { first, second, .. } => vec![first, second],
            Self::NoQuitKey => vec!["quit", "quit_now"],
        }
    }
}

/// The keys that a user binds to an action. They replace the default keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    pub action: String,
    pub keys: Vec<String>,
}

/// A key in a binding. Shift is part of the character.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    code: KeyCode,
    control: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keymap {
    /// Actions by key. The flag is true for recording bindings, which take precedence during playback.
    bindings: HashMap<(Key, bool), Action>,
    /// Key names of each action as configured, for the help and the footer.
    names: HashMap<Action, Vec<String>>,
}

impl Default for Keymap {
    fn default() -> Self {
        // The default keys cannot conflict, because a test checks that they are valid.
        Self::with(&[]).unwrap_or_else(|_| Self::empty())
    }
}

impl Keymap {
    fn empty() -> Self {
        Self { bindings: HashMap::new(), names: HashMap::new() }
    }

    /// Returns the default keymap with some bindings replaced. A binding without keys unbinds its action.
    pub fn with(own: &[Binding]) -> Result<Self, KeymapError> {
        let is_known = |name: &String| ACTIONS.iter().any(|def| def.name == *name);
        if let Some(unknown) = own.iter().find(|binding| !is_known(&binding.action)) {
            return Err(KeymapError::Action {
                name: quoted(&unknown.action),
                instead: suggestion(&unknown.action, ACTIONS.iter().map(|def| def.name)),
            });
        }
        let mut keymap = Self::empty();
        // Use the order of ACTIONS, so that conflicts are reported consistently.
        for def in ACTIONS {
            match own.iter().rev().find(|binding| binding.action == def.name) {
                Some(binding) => {
                    binding.keys.iter().try_for_each(|key| keymap.bind(key, def.action))?;
                }
                // Skip digits that the user has bound to other actions.
                None if def.action == Action::CopyFix => {
                    let is_own =
                        |key: &&str| own.iter().any(|one| one.keys.iter().any(|k| k == *key));
                    let mut free = def.keys.iter().filter(|key| !is_own(key));
                    free.try_for_each(|key| keymap.bind(key, def.action))?;
                }
                None => def.keys.iter().try_for_each(|key| keymap.bind(key, def.action))?,
            }
        }
        let quits = [Action::Quit, Action::QuitNow];
        if quits.iter().all(|action| keymap.keys(*action).is_empty()) {
            return Err(KeymapError::NoQuitKey);
        }
        Ok(keymap)
    }

    fn bind(&mut self, name: &str, action: Action) -> Result<(), KeymapError> {
        let key = parse_key(name).ok_or_else(|| KeymapError::Key {
            key: quoted(name),
            action: action.def().name.to_owned(),
        })?;
        let recording = action.def().scope == Scope::Recording;
        if let Some(before) = self.bindings.insert((key, recording), action) {
            if before == action {
                return Ok(());
            }
            let (first, second) = (before.def().name, action.def().name);
            return Err(KeymapError::Conflict { key: name.to_owned(), first, second });
        }
        self.names.entry(action).or_default().push(name.to_owned());
        Ok(())
    }

    pub fn resolve(&self, event: KeyEvent, recording: bool) -> Option<Action> {
        let control = event.modifiers.contains(KeyModifiers::CONTROL);
        if event.modifiers.intersects(KeyModifiers::ALT | KeyModifiers::SUPER) {
            return None;
        }
        let meaning = |code, control| {
            let key = Key { code, control };
            let played = self.bindings.get(&(key, true)).filter(|_| recording);
            played.or_else(|| self.bindings.get(&(key, false))).copied()
        };
        let enter = || is_enter(event).then(|| meaning(KeyCode::Enter, false));
        meaning(event.code, control).or_else(|| enter().flatten())
    }

    /// Returns the keys of an action as written in the keymap, preferred key first.
    pub fn keys(&self, action: Action) -> &[String] {
        self.names.get(&action).map_or(&[], Vec::as_slice)
    }

    /// Returns the preferred key as displayed: `Enter`, `^C`, `s`. Number keys are displayed as a range: `1-9`.
    pub fn label(&self, action: Action) -> String {
        match self.keys(action) {
            [] => "(no key)".to_owned(),
            [first, .., last] if action == Action::CopyFix => format!("{first}-{last}"),
            [first, ..] => show_key(first),
        }
    }
}

/// Returns true for Enter. An Enter typed before the terminal entered raw mode also counts: the kernel converts it to a
/// line feed, which is read as Ctrl-J.
pub fn is_enter(event: KeyEvent) -> bool {
    let control = event.modifiers.contains(KeyModifiers::CONTROL);
    event.code == KeyCode::Enter || (event.code == KeyCode::Char('j') && control)
}

fn suggestion(word: &str, names: impl IntoIterator<Item = &'static str>) -> String {
    nearest(word, names).map_or_else(
        || "`gputop config print` lists all actions".to_owned(),
        |name| format!("did you mean `{name}`?"),
    )
}

fn parse_key(name: &str) -> Option<Key> {
    let (control, name) = match name.strip_prefix("ctrl-") {
        Some(rest) => (true, rest),
        None => (false, name),
    };
    let mut characters = name.chars();
    let code = match (characters.next()?, characters.next()) {
        (character, None) if control => return controlled(character),
        (character, None) if !character.is_control() => KeyCode::Char(character),
        _ => named_key(name)?,
    };
    Some(Key { code, control })
}

/// Returns the key for Control and a character, ignoring case. Ctrl-I, Ctrl-M and Ctrl-[ become Tab, Enter and Esc,
/// because terminals send them as these keys.
fn controlled(character: char) -> Option<Key> {
    let plain = |code| Key { code, control: false };
    Some(match character.to_ascii_lowercase() {
        'i' => plain(KeyCode::Tab),
        'm' => plain(KeyCode::Enter),
        '[' => plain(KeyCode::Esc),
        character if character.is_control() => return None,
        character => Key { code: KeyCode::Char(character), control: true },
    })
}

fn named_key(name: &str) -> Option<KeyCode> {
    Some(match name {
        "up" => KeyCode::Up,
        "down" => KeyCode::Down,
        "left" => KeyCode::Left,
        "right" => KeyCode::Right,
        "home" => KeyCode::Home,
        "end" => KeyCode::End,
        "pgup" => KeyCode::PageUp,
        "pgdn" => KeyCode::PageDown,
        "enter" => KeyCode::Enter,
        "esc" => KeyCode::Esc,
        "tab" => KeyCode::Tab,
        "backtab" => KeyCode::BackTab,
        "space" => KeyCode::Char(' '),
        "backspace" => KeyCode::Backspace,
        "delete" => KeyCode::Delete,
        other => {
            KeyCode::F(other.strip_prefix('f')?.parse().ok().filter(|n| (1..=12).contains(n))?)
        }
    })
}

/// Formats a key name for display.
pub fn show_key(name: &str) -> String {
    if let Some(rest) = name.strip_prefix("ctrl-") {
        return format!("^{}", rest.to_uppercase());
    }
    match name {
        "enter" => "Enter".into(),
        "esc" => "Esc".into(),
        "tab" => "Tab".into(),
        "backtab" => "S-Tab".into(),
        "space" => "Space".into(),
        "pgup" => "PgUp".into(),
        "pgdn" => "PgDn".into(),
        other if other.chars().count() > 1 => {
            let mut letters = other.chars();
            letters
                .next()
                .map(|first| first.to_uppercase().chain(letters).collect())
                .unwrap_or_default()
        }
        other => other.into(),
    }
}

#[cfg(test)]
mod tests;
