//! The settings: one row for each. Configuration file, environment, command line, completion, `config print`, manual
//! and reference are derived from it. To add a setting, add a row, and read its field of [`Values`] where it applies.

use std::ffi::OsStr;
use std::iter;

use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::{Arg, Command};
use gputop_model::nearest_name::instead_of;
use gputop_model::text::quoted;
use gputop_model::{Millis, Permissions};
use toml::Value;

use super::file::{SettingError, WrittenSettings};
use super::quantities::{interval_argument, time_or_off};
use crate::tui::app::App;
use crate::tui::chrome::interval_text;
use crate::tui::density::{DENSITIES, Density};
use crate::tui::palette::PALETTES;

/// Special theme name that makes gputop choose a theme from the terminal's environment variables.
pub const AUTO: &str = "auto";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Text,
    Switch,
}

/// Options that a subcommand includes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagGroup {
    Config,
    Sampling,
    Glyphs,
    Screen,
    Overview,
    Dashboard,
    Incidents,
    Processes,
}

#[derive(Debug)]
pub struct SettingDef {
    /// Key of the setting in the configuration file.
    pub name: &'static str,
    pub kind: Kind,
    pub variable: &'static str,
    pub flag: &'static str,
    /// Default value, or a phrase: `1s`, `from the locale`. Empty if the setting has no value by default.
    default: &'static str,
    pub example: &'static str,
    /// Description for the documentation, as a phrase without a period.
    pub help: &'static str,
    pub group: FlagGroup,
    /// Description of the flag for the help, as a phrase without a period.
    pub flag_help: &'static str,
    /// Adds what only this flag has.
    pub arg: fn(Arg) -> Arg,
}

impl SettingDef {
    pub fn default(&self) -> &'static str {
        if self.default.is_empty() { "not set" } else { self.default }
    }
}

/// Defines [`SETTINGS`] and [`Values`]. A row holds how the value is read and shown: `switch`, or `text` with a parser
/// and a formatter.
macro_rules! settings {
    ($($name:ident: $type:ty = $kind:ident $(($parse:expr, $show:expr))?,
        default $default:literal, example $example:literal, variable $variable:literal: $help:literal,
        flag $group:ident $flag:literal: $flag_help:literal, $arg:expr;)*) => {
        pub const SETTINGS: &[SettingDef] = &[$(SettingDef {
            name: stringify!($name),
            kind: settings!(@kind $kind),
            variable: $variable,
            flag: $flag,
            default: $default,
            example: $example,
            help: $help,
            group: FlagGroup::$group,
            flag_help: $flag_help,
            arg: $arg,
        }),*];

        /// Values of all settings after applying precedence and defaults.
        pub struct Values {
            $(pub $name: $type,)*
        }

        impl Values {
            pub(super) fn of(written: &WrittenSettings) -> Result<Self, SettingError> {
                Ok(Self { $($name: settings!(@read written, $name, $default $(, $parse)?),)* })
            }

            /// Returns the values in the order of [`SETTINGS`], as in a configuration file.
            pub fn shown(&self) -> Vec<Value> {
                vec![$(settings!(@show self.$name $(, $show)?)),*]
            }
        }
    };
    (@kind text) => { Kind::Text };
    (@kind switch) => { Kind::Switch };
    (@read $written:ident, $name:ident, $default:literal) => {
        $written.switch(stringify!($name)).unwrap_or($default == "true")
    };
    (@read $written:ident, $name:ident, $default:literal, $parse:expr) => {
        $written.parsed(stringify!($name), $default, $parse)?
    };
    (@show $value:expr) => { Value::from($value) };
    (@show $value:expr, $show:expr) => { Value::from($show(&$value)) };
}

