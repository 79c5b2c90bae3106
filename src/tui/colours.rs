//! Styles for all screen roles, read from a TOML theme:
//!
//! ```toml
//! base = "dark"                                # built-in theme for the roles not defined here
//! dim = "#8a8f98"
//! title = { fg = "light-blue", bold = true }   # also bg, reversed, underlined
//! text = "default"                             # the terminal's default
//! ```

use std::ops::Range;

use gputop_model::nearest_name::instead_of;
use gputop_model::text::quoted;
use ratatui::style::{Color, Modifier, Style};
use thiserror::Error;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::palette::{PALETTES, Palette};
use super::role::{ROLES, Role};

/// The key that names the base theme.
const BASE: &str = "base";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Colours([Style; ROLES.len()]);

/// An error in a theme, with its line number if known.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ThemeError {
    #[error("line {line}: not valid TOML: {what}")]
    Syntax { line: usize, what: String },
    #[error("line {line}: unknown role `{name}`; {instead}")]
    UnknownRole { line: usize, name: String, instead: String },
    #[error("line {line}: unknown base theme `{name}`; {instead}")]
    UnknownBase { line: usize, name: String, instead: String },
    #[error(
        "line {line}: `{colour}` is not a valid colour for `{role}`; use \"#8a8f98\", one of the 16 names such as \"light-red\", a number up to 255 such as \"208\", or \"default\""
    )]
    Colour { line: usize, role: String, colour: String },
    #[error(
        "line {line}: `{role}` must be a colour in quotes or a style such as {{ fg = \"#8a8f98\", bold = true }}"
    )]
    Style { line: usize, role: String },
    #[error(
        "line {line}: `{key}` is not a valid style key; use fg or bg with a quoted colour, or bold, reversed or underlined with true or false"
    )]
    Part { line: usize, key: String },
    #[error("missing roles: {0}; define them, or start from a built-in theme: base = \"dark\"")]
    Missing(String),
}

impl Default for Colours {
    /// Returns styles with the terminal's default style for every role.
    fn default() -> Self {
        Self([Style::new(); ROLES.len()])
    }
}

impl Colours {
    pub fn built_in(palette: Palette) -> Self {
        // Parsing cannot fail, because a test checks that every built-in theme is valid.
        Self::parse(palette.def().text).unwrap_or_default()
    }

    pub fn style(&self, role: Role) -> Style {
        self.0[role as usize]
    }

    pub fn parse(text: &str) -> Result<Self, ThemeError> {
        let line = |span: Range<usize>| {
            text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count() + 1
        };
        let table = DeTable::parse(text).map_err(|error| ThemeError::Syntax {
            line: line(error.span().unwrap_or(0..0)),
            what: error.message().replace('\n', ", "),
        })?;
        let mut styles: [Option<Style>; ROLES.len()] = [None; ROLES.len()];
        for (key, value) in table.get_ref() {
            let (name, line) = (key.get_ref(), line(key.span()));
            if name == BASE {
                let base = base(value, line)?;
                for (own, style) in styles.iter_mut().zip(base.0) {
                    own.get_or_insert(style);
                }
                continue;
            }
            let Some(at) = ROLES.iter().position(|def| def.name == name) else {
                let names = ROLES.iter().map(|def| def.name).chain([BASE]);
                return Err(ThemeError::UnknownRole {
                    line,
                    name: quoted(name),
                    instead: instead_of(name, names),
                });
            };
            styles[at] = Some(parse_style(name, value.get_ref(), line)?);
        }
        complete(styles)
    }
}

fn complete(styles: [Option<Style>; ROLES.len()]) -> Result<Colours, ThemeError> {
    let missing: Vec<String> = ROLES
        .iter()
        .zip(styles)
        .filter(|(_, style)| style.is_none())
        .map(|(def, _)| format!("`{}`", def.name))
        .collect();
    if missing.is_empty() {
        Ok(Colours(styles.map(Option::unwrap_or_default)))
    } else {
        Err(ThemeError::Missing(missing.join(", ")))
    }
}

fn base(value: &Spanned<DeValue<'_>>, line: usize) -> Result<Colours, ThemeError> {
    let name = value.get_ref().as_str().unwrap_or_default();
    let palette = Palette::named(name).ok_or_else(|| ThemeError::UnknownBase {
        line,
        name: quoted(name),
        instead: instead_of(name, PALETTES.iter().map(|def| def.name)),
    })?;
    Ok(Colours::built_in(palette))
}

