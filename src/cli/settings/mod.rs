//! Resolves settings from flags, environment variables and the configuration file.
//!
//! [`Written`] contains all values given by the user, each with its origin. [`Settings`] contains the values after
//! applying precedence and defaults. [`definition::SETTINGS`] lists all settings.

mod args;
#[cfg(local)]
mod collectors;
pub mod definition;
mod file;
mod quantities;
mod terminal;
mod themes;

use std::path::{Path, PathBuf};

use color_eyre::Result;
use jiff::tz::TimeZone;
use toml::Value;

pub use args::{
    ConfigArgs, Flags, NotificationArgs, RecordingViewArgs, SamplingArgs, ScreenArgs, SettingsArgs,
    is_given,
};
#[cfg(local)]
pub use args::{GlyphArgs, IncidentArgs};
#[cfg(local)]
pub use collectors::{
    CANDIDATES_VARIABLE, KERNEL_LOG_VARIABLE, LIBRARY_VARIABLE, agent_options, kernel_log_path,
};
pub use file::{ConfigPath, Group, Origin, SettingError, VARIABLE as CONFIG_VARIABLE, read_text};
use gputop_model::text::quoted;
pub use quantities::{length_argument, maps_argument, size_argument};
#[cfg(local)]
pub use quantities::{limit_argument, sampled_time_argument, watch_argument};
pub use terminal::{TerminalEnvironment, has_terminal};
pub use themes::Themes;

use self::definition::{AUTO, SETTINGS, SettingDef, Values};
use self::file::WrittenSettings;
use crate::dashboard::recording::Recording;
use crate::incident::Store;
use crate::incident::{IncidentSink, Notifications};
use crate::tui::Environment;
use crate::tui::app::App;
use crate::tui::clipboard::Clipboard;
use crate::tui::colours::Colours;
use crate::tui::keymap::{Binding, Keymap};
use crate::tui::theme::Theme;
use crate::user_files::DirectoryError;

/// Settings after applying precedence and defaults.
pub struct Settings {
    pub values: Values,
    pub theme: Theme,
    pub keymap: Keymap,
    /// Notifications that are not sent yet.
    pub notifications: Notifications,
    pub groups: Vec<Group>,
    /// Reason why the user's directories are not used, if any.
    pub unread: Option<DirectoryError>,
    /// Path of the configuration file, which may not exist.
    config: Option<PathBuf>,
    clipboard: Clipboard,
    written: WrittenSettings,
}

impl Settings {
    pub fn read(flags: &Flags) -> Result<Self, SettingError> {
        let (config, unread) = match ConfigPath::find(flags.config.as_deref()) {
            Ok(config) => (Some(config), None),
            Err(DirectoryError::NoHome) => (None, None),
            Err(why) => (None, Some(why)),
        };
        let file = config.as_ref().map(WrittenSettings::read).transpose()?;
        let variable = |name: &str| Some(std::env::var_os(name)?.to_string_lossy().into_owned());
        let written = file.unwrap_or_default().overridden(flags.values.clone(), &variable)?;
        let config = config.map(|config| config.path);
        let themes = config.as_deref().map_or_else(Themes::default, Themes::beside);
        let terminal = TerminalEnvironment::read();
        let settings = Self::resolve(written, &themes, &terminal, TimeZone::system())?;
        Ok(Self { unread, config, ..settings })
    }

    /// Reads settings from the text of a configuration file alone, without flags or environment.
    pub fn from_text(text: &str) -> Result<Self, SettingError> {
        let written = WrittenSettings::parse(Path::new("config.toml"), text)?;
        let terminal = TerminalEnvironment::read();
        Self::resolve(written, &Themes::default(), &terminal, TimeZone::UTC)
    }

    /// Returns the incident store and the `on_incident` command. `None` if the user has no home directory.
    pub fn incident_sink(&self) -> Option<IncidentSink> {
        Some(IncidentSink {
            store: Store::of_this_user().ok()?,
            on_incident: self.values.on_incident.clone(),
            on_idle: self.values.on_idle,
            on_exit: self.values.on_exit,
            record_names: self.values.record_names,
            notifications: self.notifications.clone(),
        })
    }

