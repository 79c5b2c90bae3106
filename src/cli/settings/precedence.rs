//! What the user wrote, wherever it was: a flag comes before the environment, and that before the file.

use std::fmt;

use super::definition::{Kind, SETTINGS, SettingDef};
use super::error::{Origin, SettingError};
use super::file::ConfigFile;
use super::groups::Group;
use crate::model::text::quoted;
use crate::tui::keymap::Binding;

/// A value as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Raw {
    Text(String),
    Switch(bool),
}

impl fmt::Display for Raw {
    /// As in TOML.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{}", toml::Value::from(text.as_str())),
            Self::Switch(is_on) => write!(f, "{is_on}"),
        }
    }
}

/// Flags, environment and file in one.
#[derive(Debug, Default)]
pub struct Written {
    values: Vec<(&'static SettingDef, Raw, Origin)>,
    pub bindings: Vec<(Binding, Origin)>,
    pub groups: Vec<Group>,
}

impl Written {
    /// # Errors
    /// When a variable's value is not of its setting's kind.
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
            // An empty variable is one that is not set.
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
            what: format!("`{}` is neither true nor false", quoted(&text)),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::definition::{ASCII, INTERVAL, THEME};
    use super::*;

    #[test]
    fn a_flag_comes_before_a_variable_and_that_before_the_file() {
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
        let written = written.expect("nothing is wrong");
        let told = |def: &SettingDef| written.origin(def).to_string();
        assert_eq!(written.text(&INTERVAL), Some("2s"));
        assert_eq!(told(&INTERVAL), "--interval");
        assert_eq!(written.text(&THEME), Some("dark"));
        assert_eq!(told(&THEME), "GPUTOP_THEME");
        assert_eq!(written.switch(&ASCII), Some(true));
        assert_eq!(told(&ASCII), "c.toml, line 3");
    }

    #[test]
    fn a_switch_in_the_environment_is_true_or_false() {
        let ascii = |text: &str| {
            let text = text.to_owned();
            let variable = move |name: &str| (name == "GPUTOP_ASCII").then(|| text.clone());
            Written::merge(Vec::new(), &variable, ConfigFile::default())
        };
        assert_eq!(ascii("1").expect("on").switch(&ASCII), Some(true));
        assert_eq!(ascii("false").expect("off").switch(&ASCII), Some(false));
        assert_eq!(ascii("").expect("unset").switch(&ASCII), None);
        let error = ascii("maybe").expect_err("neither").to_string();
        assert_eq!(error, "GPUTOP_ASCII: `maybe` is neither true nor false");
    }
}