settings! {
    interval: Millis = text(interval_argument, |value: &Millis| interval_text(*value)),
        default "1s", example "\"1s\"", variable "GPUTOP_INTERVAL":
        "Time between samples, from 100ms to 1h: `1s`, `500ms`, `2m`",
        flag Sampling "--interval": "Set the time between samples, such as 1s, 500ms or 2m",
        |arg| arg.short('i').value_name("INTERVAL").value_parser(interval_argument);
    theme: String = text(|name| Ok(name.to_owned()), String::clone),
        default "auto", example "\"light\"", variable "GPUTOP_THEME":
        "Colour theme; `auto` chooses from NO_COLOR, COLORTERM and TERM",
        flag Screen "--theme": "Use a built-in colour theme, or themes/NAME.toml beside the configuration file",
        |arg| arg.value_name("NAME").value_parser(ThemeNames);
    density: Density = text(density, density_name),
        default "normal", example "\"compact\"", variable "GPUTOP_DENSITY":
        "Overview density: `normal`, or `compact` without the host line, charts and blank lines",
        flag Overview "--density": "Set the overview density; `compact` shows tables only",
        |arg| arg.value_name("DENSITY").value_parser(PossibleValuesParser::new(density_names()));
    ascii: bool = switch,
        default "from the locale", example "true", variable "GPUTOP_ASCII":
        "Draw with ASCII characters only (`true`), or with Unicode regardless of the locale (`false`)",
        flag Glyphs "--ascii": "Draw with ASCII characters only (default if the locale is not UTF-8)", |arg| arg;
    mouse: bool = switch,
        default "true", example "false", variable "GPUTOP_MOUSE":
        "Handle mouse clicks and the wheel (`true`), or leave the mouse to the terminal for selecting text (`false`)",
        flag Screen "--no-mouse": "Leave the mouse to the terminal, for selecting text (or hold Shift)", |arg| arg;
    readonly: bool = switch,
        default "false", example "true", variable "GPUTOP_READONLY":
        "Disable signals and GPU probes",
        flag Dashboard "--readonly": "Disable signals and GPU probes", |arg| arg;
    on_incident: Option<String> = text(command, |command: &Option<String>| command.clone().unwrap_or_default()),
        default "", example "\"jq -r .title | mail -s gputop ana\"", variable "GPUTOP_ON_INCIDENT":
        "Command to run with `sh -c`, once for each incident; it gets the incident's JSON on standard input and is stopped after 10 s",
        flag Incidents "--on-incident": "Run a command once for each incident, with the incident's JSON on standard input",
        |arg| arg.value_name("CMD");
    on_idle: Option<Millis> = text(|text| time_or_off("idle time", text), time_text),
        default "off", example "\"10m\"", variable "GPUTOP_ON_IDLE":
        "Time after which the command of `on_incident` is also run for a process that holds GPU memory without using the GPU, from 10s to 24h, or `off`",
        flag Processes "--on-idle":
        "Also run the --on-incident command for a process that holds GPU memory without using the GPU for this time, such as 10m; `off` disables this",
        |arg| arg.value_name("TIME");
    on_exit: bool = switch,
        default "false", example "true", variable "GPUTOP_ON_EXIT":
        "Also run the command of `on_incident` for each GPU process that exits",
        flag Processes "--on-exit": "Also run the --on-incident command for each GPU process that exits", |arg| arg;
    record_names: bool = switch,
        default "false", example "true", variable "GPUTOP_RECORD_NAMES":
        "In incidents and recordings, store the names of the tensors and arrays that hold memory",
        flag Processes "--record-names": "Store the names of the tensors and arrays that hold memory", |arg| arg;
    probe_interval: Option<Millis> = text(|text| time_or_off("probe interval", text), time_text),
        default "off", example "\"5m\"", variable "GPUTOP_PROBE_INTERVAL":
        "Time between repeated probes while the probe screen is open, from 10s to 24h, or `off`",
        flag Dashboard "--probe-interval": "Repeat a probe at this interval while its screen is open; `off` disables this",
        |arg| arg.value_name("TIME");
}

impl Values {
    /// Hands over the settings that a screen uses.
    pub(super) fn apply(&self, app: &mut App) {
        app.ui.density = self.density;
        app.ui.mouse = self.mouse;
        app.host.permissions = Permissions::readonly(self.readonly);
        app.ui.probe_interval = self.probe_interval;
    }
}

fn density_names() -> impl Iterator<Item = &'static str> {
    DENSITIES.iter().map(|(name, _)| *name)
}

fn density(text: &str) -> Result<Density, String> {
    let unknown =
        || format!("unknown density `{}`; {}", quoted(text), instead_of(text, density_names()));
    Density::named(text).ok_or_else(unknown)
}

fn density_name(density: &Density) -> &'static str {
    DENSITIES.iter().find(|(_, of)| of == density).map_or("", |(name, _)| name)
}

/// Returns a command that is not blank.
fn command(text: &str) -> Result<Option<String>, String> {
    Ok(Some(text.trim().to_owned()).filter(|command| !command.is_empty()))
}

fn time_text(time: &Option<Millis>) -> String {
    time.map_or_else(|| "off".to_owned(), interval_text)
}

/// Parser that accepts any theme name, for users' own themes. Help and completions list only built-in themes.
#[derive(Debug, Clone, Copy)]
struct ThemeNames;

impl TypedValueParser for ThemeNames {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let auto = PossibleValue::new(AUTO).help("chosen from NO_COLOR, COLORTERM and TERM");
        let built_in = PALETTES.iter().map(|def| PossibleValue::new(def.name).help(def.help));
        Some(Box::new(iter::once(auto).chain(built_in)))
    }
}

/// TOML table whose keys are chosen by the user.
#[derive(Debug)]
pub struct TableDef {
    pub name: &'static str,
    pub example: &'static str,
    /// Description for the help, as a phrase without a period.
    pub help: &'static str,
}

pub const KEYS: TableDef = TableDef {
    name: "keys",
    example: "sort = [\"o\", \"f6\"]",
    help: "Replaces the keys of an action with one key or a list; `[]` removes all keys",
};

pub const HOSTS: TableDef = TableDef {
    name: "hosts",
    example: "cluster = [\"gpu1\", \"me@gpu2:2222\", \"via:CMD\"]",
    help: "Names a group of hosts: `gputop cluster` watches all of them. If a host has the same name, `gputop -- cluster` selects the host",
};

pub const TABLES: &[&TableDef] = &[&KEYS, &HOSTS];
