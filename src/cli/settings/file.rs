//! The configuration file: its path, and its contents with line numbers for error messages.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::definition::{HOSTS, KEYS, Kind, SETTINGS, SettingDef, TABLES};
use super::error::{Origin, SettingError};
use super::groups::{Group, group};
use super::precedence::Raw;
use crate::model::nearest_name::instead_of;
use crate::model::text::quoted;
use crate::tui::keymap::Binding;
use crate::user_files::{Base, DirectoryError, directory, refuse_other_users};

/// Environment variable with the path of the configuration file. The flag `--config` takes precedence.
pub const VARIABLE: &str = "GPUTOP_CONFIG";

const MAX_BYTES: u64 = 1 << 20;

/// Path of the configuration file, which need not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigPath {
    pub path: PathBuf,
    /// True if the user gave the path. Then the file must exist.
    is_explicit: bool,
}

impl ConfigPath {
    /// Returns the path from the flag, the variable or the XDG configuration directory, in this order.
    ///
    /// Root may name any file with the flag. The variable may be another user's, kept by `sudo -E`, so its file must
    /// not be: `on_incident` runs as root.
    pub fn find(flag: Option<&Path>) -> Result<Self, DirectoryError> {
        let explicit = |path| Self {
            path,
            is_explicit: true,
        };
        if let Some(path) = flag {
            return Ok(explicit(path.to_owned()));
        }
        let variable = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
        if let Some(path) = variable.map(PathBuf::from) {
            refuse_other_users(&std::path::absolute(&path).unwrap_or_else(|_| path.clone()))?;
            return Ok(explicit(path));
        }
        Ok(Self {
            path: directory(Base::Config, "config.toml")?,
            is_explicit: false,
        })
    }
}

