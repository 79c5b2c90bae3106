//! Errors in settings. Each message is one line that begins with the origin of the value.

use std::fmt;
use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::tui::colours::ThemeError;
use crate::tui::keymap::KeymapError;

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Default,
    File { path: PathBuf, line: usize },
    Variable(&'static str),
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}, line {line}", path.display()),
            Self::Variable(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}

#[derive(Debug, Error)]
pub enum SettingError {
    #[error("cannot read {what} {}: {why}", path.display())]
    Unreadable {
        /// `configuration`, `theme`
        what: &'static str,
        path: PathBuf,
        why: io::Error,
    },
    #[error("cannot read {what} {}: larger than 1 MiB", path.display())]
    TooLarge { what: &'static str, path: PathBuf },
    #[error("{}, {what}", path.display())]
    Theme { path: PathBuf, what: ThemeError },
    #[error("{origin}: invalid TOML: {what}")]
    Syntax { origin: Origin, what: String },
    #[error("{origin}: unknown key `{key}`; {instead}")]
    UnknownKey {
        origin: Origin,
        key: String,
        instead: String,
    },
    #[error("{origin}: `{key}` is {found}; expected {expected}")]
    WrongKind {
        origin: Origin,
        key: String,
        found: &'static str,
        expected: String,
    },
    #[error("{origin}: {what}")]
    Value { origin: Origin, what: String },
    #[error("{origin}: {what}")]
    Keymap { origin: Origin, what: KeymapError },
}
