//! Wraps text to a width in terminal cells.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{StyledLine, Tone};
use crate::model::Incident;
use crate::model::incident::FixKind;

/// Wraps `text` to `width`. Code between backticks stays on one line if it fits. A word that is wider than `width` gets a
/// line of its own.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words_and_code(text, width) {
        let word = word.as_str();
        match lines.last_mut() {
            Some(line) if line.width() + 1 + word.width() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Splits `text` at spaces, except within code between backticks that is not wider than `width`.
fn words_and_code(text: &str, width: usize) -> Vec<String> {
    let is_open = |piece: &str| piece.matches('`').count() % 2 == 1;
    let mut pieces: Vec<String> = Vec::new();
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        let mut piece = word.to_owned();
        let mut ahead = words.clone();
        while is_open(&piece) && piece.width() <= width {
            let Some(next) = ahead.next() else { break };
            piece.push(' ');
            piece.push_str(next);
        }
        if !is_open(&piece) && piece.width() <= width {
            words = ahead;
            pieces.push(piece);
        } else {
            pieces.push(word.to_owned());
        }
    }
    pieces
}

/// Appends `text` after `label`, which is padded to `indent` cells. Further lines are indented by the same amount.
pub(super) fn labelled(out: &mut String, label: &str, text: &str, indent: usize, width: usize) {
    let mut label = format!("{label:<indent$}");
    for line in wrapped(text, width.saturating_sub(indent).max(16)) {
        out.push_str(&label);
        out.push_str(&line);
        out.push('\n');
        label = " ".repeat(indent);
    }
}

/// Text to copy that [`wrap_lines`] wraps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrapped {
    /// Only shell commands, which can be continued on the next line.
    Commands,
    All,
}

/// Wraps the overlong lines of an explanation.
pub fn wrap_lines(
    lines: Vec<StyledLine>,
    incident: &Incident,
    width: usize,
    wrapped: Wrapped,
) -> Vec<StyledLine> {
    let is_shell = |text: &str| {
        let fix = incident.fixes.iter().find(|fix| fix.change == text);
        fix.is_some_and(|fix| matches!(fix.kind, FixKind::Env | FixKind::Command))
    };
    let mut out = Vec::new();
    for line in lines {
        match line.0.as_slice() {
            // Only text to copy can have several lines.
            [(Tone::Change, text)] => {
                let is_command = is_shell(text);
                for part in text.split('\n') {
                    let part = StyledLine(vec![(Tone::Change, part.to_owned())]);
                    match is_command || wrapped == Wrapped::All {
                        true => out.extend(wrap_line(part, width, is_command)),
                        false => out.push(part),
                    }
                }
            }
            _ => out.extend(wrap_line(line, width, false)),
        }
    }
    out
}

/// Wraps an overlong line at a space or within a path, without losing text. A continued shell command line ends with a
/// backslash, so that copying all its lines yields the same command. It is not broken between single quotes, where a
/// backslash does not continue a line.
fn wrap_line(line: StyledLine, width: usize, is_command: bool) -> Vec<StyledLine> {
    let is_wide = line.0.iter().map(|(_, text)| text.width()).sum::<usize>() > width;
    let has_marks = line.0.iter().any(|(tone, _)| *tone == Tone::Mark);
    if !is_wide || has_marks || width == 0 {
        return vec![line];
    }
    let room = width.saturating_sub(usize::from(is_command)).max(1);
    let all: Vec<(Tone, char)> =
        line.0.iter().flat_map(|(tone, text)| text.chars().map(|c| (*tone, c))).collect();
    let mut rest = all.as_slice();
    let mut lines = Vec::new();
    while let Some(end) = line_end(rest, room, is_command) {
        let (first, after) = rest.split_at(end);
        lines.push(styled(first));
        if let Some(StyledLine(pieces)) = lines.last_mut().filter(|_| is_command) {
            pieces.push((Tone::Change, "\\".to_owned()));
        }
        rest = after;
    }
    lines.push(styled(rest));
    lines
}

