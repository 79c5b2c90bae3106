//! Settings as written by the user, each with its origin. Flags override environment variables, and these override the
//! configuration file.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use gputop_model::nearest_name::instead_of;
use gputop_model::text::quoted;
use serde::Deserialize;
use serde::de::IntoDeserializer;
use thiserror::Error;
use toml::de::{DeTable, Error as TomlError, ValueDeserializer};
use toml::{Spanned, Value};

use super::definition::{HOSTS, KEYS, Kind, SETTINGS, SettingDef, TABLES};
use crate::cli::subcommands::SUBCOMMANDS;
use crate::source::remote::Target;
use crate::tui::colours::ThemeError;
use crate::tui::keymap::Binding;
use crate::user_files::{Base, DirectoryError, directory, refuse_other_users};

/// Environment variable with the path of the configuration file. The flag `--config` takes precedence.
pub const VARIABLE: &str = "GPUTOP_CONFIG";

const MAX_BYTES: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Default,
    File { path: PathBuf, line: usize },
    Variable(&'static str),
    Flag(&'static str),
}

impl Origin {
    pub fn error(&self, what: impl ToString) -> SettingError {
        SettingError::Invalid { origin: self.clone(), what: what.to_string() }
    }
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

/// Error in a setting: one line that begins with the origin of the value.
#[derive(Debug, Error)]
pub enum SettingError {
    #[error("cannot read {what} {}: {why}", path.display())]
    Unreadable {
        /// Kind of the file, as named in the message: `configuration` or `theme`.
        what: &'static str,
        path: PathBuf,
        why: io::Error,
    },
    #[error("{}, {what}", path.display())]
    Theme { path: PathBuf, what: ThemeError },
    #[error("{origin}: {what}")]
    Invalid { origin: Origin, what: String },
}

/// Path of the configuration file, which need not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigPath {
    pub path: PathBuf,
    /// True if the user gave the path. The file must then exist.
    is_explicit: bool,
}

impl ConfigPath {
    /// Returns the path from the flag, the environment variable or the XDG configuration directory, in this order.
    ///
    /// The flag may name any file, even if gputop runs as root. If the variable names a file owned by another user, the
    /// file is rejected: the variable may come from that user through `sudo -E`, and the file's `on_incident` command
    /// would run as root.
    pub fn find(flag: Option<&Path>) -> Result<Self, DirectoryError> {
        let explicit = |path| Self { path, is_explicit: true };
        if let Some(path) = flag {
            return Ok(explicit(path.to_owned()));
        }
        let variable = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
        if let Some(path) = variable.map(PathBuf::from) {
            refuse_other_users(&std::path::absolute(&path).unwrap_or_else(|_| path.clone()))?;
            return Ok(explicit(path));
        }
        Ok(Self { path: directory(Base::Config, "config.toml")?, is_explicit: false })
    }
}

/// Named group of hosts: at least one host, without duplicates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub name: String,
    pub hosts: Vec<Target>,
    origin: Origin,
}

