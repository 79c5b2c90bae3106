//! Groups of hosts, which the configuration names.

use std::fmt;

use super::error::{Origin, SettingError};
use crate::cli::subcommands;
use crate::model::text::quoted;
use crate::source::remote::Target;

/// Several hosts under one name: never none, none of them twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub name: String,
    pub hosts: Vec<Target>,
    origin: Origin,
}

/// The group of these words, each with where it is written.
///
/// # Errors
/// When one of them is no host, or nobody could ever name the group.
pub fn group(
    name: &str,
    words: Vec<(&str, Origin)>,
    origin: Origin,
) -> Result<Group, SettingError> {
    let shown = quoted(name);
    let wrong = |origin: &Origin, what: String| SettingError::Value {
        origin: origin.clone(),
        what,
    };
    // A command is taken for a command before anybody asks for groups.
    if subcommands().iter().any(|command| command == name) {
        let what = format!("`gputop {shown}` is a command; a group wants another name");
        return Err(wrong(&origin, what));
    }
    if words.is_empty() {
        let what = format!("`{shown}` names no host: one is written [user@]host[:port]");
        return Err(wrong(&origin, what));
    }
    let mut hosts = Vec::new();
    for (word, here) in words {
        let host = Target::parse(word).map_err(|error| wrong(&here, error.to_string()))?;
        if hosts.contains(&host) {
            let what = format!("`{}` is named twice in `{shown}`", quoted(word));
            return Err(wrong(&here, what));
        }
        hosts.push(host);
    }
    Ok(Group {
        name: name.to_owned(),
        hosts,
        origin,
    })
}

impl fmt::Display for Group {
    /// As in TOML, with where it was written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.hosts.iter().map(Target::word).collect();
        let key = toml::Table::from_iter([(self.name.clone(), toml::Value::from(words))]);
        write!(f, "{}  # {}", key.to_string().trim_end(), self.origin)
    }
}
