//! The precedence of settings: flags override environment variables, which override the configuration file.

use std::fmt;

use super::definition::{Kind, SETTINGS, SettingDef};
use super::error::{Origin, SettingError};
use super::file::ConfigFile;
use super::groups::Group;
use crate::model::text::quoted;
use crate::tui::keymap::Binding;

/// A value before it is parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Raw {
    Text(String),
    Switch(bool),
}

impl fmt::Display for Raw {
    /// Formats the value as TOML.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{}", toml::Value::from(text.as_str())),
            Self::Switch(is_on) => write!(f, "{is_on}"),
        }
    }
}

/// Values from flags, environment variables and the file, in order of precedence.
#[derive(Debug, Default)]
pub struct Written {
    values: Vec<(&'static SettingDef, Raw, Origin)>,
    pub bindings: Vec<(Binding, Origin)>,
    pub groups: Vec<Group>,
}

impl Written {
    /// Merges the values. Fails if a switch in the environment is neither true nor false.
    pub fn merge(
        flags: Vec<(&'static SettingDef, Raw)>,
        variable: &dyn Fn(&str) -> Option<String>,
        file: ConfigFile,
    ) -> Result<Self, SettingError> {
        let flags = flags
            .into_iter()
            .map(|(def, raw)| (def, raw, Origin::Flag(def.flag)));
        let mut values: Vec<_> = flags.collect();
        for def in SETTINGS {
            // An empty variable counts as not set.
            if let Some(text) = variable(def.variable).filter(|text| !text.is_empty()) {
                values.push((
                    def,
                    from_variable(def, text)?,
                    Origin::Variable(def.variable),
                ));
            }
        }
        values.extend(file.values);
        Ok(Self {
            values,
            bindings: file.bindings,
            groups: file.groups,
        })
    }

    fn get(&self, def: &SettingDef) -> Option<(&Raw, &Origin)> {
        let (_, raw, origin) = self.values.iter().find(|(of, ..)| of.name == def.name)?;
        Some((raw, origin))
    }

    pub fn text(&self, def: &SettingDef) -> Option<&str> {
        match self.get(def)? {
            (Raw::Text(text), _) => Some(text),
            (Raw::Switch(_), _) => None,
        }
    }

    pub fn switch(&self, def: &SettingDef) -> Option<bool> {
        match self.get(def)? {
            (Raw::Switch(is_on), _) => Some(*is_on),
            (Raw::Text(_), _) => None,
        }
    }

    pub fn origin(&self, def: &SettingDef) -> Origin {
        self.get(def)
            .map_or(Origin::Default, |(_, origin)| origin.clone())
    }
}

fn from_variable(def: &SettingDef, text: String) -> Result<Raw, SettingError> {
    if def.kind == Kind::Text {
        return Ok(Raw::Text(text));
    }
    match text.to_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(Raw::Switch(true)),
        "0" | "false" | "no" | "off" => Ok(Raw::Switch(false)),
        _ => Err(SettingError::Value {
            origin: Origin::Variable(def.variable),
            what: format!("`{}` is not a switch; use true or false", quoted(&text)),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::definition::{ASCII, INTERVAL, THEME};
    use super::*;

    #[test]
    fn flags_override_variables_and_variables_override_the_file() {
        let at = |line| Origin::File {
            path: "c.toml".into(),
            line,
        };
        let text = |text: &str| Raw::Text(text.to_owned());
        let file = ConfigFile {
            values: vec![
                (&INTERVAL, text("4s"), at(1)),
                (&THEME, text("light"), at(2)),
                (&ASCII, Raw::Switch(true), at(3)),
            ],
            ..ConfigFile::default()
        };
        let variable = |name: &str| match name {
            "GPUTOP_INTERVAL" => Some("3s".to_owned()),
            "GPUTOP_THEME" => Some("dark".to_owned()),
            _ => Some(String::new()),
        };
        let written = Written::merge(vec![(&INTERVAL, text("2s"))], &variable, file);
        let written = written.expect("valid settings");
        let origin = |def: &SettingDef| written.origin(def).to_string();
        assert_eq!(written.text(&INTERVAL), Some("2s"));
        assert_eq!(origin(&INTERVAL), "--interval");
        assert_eq!(written.text(&THEME), Some("dark"));
        assert_eq!(origin(&THEME), "GPUTOP_THEME");
        assert_eq!(written.switch(&ASCII), Some(true));
        assert_eq!(origin(&ASCII), "c.toml, line 3");
    }

    #[test]
    fn parses_switches_in_the_environment() {
        let ascii = |text: &str| {
            let text = text.to_owned();
            let variable = move |name: &str| (name == "GPUTOP_ASCII").then(|| text.clone());
            Written::merge(Vec::new(), &variable, ConfigFile::default())
        };
        assert_eq!(ascii("1").expect("on").switch(&ASCII), Some(true));
        assert_eq!(ascii("false").expect("off").switch(&ASCII), Some(false));
        assert_eq!(ascii("").expect("unset").switch(&ASCII), None);
        let error = ascii("maybe").expect_err("neither").to_string();
        assert_eq!(
            error,
            "GPUTOP_ASCII: `maybe` is not a switch; use true or false"
        );
    }
}
