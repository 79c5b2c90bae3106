//! The flags that every command takes.

use std::ffi::OsStr;
use std::iter;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::{Arg, Args, Command};

use super::definition::{
    ASCII, DENSITY, INTERVAL, MOUSE, ON_INCIDENT, PROBE_INTERVAL, READONLY, SettingDef, THEME,
};
use super::precedence::Raw;
use super::themes::AUTO;
use crate::model::units::Millis;
use crate::tui::chrome::interval_words;
use crate::tui::density::DENSITIES;
use crate::tui::palette::PALETTES;

#[derive(Debug, Clone, Default, Args)]
pub struct SharedArgs {
    /// Read this configuration instead of gputop/config.toml in the configuration directory; GPUTOP_CONFIG does the same
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// Colours: a theme that is built in, or one of your own, themes/NAME.toml beside the configuration
    #[arg(long, value_name = "NAME", value_parser = ThemeNames, global = true)]
    theme: Option<String>,
    /// How close things stand on the overview: `compact` is its tables and nothing else
    #[arg(long, value_name = "DENSITY", value_parser = densities(), global = true)]
    density: Option<String>,
    /// Draw with ASCII characters only (the default where the locale is not UTF-8)
    #[arg(long, global = true)]
    ascii: bool,
    /// Leave the mouse to the terminal, as for selecting text (or hold Shift)
    #[arg(long, global = true)]
    no_mouse: bool,
    /// Send no signal to any process and probe no GPU, whatever is pressed
    #[arg(long, global = true)]
    readonly: bool,
    /// Run a command for each incident, once, with its JSON on standard input
    #[arg(long, value_name = "CMD", global = true)]
    on_incident: Option<String>,
    /// While the screen of a probe is open, probe again after this time; or `off`
    #[arg(long, value_name = "TIME", global = true)]
    probe_interval: Option<String>,
}

impl SharedArgs {
    /// What was said with flags, and the interval of the command, if it has one.
    pub fn written(&self, interval: Option<Millis>) -> Vec<(&'static SettingDef, Raw)> {
        let interval = interval.map(|ms| (&INTERVAL, Raw::Text(interval_words(ms))));
        let theme = self.theme.clone().map(|name| (&THEME, Raw::Text(name)));
        let density = self.density.clone().map(|name| (&DENSITY, Raw::Text(name)));
        let ascii = self.ascii.then_some((&ASCII, Raw::Switch(true)));
        let mouse = self.no_mouse.then_some((&MOUSE, Raw::Switch(false)));
        let readonly = self.readonly.then_some((&READONLY, Raw::Switch(true)));
        let command = self.on_incident.clone();
        let on_incident = command.map(|command| (&ON_INCIDENT, Raw::Text(command)));
        let probe_interval = self.probe_interval.clone();
        let probe_interval = probe_interval.map(|time| (&PROBE_INTERVAL, Raw::Text(time)));
        let all = [
            interval,
            theme,
            density,
            ascii,
            mouse,
            readonly,
            on_incident,
            probe_interval,
        ];
        all.into_iter().flatten().collect()
    }
}

fn densities() -> PossibleValuesParser {
    PossibleValuesParser::new(DENSITIES.iter().map(|(name, _)| *name))
}

/// Takes any name, since the user may have themes of his own; help and completions name those that are built in.
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
        let auto = PossibleValue::new(AUTO).help("what NO_COLOR, COLORTERM and TERM say");
        let built_in = PALETTES
            .iter()
            .map(|def| PossibleValue::new(def.name).help(def.help));
        Some(Box::new(iter::once(auto).chain(built_in)))
    }
}