/// The contents of the file, not yet resolved.
#[derive(Debug, Default)]
pub struct ConfigFile {
    pub values: Vec<(&'static SettingDef, Raw, Origin)>,
    pub bindings: Vec<(Binding, Origin)>,
    pub groups: Vec<Group>,
}

impl ConfigFile {
    /// Reads the file and reports the first error in it. A missing file counts as empty unless the user gave its path.
    pub fn read(config: &ConfigPath) -> Result<Self, SettingError> {
        match read_text("configuration", &config.path) {
            Ok(text) => Self::parse(&config.path, &text),
            Err(SettingError::Unreadable { why, .. }) if is_absent(&why) && !config.is_explicit => {
                Ok(Self::default())
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, SettingError> {
        let lines = Lines { path, text };
        let table = DeTable::parse(text).map_err(|error| SettingError::Syntax {
            origin: lines.at(error.span().unwrap_or(0..0)),
            what: error.message().replace('\n', ", "),
        })?;
        let mut file = Self::default();
        for (key, value) in table.get_ref() {
            let name = key.get_ref();
            let origin = lines.at(key.span());
            if name == KEYS.name {
                file.bindings = bindings(value, &lines)?;
            } else if name == HOSTS.name {
                file.groups = groups(value, &lines)?;
            } else if let Some(def) = SETTINGS.iter().find(|def| def.name == name) {
                file.values.push((def, raw(def, value, &origin)?, origin));
            } else {
                let names = SETTINGS.iter().map(|def| def.name);
                let names = names.chain(TABLES.iter().map(|def| def.name));
                return Err(SettingError::UnknownKey {
                    origin,
                    key: quoted(name),
                    instead: instead_of(name, names),
                });
            }
        }
        Ok(file)
    }
}

/// Reads a text file written by the user. Error messages call the file `what`.
pub fn read_text(what: &'static str, path: &Path) -> Result<String, SettingError> {
    let mut text = String::new();
    let read = |file: File| file.take(MAX_BYTES + 1).read_to_string(&mut text);
    let path = path.to_owned();
    match File::open(&path).and_then(read) {
        Ok(read) if read as u64 > MAX_BYTES => Err(SettingError::TooLarge { what, path }),
        Ok(_) => Ok(text),
        Err(why) => Err(SettingError::Unreadable { what, path, why }),
    }
}

fn is_absent(why: &io::Error) -> bool {
    matches!(
        why.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Converts positions in the text to line numbers.
struct Lines<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Lines<'_> {
    fn at(&self, span: Range<usize>) -> Origin {
        let before = self.text.as_bytes().iter().take(span.start);
        Origin::File {
            path: self.path.to_owned(),
            line: before.filter(|byte| **byte == b'\n').count() + 1,
        }
    }
}

fn raw(
    def: &SettingDef,
    value: &Spanned<DeValue<'_>>,
    origin: &Origin,
) -> Result<Raw, SettingError> {
    let raw = match (def.kind, value.get_ref()) {
        (Kind::Text, DeValue::String(text)) => Some(Raw::Text(text.to_string())),
        (Kind::Switch, DeValue::Boolean(is_on)) => Some(Raw::Switch(*is_on)),
        _ => None,
    };
    raw.ok_or_else(|| {
        let expected = match def.kind {
            Kind::Text => format!("a string such as {}", def.example),
            Kind::Switch => "true or false".to_owned(),
        };
        wrong_kind(def.name, value, expected, origin)
    })
}

fn bindings(
    table: &Spanned<DeValue<'_>>,
    lines: &Lines<'_>,
) -> Result<Vec<(Binding, Origin)>, SettingError> {
    let DeValue::Table(keys) = table.get_ref() else {
        let expected = "a table of actions: [keys], then quit = \"x\"".to_owned();
        return Err(wrong_kind(
            KEYS.name,
            table,
            expected,
            &lines.at(table.span()),
        ));
    };
    let mut bindings = Vec::new();
    for (action, keys) in keys {
        let origin = lines.at(action.span());
        let names = key_names(keys.get_ref()).ok_or_else(|| {
            let expected = "a key such as \"x\", or a list such as [\"x\", \"f10\"]".to_owned();
            wrong_kind(action.get_ref(), keys, expected, &origin)
        })?;
        let binding = Binding {
            action: action.get_ref().to_string(),
            keys: names,
        };
        bindings.push((binding, origin));
    }
    Ok(bindings)
}

fn groups(table: &Spanned<DeValue<'_>>, lines: &Lines<'_>) -> Result<Vec<Group>, SettingError> {
    let DeValue::Table(named) = table.get_ref() else {
        let expected = "a table of groups: [hosts], then cluster = [\"gpu1\", \"gpu2\"]".to_owned();
        return Err(wrong_kind(
            HOSTS.name,
            table,
            expected,
            &lines.at(table.span()),
        ));
    };
    let mut groups = Vec::new();
    for (name, hosts) in named {
        let origin = lines.at(name.span());
        let words = host_words(hosts, lines).ok_or_else(|| {
            let expected = "a list of hosts such as [\"gpu1\", \"me@gpu2:2222\"]".to_owned();
            wrong_kind(name.get_ref(), hosts, expected, &origin)
        })?;
        groups.push(group(name.get_ref(), words, origin)?);
    }
    Ok(groups)
}

/// Returns the hosts in a list, each with its line.
fn host_words<'a>(
    value: &'a Spanned<DeValue<'_>>,
    lines: &Lines<'_>,
) -> Option<Vec<(&'a str, Origin)>> {
    let DeValue::Array(list) = value.get_ref() else {
        return None;
    };
    let word =
        |host: &'a Spanned<DeValue<'_>>| Some((host.get_ref().as_str()?, lines.at(host.span())));
    list.iter().map(word).collect()
}

/// Returns the names from one key or a list of keys.
fn key_names(value: &DeValue<'_>) -> Option<Vec<String>> {
    if let DeValue::Array(list) = value {
        let names = list.iter().map(|key| key.get_ref().as_str());
        return names.map(|name| name.map(str::to_owned)).collect();
    }
    Some(vec![value.as_str()?.to_owned()])
}

fn wrong_kind(
    key: &str,
    value: &Spanned<DeValue<'_>>,
    expected: String,
    origin: &Origin,
) -> SettingError {
    SettingError::WrongKind {
        origin: origin.clone(),
        key: quoted(key),
        found: match value.get_ref() {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) | DeValue::Float(_) => "a number",
            DeValue::Boolean(true) => "true",
            DeValue::Boolean(false) => "false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        },
        expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_error(text: &str) -> String {
        ConfigFile::parse(Path::new("c.toml"), text)
            .expect_err(text)
            .to_string()
    }

    proptest::proptest! {
        #[test]
        fn reports_errors_in_any_text_on_one_line(text in "(keys|hosts|theme|[a-z.]|[\"'=\\[\\]{}#,0-9\n -]|\\PC){0,60}") {
            if let Err(error) = ConfigFile::parse(Path::new("c.toml"), &text) {
                let message = error.to_string();
                proptest::prop_assert_eq!(message.lines().count(), 1, "{}", message);
            }
        }
    }

    #[test]
    fn records_the_line_of_each_value() {
        let text = "# mine\ninterval = \"2s\"\nascii = true\n[keys]\nquit = \"x\"\nup = [\"w\", \"up\"]\n[hosts]\nall = [\"gpu1\", \"via:sh\"]\n";
        let file = ConfigFile::parse(Path::new("c.toml"), text).expect("a configuration");
        let values: Vec<String> = file
            .values
            .iter()
            .map(|(def, raw, origin)| format!("{} = {raw} ({origin})", def.name))
            .collect();
        assert_eq!(
            values,
            [
                "ascii = true (c.toml, line 3)",
                "interval = \"2s\" (c.toml, line 2)"
            ]
        );
        let keys: Vec<_> = file.bindings.iter().map(|(b, _)| b.keys.len()).collect();
        assert_eq!(keys, [1, 2]);
        let groups: Vec<_> = file.groups.iter().map(ToString::to_string).collect();
        assert_eq!(groups, ["all = [\"gpu1\", \"via:sh\"]  # c.toml, line 8"]);
    }

    #[test]
    fn reports_each_error_with_its_line() {
        for (text, message) in [
            (
                "\nintervall = \"1s\"",
                "c.toml, line 2: unknown key `intervall`; did you mean `interval`?",
            ),
            (
                "\"a\\u001b[31m\\nb\" = 1",
                "c.toml, line 1: unknown key `a^[[31m^Jb`; expected one of interval, theme, density, ascii, mouse, readonly, on_incident, probe_interval, keys, hosts",
            ),
            (
                "colour = 1",
                "c.toml, line 1: unknown key `colour`; expected one of interval, theme, density, ascii, mouse, readonly, on_incident, probe_interval, keys, hosts",
            ),
            (
                "theme = \"dark\"\ninterval = 1",
                "c.toml, line 2: `interval` is a number; expected a string such as \"1s\"",
            ),
            (
                "ascii = \"yes\"",
                "c.toml, line 1: `ascii` is a string; expected true or false",
            ),
            (
                "theme = [\"dark\"]",
                "c.toml, line 1: `theme` is a list; expected a string such as \"light\"",
            ),
            (
                "keys = 3",
                "c.toml, line 1: `keys` is a number; expected a table of actions: [keys], then quit = \"x\"",
            ),
            (
                "[keys]\n\nquit = [\"q\", 1]",
                "c.toml, line 3: `quit` is a list; expected a key such as \"x\", or a list such as [\"x\", \"f10\"]",
            ),
            (
                "hosts = [\"gpu1\"]",
                "c.toml, line 1: `hosts` is a list; expected a table of groups: [hosts], then cluster = [\"gpu1\", \"gpu2\"]",
            ),
            (
                "[hosts]\nall = \"gpu1\"",
                "c.toml, line 2: `all` is a string; expected a list of hosts such as [\"gpu1\", \"me@gpu2:2222\"]",
            ),
            (
                "[hosts]\nall = [\n  \"gpu1\",\n  \"gpu2:x\",\n]",
                "c.toml, line 4: `x` is not a valid port: use a number from 1 to 65535",
            ),
            (
                "[hosts]\nall = [\"gpu1\\n\"]",
                "c.toml, line 2: `gpu1^J` is not a valid host: use [user@]host[:port]",
            ),
            (
                "[hosts]\nall = [\"gpu1\",\n\"gpu1\"]",
                "c.toml, line 3: `gpu1` is listed twice in `all`; remove one",
            ),
            (
                "[hosts]\n\nall = []",
                "c.toml, line 3: group `all` is empty; add hosts as [user@]host[:port]",
            ),
            (
                "[hosts]\ndemo = [\"gpu1\"]",
                "c.toml, line 2: group name `demo` is a subcommand; use another name",
            ),
        ] {
            assert_eq!(parse_error(text), message);
        }
        let syntax = parse_error("theme = \"dark\"\ninterval = soon");
        assert!(
            syntax.starts_with("c.toml, line 2: invalid TOML: "),
            "{syntax}"
        );
        assert_eq!(syntax.lines().count(), 1);
    }
}
