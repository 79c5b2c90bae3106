//! Checks of the terminal: size, colours, characters, clipboard and mouse, with a command that fixes each limit. In tmux
//! many of them depend on tmux settings, so tmux is queried.

use super::Check;
use crate::cli::settings::{TerminalEnvironment, has_terminal};
use crate::model::text::visible;
use crate::tui::clipboard::Clipboard;
use crate::tui::screens::is_small;
use crate::tui::theme::Palette;
use crate::tui::tmux;
use ratatui::layout::Rect;

/// Facts about tmux and the terminal that is attached to it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tmux {
    version: String,
    /// Terminal features that tmux detected. Empty if no terminal is attached.
    features: Vec<String>,
    utf8: bool,
    set_clipboard: String,
    allow_passthrough: String,
}

/// The format of the query, in the order of the fields of [`Tmux`].
const QUERY: &str =
    "#{version}|#{client_termfeatures}|#{client_utf8}|#{set-clipboard}|#{allow-passthrough}";

impl Tmux {
    /// Queries tmux. An error is a clause.
    fn query() -> Result<Self, String> {
        let answer = tmux::run(&["display-message", "-p", QUERY], "")?;
        Self::parse(&visible(answer.trim().as_bytes(), 1000))
            .ok_or_else(|| "`tmux display-message` returned an unexpected format".into())
    }

    fn parse(answer: &str) -> Option<Self> {
        let parts: Vec<&str> = answer.split('|').collect();
        let [version, features, utf8, set_clipboard, allow_passthrough] = parts[..] else {
            return None;
        };
        let features = features.split(',').filter(|feature| !feature.is_empty());
        Some(Self {
            version: version.into(),
            features: features.map(str::to_owned).collect(),
            utf8: utf8 == "1",
            set_clipboard: set_clipboard.into(),
            // tmux before 3.3 always allows it, and has no such option.
            allow_passthrough: match allow_passthrough {
                "" => "not available".into(),
                "0" => "off".into(),
                "1" => "on".into(),
                other => other.into(),
            },
        })
    }

    fn is_attached(&self) -> bool {
        !self.features.is_empty()
    }

    fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|has| has == feature)
    }
}

