//! Options that override settings, in groups. Each subcommand includes only the groups that it uses, so that its help
//! lists no other options.

use std::ffi::OsStr;
use std::iter;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command};
use toml::Value;

use super::definition::{Kind, SETTINGS, SettingDef};
use super::quantities::interval_argument;
use super::themes::AUTO;
use crate::model::units::Millis;
use crate::tui::density::DENSITIES;
use crate::tui::palette::PALETTES;

/// Settings from the command line, and the path of the configuration file given there.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    pub config: Option<PathBuf>,
    /// Values of settings in order of precedence. If a setting occurs more than once, its first value applies.
    pub values: Vec<(&'static SettingDef, Value)>,
}

impl Flags {
    /// Reads the options of a subcommand and of the commands that contain it. Those after the subcommand take
    /// precedence.
    pub fn of(matches: &ArgMatches) -> Self {
        let values = SETTINGS.iter().filter_map(|def| {
            let id = def.flag.trim_start_matches('-').replace('-', "_");
            let value = match def.kind {
                _ if !is_given(matches, &id) => return None,
                Kind::Switch => (!id.starts_with("no_")).into(),
                Kind::Text => matches.get_raw(&id)?.next()?.to_str()?.into(),
            };
            Some((*def, value))
        });
        let config = matches.try_get_one::<PathBuf>("config").ok().flatten().cloned();
        let mut flags = matches.subcommand().map_or_else(Self::default, |(_, sub)| Self::of(sub));
        flags.config = flags.config.or(config);
        flags.values.extend(values);
        flags
    }

    #[cfg(local)]
    pub fn text_of(&self, name: &str) -> Option<&str> {
        let value = self.values.iter().find(|(def, _)| def.name == name);
        value.and_then(|(_, value)| value.as_str())
    }
}

/// Returns true if the option exists and was given on the command line.
pub fn is_given(matches: &ArgMatches, id: &str) -> bool {
    let is_known = matches.try_contains_id(id).unwrap_or(false);
    is_known && matches.value_source(id) == Some(ValueSource::CommandLine)
}

#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct ConfigArgs {
    /// Read this configuration file instead of gputop/config.toml in the configuration directory (also GPUTOP_CONFIG)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Options of commands that sample a host repeatedly.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct SamplingArgs {
    /// Set the time between samples, such as 1s, 500ms or 2m
    #[arg(long, short, value_parser = interval_argument)]
    interval: Option<Millis>,
}

/// Options for all drawn output, including printed tables.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct GlyphArgs {
    /// Draw with ASCII characters only (default if the locale is not UTF-8)
    #[arg(long)]
    ascii: bool,
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

/// Options of commands that detect incidents.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct IncidentArgs {
    /// Run a command once for each incident, with the incident's JSON on standard input
    #[arg(long, value_name = "CMD")]
    on_incident: Option<String>,
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