/// Parses a style: a colour, or a table of colours and modifiers.
fn parse_style(role: &str, value: &DeValue<'_>, line: usize) -> Result<Style, ThemeError> {
    if let Some(text) = value.as_str() {
        return Ok(colour(role, text, line)?.map_or_else(Style::new, |fg| Style::new().fg(fg)));
    }
    let parts =
        value.as_table().ok_or_else(|| ThemeError::Style { line, role: role.to_owned() })?;
    let mut style = Style::new();
    for (key, value) in parts {
        let (key, value) = (key.get_ref().as_ref(), value.get_ref());
        match (key, value.as_str(), value.as_bool()) {
            ("fg", Some(text), _) => style.fg = colour(role, text, line)?,
            ("bg", Some(text), _) => style.bg = colour(role, text, line)?,
            ("bold", _, Some(is_on)) => style = with(style, Modifier::BOLD, is_on),
            ("reversed", _, Some(is_on)) => style = with(style, Modifier::REVERSED, is_on),
            ("underlined", _, Some(is_on)) => style = with(style, Modifier::UNDERLINED, is_on),
            _ => {
                return Err(ThemeError::Part { line, key: quoted(key) });
            }
        }
    }
    Ok(style)
}

fn with(style: Style, modifier: Modifier, is_on: bool) -> Style {
    if is_on { style.add_modifier(modifier) } else { style }
}

/// Parses a colour. Returns `None` for the terminal's default colour.
fn colour(role: &str, text: &str, line: usize) -> Result<Option<Color>, ThemeError> {
    if text == "default" {
        return Ok(None);
    }
    let wrong = |_| ThemeError::Colour { line, role: role.to_owned(), colour: quoted(text) };
    text.parse().map(Some).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn errors_are_one_line_for_any_text(text in "(base|warn|fg|[\"'=\\[\\]{}#,0-9a-f\n -]|\\PC){0,60}") {
            if let Err(error) = Colours::parse(&text) {
                let sentence = error.to_string();
                proptest::prop_assert_eq!(sentence.lines().count(), 1, "{}", sentence);
            }
        }
    }

    #[test]
    fn built_in_themes_are_valid() {
        for def in PALETTES {
            assert!(
                Colours::parse(def.text).is_ok(),
                "{}: {:?}",
                def.name,
                Colours::parse(def.text)
            );
            assert_eq!(def.palette.def().name, def.name);
            assert_eq!(Palette::named(def.name), Some(def.palette));
        }
        assert_eq!(Palette::named("colorblind"), Some(Palette::ColourBlind));
    }

    #[test]
    fn a_user_theme_can_start_from_a_built_in_theme() {
        let text = "warn = { fg = \"208\", underlined = true }\nbase = \"dark\"\ndim = \"default\"";
        let own = Colours::parse(text).expect("a theme");
        let dark = Colours::built_in(Palette::Dark);
        let warn = Style::new().fg(Color::Indexed(208));
        assert_eq!(own.style(Role::Warn), warn.add_modifier(Modifier::UNDERLINED));
        assert_eq!(own.style(Role::Dim), Style::new());
        assert_eq!(own.style(Role::Bad), dark.style(Role::Bad));
    }

    #[test]
    fn an_invalid_theme_is_explained_in_one_line() {
        for (text, sentence) in [
            ("\nwran = \"red\"", "line 2: unknown role `wran`; did you mean `warn`?"),
            ("base = \"drak\"", "line 1: unknown base theme `drak`; did you mean `dark`?"),
            (
                "dim = 3",
                "line 1: `dim` must be a colour in quotes or a style such as { fg = \"#8a8f98\", bold = true }",
            ),
            (
                "dim = \"#12\"",
                "line 1: `#12` is not a valid colour for `dim`; use \"#8a8f98\", one of the 16 names such as \"light-red\", a number up to 255 such as \"208\", or \"default\"",
            ),
            (
                "dim = { blink = true }",
                "line 1: `blink` is not a valid style key; use fg or bg with a quoted colour, or bold, reversed or underlined with true or false",
            ),
        ] {
            let error = Colours::parse(text).expect_err(text).to_string();
            assert_eq!(error, sentence);
        }
        let mono = Palette::None.def().text;
        let incomplete: String = mono
            .lines()
            .filter(|line| !line.starts_with("cached") && !line.starts_with("bad"))
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(
            Colours::parse(&incomplete).expect_err("two missing").to_string(),
            "missing roles: `bad`, `cached`; define them, or start from a built-in theme: base = \"dark\""
        );
        let syntax = Colours::parse("dim = ").expect_err("invalid TOML").to_string();
        assert!(syntax.starts_with("line 1: not valid TOML"), "{syntax}");
    }
}
