//! Environment variables that describe the terminal.

use std::ffi::OsString;
use std::io::IsTerminal;

use crate::tui::clipboard::Clipboard;
use crate::tui::theme::Palette;

#[derive(Debug, Clone, Default)]
pub struct TerminalEnvironment {
    pub no_color: Option<OsString>,
    pub colorterm: String,
    pub term: String,
    /// Value of the first of LC_ALL, LC_CTYPE and LANG that is set.
    pub locale: String,
    /// True inside a tmux pane.
    pub tmux: bool,
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
            tmux: !text("TMUX").is_empty(),
        }
    }

    pub fn is_utf8(&self) -> bool {
        let locale = self.locale.to_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    }

    pub fn clipboard(&self) -> Clipboard {
        if self.tmux { Clipboard::Tmux } else { Clipboard::Terminal }
    }

    pub fn palette(&self) -> Palette {
        let has_no_color = self.no_color.as_ref().is_some_and(|value| !value.is_empty());
        if has_no_color || matches!(self.term.as_str(), "" | "dumb" | "unknown") {
            return Palette::None;
        }
        let has_truecolor = matches!(self.colorterm.as_str(), "truecolor" | "24bit")
            || self.term.ends_with("-direct");
        if has_truecolor { Palette::Dark } else { Palette::Sixteen }
    }
}

pub fn has_terminal() -> bool {
    std::io::stdout().is_terminal()
}
