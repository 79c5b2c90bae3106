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
pub use quantities::{length_argument, maps_argument, size_argument};
#[cfg(local)]
pub use quantities::{limit_argument, watch_argument};
pub use terminal::{TerminalEnvironment, has_terminal};
pub use themes::Themes;

use self::definition::{
    ASCII, DENSITY, INTERVAL, MOUSE, ON_EXIT, ON_IDLE, ON_INCIDENT, PROBE_INTERVAL, READONLY,
    RECORD_NAMES, SettingDef, THEME,
};
use self::file::WrittenSettings;
use self::themes::AUTO;
use crate::dashboard::recording::Recording;
use crate::export::glyphs;
use crate::incident::Store;
use crate::incident::{IncidentSink, Notifications};
use crate::model::nearest_name::instead_of;
use crate::model::text::quoted;
use crate::model::{Millis, Permissions};
use crate::tui::Environment;
use crate::tui::app::App;
use crate::tui::chrome::interval_text;
use crate::tui::clipboard::Clipboard;
use crate::tui::colours::Colours;
use crate::tui::density::{DENSITIES, Density};
use crate::tui::keymap::{Binding, Keymap};
use crate::tui::theme::Theme;
use crate::user_files::DirectoryError;

const DEFAULT_INTERVAL: Millis = Millis(1_000);

/// Settings after applying precedence and defaults.
pub struct Settings {
    pub interval: Millis,
    pub theme: Theme,
    pub keymap: Keymap,
    pub density: Density,
    pub mouse: bool,
    /// True if signals and GPU probes are disabled.
    pub readonly: bool,
    /// Time between repeated probes while the probe screen is open.
    pub probe_interval: Option<Millis>,
    /// Command to run for each incident.
    pub on_incident: Option<String>,
    /// Time after which `on_incident` is run for an idle process.
    on_idle: Option<Millis>,
    /// True if `on_incident` is run for each GPU process that exits.
    on_exit: bool,
    /// True if names of tensors may be stored.
    pub record_names: bool,
    /// Notifications that are not sent yet.
    pub notifications: Notifications,
    pub groups: Vec<Group>,
    /// Reason why the user's directories are not used, if any.
    pub unread: Option<DirectoryError>,
    /// Path of the configuration file, which may not exist.
    config: Option<PathBuf>,
    clipboard: Clipboard,
    theme_name: String,
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
            on_incident: self.on_incident.clone(),
            on_idle: self.on_idle,
            on_exit: self.on_exit,
            record_names: self.record_names,
            notifications: self.notifications.clone(),
        })
    }

    fn resolve(
        written: WrittenSettings,
        themes: &Themes,
        terminal: &TerminalEnvironment,
        zone: TimeZone,
    ) -> Result<Self, SettingError> {
        let theme_name = written.text(&THEME).unwrap_or(AUTO).to_owned();
        let colours = match theme_name.as_str() {
            AUTO => Colours::built_in(terminal.palette()),
            name => themes.find(name, &written.origin(&THEME))?,
        };
        let on_incident = on_incident(&written);
        let on_idle = written.parsed(&ON_IDLE, quantities::idle_time)?.flatten();
        let on_exit = written.switch(&ON_EXIT).unwrap_or(false);
        for (def, is_on) in [(&ON_IDLE, on_idle.is_some()), (&ON_EXIT, on_exit)] {
            if is_on && on_incident.is_none() {
                let what =
                    format!("{} needs a command; set {} as well", def.name, ON_INCIDENT.name);
                return Err(written.origin(def).error(what));
            }
        }
        let ascii = written.switch(&ASCII).unwrap_or(!terminal.is_utf8());
        Ok(Self {
            interval: written
                .parsed(&INTERVAL, quantities::interval_argument)?
                .unwrap_or(DEFAULT_INTERVAL),
            theme: Theme::with(colours, ascii, zone),
            keymap: keymap(&written.bindings)?,
            density: written.parsed(&DENSITY, density)?.unwrap_or_default(),
            mouse: written.switch(&MOUSE).unwrap_or(true),
            readonly: written.switch(&READONLY).unwrap_or(false),
            on_incident,
            on_idle,
            on_exit,
            record_names: written.switch(&RECORD_NAMES).unwrap_or(false),
            notifications: Notifications::default(),
            probe_interval: written.parsed(&PROBE_INTERVAL, quantities::probe_interval)?.flatten(),
            groups: written.groups.clone(),
            unread: None,
            config: None,
            clipboard: terminal.clipboard(),
            theme_name,
            written,
        })
    }

    pub fn app(&self, recording: Option<Recording>) -> App {
        let mut app = App::new(self.theme.clone(), self.keymap.clone(), recording);
        app.ui.density = self.density;
        app.ui.mouse = self.mouse;
        app.host.permissions = Permissions::readonly(self.readonly);
        app.ui.probe_interval = self.probe_interval;
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
        let is_ascii = self.theme.glyphs == glyphs::ASCII;
        let density = self.written.text(&DENSITY).unwrap_or(DENSITY.default);
        let probe_interval = self.probe_interval.map(interval_text);
        let probe_interval = probe_interval.unwrap_or_else(|| PROBE_INTERVAL.default.into());
        let on_idle = self.on_idle.map(interval_text).unwrap_or_else(|| ON_IDLE.default.into());
        let values: [(&'static SettingDef, Value); 11] = [
            (&INTERVAL, interval_text(self.interval).into()),
            (&THEME, self.theme_name.clone().into()),
            (&DENSITY, density.into()),
            (&ASCII, is_ascii.into()),
            (&MOUSE, self.mouse.into()),
            (&READONLY, self.readonly.into()),
            (&ON_INCIDENT, self.on_incident.clone().unwrap_or_default().into()),
            (&ON_IDLE, on_idle.into()),
            (&ON_EXIT, self.on_exit.into()),
            (&RECORD_NAMES, self.record_names.into()),
            (&PROBE_INTERVAL, probe_interval.into()),
        ];
        values.into_iter().map(|(def, value)| (def, value, self.written.origin(def))).collect()
    }

    pub fn origin_of_keys(&self, action: &str) -> Origin {
        origin_of(&self.written.bindings, action).unwrap_or(Origin::Default)
    }
}

fn density(text: &str) -> Result<Density, String> {
    let names = DENSITIES.iter().map(|(name, _)| *name);
    let unknown = || format!("unknown density `{}`; {}", quoted(text), instead_of(text, names));
    Density::named(text).ok_or_else(unknown)
}

/// Returns the `on_incident` command. An empty value disables a command from the configuration file.
fn on_incident(written: &WrittenSettings) -> Option<String> {
    let command = written.text(&ON_INCIDENT)?.trim();
    (!command.is_empty()).then(|| command.to_owned())
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
