//! What can be wrong with a setting, each as one sentence that begins with where it was written.

use std::fmt;
use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::tui::colours::ThemeError;
use crate::tui::keymap::KeymapError;

/// Where a value was written.
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
    #[error("the {what} {} cannot be read: {why}", path.display())]
    Unreadable {
        /// `configuration`, `theme`
        what: &'static str,
        path: PathBuf,
        why: io::Error,
    },
    #[error("the {what} {} is larger than a mebibyte", path.display())]
    TooLarge { what: &'static str, path: PathBuf },
    #[error("{}, {what}", path.display())]
    Theme { path: PathBuf, what: ThemeError },
    #[error("{origin}: this is not valid TOML: {what}")]
    Syntax { origin: Origin, what: String },
    #[error("{origin}: there is no key `{key}`; {instead}")]
    UnknownKey {
        origin: Origin,
        key: String,
        instead: String,
    },
    #[error("{origin}: `{key}` is {found}; wanted is {wanted}")]
    WrongKind {
        origin: Origin,
        key: String,
        found: &'static str,
        wanted: String,
    },
    #[error("{origin}: {what}")]
    Value { origin: Origin, what: String },
    #[error("{origin}: {what}")]
    Keymap { origin: Origin, what: KeymapError },
}