/// `mouse`: the setting, or `None` if the settings cannot be read.
pub(super) fn checks(mouse: Option<bool>) -> Vec<Check> {
    let environment = TerminalEnvironment::read();
    let tmux = environment.tmux.then(Tmux::query);
    let known = tmux.as_ref().and_then(|answer| answer.as_ref().ok());
    let size = crossterm::terminal::size().ok();
    let is_over_ssh = ["SSH_CONNECTION", "SSH_TTY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some());
    vec![
        check_size(size, has_terminal(), environment.tmux),
        check_colours(&environment, known),
        check_characters(&environment, known),
        check_clipboard(environment.clipboard(), tmux.as_ref(), is_over_ssh),
        check_mouse(mouse.unwrap_or(true), environment.tmux),
    ]
}

fn check(name: &'static str, works: bool, found: String, fix: &[&str]) -> Check {
    Check {
        name,
        works,
        found,
        fix: fix.iter().map(|fix| (*fix).to_owned()).collect(),
    }
}

fn check_size(size: Option<(u16, u16)>, is_terminal: bool, in_tmux: bool) -> Check {
    let name = "terminal";
    let Some((width, height)) = size.filter(|_| is_terminal) else {
        let found = "stdout is not a terminal, so the dashboard cannot start; `once`, `record` and `explain` work without";
        return check(name, false, found.into(), &[]);
    };
    let small = is_small(Rect::new(0, 0, width, height));
    let zoom: &[&str] = if in_tmux {
        &["tmux resize-pane -Z"]
    } else {
        &[]
    };
    match (small, width < 100 || height < 30) {
        (true, _) => {
            let found = format!("{width}x{height}: too small for tables, which require 60x10");
            check(name, true, found, zoom)
        }
        (false, true) => {
            let found = format!("{width}x{height}: more columns and charts are shown from 100x30");
            check(name, true, found, &[])
        }
        (false, false) => check(name, true, format!("{width}x{height}"), &[]),
    }
}

fn check_colours(environment: &TerminalEnvironment, tmux: Option<&Tmux>) -> Check {
    let name = "colours";
    let term = visible(environment.term.as_bytes(), 40);
    match environment.palette() {
        Palette::None if environment.term == "dumb" => check(
            name,
            false,
            "none, because TERM=dumb".into(),
            &["export TERM=xterm-256color"],
        ),
        Palette::None => check(
            name,
            false,
            "none, because NO_COLOR is set".into(),
            &["unset NO_COLOR"],
        ),
        Palette::Sixteen => {
            let found = format!(
                "16 colours of the terminal (TERM={term}); 24-bit colours require COLORTERM=truecolor"
            );
            let mut fix = Vec::new();
            if tmux.is_some_and(|tmux| tmux.is_attached() && !tmux.has("RGB")) {
                fix.push("tmux set -as terminal-features ',*:RGB'    (then detach and attach)");
            }
            fix.push("export COLORTERM=truecolor    (if the terminal supports 24-bit colours)");
            check(name, true, found, &fix)
        }
        _ => {
            let found = format!("24-bit (TERM={term})");
            // Without RGB tmux shows the nearest of 256 colours, so this counts as working.
            let fix: &[&str] = match tmux.is_some_and(|tmux| tmux.is_attached() && !tmux.has("RGB"))
            {
                true => &["tmux set -as terminal-features ',*:RGB'    (then detach and attach)"],
                false => &[],
            };
            check(name, true, found, fix)
        }
    }
}

fn check_characters(environment: &TerminalEnvironment, tmux: Option<&Tmux>) -> Check {
    let name = "characters";
    if !environment.is_utf8() {
        let found = "ASCII, because the locale is not UTF-8".into();
        return check(name, false, found, &["export LC_ALL=C.UTF-8"]);
    }
    if tmux.is_some_and(|tmux| tmux.is_attached() && !tmux.utf8) {
        let found = "UTF-8, but tmux detected a terminal without UTF-8 and shows _ instead".into();
        return check(
            name,
            false,
            found,
            &["tmux detach; tmux -u attach", "gputop --ascii"],
        );
    }
    check(name, true, "UTF-8".into(), &[])
}

fn check_clipboard(
    clipboard: Clipboard,
    tmux: Option<&Result<Tmux, String>>,
    is_over_ssh: bool,
) -> Check {
    let name = "clipboard (y)";
    match (clipboard, tmux) {
        (Clipboard::Tmux, Some(Ok(tmux))) => check_tmux_clipboard(tmux),
        (Clipboard::Tmux, answer) => {
            let why = answer.and_then(|answer| answer.as_ref().err());
            let why = why.map_or("", String::as_str);
            let found = format!("TMUX is set, but tmux cannot be queried: {why}");
            check(name, false, found, &["unset TMUX"])
        }
        (Clipboard::Terminal, _) => {
            let found = "with OSC 52, which some terminals ignore (xterm unless allowWindowOps is set, GNU screen always)";
            // A tmux on the client side of ssh cannot be detected from here.
            let fix: &[&str] = match is_over_ssh {
                true => &["tmux set -s set-clipboard on    (if you run ssh inside tmux)"],
                false => &[],
            };
            check(name, true, found.into(), fix)
        }
    }
}

fn check_mouse(is_enabled: bool, in_tmux: bool) -> Check {
    let name = "mouse";
    if !is_enabled {
        let found = "left to the terminal by the settings";
        return check(name, true, found.into(), &[]);
    }
    let selecting = match in_tmux {
        true => "to select text hold Shift, or use tmux's copy mode",
        false => "to select text hold Shift",
    };
    check(
        name,
        true,
        format!("handles clicks and the wheel; {selecting}"),
        &[],
    )
}

fn check_tmux_clipboard(tmux: &Tmux) -> Check {
    let name = "clipboard (y)";
    let options = format!(
        "set-clipboard {}, allow-passthrough {} (not needed)",
        tmux.set_clipboard, tmux.allow_passthrough
    );
    let version = &tmux.version;
    if !tmux.is_attached() {
        let found = format!("tmux {version}, not attached to a terminal; {options}");
        return check(name, true, found, &[]);
    }
    if !tmux.has("clipboard") {
        let found = format!(
            "tmux {version} does not pass text on: it detected a terminal without a clipboard; {options}"
        );
        let fix = ["tmux set -as terminal-features ',*:clipboard'    (then detach and attach)"];
        return check(name, false, found, &fix);
    }
    let found = format!("tmux {version} passes text on to its terminal; {options}");
    // A local gputop works without this; a gputop over ssh from this tmux requires it.
    let fix: &[&str] = match tmux.set_clipboard.as_str() {
        "on" => &[],
        _ => &["tmux set -s set-clipboard on    (for a gputop over ssh from this tmux)"],
    };
    check(name, true, found, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tmux(features: &str) -> Tmux {
        let answer = format!("3.3a|{features}|1|external|0");
        Tmux::parse(&answer).expect("five parts")
    }

    fn environment(term: &str, colorterm: &str) -> TerminalEnvironment {
        TerminalEnvironment {
            term: term.into(),
            colorterm: colorterm.into(),
            locale: "C.UTF-8".into(),
            ..TerminalEnvironment::default()
        }
    }

    #[test]
    fn parses_the_answer_of_tmux() {
        let tmux = tmux("bpaste,clipboard,256");
        assert!(tmux.utf8 && tmux.has("clipboard") && !tmux.has("RGB"));
        assert_eq!(
            (&*tmux.set_clipboard, &*tmux.allow_passthrough),
            ("external", "off")
        );
        assert!(!self::tmux("").is_attached());
        assert_eq!(Tmux::parse("3.3a|x"), None);
    }

    #[test]
    fn each_limit_comes_with_a_command_that_fixes_it() {
        let fix = |check: Check| (check.works, check.fix.join("\n"));
        let (limited, capable) = (tmux("title"), tmux("clipboard,RGB"));
        let dumb = environment("dumb", "");
        let screen = environment("screen", "");
        let ascii = TerminalEnvironment {
            locale: "C".into(),
            ..environment("xterm", "truecolor")
        };
        let without_utf8 = Tmux {
            utf8: false,
            ..capable.clone()
        };
        let table = [
            (
                check_size(Some((40, 6)), true, true),
                true,
                "resize-pane -Z",
            ),
            (check_size(Some((120, 40)), true, true), true, ""),
            (check_size(Some((80, 24)), false, false), false, ""),
            (
                check_colours(&dumb, None),
                false,
                "export TERM=xterm-256color",
            ),
            (
                check_colours(&screen, Some(&limited)),
                true,
                "terminal-features ',*:RGB'",
            ),
            (
                check_colours(&environment("tmux-256color", "truecolor"), Some(&capable)),
                true,
                "",
            ),
            (
                check_characters(&ascii, None),
                false,
                "export LC_ALL=C.UTF-8",
            ),
            (
                check_characters(&screen, Some(&without_utf8)),
                false,
                "tmux -u attach",
            ),
            (
                check_clipboard(Clipboard::Tmux, Some(&Ok(limited)), false),
                false,
                "',*:clipboard'",
            ),
            (
                check_clipboard(Clipboard::Tmux, Some(&Ok(capable)), false),
                true,
                "set-clipboard on",
            ),
            (
                check_clipboard(Clipboard::Tmux, Some(&Err("exited".into())), false),
                false,
                "unset TMUX",
            ),
            (
                check_clipboard(Clipboard::Terminal, None, true),
                true,
                "set-clipboard on",
            ),
            (check_clipboard(Clipboard::Terminal, None, false), true, ""),
        ];
        for (row, (check, works, expected)) in table.into_iter().enumerate() {
            let (does_work, fix) = fix(check);
            assert_eq!(does_work, works, "{row}: {fix}");
            assert!(
                fix.contains(expected) && fix.is_empty() == expected.is_empty(),
                "{row}: {fix}"
            );
        }
    }
}
