//! Keys to actions: a pure function over a table that is read from TOML.

use std::collections::{BTreeMap, HashMap};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use thiserror::Error;

use super::action::{ACTIONS, Action, Scope};
use crate::model::nearest_name::nearest;
use crate::model::text::quoted;

/// The keys this program ships with.
pub const DEFAULT: &str = include_str!("../../assets/keymap.toml");

#[derive(Debug, Error, PartialEq, Eq)]
pub enum KeymapError {
    #[error("the keymap is not valid TOML: {0}")]
    Syntax(String),
    #[error("there is no action `{name}`; {instead}")]
    Action { name: String, instead: String },
    #[error(
        "`{key}` of action `{action}` is no key: a character, or a name such as enter, pgup, f5, ctrl-x"
    )]
    Key { key: String, action: String },
    #[error(
        "key `{key}` is bound to both `{first}` and `{second}`; give one of them another key, or none: `{second} = []`"
    )]
    Conflict {
        key: String,
        first: &'static str,
        second: &'static str,
    },
    #[error("no key would leave gputop; give one to `quit` or `quit_now`")]
    NoWayOut,
}

impl KeymapError {
    /// The actions it is about.
    pub fn actions(&self) -> Vec<&str> {
        match self {
            Self::Syntax(_) => Vec::new(),
            Self::Action { name, .. } => vec![name],
            Self::Key { action, .. } => vec![action],
            Self::Conflict { first, second, .. } => vec![first, second],
            Self::NoWayOut => vec!["quit", "quit_now"],
        }
    }
}

/// The keys that a user gives to an action, in place of those it has by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    pub action: String,
    pub keys: Vec<String>,
}

/// A key as bindings compare it: shift is in the character already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    code: KeyCode,
    control: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keymap {
    /// Keys of a recording stand apart: while one plays they come first.
    bindings: HashMap<(Key, bool), Action>,
    /// For help and footer, in the order of the file.
    names: HashMap<Action, Vec<String>>,
}

impl Keymap {
    /// # Errors
    /// One sentence on the first binding that is wrong.
    pub fn parse(text: &str) -> Result<Self, KeymapError> {
        Self::with(text, &[])
    }

    /// A keymap in which some actions have other keys; without keys an action has none.
    ///
    /// # Errors
    /// One sentence on the first binding that is wrong.
    pub fn with(text: &str, own: &[Binding]) -> Result<Self, KeymapError> {
        let mut table: BTreeMap<String, Vec<String>> =
            toml::from_str(text).map_err(|e| KeymapError::Syntax(e.message().to_owned()))?;
        for binding in own {
            table.insert(binding.action.clone(), binding.keys.clone());
        }
        let names = ACTIONS.iter().map(|def| def.name);
        if let Some(unknown) = table
            .keys()
            .find(|name| !names.clone().any(|n| n == **name))
        {
            return Err(KeymapError::Action {
                name: quoted(unknown),
                instead: meant(unknown, names),
            });
        }
        let mut keymap = Self {
            bindings: HashMap::new(),
            names: HashMap::new(),
        };
        // In the order of ACTIONS, so that a conflict is always told the same way.
        for def in ACTIONS {
            for name in table.get(def.name).into_iter().flatten() {
                keymap.bind(name, def.action)?;
            }
        }
        let leaves = [Action::Quit, Action::QuitNow];
        if !own.is_empty() && leaves.iter().all(|action| keymap.keys(*action).is_empty()) {
            return Err(KeymapError::NoWayOut);
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
            return Err(KeymapError::Conflict {
                key: name.to_owned(),
                first,
                second,
            });
        }
        self.names.entry(action).or_default().push(name.to_owned());
        Ok(())
    }

