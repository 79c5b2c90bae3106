//! Everything that can be set, in one list: the configuration file, the environment, `config print` and the reference
//! are made from it.

/// How a setting is written in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Text,
    Switch,
}

#[derive(Debug)]
pub struct SettingDef {
    /// Its key in the configuration file.
    pub name: &'static str,
    pub kind: Kind,
    pub variable: &'static str,
    pub flag: &'static str,
    /// What holds where nothing is said, as a phrase: `1s`, `by the locale`.
    pub default: &'static str,
    /// As it would be written: `"1s"`.
    pub example: &'static str,
    /// What it is, without a period.
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
    help: "Colours, by the name of a theme; `auto` looks at NO_COLOR, COLORTERM and TERM",
};

pub const DENSITY: SettingDef = SettingDef {
    name: "density",
    kind: Kind::Text,
    variable: "GPUTOP_DENSITY",
    flag: "--density",
    default: "normal",
    example: "\"compact\"",
    help: "`compact`: the overview is its tables, without the host's line, charts and blank lines; or `normal`",
};

pub const ASCII: SettingDef = SettingDef {
    name: "ascii",
    kind: Kind::Switch,
    variable: "GPUTOP_ASCII",
    flag: "--ascii",
    default: "by the locale",
    example: "true",
    help: "Draw with ASCII characters only (`true`), or with all of Unicode whatever the locale says (`false`)",
};

pub const MOUSE: SettingDef = SettingDef {
    name: "mouse",
    kind: Kind::Switch,
    variable: "GPUTOP_MOUSE",
    flag: "--no-mouse",
    default: "true",
    example: "false",
    help: "Take the mouse: rows, column titles, the wheel; or leave it to the terminal, as for selecting text (`false`)",
};

pub const READONLY: SettingDef = SettingDef {
    name: "readonly",
    kind: Kind::Switch,
    variable: "GPUTOP_READONLY",
    flag: "--readonly",
    default: "false",
    example: "true",
    help: "Send no signal to any process and probe no GPU, whatever is pressed",
};

pub const ON_INCIDENT: SettingDef = SettingDef {
    name: "on_incident",
    kind: Kind::Text,
    variable: "GPUTOP_ON_INCIDENT",
    flag: "--on-incident",
    default: "nothing",
    example: "\"jq -r .title | mail -s gputop ana\"",
    help: "A command that `sh -c` runs once for each incident, with the incident's JSON on its standard input and 10 s to end",
};

pub const PROBE_INTERVAL: SettingDef = SettingDef {
    name: "probe_interval",
    kind: Kind::Text,
    variable: "GPUTOP_PROBE_INTERVAL",
    flag: "--probe-interval",
    default: "off",
    example: "\"5m\"",
    help: "While the screen of a probe is open, probe again after this, from 10s to 24h; or `off`",
};

pub const SETTINGS: &[&SettingDef] = &[
    &INTERVAL,
    &THEME,
    &DENSITY,
    &ASCII,
    &MOUSE,
    &READONLY,
    &ON_INCIDENT,
    &PROBE_INTERVAL,
];

/// A table of the file, whose keys are the user's.
#[derive(Debug)]
pub struct TableDef {
    pub name: &'static str,
    /// A line in it, as it would be written.
    pub example: &'static str,
    /// What it is, without a period.
    pub help: &'static str,
}

pub const KEYS: TableDef = TableDef {
    name: "keys",
    example: "sort = [\"o\", \"f6\"]",
    help: "Gives an action other keys, a single one or a list, in place of its own; `[]` is none",
};

pub const HOSTS: TableDef = TableDef {
    name: "hosts",
    example: "cluster = [\"gpu1\", \"me@gpu2:2222\", \"via:CMD\"]",
    help: "Names several hosts at once: `gputop cluster` watches them all, also where a host has that name; behind `--` it is the host",
};

pub const TABLES: &[&TableDef] = &[&KEYS, &HOSTS];
