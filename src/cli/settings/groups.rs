//! Groups of hosts from the `[hosts]` table of the configuration.

use std::fmt;

use super::error::{Origin, SettingError};
use crate::cli::subcommands;
use crate::model::text::quoted;
use crate::source::remote::Target;

/// A named list of hosts: at least one, without duplicates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub name: String,
    pub hosts: Vec<Target>,
    origin: Origin,
}

/// Parses a group from its hosts and the origin of each. Fails if a host is invalid, or if the group has the name of a
/// subcommand and could never be selected.
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
    // Subcommands are matched before groups.
    if subcommands().iter().any(|command| command == name) {
        let what = format!("group name `{shown}` is a subcommand; use another name");
        return Err(wrong(&origin, what));
    }
    if words.is_empty() {
        let what = format!("group `{shown}` is empty; add hosts as [user@]host[:port]");
        return Err(wrong(&origin, what));
    }
    let mut hosts = Vec::new();
    for (word, origin) in words {
        let host = Target::parse(word).map_err(|error| wrong(&origin, error.to_string()))?;
        if hosts.contains(&host) {
            let what = format!(
                "`{}` is listed twice in `{shown}`; remove one",
                quoted(word)
            );
            return Err(wrong(&origin, what));
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
    /// Formats the group as TOML, with its origin as a comment.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.hosts.iter().map(Target::word).collect();
        let key = toml::Table::from_iter([(self.name.clone(), toml::Value::from(words))]);
        write!(f, "{}  # {}", key.to_string().trim_end(), self.origin)
    }
}
