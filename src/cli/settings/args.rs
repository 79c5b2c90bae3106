//! Options that override settings, in groups. Each subcommand includes only the groups that it uses, so that its help
//! lists no other options.

use std::ffi::OsStr;
use std::iter;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::{Arg, Args, Command};
use toml::Value;

use super::definition::{
    ASCII, DENSITY, INTERVAL, MOUSE, ON_EXIT, ON_IDLE, ON_INCIDENT, PROBE_INTERVAL, READONLY,
    RECORD_NAMES, SettingDef, THEME,
};
use super::quantities::interval_argument;
use super::themes::AUTO;
use crate::model::units::Millis;
use crate::tui::chrome::interval_text;
use crate::tui::density::DENSITIES;
use crate::tui::palette::PALETTES;

type Values = Vec<(&'static SettingDef, Value)>;

/// Settings from the command line, and the path of the configuration file given there.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    pub config: Option<PathBuf>,
    /// Values of settings in order of precedence. If a setting occurs more than once, its first value applies.
    pub values: Values,
}

impl Flags {
    pub fn with(mut self, values: Values) -> Self {
        self.values.extend(values);
        self
    }

    #[cfg(local)]
    pub fn text_of(&self, name: &str) -> Option<&str> {
        let value = self.values.iter().find(|(def, _)| def.name == name);
        value.and_then(|(_, value)| value.as_str())
    }

    /// Adds the options given before the subcommand. Those after the subcommand take precedence.
    pub fn or(mut self, before: Self) -> Self {
        self.config = self.config.or(before.config);
        self.with(before.values)
    }
}

fn text(def: &'static SettingDef, value: Option<&String>) -> Values {
    let text = |value: &String| (def, Value::from(value.as_str()));
    value.map(text).into_iter().collect()
}

fn switch(def: &'static SettingDef, is_given: bool, is_on: bool) -> Values {
    let value = is_given.then_some((def, Value::from(is_on)));
    value.into_iter().collect()
}

#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct ConfigArgs {
    /// Read this configuration file instead of gputop/config.toml in the configuration directory (also GPUTOP_CONFIG)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigArgs {
    pub fn flags(&self) -> Flags {
        Flags { config: self.config.clone(), ..Flags::default() }
    }
}

/// Options of commands that sample a host repeatedly.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct SamplingArgs {
    /// Set the time between samples, such as 1s, 500ms or 2m
    #[arg(long, short, value_parser = interval_argument)]
    interval: Option<Millis>,
}

impl SamplingArgs {
    pub fn values(&self) -> Values {
        text(&INTERVAL, self.interval.map(interval_text).as_ref())
    }
}

/// Options for all drawn output, including printed tables.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct GlyphArgs {
    /// Draw with ASCII characters only (default if the locale is not UTF-8)
    #[arg(long)]
    ascii: bool,
}

impl GlyphArgs {
    pub fn values(&self) -> Values {
        switch(&ASCII, self.ascii, true)
    }
}

/// Options of commands that open a screen.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct ScreenArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Use a built-in colour theme, or themes/NAME.toml beside the configuration file
    #[arg(long, value_name = "NAME", value_parser = ThemeNames)]
    theme: Option<String>,
    #[command(flatten)]
    glyphs: GlyphArgs,
    /// Leave the mouse to the terminal, for selecting text (or hold Shift)
    #[arg(long)]
    no_mouse: bool,
}

impl ScreenArgs {
    pub fn flags(&self) -> Flags {
        let flags = self.config.flags().with(self.glyphs.values());
        let flags = flags.with(text(&THEME, self.theme.as_ref()));
        flags.with(switch(&MOUSE, self.no_mouse, false))
    }
}

/// Options of commands that play a recording.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct RecordingViewArgs {
    #[command(flatten)]
    screen: ScreenArgs,
    /// Set the overview density; `compact` shows tables only
    #[arg(long, value_name = "DENSITY", value_parser = densities())]
    density: Option<String>,
}

impl RecordingViewArgs {
    pub fn flags(&self) -> Flags {
        let density = text(&DENSITY, self.density.as_ref());
        self.screen.flags().with(density)
    }
}

/// Options of commands that detect incidents.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct IncidentArgs {
    /// Run a command once for each incident, with the incident's JSON on standard input
    #[arg(long, value_name = "CMD")]
    on_incident: Option<String>,
}

impl IncidentArgs {
    pub fn values(&self) -> Values {
        text(&ON_INCIDENT, self.on_incident.as_ref())
    }
}

/// Options of commands that watch processes.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct NotificationArgs {
    #[command(flatten)]
    incidents: IncidentArgs,
    /// Also run the --on-incident command for a process that holds GPU memory without using the GPU for this time, such
    /// as 10m; `off` disables this
    #[arg(long, value_name = "TIME")]
    on_idle: Option<String>,
    /// Also run the --on-incident command for each GPU process that exits
    #[arg(long)]
    on_exit: bool,
    /// Store the names of the tensors that hold memory
    #[arg(long)]
    record_names: bool,
}

impl NotificationArgs {
    pub fn values(&self) -> Values {
        let mut values = self.incidents.values();
        values.extend(text(&ON_IDLE, self.on_idle.as_ref()));
        values.extend(switch(&ON_EXIT, self.on_exit, true));
        values.extend(switch(&RECORD_NAMES, self.record_names, true));
        values
    }
}

/// All options that override settings, as used by the dashboard.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct SettingsArgs {
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    view: RecordingViewArgs,
    /// Disable signals and GPU probes
    #[arg(long)]
    readonly: bool,
    /// Repeat a probe at this interval while its screen is open; `off` disables this
    #[arg(long, value_name = "TIME")]
    probe_interval: Option<String>,
    #[command(flatten)]
    notifications: NotificationArgs,
}

impl SettingsArgs {
    pub fn flags(&self) -> Flags {
        let flags = self.view.flags().with(self.sampling.values());
        let flags = flags.with(switch(&READONLY, self.readonly, true));
        let flags = flags.with(text(&PROBE_INTERVAL, self.probe_interval.as_ref()));
        flags.with(self.notifications.values())
    }
}

fn densities() -> PossibleValuesParser {
    PossibleValuesParser::new(DENSITIES.iter().map(|(name, _)| *name))
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
