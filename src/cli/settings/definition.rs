//! List of settings, from which the configuration file, the environment, `config print` and the reference are derived.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Text,
    Switch,
}

#[derive(Debug)]
pub struct SettingDef {
    /// Key of the setting in the configuration file.
    pub name: &'static str,
    pub kind: Kind,
    pub variable: &'static str,
    pub flag: &'static str,
    /// Default value as a phrase: `1s`, `from the locale`.
    pub default: &'static str,
    pub example: &'static str,
    /// Description for the help, as a phrase without a period.
    pub help: &'static str,
}

/// Defines the settings and [`SETTINGS`], the list of all of them.
macro_rules! settings {
    ($($constant:ident = $kind:ident($name:literal, $variable:literal, $flag:literal),
        default $default:literal, example $example:literal: $help:literal;)*) => {
        $(pub const $constant: SettingDef = SettingDef {
            name: $name,
            kind: Kind::$kind,
            variable: $variable,
            flag: $flag,
            default: $default,
            example: $example,
            help: $help,
        };)*

        pub const SETTINGS: &[&SettingDef] = &[$(&$constant),*];
    };
}

settings! {
    INTERVAL = Text("interval", "GPUTOP_INTERVAL", "--interval"), default "1s", example "\"1s\"":
        "Time between samples, from 100ms to 1h: `1s`, `500ms`, `2m`";
    THEME = Text("theme", "GPUTOP_THEME", "--theme"), default "auto", example "\"light\"":
        "Colour theme; `auto` chooses from NO_COLOR, COLORTERM and TERM";
    DENSITY = Text("density", "GPUTOP_DENSITY", "--density"), default "normal", example "\"compact\"":
        "Overview density: `normal`, or `compact` without the host line, charts and blank lines";
    ASCII = Switch("ascii", "GPUTOP_ASCII", "--ascii"), default "from the locale", example "true":
        "Draw with ASCII characters only (`true`), or with Unicode regardless of the locale (`false`)";
    MOUSE = Switch("mouse", "GPUTOP_MOUSE", "--no-mouse"), default "true", example "false":
        "Handle mouse clicks and the wheel (`true`), or leave the mouse to the terminal for selecting text (`false`)";
    READONLY = Switch("readonly", "GPUTOP_READONLY", "--readonly"), default "false", example "true":
        "Disable signals and GPU probes";
    ON_INCIDENT = Text("on_incident", "GPUTOP_ON_INCIDENT", "--on-incident"), default "not set", example "\"jq -r .title | mail -s gputop ana\"":
        "Command to run with `sh -c`, once for each incident; it gets the incident's JSON on standard input and is stopped after 10 s";
    ON_IDLE = Text("on_idle", "GPUTOP_ON_IDLE", "--on-idle"), default "off", example "\"10m\"":
        "Time after which the command of `on_incident` is also run for a process that holds GPU memory without using the GPU, from 10s to 24h, or `off`";
    ON_EXIT = Switch("on_exit", "GPUTOP_ON_EXIT", "--on-exit"), default "false", example "true":
        "Also run the command of `on_incident` for each GPU process that exits";
    RECORD_NAMES = Switch("record_names", "GPUTOP_RECORD_NAMES", "--record-names"), default "false", example "true":
        "In incidents and recordings, store the names of the tensors that hold memory";
    PROBE_INTERVAL = Text("probe_interval", "GPUTOP_PROBE_INTERVAL", "--probe-interval"), default "off", example "\"5m\"":
        "Time between repeated probes while the probe screen is open, from 10s to 24h, or `off`";
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