    fn resolve(
        written: WrittenSettings,
        themes: &Themes,
        terminal: &TerminalEnvironment,
        zone: TimeZone,
    ) -> Result<Self, SettingError> {
        let mut values = Values::of(&written)?;
        if written.origin("ascii") == Origin::Default {
            values.ascii = !terminal.is_utf8();
        }
        let colours = match values.theme.as_str() {
            AUTO => Colours::built_in(terminal.palette()),
            name => themes.find(name, &written.origin("theme"))?,
        };
        for (name, is_on) in [("on_idle", values.on_idle.is_some()), ("on_exit", values.on_exit)] {
            if is_on && values.on_incident.is_none() {
                let what = format!("{name} needs a command; set on_incident as well");
                return Err(written.origin(name).error(what));
            }
        }
        Ok(Self {
            theme: Theme::with(colours, values.ascii, zone),
            values,
            keymap: keymap(&written.bindings)?,
            notifications: Notifications::default(),
            groups: written.groups.clone(),
            unread: None,
            config: None,
            clipboard: terminal.clipboard(),
            written,
        })
    }

    pub fn app(&self, recording: Option<Recording>) -> App {
        let mut app = App::new(self.theme.clone(), self.keymap.clone(), recording);
        self.values.apply(&mut app);
        app
    }

    pub fn environment(&self) -> Environment {
        Environment {
            clipboard: self.clipboard,
            directory: PathBuf::from("."),
            config: self.config.clone(),
        }
    }

    pub fn resolved(&self) -> Vec<(&'static SettingDef, Value, Origin)> {
        let values = SETTINGS.iter().zip(self.values.shown());
        values.map(|(def, value)| (def, value, self.written.origin(def.name))).collect()
    }

    pub fn origin_of_keys(&self, action: &str) -> Origin {
        origin_of(&self.written.bindings, action).unwrap_or(Origin::Default)
    }
}

fn keymap(bindings: &[(Binding, Origin)]) -> Result<Keymap, SettingError> {
    let own: Vec<Binding> = bindings.iter().map(|(own, _)| own.clone()).collect();
    Keymap::with(&own).map_err(|what| {
        let origin = |action| origin_of(bindings, action);
        what.actions().into_iter().find_map(origin).unwrap_or(Origin::Default).error(what)
    })
}

fn origin_of(bindings: &[(Binding, Origin)], action: &str) -> Option<Origin> {
    let (_, origin) = bindings.iter().find(|(b, _)| quoted(&b.action) == action)?;
    Some(origin.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::glyphs;
    use crate::tui::theme::Palette;

    #[test]
    fn chooses_palette_and_glyphs_from_the_environment() {
        let environment = |no_color: Option<&str>, colorterm: &str, term: &str, locale: &str| {
            TerminalEnvironment {
                no_color: no_color.map(Into::into),
                colorterm: colorterm.into(),
                term: term.into(),
                locale: locale.into(),
                tmux: false,
            }
        };
        let table = [
            (
                environment(Some("1"), "truecolor", "xterm-256color", "en_US.UTF-8"),
                Palette::None,
                false,
            ),
            (
                environment(Some(""), "truecolor", "xterm-256color", "en_US.UTF-8"),
                Palette::Dark,
                false,
            ),
            (environment(None, "", "screen", "C.utf8"), Palette::Sixteen, false),
            (environment(None, "", "dumb", "C"), Palette::None, true),
            (environment(None, "", "xterm", ""), Palette::Sixteen, true),
        ];
        for (environment, palette, ascii) in table {
            let settings = Settings::resolve(
                WrittenSettings::default(),
                &Themes::default(),
                &environment,
                TimeZone::UTC,
            );
            let theme = settings.expect("defaults").theme;
            assert_eq!(theme.colours, Colours::built_in(palette), "{environment:?}");
            assert_eq!(theme.glyphs == glyphs::ASCII, ascii, "{environment:?}");
        }
    }
}