/// Returns the number of characters in the first wrapped line, or `None` if the whole line fits or cannot be broken.
fn line_end(text: &[(Tone, char)], width: usize, is_command: bool) -> Option<usize> {
    let mut used = 0;
    let mut end = None;
    let mut is_quoted = false;
    for (at, (_, c)) in text.iter().enumerate() {
        used += c.width().unwrap_or(0);
        if used > width && at > 0 && (end.is_some() || !is_quoted) {
            return Some(end.unwrap_or(at));
        }
        is_quoted ^= is_command && *c == '\'';
        if matches!(c, ' ' | '/') && !is_quoted {
            end = Some(at + 1);
        }
    }
    None
}

/// Joins consecutive characters with the same tone.
fn styled(text: &[(Tone, char)]) -> StyledLine {
    let mut pieces: Vec<(Tone, String)> = Vec::new();
    for (tone, c) in text {
        match pieces.last_mut() {
            Some((last, piece)) if last == tone => piece.push(*c),
            _ => pieces.push((*tone, c.to_string())),
        }
    }
    StyledLine(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::explanation::{Detail, Style, text};
    use crate::model::incident::Fix;

    #[test]
    fn wraps_at_blanks_and_keeps_long_words_whole() {
        assert_eq!(wrapped("a bb  ccc dddddddd", 6), ["a bb", "ccc", "dddddddd"]);
        assert_eq!(wrapped("", 6), [""; 0]);
        assert_eq!(wrapped("run `a bb c`, then", 10), ["run", "`a bb c`,", "then"]);
        assert_eq!(wrapped("run `a bb ccc dd` or `e", 8), ["run `a", "bb ccc", "dd` or", "`e"]);
    }

    fn wrapped_line(text: &str, width: usize, is_command: bool) -> Vec<String> {
        let line = StyledLine(vec![(Tone::Change, text.to_owned())]);
        let text = |line: StyledLine| line.0.into_iter().map(|(_, text)| text).collect();
        wrap_line(line, width, is_command).into_iter().map(text).collect()
    }

    #[test]
    fn wraps_at_words_and_within_paths() {
        assert_eq!(wrapped_line("a bb ccc", 5, false), ["a bb ", "ccc"]);
        assert_eq!(wrapped_line("/opt/venv/bin/python", 12, false), ["/opt/venv/", "bin/python"]);
        assert_eq!(wrapped_line("abcdef", 4, false), ["abcd", "ef"]);
        assert_eq!(wrapped_line("数据集", 4, false), ["数据", "集"]);
    }

    #[test]
    fn wrapped_shell_commands_stay_the_same_command() {
        let command = "A=expandable_segments:True /opt/venv/bin/python3 fragment.py 0 94";
        let lines = wrapped_line(command, 30, true);
        assert!(lines.len() > 2 && lines.iter().all(|line| line.len() <= 30), "{lines:?}");
        assert_eq!(lines.join("\n").replace("\\\n", ""), command);
        let quoted = "dmesg | grep -iE 'xid|out of memory|killed process' | tail -20 -c 100";
        let lines = wrapped_line(quoted, 24, true);
        assert_eq!(lines[1], "'xid|out of memory|killed process'\\");
        assert_eq!(lines.join("\n").replace("\\\n", ""), quoted);
    }

    #[test]
    fn a_command_is_wrapped_only_on_a_terminal() {
        let command = format!("{} python train.py", "A=expandable_segments:True ".repeat(4).trim());
        let fix = Fix { change: command.clone(), kind: FixKind::Env, ..Fix::default() };
        let incident = Incident { fixes: vec![fix], ..Incident::default() };
        let printed = |height| {
            let style = Style { width: 60, colour: false, height };
            text(std::slice::from_ref(&incident), Detail::Full, &style)
        };
        assert!(printed(None).lines().any(|line| line == command));
        let wrapped = printed(Some(24));
        assert!(wrapped.lines().all(|line| line.len() <= 60), "{wrapped}");
        assert!(wrapped.replace("\\\n", "").lines().any(|line| line == command), "{wrapped}");
    }
}
