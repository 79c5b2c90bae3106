//! The flags that every command takes.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::definition::{ASCII, INTERVAL, SettingDef, THEME};
use super::written::Raw;
use crate::model::units::Millis;
use crate::tui::chrome::interval_words;
use crate::tui::theme::Palette;

#[derive(Debug, Clone, Default, Args)]
pub struct SharedArgs {
    /// Read this configuration instead of gputop/config.toml in the configuration directory; GPUTOP_CONFIG does the same
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// Colours: for a dark or a light background, the terminal's own 16, or none; `auto` looks at NO_COLOR,
    /// COLORTERM and TERM
    #[arg(long, value_enum, global = true)]
    theme: Option<ThemeName>,
    /// Draw with ASCII characters only (the default where the locale is not UTF-8)
    #[arg(long, global = true)]
    ascii: bool,
}

impl SharedArgs {
    /// What was said with flags, and the interval of the command, if it has one.
    pub fn written(&self, interval: Option<Millis>) -> Vec<(&'static SettingDef, Raw)> {
        let interval = interval.map(|ms| (&INTERVAL, Raw::Text(interval_words(ms))));
        let theme = self.theme.map(|theme| (&THEME, Raw::Text(theme.name())));
        let ascii = self.ascii.then_some((&ASCII, Raw::Switch(true)));
        [interval, theme, ascii].into_iter().flatten().collect()
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ThemeName {
    #[default]
    Auto,
    Dark,
    Light,
    #[value(name = "16")]
    Sixteen,
    None,
}

impl ThemeName {
    pub fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// `None` where the terminal decides.
    pub fn palette(self) -> Option<Palette> {
        Some(match self {
            Self::Auto => return None,
            Self::Dark => Palette::Dark,
            Self::Light => Palette::Light,
            Self::Sixteen => Palette::Sixteen,
            Self::None => Palette::None,
        })
    }
}
