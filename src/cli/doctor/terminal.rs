//! Checks of the terminal: size, colours, characters and clipboard, with a command to fix each limitation.

use gputop_model::text::visible;
use ratatui::layout::Rect;

use crate::cli::doctor::check::Check;
use crate::cli::settings::{TerminalEnvironment, has_terminal};
use crate::tui::clipboard::Clipboard;
use crate::tui::screen::is_small;
use crate::tui::theme::Palette;
use crate::tui::tmux;

pub(super) fn checks() -> Vec<Check> {
    let environment = TerminalEnvironment::read();
    // A pipe has no size, and says nothing about the user's terminal.
    let size = crossterm::terminal::size().ok().filter(|_| has_terminal());
    let mut checks = Vec::from_iter(size.map(check_size));
    checks.extend([
        check_colours(&environment),
        check_characters(environment.is_utf8()),
        match environment.clipboard() {
            Clipboard::Tmux => check_tmux_clipboard(
                tmux::run(&["show-options", "-sv", "set-clipboard"], "").as_deref(),
            ),
            Clipboard::Terminal => Check::new(
                CLIPBOARD,
                true,
                "with OSC 52, which some terminals ignore (xterm unless allowWindowOps is set, GNU screen always)",
                "",
            ),
        },
    ]);
    checks
}

const CLIPBOARD: &str = "clipboard (y)";

fn check_size((width, height): (u16, u16)) -> Check {
    let limit = if is_small(Rect::new(0, 0, width, height)) {
        ": too small for tables, which require 60x10"
    } else if width < 100 || height < 30 {
        ": a terminal of at least 100x30 shows more columns and charts"
    } else {
        ""
    };
    Check::new("terminal", true, format!("{width}x{height}{limit}"), "")
}

fn check_colours(environment: &TerminalEnvironment) -> Check {
    let term = visible(environment.term.as_bytes(), 40);
    let (works, found, fix) = match environment.palette() {
        Palette::None if environment.term == "dumb" => {
            (false, "none, because TERM=dumb".to_owned(), "export TERM=xterm-256color")
        }
        Palette::None => (false, "none, because NO_COLOR is set".to_owned(), "unset NO_COLOR"),
        Palette::Sixteen => (
            true,
            format!("the terminal's 16 colours (TERM={term})"),
            "export COLORTERM=truecolor    (if the terminal supports 24-bit colours)",
        ),
        _ => (true, format!("24-bit (TERM={term})"), ""),
    };
    Check::new("colours", works, found, fix)
}

fn check_characters(is_utf8: bool) -> Check {
    if is_utf8 {
        Check::new("characters", true, "UTF-8", "")
    } else {
        Check::new(
            "characters",
            false,
            "ASCII, because the locale is not UTF-8",
            "export LC_ALL=C.UTF-8",
        )
    }
}

/// Checks the clipboard in tmux. `option` is the value of set-clipboard, or the reason why tmux did not answer.
fn check_tmux_clipboard(option: Result<&str, &String>) -> Check {
    match option.map(str::trim) {
        Ok("on") => Check::new(CLIPBOARD, true, "with tmux (set-clipboard on)", ""),
        // tmux needs set-clipboard only if gputop runs on another host, in an ssh session inside this tmux. Otherwise
        // gputop passes the text to tmux directly.
        Ok(value) => Check::new(
            CLIPBOARD,
            true,
            format!("with tmux (set-clipboard {})", visible(value.as_bytes(), 20)),
            "tmux set -s set-clipboard on    (only for gputop in an ssh session inside this tmux)",
        ),
        Err(why) => Check::new(
            CLIPBOARD,
            false,
            format!("TMUX is set, but tmux cannot be queried: {why}"),
            "unset TMUX",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_comes_with_a_command_that_fixes_it() {
        let colours = |term: &str, colorterm: &str| {
            check_colours(&TerminalEnvironment {
                term: term.into(),
                colorterm: colorterm.into(),
                ..TerminalEnvironment::default()
            })
        };
        for (check, works, fix) in [
            (check_size((40, 6)), true, ""),
            (colours("dumb", ""), false, "export TERM=xterm-256color"),
            (colours("screen", ""), true, "export COLORTERM=truecolor"),
            (colours("xterm", "truecolor"), true, ""),
            (check_characters(false), false, "export LC_ALL=C.UTF-8"),
            (check_characters(true), true, ""),
            (check_tmux_clipboard(Ok("external\n")), true, "tmux set -s set-clipboard on"),
            (check_tmux_clipboard(Ok("on\n")), true, ""),
            (check_tmux_clipboard(Err(&"exited".into())), false, "unset TMUX"),
        ] {
            let fixes = check.fix.join("\n");
            assert_eq!(check.works, works, "{check:?}");
            assert!(fixes.starts_with(fix) && fixes.is_empty() == fix.is_empty(), "{check:?}");
        }
    }
}
