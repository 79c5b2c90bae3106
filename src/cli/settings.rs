//! What the user wrote, what the environment says, and what follows from both.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use color_eyre::Result;
use color_eyre::eyre::{WrapErr, bail};
use jiff::SignedDuration;
use jiff::tz::TimeZone;

use crate::collect::agent;
use crate::collect::nvml::library::LIBRARY_VARIABLE;
use crate::model::units::Millis;
use crate::tui::app::{App, Recording};
use crate::tui::keymap::{DEFAULT, Keymap};
use crate::tui::theme::{Palette, Theme};

/// How things are drawn.
#[derive(Debug, Clone, Default, Args)]
pub struct DisplayArgs {
    /// Colours: for a dark or a light background, the terminal's own 16, or none; `auto` looks at NO_COLOR,
    /// COLORTERM and TERM
    #[arg(long, value_enum, default_value_t = ThemeName::Auto, global = true)]
    pub theme: ThemeName,
    /// Draw with ASCII characters only (the default where the locale is not UTF-8)
    #[arg(long, global = true)]
    pub ascii: bool,
    /// Leave the mouse to the terminal, as for selecting text (or hold Shift)
    #[arg(long, global = true)]
    pub no_mouse: bool,
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

/// What the environment says about drawing.
#[derive(Debug, Clone, Default)]
pub struct TerminalEnvironment {
    pub no_color: Option<OsString>,
    pub colorterm: String,
    pub term: String,
    /// The first that is set of LC_ALL, LC_CTYPE, LANG.
    pub locale: String,
}

impl TerminalEnvironment {
    pub fn read() -> Self {
        let text = |name: &str| std::env::var(name).unwrap_or_default();
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .iter()
            .map(|name| text(name))
            .find(|value| !value.is_empty());
        Self {
            no_color: std::env::var_os("NO_COLOR"),
            colorterm: text("COLORTERM"),
            term: text("TERM"),
            locale: locale.unwrap_or_default(),
        }
    }

    fn is_utf8(&self) -> bool {
        let locale = self.locale.to_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    }

    fn palette(&self) -> Palette {
        if self
            .no_color
            .as_ref()
            .is_some_and(|value| !value.is_empty())
            || self.term == "dumb"
        {
            return Palette::None;
        }
        let many = matches!(self.colorterm.as_str(), "truecolor" | "24bit")
            || self.term.ends_with("-direct");
        if many {
            Palette::Dark
        } else {
            Palette::Sixteen
        }
    }
}

impl DisplayArgs {
    pub fn theme(&self, environment: &TerminalEnvironment, zone: TimeZone) -> Theme {
        let palette = match self.theme {
            ThemeName::Auto => environment.palette(),
            ThemeName::Dark => Palette::Dark,
            ThemeName::Light => Palette::Light,
            ThemeName::Sixteen => Palette::Sixteen,
            ThemeName::None => Palette::None,
        };
        Theme::new(palette, self.ascii || !environment.is_utf8(), zone)
    }

    /// An app that shows what this user sees best.
    pub fn app(&self, recording: Option<Recording>) -> Result<App> {
        let theme = self.theme(&TerminalEnvironment::read(), TimeZone::system());
        let keymap = Keymap::parse(DEFAULT).wrap_err("the built-in keymap")?;
        let mut app = App::new(theme, keymap, recording);
        app.mouse = !self.no_mouse;
        Ok(app)
    }
}

/// `1s`, `500ms`, `2m`: from 100 ms, below which NVML costs more than it tells, to an hour.
pub fn parse_interval(text: &str) -> Result<Millis> {
    let span: SignedDuration = text
        .parse()
        .wrap_err_with(|| format!("`{text}` is no time; write 1s, 500ms or 2m"))?;
    match u64::try_from(span.as_millis()) {
        Ok(ms @ 100..=3_600_000) => Ok(Millis(ms)),
        _ => bail!("an interval of {text} is out of range; from 100ms to 1h"),
    }
}

/// Clap wants a plain error.
pub fn interval_argument(text: &str) -> Result<Millis, String> {
    parse_interval(text).map_err(|report| report.to_string())
}

/// What the collectors are started with.
pub fn agent_options(interval: Millis) -> agent::Options {
    agent::Options {
        interval,
        library: std::env::var_os(LIBRARY_VARIABLE),
        proc_root: PathBuf::from("/proc"),
        // Whoever lets a person send signals says so.
        readonly: true,
    }
}

/// True when there is a person to show a screen to.
pub fn has_terminal() -> bool {
    std::io::stdout().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_bounded_and_explained() {
        assert_eq!(parse_interval("1s").expect("a second"), Millis(1_000));
        assert_eq!(parse_interval("250ms").expect("a quarter"), Millis(250));
        assert_eq!(parse_interval("1m30s").expect("ninety"), Millis(90_000));
        for wrong in ["", "1", "0s", "-1s", "5ms", "2h", "soon"] {
            let error = interval_argument(wrong).expect_err(wrong);
            assert!(
                error.contains("write 1s") || error.contains("from 100ms"),
                "{wrong}: {error}"
            );
        }
    }

    #[test]
    fn colours_follow_the_environment() {
        let environment = |no_color: Option<&str>, colorterm: &str, term: &str, locale: &str| {
            TerminalEnvironment {
                no_color: no_color.map(Into::into),
                colorterm: colorterm.into(),
                term: term.into(),
                locale: locale.into(),
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
            (
                environment(None, "", "screen", "C.utf8"),
                Palette::Sixteen,
                false,
            ),
            (environment(None, "", "dumb", "C"), Palette::None, true),
            (environment(None, "", "xterm", ""), Palette::Sixteen, true),
        ];
        for (environment, palette, ascii) in table {
            let theme = DisplayArgs::default().theme(&environment, TimeZone::UTC);
            assert_eq!(theme.palette, palette, "{environment:?}");
            assert_eq!(
                theme.glyphs == crate::tui::theme::ASCII,
                ascii,
                "{environment:?}"
            );
        }
    }
}