    /// What a key means; what it means in a recording it does not mean on live data.
    pub fn resolve(&self, event: KeyEvent, recording: bool) -> Option<Action> {
        let control = event.modifiers.contains(KeyModifiers::CONTROL);
        if event
            .modifiers
            .intersects(KeyModifiers::ALT | KeyModifiers::SUPER)
        {
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

    /// The keys of an action as written in the keymap, the preferred one first.
    pub fn keys(&self, action: Action) -> &[String] {
        self.names.get(&action).map_or(&[], Vec::as_slice)
    }

    /// The preferred key as it is shown: `Enter`, `^C`, `s`.
    pub fn label(&self, action: Action) -> String {
        self.keys(action)
            .first()
            .map_or_else(|| "(no key)".to_owned(), |name| show_key(name))
    }
}

/// Enter, also one that was typed before the terminal was in raw mode: the kernel made a line feed of it, which is
/// read as Ctrl-J.
pub fn is_enter(event: KeyEvent) -> bool {
    let control = event.modifiers.contains(KeyModifiers::CONTROL);
    event.code == KeyCode::Enter || (event.code == KeyCode::Char('j') && control)
}

fn meant(word: &str, names: impl IntoIterator<Item = &'static str>) -> String {
    nearest(word, names).map_or_else(
        || "`?` in gputop explains them, `gputop config print` names them".to_owned(),
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

/// A letter with Control: whatever its case, and three of them are other keys to every terminal.
fn controlled(character: char) -> Option<Key> {
    let plain = |code| Key {
        code,
        control: false,
    };
    Some(match character.to_ascii_lowercase() {
        'i' => plain(KeyCode::Tab),
        'm' => plain(KeyCode::Enter),
        '[' => plain(KeyCode::Esc),
        character if character.is_control() => return None,
        character => Key {
            code: KeyCode::Char(character),
            control: true,
        },
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
        other => KeyCode::F(
            other
                .strip_prefix('f')?
                .parse()
                .ok()
                .filter(|n| (1..=12).contains(n))?,
        ),
    })
}

/// A key's name as people write it on screen.
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
mod tests {
    use super::*;

    fn press(code: KeyCode) -> KeyEvent {
        KeyEvent::new(code, KeyModifiers::NONE)
    }

    #[test]
    fn the_default_keymap_binds_every_action_once() {
        let keymap = Keymap::parse(DEFAULT).expect("the default keymap");
        for def in ACTIONS {
            assert!(
                !keymap.keys(def.action).is_empty(),
                "{} has no key",
                def.name
            );
            assert_eq!(def.action.def().name, def.name, "an action is listed twice");
        }
    }

    #[test]
    fn keys_mean_what_fingers_expect() {
        let keymap = Keymap::parse(DEFAULT).expect("the default keymap");
        let table = [
            (KeyCode::Char('j'), Action::Down),
            (KeyCode::Up, Action::Up),
            (KeyCode::Enter, Action::Open),
            (KeyCode::Esc, Action::Back),
            (KeyCode::Tab, Action::NextPane),
            (KeyCode::Char('/'), Action::Filter),
            (KeyCode::Char('s'), Action::Sort),
            (KeyCode::Char('?'), Action::Help),
            (KeyCode::Char('q'), Action::Quit),
            (KeyCode::Char('G'), Action::Last),
            (KeyCode::Char('z'), Action::Density),
            (KeyCode::F(9), Action::Signal),
            (KeyCode::Char('x'), Action::Signal),
            (KeyCode::Char(' '), Action::Tag),
            (KeyCode::Char('U'), Action::Untag),
            (KeyCode::Char('t'), Action::Group),
            (KeyCode::Char('C'), Action::Columns),
        ];
        for (key, action) in table {
            assert_eq!(keymap.resolve(press(key), false), Some(action), "{key:?}");
        }
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(keymap.resolve(interrupt, false), Some(Action::QuitNow));
        // k moves; nothing that ends a process is ever near it.
        assert_eq!(
            keymap.resolve(press(KeyCode::Char('k')), false),
            Some(Action::Up)
        );
    }

    #[test]
    fn enter_typed_before_raw_mode_is_enter_unless_ctrl_j_is_bound() {
        let line_feed = KeyEvent::new(KeyCode::Char('j'), KeyModifiers::CONTROL);
        let keymap = Keymap::parse(DEFAULT).expect("the default keymap");
        assert_eq!(keymap.resolve(line_feed, false), Some(Action::Open));
        assert_eq!(keymap.resolve(line_feed, true), Some(Action::Open));
        let bound = Keymap::parse("open = [\"enter\"]\ndown = [\"ctrl-j\"]").expect("a keymap");
        assert_eq!(bound.resolve(line_feed, false), Some(Action::Down));
    }

    #[test]
    fn the_users_keys_stand_in_place_of_the_ones_an_action_has() {
        let own = |action: &str, keys: &[&str]| Binding {
            action: action.to_owned(),
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        };
        let with = |bindings: &[Binding]| Keymap::with(DEFAULT, bindings);
        let letter = |keymap: &Keymap, c| keymap.resolve(press(KeyCode::Char(c)), false);
        let table: [(&[Binding], char, Option<Action>); 6] = [
            (&[own("up", &["9"])], '9', Some(Action::Up)),
            // The old key goes.
            (&[own("up", &["9"])], 'k', None),
            (&[own("sort", &[])], 's', None),
            // Two may change places.
            (
                &[own("up", &["j"]), own("down", &["k"])],
                'j',
                Some(Action::Up),
            ),
            // A recording's keys are a scope of their own.
            (&[own("skip_back", &["q"])], 'q', Some(Action::Quit)),
            (&[own("quit", &["q", "q"])], 'q', Some(Action::Quit)),
        ];
        for (bindings, key, action) in table {
            let keymap = with(bindings).expect("a keymap");
            assert_eq!(letter(&keymap, key), action, "{key} {bindings:?}");
        }
        let keymap = with(&[own("sort", &[])]).expect("a keymap");
        assert_eq!(keymap.label(Action::Sort), "(no key)");
        let error = |bindings: &[Binding]| with(bindings).expect_err("wrong").to_string();
        assert_eq!(
            error(&[own("up", &["s"])]),
            "key `s` is bound to both `up` and `sort`; give one of them another key, or none: `sort = []`"
        );
        // What a terminal cannot tell apart is one key.
        assert!(error(&[own("up", &["ctrl-m"])]).contains("both `up` and `open`"));
        assert!(error(&[own("up", &["ctrl-C"])]).contains("both `up` and `quit_now`"));
        assert!(error(&[own("up", &["\u{1b}"])]).contains("is no key"));
        assert_eq!(
            error(&[own("quit", &[]), own("quit_now", &[])]),
            "no key would leave gputop; give one to `quit` or `quit_now`"
        );
        assert_eq!(
            error(&[own("quit_nwo", &["x"])]),
            "there is no action `quit_nwo`; did you mean `quit_now`?"
        );
    }

    #[test]
    fn keys_of_a_recording_mean_nothing_live() {
        let keymap = Keymap::parse(DEFAULT).expect("the default keymap");
        assert_eq!(keymap.resolve(press(KeyCode::Char('-')), false), None);
        assert_eq!(
            keymap.resolve(press(KeyCode::Left), true),
            Some(Action::SkipBack)
        );
        // A key may have a meaning of its own where no recording plays.
        let comma = press(KeyCode::Char(','));
        assert_eq!(keymap.resolve(comma, true), Some(Action::StepBack));
        assert_eq!(keymap.resolve(comma, false), Some(Action::ScrollBack));
        assert_eq!(
            keymap.resolve(press(KeyCode::Left), false),
            Some(Action::Left)
        );
    }

    #[test]
    fn a_wrong_keymap_is_one_clear_sentence() {
        let error = |text: &str| Keymap::parse(text).expect_err("wrong").to_string();
        assert_eq!(
            error("quti = [\"q\"]"),
            "there is no action `quti`; did you mean `quit`?"
        );
        assert!(error("quit = [\"hyper-q\"]").starts_with("`hyper-q` of action `quit` is no key"));
        assert_eq!(
            error("open = [\"q\"]\nquit = [\"q\"]"),
            "key `q` is bound to both `open` and `quit`; give one of them another key, or none: `quit = []`"
        );
        assert!(error("quit = ").starts_with("the keymap is not valid TOML"));
    }
}
