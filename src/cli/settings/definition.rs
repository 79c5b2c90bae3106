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

pub const INTERVAL: SettingDef = SettingDef {
    name: "interval",
    kind: Kind::Text,
    variable: "GPUTOP_INTERVAL",
    flag: "--interval",
    default: "1s",
    example: "\"1s\"",
    help: "Time between samples, from 100ms to 1h: `1s`, `500ms`, `2m`",
};

pub const THEME: SettingDef = SettingDef {
    name: "theme",
    kind: Kind::Text,
    variable: "GPUTOP_THEME",
    flag: "--theme",
    default: "auto",
    example: "\"light\"",
    help: "Colour theme; `auto` chooses from NO_COLOR, COLORTERM and TERM",
};

pub const DENSITY: SettingDef = SettingDef {
    name: "density",
    kind: Kind::Text,
    variable: "GPUTOP_DENSITY",
    flag: "--density",
    default: "normal",
    example: "\"compact\"",
    help: "Overview density: `normal`, or `compact` without the host line, charts and blank lines",
};

pub const ASCII: SettingDef = SettingDef {
    name: "ascii",
    kind: Kind::Switch,
    variable: "GPUTOP_ASCII",
    flag: "--ascii",
    default: "from the locale",
    example: "true",
    help: "Draw with ASCII characters only (`true`), or with Unicode regardless of the locale (`false`)",
};

pub const MOUSE: SettingDef = SettingDef {
    name: "mouse",
    kind: Kind::Switch,
    variable: "GPUTOP_MOUSE",
    flag: "--no-mouse",
    default: "true",
    example: "false",
    help: "Handle mouse clicks and the wheel (`true`), or leave the mouse to the terminal for selecting text (`false`)",
};

pub const READONLY: SettingDef = SettingDef {
    name: "readonly",
    kind: Kind::Switch,
    variable: "GPUTOP_READONLY",
    flag: "--readonly",
    default: "false",
    example: "true",
    help: "Disable signals and GPU probes",
};

pub const ON_INCIDENT: SettingDef = SettingDef {
    name: "on_incident",
    kind: Kind::Text,
    variable: "GPUTOP_ON_INCIDENT",
    flag: "--on-incident",
    default: "not set",
    example: "\"jq -r .title | mail -s gputop ana\"",
    help: "Command to run with `sh -c`, once for each incident; it gets the incident's JSON on standard input and is stopped after 10 s",
};

pub const ON_IDLE: SettingDef = SettingDef {
    name: "on_idle",
    kind: Kind::Text,
    variable: "GPUTOP_ON_IDLE",
    flag: "--on-idle",
    default: "off",
    example: "\"10m\"",
    help: "Time after which the command of `on_incident` is also run for a process that holds GPU memory without using the GPU, from 10s to 24h, or `off`",
};

pub const ON_EXIT: SettingDef = SettingDef {
    name: "on_exit",
    kind: Kind::Switch,
    variable: "GPUTOP_ON_EXIT",
    flag: "--on-exit",
    default: "false",
    example: "true",
    help: "Also run the command of `on_incident` for each GPU process that exits",
};

pub const RECORD_NAMES: SettingDef = SettingDef {
    name: "record_names",
    kind: Kind::Switch,
    variable: "GPUTOP_RECORD_NAMES",
    flag: "--record-names",
    default: "false",
    example: "true",
    help: "In incidents and recordings, store the names of the tensors that hold memory",
};

pub const PROBE_INTERVAL: SettingDef = SettingDef {
    name: "probe_interval",
    kind: Kind::Text,
    variable: "GPUTOP_PROBE_INTERVAL",
    flag: "--probe-interval",
    default: "off",
    example: "\"5m\"",
    help: "Time between repeated probes while the probe screen is open, from 10s to 24h, or `off`",
};

pub const SETTINGS: &[&SettingDef] = &[
    &INTERVAL,
    &THEME,
    &DENSITY,
    &ASCII,
    &MOUSE,
    &READONLY,
    &ON_INCIDENT,
    &ON_IDLE,
    &ON_EXIT,
    &RECORD_NAMES,
    &PROBE_INTERVAL,
];

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