impl fmt::Display for Group {
    /// Formats the host group as TOML, with its origin as a comment.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.hosts.iter().map(Target::word).collect();
        let key = toml::Table::from_iter([(self.name.clone(), Value::from(words))]);
        write!(f, "{}  # {}", key.to_string().trim_end(), self.origin)
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a key or a list of keys")]
enum KeyNames {
    One(String),
    Several(Vec<String>),
}

impl KeyNames {
    fn list(self) -> Vec<String> {
        match self {
            Self::One(key) => vec![key],
            Self::Several(keys) => keys,
        }
    }
}

/// Unparsed setting values from flags, environment variables and the configuration file.
#[derive(Debug, Default)]
pub struct WrittenSettings {
    /// Setting values in order of precedence.
    values: Vec<(&'static SettingDef, Value, Origin)>,
    pub bindings: Vec<(Binding, Origin)>,
    pub groups: Vec<Group>,
}

impl WrittenSettings {
    /// Reads the configuration file and reports its first error. Treats a missing file as empty unless the path was
    /// given.
    pub fn read(config: &ConfigPath) -> Result<Self, SettingError> {
        use io::ErrorKind::{NotADirectory, NotFound};
        match read_text("configuration", &config.path) {
            Ok(text) => Self::parse(&config.path, &text),
            Err(SettingError::Unreadable { why, .. })
                if matches!(why.kind(), NotFound | NotADirectory) && !config.is_explicit =>
            {
                Ok(Self::default())
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, SettingError> {
        let at = |span: Range<usize>| {
            let before = text.bytes().take(span.start);
            Origin::File {
                path: path.to_owned(),
                line: before.filter(|byte| *byte == b'\n').count() + 1,
            }
        };
        let message = |error: &TomlError| error.message().replace('\n', ", ");
        let table = DeTable::parse(text).map_err(|error| {
            at(error.span().unwrap_or_default()).error(format!("invalid TOML: {}", message(&error)))
        })?;
        let mut written = Self::default();
        for (key, value) in table.into_inner() {
            let (name, span) = (key.get_ref(), key.span());
            let wrong_type = |example: &'static str| {
                let (name, span) = (quoted(name), span.clone());
                move |error: TomlError| {
                    let what = format!("`{name}`: {}, such as {example}", message(&error));
                    at(error.span().unwrap_or(span)).error(what)
                }
            };
            let value = value.into_deserializer();
            if name == KEYS.name {
                let keys = BTreeMap::<Spanned<String>, KeyNames>::deserialize(value)
                    .map_err(wrong_type(KEYS.example))?;
                let binding = |(action, keys): (Spanned<String>, KeyNames)| {
                    let origin = at(action.span());
                    (Binding { action: action.into_inner(), keys: keys.list() }, origin)
                };
                written.bindings = keys.into_iter().map(binding).collect();
            } else if name == HOSTS.name {
                let groups = BTreeMap::<Spanned<String>, Vec<Spanned<String>>>::deserialize(value)
                    .map_err(wrong_type(HOSTS.example))?;
                for (name, hosts) in groups {
                    let hosts: Vec<_> =
                        hosts.iter().map(|h| (&**h.get_ref(), at(h.span()))).collect();
                    let origin = at(name.span());
                    written.groups.push(group(name.into_inner(), &hosts, origin)?);
                }
            } else if let Some(def) = SETTINGS.iter().find(|def| def.name == name) {
                let raw = raw_value(def.kind, value).map_err(wrong_type(def.example))?;
                written.values.push((def, raw, at(span)));
            } else {
                return Err(at(span).error(unknown_key(name)));
            }
        }
        Ok(written)
    }

    /// Overrides values from the file with flags and environment variables. Fails if the environment variable of a
    /// boolean setting is neither true nor false.
    pub fn overridden(
        self,
        flags: Vec<(&'static SettingDef, Value)>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingError> {
        let flags = flags.into_iter();
        let mut values: Vec<_> =
            flags.map(|(def, raw)| (def, raw, Origin::Flag(def.flag))).collect();
        for def in SETTINGS {
            // Treat an empty environment variable as unset.
            if let Some(text) = variable(def.variable).filter(|text| !text.is_empty()) {
                let origin = Origin::Variable(def.variable);
                let raw = match (def.kind, text.to_lowercase().as_str()) {
                    (Kind::Text, _) => Value::from(text),
                    (Kind::Switch, "1" | "true" | "yes" | "on") => Value::from(true),
                    (Kind::Switch, "0" | "false" | "no" | "off") => Value::from(false),
                    _ => {
                        let text = quoted(&text);
                        let what = format!("`{text}` is not a valid value; use true or false");
                        return Err(origin.error(what));
                    }
                };
                values.push((def, raw, origin));
            }
        }
        values.extend(self.values);
        Ok(Self { values, ..self })
    }

    fn get(&self, name: &str) -> Option<&(&'static SettingDef, Value, Origin)> {
        self.values.iter().find(|(def, ..)| def.name == name)
    }

    pub fn switch(&self, name: &str) -> Option<bool> {
        self.get(name)?.1.as_bool()
    }

    /// Parses a setting's text, or that of its default value, and adds the setting's origin to any error.
    pub fn parsed<T>(
        &self,
        name: &str,
        default: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, SettingError> {
        let text = self.get(name).and_then(|(_, value, _)| value.as_str());
        parse(text.unwrap_or(default)).map_err(|what| self.origin(name).error(what))
    }

    pub fn origin(&self, name: &str) -> Origin {
        self.get(name).map_or(Origin::Default, |(.., origin)| origin.clone())
    }
}

fn raw_value(kind: Kind, value: ValueDeserializer<'_>) -> Result<Value, TomlError> {
    match kind {
        Kind::Text => String::deserialize(value).map(Value::from),
        Kind::Switch => bool::deserialize(value).map(Value::from),
    }
}

fn unknown_key(name: &str) -> String {
    let names = SETTINGS.iter().map(|def| def.name).chain(TABLES.iter().map(|def| def.name));
    format!("unknown key `{}`; {}", quoted(name), instead_of(name, names))
}

/// Parses a host group from its hosts and their origins. Fails if a host is invalid. Also fails if the group has the
/// name of a subcommand, because such a group could never be selected on the command line.
fn group(name: String, words: &[(&str, Origin)], origin: Origin) -> Result<Group, SettingError> {
    let shown = quoted(&name);
    // Reject names of subcommands, because gputop looks for a subcommand before it looks for a group.
    if SUBCOMMANDS.contains(&&*name) {
        let what = format!("group name `{shown}` is a subcommand; use another name");
        return Err(origin.error(what));
    }
    if words.is_empty() {
        let what = format!("group `{shown}` is empty; add hosts as [user@]host[:port]");
        return Err(origin.error(what));
    }
    let mut hosts = Vec::new();
    for (word, origin) in words {
        let host = Target::parse(word).map_err(|error| origin.error(error))?;
        if hosts.contains(&host) {
            let word = quoted(word);
            return Err(origin.error(format!("`{word}` is listed twice in `{shown}`; remove one")));
        }
        hosts.push(host);
    }
    Ok(Group { name, hosts, origin })
}

/// Reads a text file written by the user. `what` names the file in error messages.
pub fn read_text(what: &'static str, path: &Path) -> Result<String, SettingError> {
    let read = || {
        let mut text = String::new();
        let read = File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
        if read as u64 > MAX_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 1 MiB"));
        }
        Ok(text)
    };
    read().map_err(|why| SettingError::Unreadable { what, path: path.to_owned(), why })
}

#[cfg(test)]
mod tests;
