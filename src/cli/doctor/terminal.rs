//! What the terminal takes from the screen: its size, colours, characters, the clipboard, the mouse; with the command
//! that gives it back. In tmux that is often a setting of tmux, so tmux is asked.

use super::Check;
use crate::cli::settings::{TerminalEnvironment, has_terminal};
use crate::model::text::visible;
use crate::tui::clipboard::Clipboard;
use crate::tui::screens::is_small;
use crate::tui::theme::Palette;
use crate::tui::tmux;
use ratatui::layout::Rect;

/// What a tmux says of itself and of the terminal in front of it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tmux {
    version: String,
    /// Features that tmux believes its terminal to have; empty while nobody is attached.
    features: Vec<String>,
    utf8: bool,
    set_clipboard: String,
    allow_passthrough: String,
}

/// In the order of the fields.
const QUESTION: &str =
    "#{version}|#{client_termfeatures}|#{client_utf8}|#{set-clipboard}|#{allow-passthrough}";

impl Tmux {
    /// # Errors
    /// A clause on why tmux does not say.
    fn ask() -> Result<Self, String> {
        let answer = tmux::run(&["display-message", "-p", QUESTION], "")?;
        Self::parse(&visible(answer.trim().as_bytes(), 1000))
            .ok_or_else(|| "`tmux display-message`: not in the form asked for".into())
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
            // Before 3.3 it was always let through.
            allow_passthrough: match allow_passthrough {
                "" => "not an option yet".into(),
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

/// `mouse`: whether the settings want it; `None` when they are not to be had.
pub(super) fn checks(mouse: Option<bool>) -> Vec<Check> {
    let environment = TerminalEnvironment::read();
    let tmux = environment.tmux.then(Tmux::ask);
    let known = tmux.as_ref().and_then(|asked| asked.as_ref().ok());
    let size = crossterm::terminal::size().ok();
    let far = ["SSH_CONNECTION", "SSH_TTY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some());
    vec![
        check_size(size, has_terminal(), environment.tmux),
        check_colours(&environment, known),
        check_characters(&environment, known),
        check_clipboard(environment.clipboard(), tmux.as_ref(), far),
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
        let found = "standard output is none, so there is no screen; `once`, `record` and `explain` need none";
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
            let found =
                format!("{width}x{height}: a few lines instead of tables, which need 60x10");
            check(name, true, found, zoom)
        }
        (false, true) => {
            let found =
                format!("{width}x{height}: from 100x30 on more columns and charts are shown");
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
            "none, since TERM=dumb".into(),
            &["export TERM=xterm-256color"],
        ),
        Palette::None => check(
            name,
            false,
            "none, since NO_COLOR is set".into(),
            &["unset NO_COLOR"],
        ),
        Palette::Sixteen => {
            let found = format!(
                "the terminal's own 16 (TERM={term}); with COLORTERM=truecolor shades of 24 bits"
            );
            let mut fix = Vec::new();
            if tmux.is_some_and(|tmux| tmux.is_attached() && !tmux.has("RGB")) {
                fix.push("tmux set -as terminal-features ',*:RGB'    (then detach and attach)");
            }
            fix.push("export COLORTERM=truecolor    (if the terminal can show 24-bit colour)");
            check(name, true, found, &fix)
        }
        _ => {
            let found = format!("24 bits (TERM={term})");
            // tmux shows the nearest of 256 then: nothing is lost but shades.
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
        let found = "ASCII, since the locale is not UTF-8".into();
        return check(name, false, found, &["export LC_ALL=C.UTF-8"]);
    }
    if tmux.is_some_and(|tmux| tmux.is_attached() && !tmux.utf8) {
        let found = "UTF-8, but tmux takes its terminal for one without and shows _ instead".into();
        return check(
            name,
            false,
            found,
            &["tmux detach; tmux -u attach", "gputop --ascii"],
        );
    }
    check(name, true, "UTF-8".into(), &[])
}

fn check_clipboard(clipboard: Clipboard, tmux: Option<&Result<Tmux, String>>, far: bool) -> Check {
    let name = "clipboard (y)";
    match (clipboard, tmux) {
        (Clipboard::Tmux, Some(Ok(tmux))) => check_tmux_clipboard(tmux),
        (Clipboard::Tmux, asked) => {
            let why = asked.and_then(|asked| asked.as_ref().err());
            let why = why.map_or("", String::as_str);
            let found = format!("TMUX is set, but that tmux cannot be asked: {why}");
            check(name, false, found, &["unset TMUX"])
        }
        (Clipboard::Terminal, _) => {
            let found = "by OSC 52, which the terminal may ignore (xterm does unless allowWindowOps is set, GNU screen always)";
            // Only the tmux on the other side of ssh knows of itself.
            let fix: &[&str] = match far {
                true => {
                    &["tmux set -s set-clipboard on    (in a tmux from which you came here by ssh)"]
                }
                false => &[],
            };
            check(name, true, found.into(), fix)
        }
    }
}

fn check_mouse(wanted: bool, in_tmux: bool) -> Check {
    let name = "mouse";
    if !wanted {
        let found = "left to the terminal, since the settings say so";
        return check(name, true, found.into(), &[]);
    }
    let mark = match in_tmux {
        true => "to mark text hold Shift, or use tmux's copy mode",
        false => "to mark text hold Shift",
    };
    check(
        name,
        true,
        format!("clicks and the wheel are taken; {mark}"),
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
        let found = format!("tmux {version}, with no terminal in front of it; {options}");
        return check(name, true, found, &[]);
    }
    if !tmux.has("clipboard") {
        let found = format!(
            "tmux {version} keeps it: it does not take its terminal for one with a clipboard; {options}"
        );
        let fix = ["tmux set -as terminal-features ',*:clipboard'    (then detach and attach)"];
        return check(name, false, found, &fix);
    }
    let found = format!("tmux {version} hands it on to its terminal; {options}");
    // What runs here does not need it, what runs behind an ssh in this tmux does.
    let fix: &[&str] = match tmux.set_clipboard.as_str() {
        "on" => &[],
        _ => {
            &["tmux set -s set-clipboard on    (for a gputop that you reach by ssh from this tmux)"]
        }
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
    fn what_tmux_says_is_taken_apart() {
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
    fn each_limit_comes_with_the_command_that_mends_it() {
        let fix = |check: Check| (check.works, check.fix.join("\n"));
        let (bare, able) = (tmux("title"), tmux("clipboard,RGB"));
        let dumb = environment("dumb", "");
        let screen = environment("screen", "");
        let ascii = TerminalEnvironment {
            locale: "C".into(),
            ..environment("xterm", "truecolor")
        };
        let blind = Tmux {
            utf8: false,
            ..able.clone()
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
                check_colours(&screen, Some(&bare)),
                true,
                "terminal-features ',*:RGB'",
            ),
            (
                check_colours(&environment("tmux-256color", "truecolor"), Some(&able)),
                true,
                "",
            ),
            (
                check_characters(&ascii, None),
                false,
                "export LC_ALL=C.UTF-8",
            ),
            (
                check_characters(&screen, Some(&blind)),
                false,
                "tmux -u attach",
            ),
            (
                check_clipboard(Clipboard::Tmux, Some(&Ok(bare)), false),
                false,
                "',*:clipboard'",
            ),
            (
                check_clipboard(Clipboard::Tmux, Some(&Ok(able)), false),
                true,
                "set-clipboard on",
            ),
            (
                check_clipboard(Clipboard::Tmux, Some(&Err("gone".into())), false),
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
        for (at, (check, works, wanted)) in table.into_iter().enumerate() {
            let (does, fix) = fix(check);
            assert_eq!(does, works, "{at}: {fix}");
            assert!(
                fix.contains(wanted) && fix.is_empty() == wanted.is_empty(),
                "{at}: {fix}"
            );
        }
    }
}
